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

// A command is what the registry, the object that has all webhooks, is told to do.
type command interface {
	do(ctx context.Context, s *durable.State) (answer, error)
}

type (
	add     struct{ hook hook }
	remove  struct{ id string }
	get     struct{ id string }
	look    struct{}
	list    struct{}                    // look, with what is pending
	expect  struct{ messages []string } // they count as pending
	advance struct {
		to      int64
		version int // of the webhooks that were told
	}
	settled struct{ message string } // it is no longer pending
	result  struct {
		message string
		state   State
	}
)

type answer struct {
	hooks   []hook
	cursor  int64 // the next entry of the log to look at
	version int   // another one whenever a webhook is added
}

// object is the registry. Its rows:
//
//	cursor            the next entry of the log
//	version           how many webhooks were ever added
//	hook/{id}         a hook
//	pending/{message} a message that is under way
type object struct{ durable.NoAlarm }

const (
	cursorKey     = "cursor"
	versionKey    = "version"
	hookPrefix    = "hook/"
	pendingPrefix = "pending/"
)

// Handle implements [durable.Handler].
func (object) Handle(ctx context.Context, s *durable.State, c command) (answer, error) {
	return c.do(ctx, s)
}

func (c add) do(ctx context.Context, s *durable.State) (answer, error) {
	a, err := read(ctx, s)
	switch {
	case err != nil:
		return answer{}, err
	case len(a.hooks) >= MaxHooks:
		return answer{}, fmt.Errorf("there are %d webhooks, and there may be no more: remove one", MaxHooks)
	case len(a.hooks) == 0: // no webhook has followed the log
		err = durable.PutJSON(ctx, s, cursorKey, c.hook.From)
	}
	return answer{}, errors.Join(err,
		durable.PutJSON(ctx, s, versionKey, a.version+1),
		durable.PutJSON(ctx, s, hookPrefix+c.hook.ID, c.hook))
}

func (c remove) do(ctx context.Context, s *durable.State) (answer, error) {
	if _, err := one(ctx, s, c.id); err != nil {
		return answer{}, err
	}
	pending, err := s.List(ctx, durable.ListOptions{Prefix: pendingPrefix + messagePrefix(c.id)})
	if err != nil {
		return answer{}, err
	}
	for _, e := range pending {
		if err := s.Delete(ctx, e.Key); err != nil {
			return answer{}, err
		}
	}
	return answer{}, s.Delete(ctx, hookPrefix+c.id)
}

// messagePrefix is what the ids of a webhook's messages begin with.
func messagePrefix(hook string) string { return hook + "-" }

func (c get) do(ctx context.Context, s *durable.State) (answer, error) {
	h, err := one(ctx, s, c.id)
	return answer{hooks: []hook{h}}, err
}

func one(ctx context.Context, s *durable.State, id string) (hook, error) {
	h, found, err := durable.GetJSON[hook](ctx, s, hookPrefix+id)
	if err == nil && !found {
		err = ErrNoWebhook
	}
	return h, err
}

func (look) do(ctx context.Context, s *durable.State) (answer, error) { return read(ctx, s) }

func (list) do(ctx context.Context, s *durable.State) (answer, error) {
	a, err := read(ctx, s)
	if err != nil {
		return a, err
	}
	pending, err := s.List(ctx, durable.ListOptions{Prefix: pendingPrefix}, durable.NoCache)
	if err != nil {
		return a, err
	}
	count := make(map[string]int)
	for _, e := range pending {
		count[hookOf(strings.TrimPrefix(e.Key, pendingPrefix))]++
	}
	for i := range a.hooks {
		a.hooks[i].Pending = count[a.hooks[i].ID]
	}
	return a, nil
}

// read returns the webhooks, and where following them stands.
func read(ctx context.Context, s *durable.State) (a answer, err error) {
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
		h, err := one(ctx, s, strings.TrimPrefix(e.Key, hookPrefix))
		if err != nil {
			return a, err
		}
		a.hooks = append(a.hooks, h)
	}
	return a, nil
}

func (c expect) do(ctx context.Context, s *durable.State) (answer, error) {
	for _, message := range c.messages {
		// Not of one that was removed since.
		if _, err := one(ctx, s, hookOf(message)); errors.Is(err, ErrNoWebhook) {
			continue
		} else if err != nil {
			return answer{}, err
		}
		if err := s.Put(ctx, pendingPrefix+message, nil, durable.NoCache); err != nil {
			return answer{}, err
		}
	}
	return answer{}, nil
}

func (c advance) do(ctx context.Context, s *durable.State) (answer, error) {
	version, _, err := durable.GetJSON[int](ctx, s, versionKey)
	if err != nil || version != c.version {
		return answer{}, err
	}
	return answer{}, durable.PutJSON(ctx, s, cursorKey, c.to)
}

func (c settled) do(ctx context.Context, s *durable.State) (answer, error) {
	return answer{}, s.Delete(ctx, pendingPrefix+c.message)
}

func (c result) do(ctx context.Context, s *durable.State) (answer, error) {
	h, err := one(ctx, s, hookOf(c.message))
	if err != nil {
		return answer{}, err
	}
	h.Last, h.LastMessage, h.Answer, h.Problem = c.state.Last, c.message, c.state.Answer, c.state.Problem
	over := c.state.Status != Waiting
	_, pending, err := s.Get(ctx, pendingPrefix+c.message)
	if err != nil {
		return answer{}, err
	}
	switch {
	case c.state.Status == Delivered:
		h.Failures = 0
		if pending {
			h.Delivered++
		}
	default:
		h.Failures++
		if over && pending {
			h.GivenUp++
		}
	}
	if over {
		err = s.Delete(ctx, pendingPrefix+c.message)
	}
	return answer{}, errors.Join(err, durable.PutJSON(ctx, s, hookPrefix+h.ID, h))
}

// The headers of a message.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

// secretPrefix tells a reader of a log or a file that a text is a secret.
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
