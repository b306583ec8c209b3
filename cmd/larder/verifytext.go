package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// print tells people of a log, before its files.
func (l *verifiedLog) print(w io.Writer) {
	if l.FirstUse && l.Key != "" {
		fmt.Fprintf(w, "The log of %s was never seen from here, so its key is the server's own word:\n  %s\n", l.Server, plain(l.Key))
		fmt.Fprintln(w, "Compare it with the one that the operator publishes, or give that one with --key.")
		if l.log != nil {
			fmt.Fprintln(w, "From now on it is remembered.")
		}
	}
	if l.log == nil {
		fmt.Fprintf(w, "The log of %s: %s\n", l.Server, plain(l.Problem))
		if l.Fork != nil {
			fmt.Fprintf(w, "Keep these two checkpoints. They are signed with the log's key, and contradict each other.\nSeen before:\n%s\nShown now:\n%s\n", quoted(l.Fork.Seen), quoted(l.Fork.Shown))
		}
		return
	}
	fmt.Fprintf(w, "The log %s has %s, signed", plain(l.Origin), count(int(l.Size), "entry", "entries"))
	if l.Since != nil {
		fmt.Fprintf(w, "; it contains the %s seen on %s", humanize.Comma(l.Since.Size), l.Since.Time.Local().Format(time.DateTime))
	}
	for i, c := range l.Cosignatures {
		before := ", "
		if i == 0 {
			before = "; witnessed by "
		}
		fmt.Fprintf(w, "%s%s on %s", before, plain(c.Witness), c.Time.Local().Format(time.DateTime))
	}
	fmt.Fprintln(w, ".")
}

// quoted is a text of many lines that strangers wrote, for a terminal.
func quoted(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = "  " + plain(line)
	}
	return strings.Join(lines, "\n")
}

// print tells people of a file.
func (f verifiedFile) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s", f.Outcome, f.Subject)
	if f.Problem != "" && !f.told {
		fmt.Fprintf(w, ": %s", plain(f.Problem))
	}
	fmt.Fprintln(w)
	if f.Outcome == verify.Proven {
		fmt.Fprintf(w, "  %s bytes", humanize.Comma(f.Size))
		if len(f.Codings) > 0 {
			fmt.Fprintf(w, ", fetched as %s", strings.Join(f.Codings, ", "))
		}
		fmt.Fprintf(w, ", %s\n", f.SRI)
	}
	if p := f.Published; p != nil {
		fmt.Fprintf(w, "  published by entry %d on %s%s\n", p.Entry, p.Time.Local().Format(time.DateTime), f.from())
	}
	switch {
	case f.Withdrawn != nil:
		fmt.Fprintf(w, "  withdrawn by entry %d on %s\n", f.Withdrawn.Entry, f.Withdrawn.Time.Local().Format(time.DateTime))
	case f.Outcome == verify.Proven && f.Complete:
		fmt.Fprintln(w, "  not withdrawn, as the whole log says")
	case f.Outcome == verify.Proven:
		fmt.Fprintln(w, "  not withdrawn, as far as the server tells; --all reads the whole log")
	}
}

// from says where the bytes come from.
func (f verifiedFile) from() string {
	if f.Source == nil || f.SRI == (logs.SRI{}) {
		return ""
	}
	text := fmt.Sprintf(", as %s's %s had it", f.Source.Type, plain(f.Source.Name))
	if f.Source.Type == "import" {
		text = fmt.Sprintf(", as the operator brought it in %s", plain(f.Source.Name))
	}
	if f.Origin == logs.Minified {
		return fmt.Sprintf(", minified here from %s%s", plain(f.From), text)
	}
	return text
}

// entryBar shows on a terminal how much of a log was read, if that takes more than one look. Elsewhere it shows nothing.
type entryBar struct {
	app  *app
	name string
	byteBar
}

func (a *app) newEntryBar(name string) *entryBar { return &entryBar{app: a, name: name} }

func (b *entryBar) show(read, of int64) {
	if read == of && b.bar == nil || !newTerminal(b.app.stderr).interactive {
		return
	}
	if b.bar == nil {
		b.bars = mpb.New(mpb.WithOutput(b.app.stderr), mpb.WithRefreshRate(200*time.Millisecond), mpb.WithWidth(48), mpb.WithAutoRefresh())
		b.bar = b.bars.AddBar(0, mpb.PrependDecorators(decor.Name(b.name+" "), decor.CountersNoUnit("%d of %d entries ")))
	}
	b.byteBar.show(read, of)
}

func (b *entryBar) close() {
	b.byteBar.close()
	b.byteBar = byteBar{}
}
