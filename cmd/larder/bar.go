package main

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A progressBar shows on a terminal how much of something is done. Elsewhere it shows nothing.
type progressBar struct {
	stderr   io.Writer
	name     string
	counters decor.Decorator
	group    *mpb.Progress // the bars that it is one of; nil for one by itself
	bars     *mpb.Progress // nil while nothing is shown
	bar      *mpb.Bar
	text     atomic.Pointer[string] // the bar's own goroutine reads it
}

// newCountBar returns a progress bar with name in front, which draws on stderr and counts what unit says, in the plural. Nothing
// is drawn yet.
func newCountBar(stderr io.Writer, name, unit string) *progressBar {
	return &progressBar{stderr: stderr, name: name, counters: decor.CountersNoUnit("%d of %d " + unit + " ")}
}

// newProgressBars returns a container in which several progress bars draw on stderr, even if that is no terminal: the caller has
// decided whether to draw.
func newProgressBars(stderr io.Writer) *mpb.Progress {
	return mpb.New(mpb.WithOutput(stderr), mpb.WithRefreshRate(200*time.Millisecond), mpb.WithWidth(48),
		mpb.WithAutoRefresh()) // whatever stderr is: whether to draw was decided before
}

// Show draws that done of the units in of are done. A bar of its own draws on a terminal only. If everything is done at the first
// call, no bar appears.
func (b *progressBar) Show(done, of int64) { b.ShowWith(done, of, "") }

// ShowWith draws like [progressBar.Show], with text behind the bar.
func (b *progressBar) ShowWith(done, of int64, text string) {
	if b.bar == nil && (done == of || b.group == nil && !newTerminal(b.stderr).Interactive) {
		return
	}
	b.text.Store(&text)
	if b.bar == nil {
		if b.bars = b.group; b.bars == nil {
			b.bars = newProgressBars(b.stderr)
		}
		b.bar = b.bars.AddBar(0, mpb.PrependDecorators(decor.Name(b.name+" "), b.counters),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *b.text.Load() })))
	}
	b.bar.SetTotal(of, false)
	b.bar.SetCurrent(done)
}

// Close removes the bar from the terminal. A later Show brings it back. Without a bar it does nothing.
func (b *progressBar) Close() {
	if b.bar == nil {
		return
	}
	b.bar.Abort(true)
	b.bar.Wait()
	if b.group == nil {
		b.bars.Wait() // for the last frame, without it
	}
	b.bar = nil
}
