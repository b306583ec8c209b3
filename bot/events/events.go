// Package events has what the parts of the bot report: events, counters of them, and which errors stop the bot.
package events

import (
	"context"
	"errors"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
)

// Stops reports whether the bot has to stop after err: no child process can be started, a local file cannot be used, the disk is
// full, the store is corrupt, or a context was cancelled. It is false for nil, and for errors of a package or an upstream.
func Stops(err error) bool {
	var start *worker.StartError
	var local *fetch.LocalError
	return errors.As(err, &start) || errors.As(err, &local) || errors.Is(err, kvstore.ErrDiskFull) || errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, context.Canceled)
}

// A Kind says what an Event is about.
type Kind string

// The kinds of events.
const (
	Checking     Kind = "checking"  // the bot polls a package's upstream
	Checked      Kind = "checked"   // upstream responded; Waiting releases of the package have to be fetched
	Releasing    Kind = "release"   // a release is being fetched and processed
	Published    Kind = "published" // it is served: Files files of Bytes bytes
	Refused      Kind = "refused"   // it will not be published, for Reason
	Failed       Kind = "failed"    // a poll or a release failed, for Reason; the next attempt is at Next
	Waits        Kind = "waits"     // a release has to wait for a limit of its upstream, for Reason, until Next
	Recompressed Kind = "squeezed"  // a content has smaller encodings; Bytes were saved, Waiting contents are in the queue
	Note         Kind = "note"      // information for the operator, in Reason
	Audited      Kind = "audited"   // a comparison with upstream, file by file, found no difference; Reason says why it could not be done, "" if it was
	Differing    Kind = "differs"   // a release is not what upstream has, as Reason says
	Changed      Kind = "changed"   // upstream has changed or removed what a release was published from, as Reason says
)

// An Event is a step of the bot, for the terminal, logs and metrics.
type Event struct {
	Kind    Kind      `json:"kind"`
	Package string    `json:"package,omitempty"`
	Version string    `json:"version,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Files   int       `json:"files,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Waiting int       `json:"waiting,omitempty"`
	Next    time.Time `json:"next,omitzero"`
}

// reportKey is the key of a context's report; see [WithReport].
type reportKey struct{}

// WithReport returns a context whose operation's events also go to fn, in place of the report that ctx may have. fn may be called
// from several goroutines at once.
func WithReport(ctx context.Context, fn func(Event)) context.Context {
	return context.WithValue(ctx, reportKey{}, fn)
}

// ReportOnly passes an event to the report of the context, see [WithReport], and to no [Sink]. It does nothing if ctx has no
// report.
func ReportOnly(ctx context.Context, e Event) {
	if fn, ok := ctx.Value(reportKey{}).(func(Event)); ok {
		fn(e)
	}
}

// A Sink receives events, from several goroutines at once. A nil Sink drops them.
type Sink func(Event)

// Emit passes an event to the sink and to the report of the context, see [WithReport].
func (s Sink) Emit(ctx context.Context, e Event) {
	if s != nil {
		s(e)
	}
	ReportOnly(ctx, e)
}
