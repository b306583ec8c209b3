package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
)

// botProgress displays the bot's work as bars, if the output is a terminal. Otherwise it displays nothing, and the bot's log
// has a line for each release.
type botProgress struct {
	terminal *terminal

	mu       sync.Mutex
	closed   bool
	first    func()         // called once, after the first release
	waiting  map[string]int // releases to come, by package
	files    int
	bytes    int64
	bars     *mpb.Progress // nil while there is nothing to show
	releases meter
	squeezed meter
}

// newBotProgress returns the display of a bot's progress on t. It draws nothing until an event says that work waits. The caller
// closes it.
func newBotProgress(t *terminal) *botProgress {
	return &botProgress{terminal: t, waiting: map[string]int{}}
}

// AfterFirst has fn called once, after the next release is published, in place of a function that still waits for that. fn runs
// in [botProgress.Event], and must not call p.
func (p *botProgress) AfterFirst(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = fn
}

// Event counts an event of the bot and draws the bars, both only on a terminal and before Close. On any output, a published
// release also calls the function of [botProgress.AfterFirst]. Event is safe for concurrent use.
func (p *botProgress) Event(e sources.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal.Interactive && !p.closed {
		p.count(e)
		p.draw()
	}
	if e.Kind == sources.Published && p.first != nil {
		p.first()
		p.first = nil
	}
}

// count updates the counts of releases and recompressed contents by an event, without drawing. A refused, failed or waiting
// release counts as done, too. The caller holds p.mu.
func (p *botProgress) count(e sources.Event) {
	switch e.Kind {
	case sources.Checked:
		p.waiting[e.Package] = e.Waiting
	case sources.Published, sources.Refused, sources.Failed, sources.Waits:
		if e.Version == "" {
			break // upstream did not answer
		}
		p.releases.done++
		p.files += e.Files
		p.bytes += e.Bytes
		if p.waiting[e.Package]--; p.waiting[e.Package] <= 0 {
			delete(p.waiting, e.Package)
		}
	case sources.Recompressed:
		p.squeezed.done++
		p.squeezed.waiting = e.Waiting
	}
	p.releases.waiting = 0
	for _, n := range p.waiting {
		p.releases.waiting += n
	}
}

// draw updates the bars, which it creates if necessary, and ends them with [botProgress.end] if no release and no content
// waits. The caller holds p.mu.
func (p *botProgress) draw() {
	if p.releases.waiting+p.squeezed.waiting == 0 {
		p.end()
		return
	}
	if p.bars == nil {
		p.bars = newProgressBars(p.terminal.stderr)
		p.terminal.redirect(p.bars)
	}
	p.releases.draw(p.bars, "releases ", fmt.Sprintf("%s files, %s", humanize.Comma(int64(p.files)), humanize.Bytes(uint64(p.bytes))))
	p.squeezed.draw(p.bars, "squeezing", "served already; made smaller in the background")
}

// end removes the bars, prints how many releases were done, if any, with the published files, and resets the counts. Without bars it
// does nothing, and the counts stay. The caller holds p.mu.
func (p *botProgress) end() {
	if p.bars == nil {
		return
	}
	if done := p.releases.done; done > 0 {
		fmt.Fprintf(p.terminal, "%s done: %s files, %s.\n", text.Count(done, "release", "releases"), humanize.Comma(int64(p.files)), humanize.Bytes(uint64(p.bytes)))
	}
	p.releases.reset()
	p.squeezed.reset()
	p.terminal.redirect(p.terminal.stderr)
	p.bars.Wait() // for the last frame, without them
	p.bars, p.files, p.bytes = nil, 0, 0
}

// Close removes the bars. Later events draw none. A second call does nothing.
func (p *botProgress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
	p.closed = true
}

// A meter is one bar with counts: of the work done since the last reset, and of the work that waits.
type meter struct {
	done    int
	waiting int
	bar     progressBar
}

// draw shows the counts of m as a bar in the container bars, with name in front and text behind it. If there is no bar and no
// work waits, it adds none.
func (m *meter) draw(bars *mpb.Progress, name, text string) {
	if m.bar.group != bars {
		m.bar.name, m.bar.counters, m.bar.group = name, decor.CountersNoUnit("%d of %d "), bars
	}
	m.bar.ShowWith(int64(m.done), int64(m.done+m.waiting), text)
}

// reset removes the bar, if there is one, and sets the counts to zero.
func (m *meter) reset() {
	m.bar.Close()
	m.done, m.waiting = 0, 0
}

// describeEvent returns an event of the bot as a line for people, without the line break at its end; "" for an event that
// people need not see.
func describeEvent(e sources.Event) string {
	switch e.Kind {
	case sources.Checked:
		if e.Waiting == 0 {
			return e.Package + ": upstream has nothing new"
		}
	case sources.Releasing:
		return fmt.Sprintf("%s %s: fetching", e.Package, e.Version)
	case sources.Published:
		return fmt.Sprintf("%s %s: published, %s, %s", e.Package, e.Version, text.Count(e.Files, "file", "files"), humanize.Bytes(uint64(e.Bytes)))
	case sources.Refused:
		return fmt.Sprintf("%s %s: refused: %s", e.Package, e.Version, e.Reason)
	case sources.Failed:
		subject := e.Package
		if e.Version != "" {
			subject += " " + e.Version
		}
		return fmt.Sprintf("%s: failed: %s", subject, e.Reason)
	case sources.Waits:
		return fmt.Sprintf("%s %s: waits: %s", e.Package, e.Version, e.Reason)
	case sources.Differing, sources.Changed:
		return fmt.Sprintf("%s %s: %s", e.Package, e.Version, e.Reason)
	case sources.Note:
		return e.Reason
	}
	return ""
}

// describeSummary returns a line for people, without a line break, about what the bot did in a single pass.
func describeSummary(s sources.Summary) string {
	return fmt.Sprintf("Asked for %s: %s published with %s, %s; %d refused, %d failed.",
		text.Count(s.Packages, "package", "packages"), text.Count(s.Published, "release", "releases"),
		text.Count(s.Files, "file", "files"), humanize.Bytes(uint64(s.Bytes)), s.Refused, s.Failed)
}

// A progressBar shows on a terminal how much of something is done. Elsewhere it shows nothing, unless it is one of several bars
// of a container. It is for one goroutine.
type progressBar struct {
	stderr   io.Writer
	name     string
	counters decor.Decorator
	group    *mpb.Progress // the bars that it is one of; nil for one by itself
	bars     *mpb.Progress // nil while nothing is shown
	bar      *mpb.Bar
	text     atomic.Pointer[string] // the bar's own goroutine reads it
}

// newCountBar returns a progress bar with name in front, which draws on stderr, if that is a terminal, and counts units, such
// as "entries". Nothing is drawn until [progressBar.Show]. The caller closes the bar.
func newCountBar(stderr io.Writer, name, unit string) *progressBar {
	return &progressBar{stderr: stderr, name: name, counters: decor.CountersNoUnit("%d of %d " + unit + " ")}
}

// newProgressBars returns a container in which several progress bars draw on stderr, even if that is no terminal: the caller
// has decided whether to draw. The caller closes the bars and then waits for the container.
func newProgressBars(stderr io.Writer) *mpb.Progress {
	return mpb.New(mpb.WithOutput(stderr), mpb.WithRefreshRate(200*time.Millisecond), mpb.WithWidth(48),
		mpb.WithAutoRefresh()) // whatever stderr is: whether to draw was decided before
}

// Show draws that done of the total number of are done. A bar that is in no container draws on a terminal only. While no bar is
// shown and done equals of, none appears. A bar stays until [progressBar.Close], also when all is done.
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
