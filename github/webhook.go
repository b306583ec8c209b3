package github

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
)

// A Delivery is what a webhook sent, once it is known who did.
type Delivery struct {
	// Event is what happened, "push" for instance; ID is the delivery's own.
	Event, ID string
	// Payload is JSON.
	Payload []byte
}

// A WebhookError says why a delivery is not taken.
type WebhookError struct {
	// Status is the HTTP status to answer with.
	Status int
	// Reason is for whoever sent it.
	Reason string
}

func (e *WebhookError) Error() string { return "webhook: " + e.Reason }

// leastSecret is the fewest bytes of a secret that nobody guesses.
const leastSecret = 16

// CheckSecret returns an error for a secret that is no good for webhooks.
func CheckSecret(secret string) error {
	switch {
	case len(secret) < leastSecret:
		return fmt.Errorf("the secret of a webhook needs %d characters or more, so that nobody guesses it; `openssl rand -hex 32` makes one", leastSecret)
	case strings.TrimSpace(secret) != secret:
		return errors.New("the secret of a webhook begins or ends with white space, which nobody means")
	}
	return nil
}

// ReadDelivery reads a webhook's request, of which nothing counts before its signature has been verified:
// HMAC-SHA256 of the body with the secret, in X-Hub-Signature-256, as GitHub, Gitea and Forgejo send it.
// (The older X-Hub-Signature is SHA-1 and is not looked at.) The payload may have most bytes; GitHub's have
// up to 25 MiB. The error is a *[WebhookError].
func ReadDelivery(r *http.Request, secret string, most int64) (Delivery, error) {
	if r.Method != http.MethodPost {
		return Delivery{}, &WebhookError{http.StatusMethodNotAllowed, "a webhook is sent with POST"}
	}
	if media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return Delivery{}, &WebhookError{http.StatusUnsupportedMediaType, "the content type of the webhook must be application/json"}
	}
	claimed, ok := parseSignature(r.Header.Get("X-Hub-Signature-256"))
	if !ok {
		return Delivery{}, &WebhookError{http.StatusUnauthorized, "no signature in X-Hub-Signature-256; give the webhook the secret"}
	}
	if r.ContentLength > most {
		return Delivery{}, tooLong(most)
	}
	payload, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	switch {
	case err != nil:
		return Delivery{}, &WebhookError{http.StatusBadRequest, "the body broke off"}
	case int64(len(payload)) > most:
		return Delivery{}, tooLong(most)
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(payload)
	if secret == "" || !hmac.Equal(mac.Sum(nil), claimed) {
		return Delivery{}, &WebhookError{http.StatusUnauthorized, "the signature is not one with the secret that is configured here"}
	}
	return Delivery{Event: short(r.Header.Get("X-GitHub-Event")), ID: short(r.Header.Get("X-GitHub-Delivery")), Payload: payload}, nil
}

func tooLong(most int64) error {
	return &WebhookError{http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d bytes", most)}
}

// parseSignature reads "sha256=" and 64 hexadecimal digits.
func parseSignature(header string) ([]byte, bool) {
	digits, ok := strings.CutPrefix(header, "sha256=")
	if !ok || len(digits) != hex.EncodedLen(sha256.Size) {
		return nil, false
	}
	sum, err := hex.DecodeString(digits)
	return sum, err == nil
}

// A Webhook is an [http.Handler] for one webhook.
type Webhook struct {
	// Secret is the one that both sides know.
	Secret string
	// MaxBytes is the most that a payload may have.
	MaxBytes int64
	// Take is given each delivery that is genuine. It returns an HTTP status and what to say to whoever
	// looks at the deliveries. GitHub waits ten seconds, so what takes longer must not be waited for.
	Take func(Delivery) (status int, message string)
	// Logger is told of deliveries.
	Logger *slog.Logger

	under atomic.Int32 // deliveries being read
}

// mostDeliveries is how many are read at once: anybody may begin one, and each takes memory.
const mostDeliveries = 4

// ServeHTTP implements http.Handler.
func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", "application/json; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	if h.under.Add(1) > mostDeliveries {
		h.under.Add(-1)
		header.Set("Retry-After", "1")
		say(w, http.StatusServiceUnavailable, "too many deliveries at once")
		return
	}
	delivery, err := ReadDelivery(r, h.Secret, h.MaxBytes)
	h.under.Add(-1)
	if err != nil {
		refused := &WebhookError{http.StatusBadRequest, "malformed"}
		errors.As(err, &refused)
		if refused.Status == http.StatusMethodNotAllowed {
			header.Set("Allow", http.MethodPost)
		}
		h.Logger.Warn("webhook refused", "path", r.URL.Path, "reason", refused.Reason)
		say(w, refused.Status, refused.Reason)
		return
	}
	status, message := h.Take(delivery)
	h.Logger.Info("webhook", "path", r.URL.Path, "event", delivery.Event, "delivery", delivery.ID, "status", status, "said", message)
	say(w, status, message)
}

func say(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
}

// PushedBranch returns the branch that a push event is about. ok is false where it is about a tag, or
// a branch that is gone, or no such event at all.
func PushedBranch(payload []byte) (branch string, ok bool) {
	var push struct {
		Ref     string `json:"ref"`
		Deleted bool   `json:"deleted"`
	}
	if err := json.Unmarshal(payload, &push); err != nil {
		return "", false
	}
	branch, ok = strings.CutPrefix(push.Ref, "refs/heads/")
	return branch, ok && branch != "" && !push.Deleted
}
