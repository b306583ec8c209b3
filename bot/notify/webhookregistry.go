package notify

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
)

// A command is a command to the registry, the object that has all webhooks.
type command interface {
	do(ctx context.Context, s *durable.State) (response, error)
}

type (
	addHook      struct{ hook hook }
	removeHook   struct{ id string }
	getHook      struct{ id string }
	getHooks     struct{}
	countPending struct{}                    // as getHooks, with the number of pending messages of each
	addPending   struct{ messages []string } // counts them as pending
	setCursor    struct {
		to      int64
		version int // of the webhooks for which messages were scheduled
	}
	removePending struct{ message string } // does not count it as pending any more
	recordAttempt struct {
		message string
		state   State
	}
)

// A response is the result of a command. Fields that the command does not return are zero.
type response struct {
	hooks   []hook
	cursor  int64 // the next entry of the log to read
	version int   // changes when a webhook is added
}

// The class and the name of the registry, and the classes of the scheduled requests of webhooks and of the purge hook.
const (
	registryClass, registryName = "webhooks", "all"
	messageClass                = "webhook-message"
	purgeClass                  = "purge"
)

// registry is the handler of the registry. Its rows:
//
//	cursor            the next entry of the log
//	version           how many webhooks were ever added
//	hook/{id}         a hook
//	pending/{message} a message that is not delivered yet
type registry struct{ durable.NoAlarm }

const (
	cursorKey     = "cursor"
	versionKey    = "version"
	hookPrefix    = "hook/"
	pendingPrefix = "pending/"
)

// Handle implements [durable.Handler]. It runs the command c on the stored webhooks; commands run one after another.
func (registry) Handle(ctx context.Context, s *durable.State, c command) (response, error) {
	return c.do(ctx, s)
}

// do stores a webhook or the purge hook, and changes the version. If no other one is stored, the log is read from the hook's
// first entry on. It returns an error if there are MaxWebhooks webhooks already; the purge hook does not count.
func (c addHook) do(ctx context.Context, s *durable.State) (response, error) {
	a, err := readRegistry(ctx, s)
	switch {
	case err != nil:
		return response{}, err
	case c.hook.ID != purgeHookID && a.webhooks() >= MaxWebhooks:
		return response{}, fmt.Errorf("there are %d webhooks, and there may be no more: remove one", MaxWebhooks)
	case len(a.hooks) == 0: // no webhook has followed the log
		err = durable.PutJSON(ctx, s, cursorKey, c.hook.From)
	}
	return response{}, errors.Join(err,
		durable.PutJSON(ctx, s, versionKey, a.version+1),
		durable.PutJSON(ctx, s, hookPrefix+c.hook.ID, c.hook))
}

// webhooks returns the number of the webhooks in the response, without the purge hook.
func (r response) webhooks() (n int) {
	for _, h := range r.hooks {
		if h.ID != purgeHookID {
			n++
		}
	}
	return n
}

// do deletes a webhook, and what counts its messages as pending. It returns ErrNoWebhook if no webhook has the id.
func (c removeHook) do(ctx context.Context, s *durable.State) (response, error) {
	if _, err := readHook(ctx, s, c.id); err != nil {
		return response{}, err
	}
	pending, err := s.List(ctx, durable.ListOptions{Prefix: pendingPrefix + messagePrefix(c.id)})
	if err != nil {
		return response{}, err
	}
	for _, e := range pending {
		if err := s.Delete(ctx, e.Key); err != nil {
			return response{}, err
		}
	}
	return response{}, s.Delete(ctx, hookPrefix+c.id)
}

// messagePrefix returns the prefix that the ids of a webhook's messages have: the webhook's id and a hyphen.
func messagePrefix(hook string) string { return hook + "-" }

// do returns a response with the webhook of the given id, or the error ErrNoWebhook.
func (c getHook) do(ctx context.Context, s *durable.State) (response, error) {
	h, err := readHook(ctx, s, c.id)
	return response{hooks: []hook{h}}, err
}

// readHook returns the stored webhook with an id, or ErrNoWebhook.
func readHook(ctx context.Context, s *durable.State, id string) (hook, error) {
	h, found, err := durable.GetJSON[hook](ctx, s, hookPrefix+id)
	if err == nil && !found {
		err = ErrNoWebhook
	}
	return h, err
}

// do returns all webhooks and the purge hook, the next entry of the log to read (cursor) and the version.
func (getHooks) do(ctx context.Context, s *durable.State) (response, error) {
	return readRegistry(ctx, s)
}

// do returns all webhooks, the cursor and the version, as getHooks does, and sets in each webhook how many of its messages are
// pending: neither delivered nor given up.
func (countPending) do(ctx context.Context, s *durable.State) (response, error) {
	a, err := readRegistry(ctx, s)
	if err != nil {
		return a, err
	}
	pending, err := s.List(ctx, durable.ListOptions{Prefix: pendingPrefix}, durable.NoCache)
	if err != nil {
		return a, err
	}
	count := make(map[string]int)
	for _, e := range pending {
		count[webhookOf(strings.TrimPrefix(e.Key, pendingPrefix))]++
	}
	for i := range a.hooks {
		a.hooks[i].Pending = count[a.hooks[i].ID]
	}
	return a, nil
}

// readRegistry returns all stored webhooks and the purge hook, the next entry of the log to read (cursor), and the version, which
// changes when a webhook is added.
func readRegistry(ctx context.Context, s *durable.State) (a response, err error) {
	if a.cursor, _, err = durable.GetJSON[int64](ctx, s, cursorKey); err != nil {
		return a, err
	}
	if a.version, _, err = durable.GetJSON[int](ctx, s, versionKey); err != nil {
		return a, err
	}
	entries, err := s.List(ctx, durable.ListOptions{Prefix: hookPrefix})
	if err != nil {
		return a, err
	}
	for _, e := range entries {
		h, err := readHook(ctx, s, strings.TrimPrefix(e.Key, hookPrefix))
		if err != nil {
			return a, err
		}
		a.hooks = append(a.hooks, h)
	}
	return a, nil
}

// do counts messages as pending from now on. It skips those of webhooks that were removed.
func (c addPending) do(ctx context.Context, s *durable.State) (response, error) {
	for _, message := range c.messages {
		// The webhook may have been removed meanwhile.
		if _, err := readHook(ctx, s, webhookOf(message)); errors.Is(err, ErrNoWebhook) {
			continue
		} else if err != nil {
			return response{}, err
		}
		if err := s.Put(ctx, pendingPrefix+message, nil, durable.NoCache); err != nil {
			return response{}, err
		}
	}
	return response{}, nil
}

// do stores the next entry of the log to read. It does nothing if a webhook was added since the caller read the version, so that
// the caller reads the same entries for the new webhook.
func (c setCursor) do(ctx context.Context, s *durable.State) (response, error) {
	version, _, err := durable.GetJSON[int](ctx, s, versionKey)
	if err != nil || version != c.version {
		return response{}, err
	}
	return response{}, durable.PutJSON(ctx, s, cursorKey, c.to)
}

// do no longer counts a message as pending. It does nothing for a message that is not pending.
func (c removePending) do(ctx context.Context, s *durable.State) (response, error) {
	return response{}, s.Delete(ctx, pendingPrefix+c.message)
}

// do stores the result of an attempt to send a message with its webhook, and updates the webhook's counts of failures, of
// delivered messages and of those given up. A message that was delivered or given up is pending no longer. It returns
// ErrNoWebhook if the webhook was removed.
func (c recordAttempt) do(ctx context.Context, s *durable.State) (response, error) {
	h, err := readHook(ctx, s, webhookOf(c.message))
	if err != nil {
		return response{}, err
	}
	h.Last, h.LastMessage, h.Answer, h.Problem = c.state.Last, c.message, c.state.Answer, c.state.Problem
	done := c.state.Status != Waiting
	_, pending, err := s.Get(ctx, pendingPrefix+c.message)
	if err != nil {
		return response{}, err
	}
	switch {
	case c.state.Status == Delivered:
		h.Failures = 0
		if pending {
			h.Delivered++
		}
	default:
		h.Failures++
		if done && pending {
			h.GivenUp++
		}
	}
	if done {
		err = s.Delete(ctx, pendingPrefix+c.message)
	}
	return response{}, errors.Join(err, durable.PutJSON(ctx, s, hookPrefix+h.ID, h))
}

// The headers of a message.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

// secretPrefix marks a text in a log or a file as a secret.
const secretPrefix = "whsec_"

// newSecret returns a new secret for a webhook: 32 random bytes in base64, after the prefix "whsec_".
func newSecret() string {
	secret := make([]byte, 32)
	rand.Read(secret) //nolint:errcheck // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// sign returns the signature header of a message: "v1," and in base64 the HMAC-SHA256 of id, time and body, separated by full
// stops. secret is the webhook's, as newSecret returns it; a malformed one is an error.
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
