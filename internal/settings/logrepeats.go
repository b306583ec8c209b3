package settings

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// repeatInterval is how often a warning or error is written at most while it repeats.
	repeatInterval = 10 * time.Second
	// maxAlike is how many warnings or errors that differ in attributes only are distinguished within repeatInterval.
	maxAlike = 32
	// maxMessages is how many messages of warnings and errors are distinguished within repeatInterval.
	maxMessages = 256
)

// A repeatHandler is a handler of log records that keeps warnings and errors from filling the disk: what fails for one client fails for
// thousands. It writes the first record at once. Those with the same level, message and attributes that follow within repeatInterval
// it only counts, and then writes the last of them with the attribute repeated, the count. So it does with records that differ in
// attributes only, such as a random reference, beyond maxAlike of them. Other levels it writes as they come. What it has counted when the
// process ends is not written.
type repeatHandler struct {
	slog.Handler
	prefix  string // the attributes and groups of the logger, as a part of keys
	repeats *repeats
}

// repeats are the warnings and errors of the last repeatInterval, shared by all loggers that were made of one.
type repeats struct {
	mu       sync.Mutex
	messages map[string]int     // how many records in byKey have a level and message
	byKey    map[string]*repeat // by level, message and attributes, or by level and message
}

// A repeat is what came since a record was written last.
type repeat struct {
	message string // its key in repeats.messages
	count   int
	last    slog.Record
}

// newRepeatHandler returns a repeatHandler that writes records with h.
func newRepeatHandler(h slog.Handler) *repeatHandler {
	return &repeatHandler{Handler: h, repeats: &repeats{messages: make(map[string]int), byKey: make(map[string]*repeat)}}
}

// WithAttrs implements [slog.Handler].
func (h *repeatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &repeatHandler{h.Handler.WithAttrs(attrs), h.prefix + fmt.Sprintf("%q", attrs), h.repeats}
}

// WithGroup implements [slog.Handler].
func (h *repeatHandler) WithGroup(name string) slog.Handler {
	return &repeatHandler{h.Handler.WithGroup(name), h.prefix + fmt.Sprintf("%q.", name), h.repeats}
}

// Handle implements [slog.Handler]: it writes the record, or counts it if it repeats one.
func (h *repeatHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && !h.isFirst(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// isFirst reports whether no record with the key of r was written within the last repeatInterval; otherwise it counts r. After a first
// one, a timer writes what was counted.
func (h *repeatHandler) isFirst(r slog.Record) bool {
	message := fmt.Sprintf("%v %q", r.Level, r.Message)
	var attributes strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&attributes, " %s=%q", a.Key, a.Value)
		return true
	})
	h.repeats.mu.Lock()
	defer h.repeats.mu.Unlock()
	key := message + h.prefix + attributes.String()
	if h.repeats.byKey[key] == nil && h.repeats.messages[message] >= maxAlike {
		key = message
	}
	if h.repeats.messages[message] == 0 && len(h.repeats.messages) >= maxMessages {
		message, key = "", "" // one for all others
	}
	if known := h.repeats.byKey[key]; known != nil {
		known.count++
		known.last = withText(r)
		return false
	}
	h.repeats.messages[message]++
	h.repeats.byKey[key] = &repeat{message: message}
	time.AfterFunc(repeatInterval, func() { h.writeRepeated(key) })
	return true
}

// withText returns a copy of a record in which the text of each attribute of the kind Any replaces its value, because what that points to may
// change later. It leaves groups as they are.
func withText(r slog.Record) slog.Record {
	c := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Value = a.Value.Resolve(); a.Value.Kind() == slog.KindAny {
			a.Value = slog.StringValue(a.Value.String())
		}
		c.AddAttrs(a)
		return true
	})
	return c
}

// writeRepeated writes what was counted of a record, by its key, since it was written last, and has a timer call it again. If nothing was
// counted, it forgets the record.
func (h *repeatHandler) writeRepeated(key string) {
	h.repeats.mu.Lock()
	counted := *h.repeats.byKey[key]
	if counted.count == 0 {
		delete(h.repeats.byKey, key)
		if h.repeats.messages[counted.message]--; h.repeats.messages[counted.message] == 0 {
			delete(h.repeats.messages, counted.message)
		}
	} else {
		*h.repeats.byKey[key] = repeat{message: counted.message}
		time.AfterFunc(repeatInterval, func() { h.writeRepeated(key) })
	}
	h.repeats.mu.Unlock()
	if counted.count > 0 {
		counted.last.AddAttrs(slog.Int("repeated", counted.count))
		_ = h.Handler.Handle(context.Background(), counted.last) // as slog's loggers, which have nowhere to report it
	}
}
