package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/settings"
)

// lockedBuffer is a screen that several goroutines draw on.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestProgress(t *testing.T) {
	screen := &lockedBuffer{}
	out := newTerminal(screen)
	out.Interactive = true
	p := newBotProgress(out)
	first := 0
	p.AfterFirst(func() { first++ })

	p.Event(sources.Event{Kind: sources.Checked, Package: "a", Waiting: 2})
	p.Event(sources.Event{Kind: sources.Checked, Package: "b", Waiting: 1})
	p.Event(sources.Event{Kind: sources.Checked, Package: "c"})
	if p.bars == nil || p.releases.waiting != 3 {
		t.Fatalf("bars %v, waiting for %d", p.bars, p.releases.waiting)
	}
	settings.New().NewLogger(out, slog.LevelInfo).Info("above the bars")
	p.Event(sources.Event{Kind: sources.Failed, Package: "c", Reason: "upstream is away"})
	p.Event(sources.Event{Kind: sources.Published, Package: "a", Version: "1", Files: 10, Bytes: 3_000_000})
	p.Event(sources.Event{Kind: sources.Refused, Package: "a", Version: "2"})
	p.Event(sources.Event{Kind: sources.Recompressed, Waiting: 1})
	if p.releases.done != 2 || p.releases.waiting != 1 || p.squeezed.waiting != 1 {
		t.Errorf("%d done, %d to come, %d to squeeze", p.releases.done, p.releases.waiting, p.squeezed.waiting)
	}
	p.Event(sources.Event{Kind: sources.Published, Package: "b", Version: "1", Files: 5, Bytes: 1_000_000})
	if p.bars == nil {
		t.Error("the bars went while something was being squeezed")
	}
	p.Event(sources.Event{Kind: sources.Recompressed, Waiting: 0})
	if p.bars != nil {
		t.Error("the bars stay although nothing is left to wait for")
	}
	// A retry of something long past neither confuses the counts nor needs a bar.
	p.Event(sources.Event{Kind: sources.Published, Package: "a", Version: "2", Files: 1})
	p.Close()
	if first != 1 {
		t.Errorf("the first release was told %d times", first)
	}
	for _, want := range []string{"above the bars", "3 releases done: 15 files, 4.0 MB."} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("the screen never showed %q:\n%s", want, screen)
		}
	}
}

// TestProgressIsSafe has events, log lines and the end come from everywhere at once.
func TestProgressIsSafe(t *testing.T) {
	out := newTerminal(&lockedBuffer{})
	out.Interactive = true
	p := newBotProgress(out)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			name := fmt.Sprint(i)
			for n := range 3 {
				p.Event(sources.Event{Kind: sources.Checked, Package: name, Waiting: 1})
				fmt.Fprintln(out, "a line")
				p.Event(sources.Event{Kind: sources.Published, Package: name, Version: fmt.Sprint(n)})
				p.Event(sources.Event{Kind: sources.Recompressed, Waiting: n % 2})
			}
		})
	}
	all.Wait()
	p.Close()
	fmt.Fprintln(out, "the last line")
}

func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		event sources.Event
		want  string
	}{
		{sources.Event{Kind: sources.Checking, Package: "a"}, ""},
		{sources.Event{Kind: sources.Checked, Package: "a"}, "a: upstream has nothing new"},
		{sources.Event{Kind: sources.Checked, Package: "a", Waiting: 2}, ""},
		{sources.Event{Kind: sources.Releasing, Package: "a", Version: "1"}, "a 1: fetching"},
		{sources.Event{Kind: sources.Published, Package: "a", Version: "1", Files: 1, Bytes: 2000}, "a 1: published, 1 file, 2.0 kB"},
		{sources.Event{Kind: sources.Refused, Package: "a", Version: "1", Reason: "a bomb"}, "a 1: refused: a bomb"},
		{sources.Event{Kind: sources.Failed, Package: "a", Reason: "away"}, "a: failed: away"},
	} {
		if got := describeEvent(tt.event); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.event, got, tt.want)
		}
	}
}
