package notify

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
)

// A command reads or changes what the registry, the object that has all webhooks, has stored.
type command func(ctx context.Context, s *durable.State) (response, error)

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
	return c(ctx, s)
}

// addHook returns the command that stores h, a webhook or the purge hook, and changes the version. If no other one is stored,
// the log is read from the hook's first entry on. It returns an error if there are MaxWebhooks webhooks already; the purge hook
// does not count.
func addHook(h hook) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		a, err := readRegistry(ctx, s)
		webhooks := slices.DeleteFunc(slices.Clone(a.hooks), func(h hook) bool { return h.ID == purgeHookID })
		switch {
		case err != nil:
			return response{}, err
		case h.ID != purgeHookID && len(webhooks) >= MaxWebhooks:
			return response{}, fmt.Errorf("there are %d webhooks, and there may be no more: remove one", MaxWebhooks)
		case len(a.hooks) == 0: // no webhook has followed the log
			err = durable.PutJSON(ctx, s, cursorKey, h.From)
		}
		return response{}, errors.Join(err,
			durable.PutJSON(ctx, s, versionKey, a.version+1),
			durable.PutJSON(ctx, s, hookPrefix+h.ID, h))
	}
}

// removeHook returns the command that deletes a webhook, and what counts its messages as pending. It returns ErrNoWebhook if no webhook has the id.
func removeHook(id string) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		if _, err := readHook(ctx, s, id); err != nil {
			return response{}, err
		}
		pending, err := s.List(ctx, durable.ListOptions{Prefix: pendingPrefix + messagePrefix(id)})
		if err != nil {
			return response{}, err
		}
		for _, e := range pending {
			if err := s.Delete(ctx, e.Key); err != nil {
				return response{}, err
			}
		}
		return response{}, s.Delete(ctx, hookPrefix+id)
	}
}

// messagePrefix returns the prefix that the ids of a webhook's messages have: the webhook's id and a hyphen.
func messagePrefix(hook string) string { return hook + "-" }

// getHook returns the command that reads the webhook with the given id, or returns ErrNoWebhook.
func getHook(id string) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		h, err := readHook(ctx, s, id)
		return response{hooks: []hook{h}}, err
	}
}

// readHook returns the stored webhook with an id, or ErrNoWebhook.
func readHook(ctx context.Context, s *durable.State, id string) (hook, error) {
	h, found, err := durable.GetJSON[hook](ctx, s, hookPrefix+id)
	if err == nil && !found {
		err = ErrNoWebhook
	}
	return h, err
}

// countPending is the command that returns all webhooks, the cursor and the version, as readRegistry does, and sets in each
// webhook how many of its messages are pending: neither delivered nor given up.
func countPending(ctx context.Context, s *durable.State) (response, error) {
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

// readRegistry is the command that returns all stored webhooks and the purge hook, the next entry of the log to read (cursor), and the version, which
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

// addPending returns the command that counts due messages as pending from now on. It skips those of webhooks that were removed.
func addPending(due []message) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		for _, m := range due {
			// The webhook may have been removed meanwhile.
			_, err := readHook(ctx, s, m.hook.ID)
			if err == nil {
				err = s.Put(ctx, pendingPrefix+m.id, nil, durable.NoCache)
			}
			if err != nil && !errors.Is(err, ErrNoWebhook) {
				return response{}, err
			}
		}
		return response{}, nil
	}
}

// setCursor returns the command that stores the next entry of the log to read. version is that of the webhooks for which messages
// were scheduled. The command does nothing if a webhook was added since the caller read the version, so that
// the caller reads the same entries for the new webhook.
func setCursor(to int64, version int) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		if present, _, err := durable.GetJSON[int](ctx, s, versionKey); err != nil || present != version {
			return response{}, err
		}
		return response{}, durable.PutJSON(ctx, s, cursorKey, to)
	}
}

// removePending returns the command that no longer counts a message as pending. It does nothing for a message that is not pending.
func removePending(message string) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		return response{}, s.Delete(ctx, pendingPrefix+message)
	}
}

// recordAttempt returns the command that stores the result of an attempt to send a message with its webhook, and updates the
// webhook's counts of failures, of delivered messages and of those given up. A message that was delivered or given up is pending
// no longer. It returns ErrNoWebhook if the webhook was removed.
func recordAttempt(message string, after State) command {
	return func(ctx context.Context, s *durable.State) (response, error) {
		h, err := readHook(ctx, s, webhookOf(message))
		if err != nil {
			return response{}, err
		}
		h.Last, h.LastMessage, h.Answer, h.Problem = after.Last, message, after.Answer, after.Problem
		_, pending, err := s.Get(ctx, pendingPrefix+message)
		if err != nil {
			return response{}, err
		}
		switch after.Status {
		case Delivered:
			h.Failures = 0
			if pending {
				h.Delivered++
			}
		default:
			h.Failures++
			if after.Status == GivenUp && pending {
				h.GivenUp++
			}
		}
		if after.Status != Waiting {
			err = s.Delete(ctx, pendingPrefix+message)
		}
		return response{}, errors.Join(err, durable.PutJSON(ctx, s, hookPrefix+h.ID, h))
	}
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
