package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// WebhookOptions configures Webhooks. The first three are required.
type WebhookOptions struct {
	Runtime *durable.Runtime
	Store   *kvstore.Store
	Log     *logs.Log
	// UserAgent is sent with every message; default "larder".
	UserAgent string
	// Purge is about the purge hook, which receives withdrawals once [Webhooks.AddPurgeHook] is called.
	Purge PurgeOptions
	// Transport sends the messages; default that of [SchedulerOptions].
	Transport http.RoundTripper
	Logger    *slog.Logger
}

// MaxWebhooks is how many webhooks there may be.
const MaxWebhooks = 1000

// ErrNoWebhook reports an id that no webhook has.
var ErrNoWebhook = errors.New("there is no such webhook: `larder webhook list` has the ids")

// A Subject is what a webhook subscribes to: releases, or a waiting room.
type Subject struct {
	Package string `json:"package,omitempty"` // releases of it; "" for those of every package
	Watch   bool   `json:"watch,omitempty"`   // all [logs.News], not publications only
	Room    string `json:"room,omitempty"`    // events of that waiting room instead of releases; "*" for those of every room
}

// A Webhook is a webhook, and the state of its deliveries.
type Webhook struct {
	ID  string `json:"id"`
	URL string `json:"url"`
	Subject
	Added time.Time `json:"added"`
	From  int64     `json:"from"` // the first entry of the log that it can get
	// Delivered counts the messages whose response had 2xx, GivenUp those that never got one, and
	// Pending those that are under way or wait for the next attempt.
	Delivered int64 `json:"delivered"`
	GivenUp   int64 `json:"givenUp"`
	Pending   int   `json:"pending"`
	// Failures counts the attempts that failed since the last success.
	Failures int64 `json:"failures"`
	// The last attempt: its time, its message, the status of the response (0 for no response), and why it failed.
	Last        time.Time `json:"last,omitzero"`
	LastMessage string    `json:"lastMessage,omitempty"`
	Answer      int       `json:"answer,omitempty"`
	Problem     string    `json:"problem,omitempty"`
}

// About returns words for people about what the webhook subscribes to, such as "jquery, watched" or "room shop".
func (h *Webhook) About() string {
	switch {
	case h.ID == purgeHookID:
		return "purge hook, not in the settings any more"
	case h.Room == "*":
		return "all rooms"
	case h.Room != "":
		return "room " + h.Room
	}
	about := cmp.Or(h.Package, "all releases")
	if h.Watch {
		about += ", watched"
	}
	return about
}

// A hook is a Webhook as it is stored.
type hook struct {
	Webhook
	Secret string `json:"secret"`
}

// A Message is the body of a message about a release.
type Message struct {
	// Type is "release.published". A webhook with Watch also gets others: "release.withdrawn",
	// "release.upstream-changed", "package.removed", "log.key-changed".
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // of the entry
	Data      Release   `json:"data"`
}

// A RoomMessage is the body of a message about a waiting room.
type RoomMessage struct {
	Type      string    `json:"type"` // the kind of the event, such as "room.full"
	Timestamp time.Time `json:"timestamp"`
	Data      any       `json:"data"` // the status of the room, then
}

// A Release is the release of a message.
type Release struct {
	Package  string       `json:"package"`
	Version  string       `json:"version"`
	Released time.Time    `json:"released,omitzero"` // by upstream
	Entry    int64        `json:"entry"`             // of the log
	Manifest kvstore.Hash `json:"manifest"`
	Path     string       `json:"path"`           // prefix of its files' paths on the asset host
	Text     string       `json:"text,omitempty"` // a sentence about the entry, with Watch
}

// Webhooks are the webhooks of a store. They are safe for concurrent use.
type Webhooks struct {
	options  WebhookOptions
	registry durable.Object[command, response]
	messages *Scheduler
	purges   *Scheduler
	purging  chan struct{} // holds one for each request for a single URL that is being sent
	changed  chan struct{} // holds one after a webhook was added
}

// OpenWebhooks opens the webhooks of a store. From then on the runtime sends the messages and purges that are due. New entries of
// the log become messages only while [Webhooks.Run] runs.
func OpenWebhooks(o WebhookOptions) (*Webhooks, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	w := &Webhooks{options: o, purging: make(chan struct{}, maxPurgeRequests), changed: make(chan struct{}, 1)}
	registry, err := durable.Open(o.Runtime, durable.Class[command, response]{
		Name: registryClass,
		New: func(context.Context, *durable.State) (durable.Handler[command, response], error) {
			return registry{}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	w.registry = registry.Object(registryName)
	w.messages, err = OpenScheduler(o.Runtime, SchedulerOptions{
		Class: messageClass, UserAgent: o.UserAgent, Transport: o.Transport, Logger: o.Logger,
		Receiver: func(id string, _ Request) string { return webhookOf(id) },
		Before:   w.sign, After: w.recordAttempt,
	})
	if err != nil {
		return nil, err
	}
	w.purges, err = OpenScheduler(o.Runtime, SchedulerOptions{
		Class: purgeClass, UserAgent: o.UserAgent, Transport: o.Transport, Logger: o.Logger,
		Receiver: func(string, Request) string { return purgeHookID },
		Send:     w.sendPurge, KeepTrying: true,
	})
	return w, err
}

// Add stores a new webhook, which gets messages about entries of the log and events from now on. It returns the webhook and the
// secret by which the receiver verifies messages; nothing else returns the secret. The error is about the URL or the subject, or
// there are too many webhooks.
func (w *Webhooks) Add(ctx context.Context, url string, subject Subject) (h Webhook, secret string, err error) {
	if err := CheckURL(url); err != nil {
		return h, "", err
	}
	if subject.Room != "" && (subject.Package != "" || subject.Watch) {
		return h, "", errors.New("a webhook is for releases or for a waiting room, not for both: add another one")
	}
	added := hook{Secret: newSecret(), Webhook: Webhook{
		ID: strings.ToLower(rand.Text()[:16]), URL: url, Subject: subject,
		Added: w.options.Runtime.Now().UTC().Truncate(time.Second), From: w.options.Log.Checkpoint().Size,
	}}
	if _, err := w.send(ctx, addHook(added)); err != nil {
		return h, "", err
	}
	w.wakeRun()
	return added.Webhook, added.Secret, nil
}

// wakeRun wakes Run, which waits while no webhook exists, because a webhook was just added.
func (w *Webhooks) wakeRun() { retry.Wake(w.changed) }

// List returns all webhooks with the state of their deliveries, oldest first, without their secrets. It includes the purge hook
// only if the settings no longer have one, so that an operator sees its pending messages and can remove it.
func (w *Webhooks) List(ctx context.Context) ([]Webhook, error) {
	a, err := w.send(ctx, countPending)
	hooks := make([]Webhook, 0, len(a.hooks))
	for _, h := range a.hooks {
		if h.ID != purgeHookID || w.options.Purge.Hook == (PurgeHook{}) {
			hooks = append(hooks, h.Webhook)
		}
	}
	slices.SortStableFunc(hooks, func(a, b Webhook) int { return a.Added.Compare(b.Added) })
	return hooks, err
}

// Remove removes a webhook and its pending messages, or the purge hook if the settings do not name it any more. It returns
// [ErrNoWebhook] for an unknown id. A message that is being sent may still arrive.
func (w *Webhooks) Remove(ctx context.Context, id string) error {
	if id == purgeHookID {
		return w.removePurgeHook(ctx)
	}
	_, err := w.send(ctx, removeHook(id))
	return err
}

// send has the registry, the durable object that stores all webhooks, run the command c, and returns the response. It waits for
// commands before it.
func (w *Webhooks) send(ctx context.Context, c command) (response, error) {
	return w.registry.Send(ctx, c)
}

// followBackoff is the time until the log is read again after the store has failed.
const followBackoff = 5 * time.Second

// Run reads the entries of the log and schedules the messages and purges about them, until ctx ends. It logs errors, and tries
// again after a few seconds. The scheduled requests are sent by the runtime.
func (w *Webhooks) Run(ctx context.Context) {
	for ctx.Err() == nil {
		cursor, hooks, err := w.scheduleMessages(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			w.options.Logger.Error("couldn't notify webhooks of what was published; trying again", "err", err, "after", followBackoff)
			_ = retry.Sleep(ctx, followBackoff) // its error is that of ctx
		case hooks == 0:
			select {
			case <-w.changed:
			case <-ctx.Done():
			}
		default:
			_, _ = w.options.Log.Wait(ctx, cursor)
		}
	}
}

// entriesAtOnce is how many entries are read before their messages are scheduled.
const entriesAtOnce = 256

// scheduleMessages schedules the messages and purges about all entries of the log that were not read yet, and stores that they
// are read. It returns cursor, the next entry to read, and hooks, the number of webhooks, with the purge hook; if that is 0, it
// reads nothing.
func (w *Webhooks) scheduleMessages(ctx context.Context) (cursor int64, hooks int, err error) {
	for {
		a, err := w.send(ctx, readRegistry)
		if err != nil || len(a.hooks) == 0 {
			return a.cursor, 0, err
		}
		cursor, due, withdrawn, err := w.dueMessages(a)
		if err != nil || cursor == a.cursor {
			return cursor, len(a.hooks), err
		}
		for _, withdrawal := range withdrawn {
			if err := w.schedulePurge(ctx, withdrawal); err != nil {
				return cursor, 0, err
			}
		}
		if err := w.enqueue(ctx, due); err != nil {
			return cursor, 0, err
		}
		// If webhooks were added meanwhile, the registry ignores this, and the entries are read again, which sends nothing twice.
		if _, err := w.send(ctx, setCursor(cursor, a.version)); err != nil {
			return cursor, 0, err
		}
	}
}

// dueMessages reads up to entriesAtOnce entries of the log from a.cursor on. It returns the messages about them for the webhooks
// in a that subscribe to them, the withdrawals among them if a has the purge hook, and the index after the last entry. It
// schedules and stores nothing.
func (w *Webhooks) dueMessages(a response) (cursor int64, due []message, withdrawn []Withdrawal, err error) {
	cursor = a.cursor
	for e, err := range logs.Entries(w.options.Store, cursor) {
		if err != nil {
			return cursor, nil, nil, err
		}
		cursor = e.Index + 1
		for _, h := range a.hooks {
			if !h.wants(e) {
				continue
			}
			if h.ID == purgeHookID {
				withdrawn = append(withdrawn, newWithdrawal(e))
				continue
			}
			body, err := json.Marshal(h.newMessage(e))
			if err != nil {
				return cursor, nil, nil, err
			}
			due = append(due, message{h, messageID(h.ID, e.Index), body})
		}
		if cursor-a.cursor >= entriesAtOnce {
			break
		}
	}
	return cursor, due, withdrawn, nil
}

// wants reports whether the hook subscribes to an entry of the log. The purge hook gets withdrawals; another hook gets
// publications of its package, or of all, and with Watch other news too. A hook gets no entry before h.From, and none if it is
// for a waiting room.
func (h hook) wants(e logs.Indexed) bool {
	if h.ID == purgeHookID {
		return e.Index >= h.From && e.Kind == logs.Withdrawn
	}
	if h.Room != "" || e.Index < h.From || h.Package != "" && e.Package != "" && e.Package != h.Package {
		return false
	}
	return e.Kind.Publishes() || h.Watch && slices.Contains(logs.News, e.Kind)
}

// newMessage returns the body of the message to this webhook about an entry of the log to which it subscribes.
func (h hook) newMessage(e logs.Indexed) Message {
	m := Message{Type: "release.published", Timestamp: e.Time, Data: Release{
		Package: e.Package, Version: e.Version, Released: e.Released, Entry: e.Index, Manifest: e.Manifest,
	}}
	if e.Kind.Serves() {
		m.Data.Path = "/ajax/libs/" + e.Package + "/" + e.Version + "/"
	}
	if h.Watch {
		m.Data.Text = e.News()
	}
	switch {
	case e.Kind.Publishes():
	case e.Package == "":
		m.Type = "log." + string(e.Kind)
	case e.Kind == logs.PackageRemoved:
		m.Type = "package.removed"
	default:
		m.Type = "release." + string(e.Kind)
	}
	return m
}

// NotifyRoom schedules a message about an event of a waiting room for each webhook of this room or of all rooms. kind is the kind
// of the event, such as "room.full", at its time, and status the room's status then, which the message has as JSON. It does not
// wait for deliveries.
func (w *Webhooks) NotifyRoom(ctx context.Context, room, kind string, at time.Time, status any) error {
	a, err := w.send(ctx, readRegistry)
	if err != nil {
		return err
	}
	body, err := json.Marshal(RoomMessage{Type: kind, Timestamp: at.UTC(), Data: status})
	if err != nil {
		return err
	}
	var due []message
	for _, h := range a.hooks {
		if h.Room == room || h.Room == "*" {
			due = append(due, message{h, fmt.Sprintf("%s%s-%s-%d", messagePrefix(h.ID), room, kind, at.UnixNano()), body})
		}
	}
	return w.enqueue(ctx, due)
}

// A message is a message for a webhook.
type message struct {
	hook hook
	id   string
	body []byte
}

// messageID returns the id of the message to a webhook, given by its id, about an entry of the log, given by its index. All
// attempts have it.
func messageID(hook string, entry int64) string { return fmt.Sprintf("%s-%d", hook, entry) }

// webhookOf returns the id of the webhook to which the message with an id goes.
func webhookOf(message string) string {
	hook, _, _ := strings.Cut(message, "-")
	return hook
}

// enqueue counts messages as pending, and puts each of them on the schedule, unless one with its id and body is there from an
// earlier call.
func (w *Webhooks) enqueue(ctx context.Context, due []message) error {
	if len(due) == 0 {
		return nil
	}
	if _, err := w.send(ctx, addPending(due)); err != nil {
		return err
	}
	for _, m := range due {
		state, err := w.messages.PostOnce(ctx, m.id, Request{
			URL: m.hook.URL, Method: "POST", Body: string(m.body), Headers: map[string]string{"Content-Type": "application/json"},
		})
		if err == nil && state.Status != Waiting {
			_, err = w.send(ctx, removePending(m.id)) // an earlier process has sent it and recorded the attempt
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sign adds id, time and signature to the header of r, an attempt to send the message with the id. The error wraps [ErrGone] if
// the webhook was removed, so that the message is given up.
func (w *Webhooks) sign(ctx context.Context, id string, r *http.Request, body []byte) error {
	a, err := w.send(ctx, getHook(webhookOf(id)))
	if errors.Is(err, ErrNoWebhook) {
		return fmt.Errorf("%w: the webhook was removed", ErrGone)
	}
	if err != nil {
		return err
	}
	now := w.options.Runtime.Now()
	signature, err := sign(a.hooks[0].Secret, id, now, body)
	if err != nil {
		return err
	}
	r.Header.Set(headerID, id)
	r.Header.Set(headerTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(headerSignature, signature)
	return nil
}

// recordAttempt stores s, the state of a message after an attempt to send it, with its webhook. It does nothing if the webhook
// was removed.
func (w *Webhooks) recordAttempt(ctx context.Context, id string, s State) error {
	_, err := w.send(ctx, recordAttempt(id, s))
	if errors.Is(err, ErrNoWebhook) {
		return nil
	}
	return err
}
