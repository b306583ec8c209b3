package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a message.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

// secretPrefix marks a secret for what it is.
const secretPrefix = "whsec_"

// newSecret returns 32 random bytes, as text.
func newSecret() string {
	secret := make([]byte, 32)
	rand.Read(secret) //nolint:errcheck // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// sign returns the signature of a message: the HMAC-SHA256 of id, time and body,
// separated by full stops.
func sign(secret, id string, at time.Time, body []byte) (string, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
	if err != nil {
		return "", errors.New("the webhook's secret is malformed")
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}

// tolerance is how far a message's time may be from the receiver's.
const tolerance = 5 * time.Minute

// Verify reports whether a message was signed with a secret, five minutes ago at most.
// It is what a receiver in Go does; the text of the error is for its own log.
func Verify(secret string, header http.Header, body []byte, now time.Time) error {
	seconds, err := strconv.ParseInt(header.Get(headerTimestamp), 10, 64)
	if err != nil {
		return fmt.Errorf("the header %s is missing or no number", headerTimestamp)
	}
	at := time.Unix(seconds, 0)
	if age := now.Sub(at); age > tolerance || age < -tolerance {
		return fmt.Errorf("the message is from %s: it may be a recording", at.UTC().Format(time.RFC3339))
	}
	want, err := sign(secret, header.Get(headerID), at, body)
	if err != nil {
		return err
	}
	for given := range strings.FieldsSeq(header.Get(headerSignature)) {
		if subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1 {
			return nil
		}
	}
	return fmt.Errorf("no signature in the header %s is right", headerSignature)
}
