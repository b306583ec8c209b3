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
	// maxRepeating bounds how many different warnings and errors are recognized at a time; all others are written each time.
	maxRepeating = 256
)

// A repeatHandler is a handler of log records that keeps a warning or error from filling the disk: what fails for one client fails for
// thousands. It writes the first record at once. Those with the same level, message and attributes that follow within repeatInterval
// it only counts, and then writes the last of them with the attribute repeated, the count. Other levels it writes as they come.
type repeatHandler struct {
	slog.Handler
	context string // the attributes and groups of the logger, as a part of the key
	repeats *repeats
}

// repeats are the warnings and errors of the last repeatInterval, shared by all loggers that were made of one.
type repeats struct {
	mu    sync.Mutex
	since map[string]*repeat // by level, message and attributes
}

// A repeat is what came since a record was written last.
type repeat struct {
	count int
	last  slog.Record
}

// newRepeatHandler returns a repeatHandler that writes records with h.
func newRepeatHandler(h slog.Handler) *repeatHandler {
	return &repeatHandler{Handler: h, repeats: &repeats{since: make(map[string]*repeat)}}
}

// WithAttrs implements [slog.Handler].
func (h *repeatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &repeatHandler{h.Handler.WithAttrs(attrs), h.context + fmt.Sprint(attrs), h.repeats}
}

// WithGroup implements [slog.Handler].
func (h *repeatHandler) WithGroup(name string) slog.Handler {
	return &repeatHandler{h.Handler.WithGroup(name), h.context + name + ".", h.repeats}
}

// Handle implements [slog.Handler]: it writes the record, or counts it if it repeats one.
func (h *repeatHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && !h.isFirst(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// isFirst reports whether no equal record was written within the last repeatInterval, or too many different ones were; otherwise it counts
// the record. After a first one, a timer writes what was counted.
func (h *repeatHandler) isFirst(r slog.Record) bool {
	var key strings.Builder
	fmt.Fprintf(&key, "%v %s %s", r.Level, h.context, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&key, " %s", a)
		return true
	})
	k := key.String()
	h.repeats.mu.Lock()
	defer h.repeats.mu.Unlock()
	if known := h.repeats.since[k]; known != nil {
		known.count++
		known.last = r.Clone()
		return false
	}
	if len(h.repeats.since) < maxRepeating {
		h.repeats.since[k] = new(repeat)
		time.AfterFunc(repeatInterval, func() { h.writeRepeated(k) })
	}
	return true
}

// writeRepeated writes what was counted of a record, by its key, since it was written last. It forgets the record if that is nothing, and
// otherwise has a timer call it again.
func (h *repeatHandler) writeRepeated(key string) {
	h.repeats.mu.Lock()
	counted := *h.repeats.since[key]
	if counted.count == 0 {
		delete(h.repeats.since, key)
	} else {
		*h.repeats.since[key] = repeat{}
		time.AfterFunc(repeatInterval, func() { h.writeRepeated(key) })
	}
	h.repeats.mu.Unlock()
	if counted.count > 0 {
		counted.last.AddAttrs(slog.Int("repeated", counted.count))
		_ = h.Handler.Handle(context.Background(), counted.last) // as slog's loggers, which have nowhere to report it
	}
}
