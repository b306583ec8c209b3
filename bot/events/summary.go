package events

import (
	"context"
	"sync"
)

// A Summary counts what a pass did.
type Summary struct {
	Packages  int   `json:"packages"` // whose upstream was asked
	Published int   `json:"published"`
	Refused   int   `json:"refused"`
	Failed    int   `json:"failed"` // packages and releases to be tried again
	Files     int   `json:"files"`
	Bytes     int64 `json:"bytes"`
}

// Tally makes a Summary from events.
type Tally struct {
	mu    sync.Mutex
	s     Summary
	asked map[string]struct{} // packages
}

// add counts an event.
func (t *Tally) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case Checking:
		if t.asked == nil {
			t.asked = make(map[string]struct{})
		}
		t.asked[e.Package] = struct{}{}
		t.s.Packages = len(t.asked)
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

// Sum returns the counts.
func (t *Tally) Sum() Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}

// Counted returns a context whose operation's events t counts as well.
func Counted(ctx context.Context, t *Tally) context.Context {
	outer, ok := ctx.Value(reportKey{}).(func(Event))
	return WithReport(ctx, func(e Event) {
		t.add(e)
		if ok {
			outer(e)
		}
	})
}
