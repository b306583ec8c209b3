package github

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
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
