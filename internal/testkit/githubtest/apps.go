package githubtest

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// apps are GitHub Apps, which prove what they are and get tokens.
type apps struct {
	id     string
	key    *rsa.PublicKey
	tokens map[string]time.Time // until when they are good
}

// tokenTime is how long a token of an app's is good.
const tokenTime = time.Hour

// App installs a GitHub App in all repositories. Its tokens count besides the server's own, and alone may
// write check runs.
func (s *Server) App(id string, key *rsa.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps = apps{id, key, map[string]time.Time{}}
}

func (s *Server) appRoutes() {
	s.handle("GET /installation", func(r *repository, _ *http.Request) (int, any, error) {
		return http.StatusOK, map[string]any{"id": 71, "app_slug": "larder"}, nil
	})
	s.mux.HandleFunc("POST /app/installations/71/access_tokens", func(w http.ResponseWriter, r *http.Request) {
		in, err := read[struct{ Repositories []string }](r)
		if err != nil || len(in.Repositories) == 0 {
			refuse(w, http.StatusUnprocessableEntity, "name the repositories: a token for all of them is more than is needed here")
			return
		}
		token := fmt.Sprintf("ghs_%d", len(s.tokens))
		until := time.Now().Add(tokenTime)
		s.tokens[token] = until
		write(w, http.StatusCreated, map[string]any{"token": token, "expires_at": until.UTC().Format(time.RFC3339), "permissions": map[string]any{"checks": "write"}})
	})
}

// authorized tells whether a request is of a client that may do anything here.
func (s *Server) authorized(r *http.Request, now time.Time) bool {
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.URL.Path == "/app/installations/71/access_tokens" || strings.HasSuffix(r.URL.Path, "/installation") {
		return ok && s.proven(bearer, now)
	}
	if until, known := s.tokens[bearer]; known && now.Before(until) {
		return true
	}
	return r.Header.Get("Authorization") == "Bearer "+s.Token
}

// proven verifies an app's JSON Web Token.
func (s *Server) proven(token string, now time.Time) bool {
	parts := strings.Split(token, ".")
	if s.key == nil || len(parts) != 3 {
		return false
	}
	header, _ := base64.RawURLEncoding.DecodeString(parts[0])
	claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	var h struct{ Alg string }
	var c struct {
		Iat, Exp int64
		Iss      string
	}
	if json.Unmarshal(header, &h) != nil || json.Unmarshal(claims, &c) != nil || h.Alg != "RS256" || rsa.VerifyPKCS1v15(s.key, crypto.SHA256, sum[:], signature) != nil {
		return false
	}
	return c.Iss == s.id && c.Iat <= now.Unix() && c.Exp > now.Unix() && c.Exp-now.Unix() <= 600
}
