package git

import (
	"cmp"
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

	"github.com/larder-cdn/larder/internal/answers"
)

// A Delivery is a delivery of a webhook with a valid signature.
type Delivery struct {
	// Event is what happened, "push" for instance; ID is the delivery's own.
	Event, ID string
	// Payload is JSON.
	Payload []byte
}

// minSecret is the length of the shortest secret in bytes that cannot be guessed.
const minSecret = 16

// CheckWebhookSecret returns an error for a secret that is too short, or has white space at an end.
func CheckWebhookSecret(secret string) error {
	switch {
	case len(secret) < minSecret:
		return fmt.Errorf("the secret of a webhook needs %d characters or more, so that it cannot be guessed; `openssl rand -hex 32` makes one", minSecret)
	case strings.TrimSpace(secret) != secret:
		return errors.New("the secret of a webhook begins or ends with white space, which is hardly meant")
	}
	return nil
}

// ReadDelivery reads the request of a webhook, whose body may have most bytes, and verifies its signature: the HMAC-SHA256 of the
// body with secret, in X-Hub-Signature-256 (GitHub, Gitea, Forgejo) or X-Npm-Signature (npm registries). It ignores the older
// X-Hub-Signature, which is SHA-1. The error is an *[answers.Failure]: the response to send.
func ReadDelivery(r *http.Request, secret string, most int64) (Delivery, error) {
	if r.Method != http.MethodPost {
		return Delivery{}, &answers.Failure{Status: http.StatusMethodNotAllowed, Message: "a webhook is sent with POST", Fields: []answers.Field{{Name: "Allow", Value: http.MethodPost}}}
	}
	if media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return Delivery{}, &answers.Failure{Status: http.StatusUnsupportedMediaType, Message: "the content type of the webhook must be application/json"}
	}
	claimed, ok := parseSignature(cmp.Or(r.Header.Get("X-Hub-Signature-256"), r.Header.Get("X-Npm-Signature")))
	if !ok {
		return Delivery{}, &answers.Failure{Status: http.StatusUnauthorized, Message: "no signature in X-Hub-Signature-256 or X-Npm-Signature; give the webhook the secret"}
	}
	if r.ContentLength > most {
		return Delivery{}, newTooLargeError(most)
	}
	payload, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	switch {
	case err != nil:
		return Delivery{}, &answers.Failure{Status: http.StatusBadRequest, Message: "the body broke off"}
	case int64(len(payload)) > most:
		return Delivery{}, newTooLargeError(most)
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(payload)
	if secret == "" || !hmac.Equal(mac.Sum(nil), claimed) {
		return Delivery{}, &answers.Failure{Status: http.StatusUnauthorized, Message: "the signature is not one with the secret that is configured here"}
	}
	return Delivery{Event: shorten(r.Header.Get("X-GitHub-Event")), ID: shorten(r.Header.Get("X-GitHub-Delivery")), Payload: payload}, nil
}

// newTooLargeError returns the error, an *[answers.Failure], for a payload of more than most bytes.
func newTooLargeError(most int64) error {
	return &answers.Failure{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("more than %d bytes", most)}
}

// parseSignature returns the 32 bytes of a signature header, "sha256=" and 64 hexadecimal digits. It returns false for other
// text.
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
	// Secret is shared with the sender.
	Secret string
	// MaxBytes is the most that a payload may have.
	MaxBytes int64
	// Handle handles each delivery whose signature is valid. It returns an HTTP status and a message for the person who reads the log of
	// deliveries. It returns within ten seconds, because GitHub waits no longer.
	Handle func(Delivery) (status int, message string)
	// Logger logs deliveries.
	Logger *slog.Logger

	reading atomic.Int32 // deliveries
}

// maxDeliveries is how many deliveries are read at once: any client may send one, and each takes memory.
const maxDeliveries = 4

// ServeHTTP implements http.Handler. It reads a delivery, verifies its signature, calls Handle, and sends the status and message
// that Handle returns, as JSON. It reads at most maxDeliveries at once, and refuses others with 503. It logs each delivery that
// it has read, also a refused one.
func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if h.reading.Add(1) > maxDeliveries {
		h.reading.Add(-1)
		(&answers.Failure{Status: http.StatusServiceUnavailable, Message: "too many deliveries at once", Retry: 1}).SendJSON(w, r)
		return
	}
	delivery, err := ReadDelivery(r, h.Secret, h.MaxBytes)
	h.reading.Add(-1)
	if err != nil {
		h.Logger.Warn("webhook refused", "path", r.URL.Path, "reason", err)
		refused := &answers.Failure{Status: http.StatusBadRequest, Message: "malformed"}
		errors.As(err, &refused)
		refused.SendJSON(w, r)
		return
	}
	status, message := h.Handle(delivery)
	h.Logger.Info("webhook", "path", r.URL.Path, "event", delivery.Event, "delivery", delivery.ID, "status", status, "message", message)
	answers.NoStore.SetHeader(w.Header())
	w.Header().Set("Content-Type", answers.JSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
}

// ParseReleaseEvent returns the addresses of the repository that a GitHub event is about, if the event may announce a release: a
// pushed or created tag, or a published release. event is its name, such as "push". ok is false for other events.
func ParseReleaseEvent(event string, payload []byte) (addresses []string, ok bool) {
	var about struct {
		Action     string `json:"action"`
		Ref        string `json:"ref"`
		RefType    string `json:"ref_type"`
		Deleted    bool   `json:"deleted"`
		Repository struct {
			CloneURL string `json:"clone_url"`
			HTMLURL  string `json:"html_url"`
		} `json:"repository"`
	}
	if err := json.Unmarshal(payload, &about); err != nil {
		return nil, false
	}
	switch event {
	case "push":
		ok = strings.HasPrefix(about.Ref, "refs/tags/") && !about.Deleted
	case "create":
		ok = about.RefType == "tag"
	case "release":
		ok = about.Action == "published" || about.Action == "released"
	}
	for _, address := range []string{about.Repository.CloneURL, about.Repository.HTMLURL} {
		if address != "" {
			addresses = append(addresses, address)
		}
	}
	return addresses, ok && len(addresses) > 0
}

// PushedBranch returns the name of the branch to which commits were pushed, by the payload of a push event. ok is false for a
// tag, a deleted branch, or another payload.
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
