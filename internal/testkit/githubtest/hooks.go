package githubtest

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// A hook is told of events.
type hook struct {
	repository  *repository
	url, secret string
	events      []string
}

func (s *Server) createHook(r *repository, q *http.Request) (int, any, error) {
	in, err := read[struct {
		Events []string
		Config struct{ URL, Secret string }
	}](q)
	if err != nil {
		return 0, nil, err
	}
	s.hooks = append(s.hooks, hook{r, in.Config.URL, in.Config.Secret, in.Events})
	return http.StatusCreated, map[string]any{"id": len(s.hooks), "active": true, "events": in.Events}, nil
}

// tell sends an event to the webhooks that want it, without waiting for them.
func (s *Server) tell(r *repository, event string, payload map[string]any) {
	_, body, _ := r.get(nil)
	payload["repository"] = body
	text, err := json.Marshal(payload)
	if err != nil {
		panic(fmt.Sprintf("githubtest: %v", err))
	}
	for _, h := range s.hooks {
		if h.repository != r || !slices.Contains(h.events, event) {
			continue
		}
		s.events++
		request, err := Delivery(h.url, h.secret, event, fmt.Sprintf("00000000-0000-0000-0000-%012d", s.events), text)
		if err != nil {
			continue
		}
		go func() {
			if response, err := http.DefaultClient.Do(request); err == nil {
				response.Body.Close()
			}
		}()
	}
}

// Delivery returns the request that tells a webhook of an event, signed as GitHub does it.
func Delivery(url, secret, event, id string, payload []byte) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(payload)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "GitHub-Hookshot/0000000")
	r.Header.Set("X-GitHub-Event", event)
	r.Header.Set("X-GitHub-Delivery", id)
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return r, nil
}
