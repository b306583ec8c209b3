package bot

import (
	"context"
	"time"
)

// An EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	Checking  EventKind = "checking"  // a package's upstream is asked
	Checked   EventKind = "checked"   // it answered; Waiting releases of the package are to be fetched
	Releasing EventKind = "release"   // a release is being fetched and processed
	Published EventKind = "published" // it is served: Files files of Bytes bytes
	Refused   EventKind = "refused"   // it will not be published, for Reason
	Failed    EventKind = "failed"    // a package or a release could not be had, for Reason; Next says when it is tried again
	Waits     EventKind = "waits"     // a release has to wait for a limit of its upstream, for Reason, until Next
	Squeezed  EventKind = "squeezed"  // a content is at its best; Bytes were saved, Waiting contents are left
	Note      EventKind = "note"      // something worth knowing, in Reason
)

// An Event tells whoever watches what the bot does.
type Event struct {
	Kind    EventKind `json:"kind"`
	Package string    `json:"package,omitempty"`
	Version string    `json:"version,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Files   int       `json:"files,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Waiting int       `json:"waiting,omitempty"`
	Next    time.Time `json:"next,omitzero"`
}

type reportKey struct{}

// WithReport returns a context whose operation's events also go to fn, which may
// be called from several goroutines at once.
func WithReport(ctx context.Context, fn func(Event)) context.Context {
	return context.WithValue(ctx, reportKey{}, fn)
}

func (b *Bot) emit(ctx context.Context, e Event) {
	if b.options.Events != nil {
		b.options.Events(e)
	}
	report(ctx, e)
}

// report tells only whoever gave the context.
func report(ctx context.Context, e Event) {
	if fn, ok := ctx.Value(reportKey{}).(func(Event)); ok {
		fn(e)
	}
}
