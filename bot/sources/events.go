package sources

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// An EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	Checking     EventKind = "checking"  // the bot polls a package's upstream
	Checked      EventKind = "checked"   // upstream responded; Waiting releases of the package have to be fetched
	Releasing    EventKind = "release"   // a release is being fetched and processed
	Published    EventKind = "published" // it is served: Files files of Bytes bytes
	Refused      EventKind = "refused"   // it will not be published, for Reason
	Failed       EventKind = "failed"    // a poll or a release failed, for Reason; the next attempt is at Next
	Waits        EventKind = "waits"     // a release has to wait for a limit of its upstream, for Reason, until Next
	Recompressed EventKind = "squeezed"  // a content has smaller encodings; Bytes were saved, Waiting contents are in the queue
	Note         EventKind = "note"      // information for the operator, in Reason
	Audited      EventKind = "audited"   // a comparison with upstream, file by file, found no difference; Reason says why it could not be done, "" if it was
	Differing    EventKind = "differs"   // a release is not what upstream has, as Reason says
	Changed      EventKind = "changed"   // upstream has changed or removed what a release was published from, as Reason says
)

// An Event is a step of the bot, for the terminal, logs and metrics.
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

// A Summary counts what a pass did.
type Summary struct {
	Packages  int   `json:"packages"` // whose upstream was polled
	Published int   `json:"published"`
	Refused   int   `json:"refused"`
	Failed    int   `json:"failed"` // packages and releases to be tried again
	Files     int   `json:"files"`
	Bytes     int64 `json:"bytes"`
}

// Tally makes a Summary from events.
type Tally struct {
	mu     sync.Mutex
	s      Summary
	polled map[string]struct{} // packages
}

// add counts an event in the summary: a polled package (once, however often it is polled), a published release with its files and
// bytes, a refusal, or a failure. It ignores other events.
func (t *Tally) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case Checking:
		if t.polled == nil {
			t.polled = make(map[string]struct{})
		}
		t.polled[e.Package] = struct{}{}
		t.s.Packages = len(t.polled)
	case Published:
		t.s.Published++
		t.s.Files += e.Files
		t.s.Bytes += e.Bytes
	case Refused:
		t.s.Refused++
	case Failed:
		t.s.Failed++
	}
}

// Sum returns the counts of the events until now.
func (t *Tally) Sum() Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}

// WithTally returns a context whose operation's events t counts. They still go to the report or other Tally that ctx has, if any;
// see [WithReport].
func WithTally(ctx context.Context, t *Tally) context.Context {
	outer, ok := ctx.Value(reportKey{}).(func(Event))
	return WithReport(ctx, func(e Event) {
		t.add(e)
		if ok {
			outer(e)
		}
	})
}

// CountEvents registers Prometheus counters with r: of the bot's events by kind, and of published files and their bytes. It returns a
// function that counts an event and then passes it to next, which is not nil. It panics if r has these counters already.
func CountEvents(r prometheus.Registerer, next func(Event)) func(Event) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_bot_events_total",
		Help: "Packages checked; releases published, refused, failed, compared with upstream (audited), found to differ (differs) or changed by it (changed); contents recompressed.",
	}, []string{"kind"})
	files := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_files_total",
		Help: "Published files.",
	})
	bytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_bytes_total",
		Help: "Uncompressed bytes of published files.",
	})
	r.MustRegister(events, files, bytes)
	return func(e Event) {
		events.WithLabelValues(string(e.Kind)).Inc()
		if e.Kind == Published {
			files.Add(float64(e.Files))
			bytes.Add(float64(e.Bytes))
		}
		next(e)
	}
}
