package gitlog

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// Documents are the contents that an entry names, zero for those that it does not name, without package JSONs and
// attestations.
type Documents struct {
	Manifest *logs.Manifest `json:"manifest,omitempty"`
	Erasure  *logs.Erasure  `json:"erasure,omitempty"`
	Diff     string         `json:"diff,omitempty"`   // of the package JSON
	Detail   string         `json:"detail,omitempty"` // the whole of a reason that was cut
}

// ReadDocuments reads those contents that an entry names which Documents has. It reads neither the package JSON nor
// attestations. One that cannot be read is an error.
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

// subjectOf returns an entry's package, version and kind on one line, without those that it does not have: "jquery 3.7.1:
// published".
func subjectOf(e logs.Entry) string {
	switch {
	case e.Package == "":
		return string(e.Kind)
	case e.Version == "":
		return cleanLine(e.Package) + ": " + string(e.Kind)
	}
	return cleanLine(e.Package) + " " + cleanLine(e.Version) + ": " + string(e.Kind)
}

// stages are the names of files where the public service's logs have another name
// for a kind.
var stages = map[logs.Kind]string{logs.Detected: "new-version", logs.Processed: "processing", logs.Published: "publish"}

// filePath returns the path of the file that an entry belongs to, in the layout of the public service's repository of logs:
// packages/{letter}/{package}/{version}/{stage}.log. The stage is the kind, or the name of it in stages. The version is
// _package for an entry without one. An entry without a package belongs to log/{stage}.log.
func filePath(e logs.Entry) string {
	stage := cmp.Or(stages[e.Kind], string(e.Kind))
	if e.Package == "" {
		return "log/" + stage + ".log"
	}
	version := cmp.Or(e.Version, "_package") // no version begins like that
	return path.Join(strings.TrimSuffix(packages.Path(e.Package), ".json"), version, stage+".log")
}

// WriteText writes what an entry says, a name and a value on each line, and the contents d that it names, for terminals and
// exports. It leaves out the downloads and what only programs verify: the roots, attestations, and the registry's signature
// itself. Text from outside is on lines of its own, without characters that move a cursor or change the direction of text.
func WriteText(w io.Writer, e logs.Indexed, d Documents) error {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-12s%s\n", name, cleanLine(value))
		}
	}
	line("entry", strconv.FormatInt(e.Index, 10))
	line("kind", string(e.Kind))
	line("time", e.Time.Format(time.RFC3339Nano))
	line("actor", e.Actor)
	line("package", e.Package)
	line("version", e.Version)
	if !e.Released.IsZero() {
		line("released", e.Released.Format(time.RFC3339Nano))
	}
	line("reason", e.Reason)
	line("signature", strings.TrimSpace(string(e.Signature.Outcome)+" "+e.Signature.Key))
	line("signed", e.Signature.Text)
	if p := e.Provenance; p != nil {
		line("provenance", p.String())
		if p.Publish.Outcome != "" {
			line("publication", p.Publish.String())
		}
	}
	if e.Policy != (logs.PolicyChange{}) {
		line("required before", orNone(e.Policy.Old))
		line("required now", orNone(e.Policy.New))
	}
	if m := e.Maker; m != nil {
		line("minified by", strings.Join([]string{m.Program, m.Version, m.Options}, " "))
	}
	if m := e.Mirror; m != nil {
		line("taken from", m.Source)
		line("proof", m.DescribeProof())
	}
	if e.Upstream != (logs.UpstreamChange{}) {
		line("before", orNone(e.Upstream.Old))
		line("after", orNone(e.Upstream.New))
	}
	for _, named := range []struct {
		name string
		hash kvstore.Hash
	}{{"manifest", e.Entry.Manifest}, {"packageJSON", e.Entry.PackageJSON}, {"diff", e.Entry.Diff}, {"detail", e.Entry.Detail}, {"erasure", e.Entry.Erasure}} {
		if named.hash != (kvstore.Hash{}) {
			line(named.name, named.hash.String())
		}
	}
	line("key", e.Key)
	line("signed", e.KeySignature)
	if e.Former != "" {
		line("lost", fmt.Sprintf("%s of the log before, %s", e.Lost, e.Former))
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
		writeHeading(&b, "erased contents (SHA-256)")
		for _, h := range d.Erasure.Contents {
			fmt.Fprintf(&b, "  %s\n", h)
		}
	}
	if d.Detail != "" {
		writeHeading(&b, "the reason in full")
		writeText(&b, d.Detail)
	}
	if d.Diff != "" {
		writeHeading(&b, "package JSON")
		writeText(&b, d.Diff)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// orNone returns its argument, or words that say that upstream has none if it is "".
func orNone(integrity string) string { return cmp.Or(integrity, "upstream does not have it") }

// writeHeading writes an empty line and a heading with a colon.
func writeHeading(b *strings.Builder, text string) { fmt.Fprintf(b, "\n%s:\n", text) }

// writeProcessed writes the source of a release, what was done to each of its files, which were left out, and notes, as a
// manifest has them.
func writeProcessed(b *strings.Builder, m *logs.Manifest) {
	if s := m.Source; s.Type != "" {
		writeHeading(b, "source")
		fmt.Fprintf(b, "  %s\n", cleanLine(strings.Join(strings.Fields(strings.Join([]string{s.Type, s.Name, s.Tag, s.Commit, s.Integrity}, " ")), " "))) // a folder has only a name
	}
	writeHeading(b, "files")
	for _, f := range m.Files {
		done := "unchanged"
		switch f.Origin {
		case logs.Minified:
			done = "minified here from " + cleanLine(f.From)
		case logs.Taken:
			done = "as the origin has it"
		case logs.Built:
			done = "built here for browsers"
		}
		fmt.Fprintf(b, "  %s: %s\n", cleanLine(f.Path), done)
	}
	if len(m.LeftOut) > 0 {
		writeHeading(b, "left out")
		for _, f := range m.LeftOut {
			fmt.Fprintf(b, "  %s: %s\n", cleanLine(f.Path), cleanLine(f.Reason))
		}
	}
	if len(m.Notes) > 0 {
		writeHeading(b, "notes")
		for _, note := range m.Notes {
			fmt.Fprintf(b, "  %s\n", cleanLine(note))
		}
	}
}

// writeFiles writes the path, size and integrity of each file in a manifest, and which is the main one.
func writeFiles(b *strings.Builder, m *logs.Manifest) {
	writeHeading(b, "files")
	for _, f := range m.Files {
		main := ""
		if f.Path == m.Default {
			main = " (main)"
		}
		fmt.Fprintf(b, "  %s%s: %d bytes, %s\n", cleanLine(f.Path), main, f.Size, f.SRI)
	}
}

// writeText writes a text from outside, indented and with harmless characters only.
func writeText(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(b, "  %s\n", cleanLine(strings.TrimRight(line, "\r\n")))
	}
}

// cleanLine returns a text on one line, with U+FFFD in place of each unprintable character but tabs.
func cleanLine(s string) string {
	parts := strings.Split(s, "\t")
	for i, part := range parts {
		parts[i] = text.Line(part, unicode.ReplacementChar)
	}
	return strings.Join(parts, "\t")
}
