package events

import (
	"context"
	"sync"
)

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
