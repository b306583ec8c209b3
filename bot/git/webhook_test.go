package git_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/answers"
)

func delivery(body, signature string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Event", "push")
	if signature != "" {
		r.Header.Set("X-Hub-Signature-256", signature)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// The secret, the body and the signature are those of GitHub's documentation
// (https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries).
const (
	documentedSecret    = "It's a Secret to Everybody"
	documentedBody      = "Hello, World!"
	documentedSignature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
)

func TestReadDelivery(t *testing.T) {
	got, err := git.ReadDelivery(delivery(documentedBody, documentedSignature), documentedSecret, 100)
	if err != nil || got.Event != "push" || string(got.Payload) != documentedBody {
		t.Errorf("%+v, %v", got, err)
	}
	get := delivery(documentedBody, documentedSignature)
	get.Method = http.MethodGet
	unannounced := delivery(documentedBody, documentedSignature)
	unannounced.ContentLength = -1
	broken := delivery(documentedBody, documentedSignature)
	broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("Hello"), failing{}))
	for name, tt := range map[string]struct {
		r      *http.Request
		secret string
		most   int64
		status int
	}{
		"another method":          {get, documentedSecret, 100, 405},
		"no signature":            {delivery(documentedBody, ""), documentedSecret, 100, 401},
		"SHA-1 only":              {delivery(documentedBody, "", "X-Hub-Signature", "sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59"), documentedSecret, 100, 401},
		"no digits":               {delivery(documentedBody, "sha256="+strings.Repeat("x", 64)), documentedSecret, 100, 401},
		"a part of it":            {delivery(documentedBody, documentedSignature[:len(documentedSignature)-2]), documentedSecret, 100, 401},
		"another body":            {delivery(documentedBody+"!", documentedSignature), documentedSecret, 100, 401},
		"another secret":          {delivery(documentedBody, documentedSignature), documentedSecret + "!", 100, 401},
		"no secret":               {delivery("", "sha256=b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"), "", 100, 401},
		"as long as it may be":    {delivery(documentedBody, documentedSignature), documentedSecret, 13, 0},
		"too long":                {delivery(documentedBody, documentedSignature), documentedSecret, 12, 413},
		"too long, and no length": {unannounced, documentedSecret, 12, 413},
		"broken off":              {broken, documentedSecret, 100, 400},
		"a form":                  {delivery(documentedBody, documentedSignature, "Content-Type", "application/x-www-form-urlencoded"), documentedSecret, 100, 415},
		"with a charset":          {delivery(documentedBody, documentedSignature, "Content-Type", "application/JSON; charset=utf-8"), documentedSecret, 100, 0},
	} {
		_, err := git.ReadDelivery(tt.r, tt.secret, tt.most)
		var refused *answers.Failure
		status := 0
		if errors.As(err, &refused) {
			status = refused.Status
		}
		if status != tt.status || tt.status == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "Everybody") {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestCheckSecret(t *testing.T) {
	for secret, ok := range map[string]bool{"": false, "short": false, strings.Repeat("a", 16): true, strings.Repeat("a", 16) + "\n": false} {
		if err := git.CheckWebhookSecret(secret); (err == nil) != ok {
			t.Errorf("%q: %v", secret, err)
		}
	}
}

// Whatever comes, only the right signature gets anything through.
func FuzzReadDelivery(f *testing.F) {
	f.Add(documentedBody, documentedSignature, "application/json", int64(100))
	f.Add("", "sha256=", "", int64(0))
	f.Fuzz(func(t *testing.T, body, signature, media string, most int64) {
		r := delivery(body, signature, "Content-Type", media)
		got, err := git.ReadDelivery(r, documentedSecret, most&0xFFFF)
		if err == nil && (string(got.Payload) != body || int64(len(body)) > most&0xFFFF || body == documentedBody && !strings.EqualFold(signature, documentedSignature)) {
			t.Errorf("%q was taken with %q", body, signature)
		}
	})
}

func TestWebhook(t *testing.T) {
	var taken []string
	hook := &git.Webhook{Secret: documentedSecret, MaxBytes: 100, Logger: slog.New(slog.DiscardHandler), Handle: func(d git.Delivery) (int, string) {
		taken = append(taken, string(d.Payload))
		return http.StatusAccepted, "thanks"
	}}
	for _, tt := range []struct {
		r      *http.Request
		status int
		body   string
	}{
		{delivery(documentedBody, documentedSignature), 202, `{"message":"thanks"}`},
		{delivery(documentedBody, ""), 401, "X-Hub-Signature-256"},
		{httptest.NewRequest(http.MethodGet, "/", nil), 405, "POST"},
	} {
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, tt.r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if len(taken) != 1 {
		t.Errorf("taken %q", taken)
	}

	// Clients that send slowly do not keep more than a few from sending.
	blocked, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			r := delivery("", documentedSignature)
			r.Body, r.ContentLength = io.NopCloser(blocking{blocked, release}), -1
			hook.ServeHTTP(httptest.NewRecorder(), r)
		})
		<-blocked
	}
	w := httptest.NewRecorder()
	hook.ServeHTTP(w, delivery(documentedBody, documentedSignature))
	if w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d", w.Code)
	}
	close(release)
	all.Wait()
	w = httptest.NewRecorder()
	hook.ServeHTTP(w, delivery(documentedBody, documentedSignature))
	if w.Code != 202 {
		t.Errorf("%d", w.Code)
	}
}

// blocking is a body that has nothing until it is over.
type blocking struct{ blocked, release chan struct{} }

func (b blocking) Read([]byte) (int, error) {
	b.blocked <- struct{}{}
	<-b.release
	return 0, io.EOF
}

func TestPushedBranch(t *testing.T) {
	for payload, want := range map[string]string{
		`{"ref":"refs/heads/main","deleted":false}`: "main",
		`{"ref":"refs/heads/a/b"}`:                  "a/b",
		`{"ref":"refs/heads/main","deleted":true}`:  "-",
		`{"ref":"refs/tags/v1"}`:                    "-",
		`{"ref":"refs/heads/"}`:                     "-",
		`{"ref":7}`:                                 "-",
		`{}`:                                        "-",
		`[`:                                         "-",
	} {
		got, ok := git.PushedBranch([]byte(payload))
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%s: %q", payload, got)
		}
	}
}

func TestIsHost(t *testing.T) {
	for _, tt := range []struct {
		api, host string
		want      bool
	}{
		{"", "github.com", true}, {"", "www.GitHub.com", true}, {"https://api.github.com", "github.com", true},
		{"", "github.com.example.com", false}, {"", "gist.github.com", false}, {"", "", false},
		{"https://git.example.com/api/v3", "git.example.com", true}, {"https://git.example.com/api/v3", "github.com", false},
		{"https://api.octo.ghe.com", "octo.ghe.com", true}, {"http://127.0.0.1:3000", "127.0.0.1:3000", true}, {"http://127.0.0.1:3000", "127.0.0.1", false},
	} {
		if got := git.IsGitHubHost(tt.api, tt.host); got != tt.want {
			t.Errorf("%q, %q: %v", tt.api, tt.host, got)
		}
	}
}

func FuzzPushedBranch(f *testing.F) {
	f.Add([]byte(`{"ref":"refs/heads/main"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if branch, ok := git.PushedBranch(payload); ok && branch == "" {
			t.Errorf("%q", payload)
		}
	})
}
