package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// writeSessionLog writes for people what is known of a server's log: its key at the first use, size, age, cosignatures and
// problem. Of a log that could not be opened it writes only the key, the problem and where the evidence of a fork is.
func writeSessionLog(w io.Writer, l *verify.SessionLog) {
	if l.FirstUse && l.Key != "" {
		fmt.Fprintf(w, "The log of %s was never seen from here, so its key is the server's own word:\n  %s\n", l.Server, text.Plain(l.Key))
		fmt.Fprintln(w, "Compare it with the one that the operator publishes, or give that one with --key.")
		if l.Usable() {
			fmt.Fprintln(w, "From now on it is remembered.")
		}
	}
	if !l.Usable() {
		fmt.Fprintf(w, "The log of %s: %s\n", l.Server, text.Plain(l.Problem))
		if l.Evidence != "" {
			fmt.Fprintf(w, "Keep the evidence, which proves that to anyone who has the log's key:\n  larder verify --evidence %s\n", text.Plain(l.Evidence))
		}
		return
	}
	fmt.Fprintf(w, "The log %s has %s, signed and %s", text.Plain(l.Origin), text.Count(int(l.Size), "entry", "entries"), l.DescribeAge())
	if l.Since != nil {
		fmt.Fprintf(w, "; it contains the %s seen on %s", humanize.Comma(l.Since.Size), l.Since.Time.Local().Format(time.DateTime))
	}
	for i, c := range l.Cosignatures {
		before := ", "
		if i == 0 {
			before = "; witnessed by "
		}
		fmt.Fprintf(w, "%s%s on %s", before, text.Plain(c.Witness), c.Time.Local().Format(time.DateTime))
	}
	fmt.Fprintln(w, ".")
	if l.Problem != "" {
		fmt.Fprintf(w, "The log of %s: %s\n", l.Server, text.Plain(l.Problem))
	}
}

// writeEvidence writes for people what a file of evidence proves: a fork of a log, with the key and both heads, or nothing,
// with the reason.
func writeEvidence(w io.Writer, e verify.Evidence) {
	if e.Outcome != verify.Forked {
		fmt.Fprintf(w, "%s: %s: %s\n", e.Outcome, e.File, text.Plain(e.Problem))
		return
	}
	fmt.Fprintf(w, "%s: %s: %s\n", e.Outcome, e.File, e.Why)
	if !e.Pinned {
		fmt.Fprintln(w, "The key is the one in the file. Compare it with the one that the log's operator publishes, or give that one with --key:")
	}
	fmt.Fprintf(w, "  %s\n", text.Plain(e.Key))
	for _, head := range e.Heads {
		fmt.Fprintf(w, "One head:\n%s\n", plainLines(strings.TrimRight(head, "\n"), "  "))
	}
}

// plainLines returns an untrusted text of several lines with prefix in front of each, without characters that control a terminal.
func plainLines(said, prefix string) string {
	lines := strings.Split(said, "\n")
	for i, line := range lines {
		lines[i] = prefix + text.Plain(line)
	}
	return strings.Join(lines, "\n")
}

// A fileVerdict is the result of verifying an argument of a command line, and its JSON form.
type fileVerdict struct {
	Subject string `json:"subject"` // the argument
	Server  string `json:"server"`
	verify.Result
	Printed bool `json:"-"` // Problem has been printed, because it is the log's
}

// Print writes the verdict about a file for people, with what was published, compared and withdrawn. Errors of writing are
// ignored, as by the other functions of this file.
func (f fileVerdict) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s", f.Outcome, f.Subject)
	if f.Problem != "" && !f.Printed {
		fmt.Fprintf(w, ": %s", text.Plain(f.Problem))
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
		fmt.Fprintf(w, "  published by entry %d on %s%s\n", p.Entry, p.Time.Local().Format(time.DateTime), f.describeUpstream())
	}
	if u := f.Upstream; u != nil {
		printComparison(w, f)
	}
	for _, audited := range f.Audits {
		writeAuditorVerdict(w, audited)
	}
	if c := f.Changed; c != nil {
		fmt.Fprintf(w, "  note: entry %d on %s says: %s\n", c.Entry, c.Time.Local().Format(time.DateTime), text.Plain(c.Reason))
	}
	switch {
	case f.Withdrawn != nil:
		fmt.Fprintf(w, "  withdrawn by entry %d on %s\n", f.Withdrawn.Entry, f.Withdrawn.Time.Local().Format(time.DateTime))
	case f.Outcome == verify.Proven && f.Complete:
		fmt.Fprintln(w, "  not withdrawn, as the whole log says")
	case f.Outcome == verify.Proven:
		fmt.Fprintln(w, "  not withdrawn, as the log's last entry says; --all reads the others, too")
	}
}

// writeAuditorVerdict writes a line for people about what an auditor says of a file: that it is upstream's, that its release
// differs, or nothing, with the reason.
func writeAuditorVerdict(w io.Writer, v verify.AuditVerdict) {
	switch v.Outcome {
	case verify.Proven:
		fmt.Fprintf(w, "  the auditor %s found it to be upstream's, in an audit of %s\n", text.Plain(v.Auditor), text.Count(int(v.Size), "entry", "entries"))
	case verify.Differs:
		fmt.Fprintf(w, "  the auditor %s says that the release differs from its upstream\n", text.Plain(v.Auditor))
	default:
		fmt.Fprintf(w, "  the auditor %s says nothing of it: %s\n", text.Plain(v.Auditor), text.Plain(v.Problem))
	}
}

// writeAuditResult writes for people what `larder audit` found in a log: counts, age, problem and evidence. It does not list
// the releases.
func writeAuditResult(w io.Writer, r audit.AuditResult) {
	fmt.Fprintf(w, "Audited %s of %s: %s upstream's, %s, %s compared completely.\n", humanize.Comma(r.Audited), text.Count(int(r.Size), "entry", "entries"),
		text.Count(int(r.Compared), "release is", "releases are"), text.Count(len(r.Differences), "differs", "differ"), text.Count(len(r.Uncompared), "was not", "were not"))
	if r.Size > 0 {
		fmt.Fprintf(w, "The log's checkpoint: %s.\n", (&verify.SessionLog{Cosigned: r.Cosigned, Age: r.Age}).DescribeAge())
	}
	if r.Problem != "" {
		fmt.Fprintf(w, "%s: %s\n", r.Outcome, text.Plain(r.Problem))
	}
	if r.Evidence != "" {
		fmt.Fprintf(w, "The evidence: larder verify --evidence %s\n", text.Plain(r.Evidence))
	}
}

// printComparison writes for people how the release of the file compares with its upstream, which signatures and provenance
// confirm it, and what differs. f.Upstream is not nil.
func printComparison(w io.Writer, f fileVerdict) {
	u := f.Upstream
	if u.Outcome == verify.Proven {
		fmt.Fprintf(w, "  compared with %s: %s the same, byte for byte", text.Plain(u.Where), text.Count(u.Files, "file is", "files are"))
		if u.Path != "" {
			fmt.Fprintf(w, ", this one is %s there", text.Plain(u.Path))
		}
		if u.Made > 0 {
			fmt.Fprintf(w, "; %s made again and came out the same", text.Count(u.Made, "file was", "files were"))
		}
		fmt.Fprintln(w)
	}
	if u.Key != "" {
		fmt.Fprintf(w, "  the archive is %s, which %s has signed with its key %s\n", text.Plain(u.Integrity), text.Plain(u.Registry), text.Plain(u.Key))
	}
	if u.Attested != "" {
		fmt.Fprintf(w, "  the registry's attestation of the publication is signed with %s\n", text.Plain(u.Attested))
	}
	if p := u.Provenance; p != nil {
		fmt.Fprintf(w, "  built from %s at commit %s by %s\n", text.Plain(p.Repository), text.Plain(p.Commit), text.Plain(p.Workflow))
	}
	for _, note := range append(u.Mismatches, u.Notes...) {
		fmt.Fprintf(w, "  note: %s\n", text.Plain(note))
	}
}

// describeUpstream returns, for the end of a sentence and with a comma in front, which upstream or other origin the bytes of a
// file come from, and who says so; "" if that is not known.
func (f fileVerdict) describeUpstream() string {
	if f.SRI == (logs.SRI{}) {
		return ""
	}
	if m := f.Mirror; m != nil {
		return f.describeMirror(m)
	}
	if f.Source == nil {
		return ""
	}
	from := fmt.Sprintf(", from %s's %s, says the operator", f.Source.Type, text.Plain(f.Source.Name))
	switch {
	case f.Source.Type == "import":
		from = ", as the operator imported it"
	case f.Upstream != nil && f.Outcome == verify.Proven:
		from = fmt.Sprintf(", as %s's %s had it", f.Source.Type, text.Plain(f.Source.Name))
	}
	switch f.Origin {
	case logs.Minified:
		return fmt.Sprintf(", minified here from %s%s", text.Plain(f.From), from)
	case logs.Built:
		return ", built here for browsers" + from
	}
	return from
}

// describeMirror returns, for the end of a sentence and with a comma in front, from which other origin the bytes of a file were
// copied, as m, which is not nil, says, and who vouches for them: the log of the source, npm, or only the source itself.
func (f fileVerdict) describeMirror(m *logs.Mirror) string {
	source := text.Plain(m.Source)
	switch {
	case m.Proof == logs.ProofLog:
		return fmt.Sprintf(", as the log of %s has it in entry %d: %s", source, m.Entry, text.Plain(m.Key))
	case m.Proof == logs.ProofNpm:
		return fmt.Sprintf(", taken from %s; npm had the same bytes at every path that upstream published", source)
	case f.Confirmed != nil:
		return fmt.Sprintf(", taken from %s; entry %d found npm to have the same bytes at every path that upstream published", source, f.Confirmed.Entry)
	}
	return ", self-asserted by " + source
}

// writePageReport writes for people the result of verifying a page: its references with their findings, notes, and the headers
// with which it could be served. It does not write the state of the logs.
func writePageReport(w io.Writer, r *verify.PageReport) {
	if r.Outcome == verify.Nothing {
		fmt.Fprintf(w, "%s: the page loads no script, style sheet or frame and runs no code\n", r.Outcome)
	}
	for _, ref := range r.References {
		fmt.Fprintf(w, "%s: line %d: %s", ref.Outcome, ref.Line, ref.Kind)
		if ref.URL != "" {
			fmt.Fprintf(w, " %s", text.Plain(ref.URL))
		}
		if ref.Outcome == verify.Proven {
			fmt.Fprintf(w, ", by the log %s", text.Plain(ref.Log))
		}
		fmt.Fprintln(w)
		for _, f := range ref.Findings {
			level := "note"
			if f.Error {
				level = "wrong"
			}
			fmt.Fprintf(w, "  %s: %s\n", level, text.Plain(f.Message))
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", text.Plain(note))
	}
	fmt.Fprintln(w, "The page could be served with these headers, after a look at them:")
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		fmt.Fprintf(w, "  %s: %s\n", name, text.Plain(r.Headers[name]))
	}
}

// describeWatched returns an event in a watched log as a line for people, without a line break and with the local time.
func describeWatched(e verify.WatchEvent) string {
	line := fmt.Sprintf("%s  %-16s  %s", e.Time.Local().Format(time.DateTime), e.Kind, text.Plain(e.Text))
	if e.Entry != nil {
		line += fmt.Sprintf(" (entry %d)", *e.Entry)
	}
	if e.Evidence != "" {
		line += "; the evidence: larder verify --evidence " + text.Plain(e.Evidence)
	}
	return line
}

// describeNote returns a note as a line for standard error, which begins with the program's name and has no line break.
func describeNote(note string) string { return "larder: " + text.Plain(note) }
