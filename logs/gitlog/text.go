package gitlog

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// Documents are the contents that an entry names, as far as there are such.
type Documents struct {
	Manifest *logs.Manifest `json:"manifest,omitempty"`
	Erasure  *logs.Erasure  `json:"erasure,omitempty"`
	Diff     string         `json:"diff,omitempty"`   // of the package JSON
	Detail   string         `json:"detail,omitempty"` // the whole of a reason that was cut
}

// ReadDocuments reads what an entry names.
func ReadDocuments(store *kvstore.Store, e logs.Indexed) (d Documents, err error) {
	var none kvstore.Hash
	text := func(h kvstore.Hash) string {
		if h == none || err != nil {
			return ""
		}
		var data []byte
		data, err = store.Identity(h)
		return string(data)
	}
	if e.Entry.Manifest != none {
		d.Manifest, err = logs.ReadManifest(store, e.Entry.Manifest)
	}
	if e.Entry.Erasure != none && err == nil {
		d.Erasure, err = logs.ReadErasure(store, e.Entry.Erasure)
	}
	d.Diff, d.Detail = text(e.Entry.Diff), text(e.Entry.Detail)
	if err != nil {
		return Documents{}, fmt.Errorf("what entry %d of the log names: %w", e.Index, err)
	}
	return d, nil
}

// subject is the entry in a line.
func subject(e logs.Entry) string {
	switch {
	case e.Package == "":
		return string(e.Kind)
	case e.Version == "":
		return clean(e.Package) + ": " + string(e.Kind)
	}
	return clean(e.Package) + " " + clean(e.Version) + ": " + string(e.Kind)
}

// stages are the names of files where the public service's logs have another name
// for a kind.
var stages = map[logs.Kind]string{logs.Detected: "new-version", logs.Processed: "processing", logs.Published: "publish"}

// file is the file that an entry belongs to, in the layout of the public service's
// repository of logs: packages/{letter}/{package}/{version}/{stage}.log.
func file(e logs.Entry) string {
	stage := stages[e.Kind]
	if stage == "" {
		stage = string(e.Kind)
	}
	if e.Package == "" {
		return "log/" + stage + ".log"
	}
	version := e.Version
	if version == "" {
		version = "_package" // no version begins like that
	}
	return path.Join(strings.TrimSuffix(packages.Path(e.Package), ".json"), version, stage+".log")
}

// WriteText writes all that an entry says, and the contents that it names: one text for the terminal and for the files
// of an export. What strangers wrote is in it on lines of its own, without the characters that move a cursor or turn the
// direction of what follows.
func WriteText(w io.Writer, e logs.Indexed, d Documents) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("entry", "%d", e.Index)
	line("kind", "%s", e.Kind)
	line("time", "%s", e.Time.Format(time.RFC3339Nano))
	line("actor", "%s", clean(e.Actor))
	if e.Package != "" {
		line("package", "%s", clean(e.Package))
	}
	if e.Version != "" {
		line("version", "%s", clean(e.Version))
	}
	if !e.Released.IsZero() {
		line("released", "%s", e.Released.Format(time.RFC3339Nano))
	}
	if e.Reason != "" {
		line("reason", "%s", clean(e.Reason))
	}
	if e.Signature.Outcome != "" {
		line("signature", "%s", clean(strings.TrimSpace(string(e.Signature.Outcome)+" "+e.Signature.Key)))
	}
	if e.Signature.HasText() {
		line("signed", "%s", clean(e.Signature.Text))
	}
	if p := e.Provenance; p != nil {
		line("provenance", "%s", clean(p.String()))
		if p.Publish.Outcome != "" {
			line("publication", "%s", clean(p.Publish.String()))
		}
	}
	if e.Policy != (logs.PolicyChange{}) {
		line("required before", "%s", orNothing(e.Policy.Old))
		line("required now", "%s", orNothing(e.Policy.New))
	}
	if m := e.Maker; m != nil {
		line("minified by", "%s", clean(strings.Join([]string{m.Program, m.Version, m.Options}, " ")))
	}
	if m := e.Mirror; m != nil {
		line("taken from", "%s", clean(m.Source))
		line("proof", "%s", clean(m.DescribeProof()))
	}
	if e.Upstream != (logs.UpstreamChange{}) {
		line("before", "%s", orNothing(e.Upstream.Old))
		line("after", "%s", orNothing(e.Upstream.New))
	}
	for _, named := range []struct {
		name string
		hash kvstore.Hash
	}{{"manifest", e.Entry.Manifest}, {"packageJSON", e.Entry.PackageJSON}, {"diff", e.Entry.Diff}, {"detail", e.Entry.Detail}, {"erasure", e.Entry.Erasure}} {
		if named.hash != (kvstore.Hash{}) {
			line(named.name, "%s", named.hash)
		}
	}
	if e.Key != "" {
		line("key", "%s", clean(e.Key))
		line("signed", "%s", clean(e.KeySignature))
	}
	if e.Former != "" {
		line("lost", "%s of the log before, %s", e.Lost, clean(e.Former))
	}
	if m := d.Manifest; m != nil {
		switch e.Kind {
		case logs.Processed:
			writeProcessed(&b, m)
		case logs.Published, logs.Mirrored, logs.Replaced, logs.Restored:
			writeFiles(&b, m)
		}
	}
	if d.Erasure != nil {
		heading(&b, "erased contents (SHA-256)")
		for _, h := range d.Erasure.Contents {
			fmt.Fprintf(&b, "  %s\n", h)
		}
	}
	if d.Detail != "" {
		heading(&b, "the reason in full")
		writeText(&b, d.Detail)
	}
	if d.Diff != "" {
		heading(&b, "package JSON")
		writeText(&b, d.Diff)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func orNothing(integrity string) string {
	if integrity == "" {
		return "upstream does not have it"
	}
	return clean(integrity)
}

func heading(b *strings.Builder, text string) { fmt.Fprintf(b, "\n%s:\n", text) }

// writeProcessed tells what was done to each file.
func writeProcessed(b *strings.Builder, m *logs.Manifest) {
	if s := m.Source; s.Type != "" {
		heading(b, "source")
		fmt.Fprintf(b, "  %s\n", clean(strings.Join(strings.Fields(strings.Join([]string{s.Type, s.Name, s.Tag, s.Commit, s.Integrity}, " ")), " "))) // a folder has only a name
	}
	heading(b, "files")
	for _, f := range m.Files {
		done := "unchanged"
		switch f.Origin {
		case logs.Minified:
			done = "minified here from " + clean(f.From)
		case logs.Taken:
			done = "as the origin has it"
		}
		fmt.Fprintf(b, "  %s: %s\n", clean(f.Path), done)
	}
	if len(m.LeftOut) > 0 {
		heading(b, "left out")
		for _, f := range m.LeftOut {
			fmt.Fprintf(b, "  %s: %s\n", clean(f.Path), clean(f.Reason))
		}
	}
	if len(m.Notes) > 0 {
		heading(b, "notes")
		for _, note := range m.Notes {
			fmt.Fprintf(b, "  %s\n", clean(note))
		}
	}
}

// writeFiles tells what is served.
func writeFiles(b *strings.Builder, m *logs.Manifest) {
	heading(b, "files")
	for _, f := range m.Files {
		main := ""
		if f.Path == m.Default {
			main = " (main)"
		}
		fmt.Fprintf(b, "  %s%s: %d bytes, %s\n", clean(f.Path), main, f.Size, f.SRI)
	}
}

func writeText(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(b, "  %s\n", clean(strings.TrimRight(line, "\r\n")))
	}
}

// clean is a text on one line, with a mark for each character that would be more than
// something to read.
func clean(s string) string {
	parts := strings.Split(s, "\t")
	for i, part := range parts {
		parts[i] = text.Line(part, unicode.ReplacementChar)
	}
	return strings.Join(parts, "\t")
}
