package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// This file has clients use files as dictionaries for the same file of another version, and chooses deltas for clients that have one (RFC 9842).

// variesByDictionary is Vary of files that have deltas.
const variesByDictionary = "Accept-Encoding, Available-Dictionary"

// availableLength is the length of an Available-Dictionary field: a SHA-256 in base64 between colons.
const availableLength = 46

// A delta is a representation for clients that have a dictionary.
type delta struct {
	representation
	available string // Available-Dictionary of those clients
}

// addDictionaries sets the asset's deltas to those that the store has, and its value of Use-As-Dictionary for the file t if the content is
// compressible and its size suits a dictionary. It ignores a damaged list of deltas (kvstore.ErrCorrupt) and returns other errors of the store.
func (f *asset) addDictionaries(store *kvstore.Store, t target) error {
	// A content that does not compress hardly resembles that of another version.
	if f.representations[0].coding != coding.Identity && f.size >= coding.MinDictionary && f.size <= coding.MaxDictionary {
		f.dictionary = useAsDictionary(t)
	}
	stored, err := store.Deltas(f.content)
	if errors.Is(err, kvstore.ErrCorrupt) {
		return nil // `larder fsck` reports it, and the other encodings do
	}
	if err != nil || len(stored) == 0 {
		return err
	}
	f.deltas = make([]delta, len(stored))
	for i, d := range stored {
		r := kvstore.Representation{Coding: coding.DCZ, Length: d.Length, Sum: d.Sum}
		f.deltas[i] = delta{
			representation: representation{asset: f, coding: coding.DCZ, stored: true, length: d.Length, sum: d.Sum, tag: string(appendETag(nil, f.content, r))},
			available:      requests.FormatDictionary(d.Dictionary),
		}
	}
	return nil
}

// chooseFor returns the representation of the asset to send to a client, nil if it accepts none. It chooses a delta if the client has its dictionary,
// prefers dcz no less than the other encodings, requests no range, and the delta is smaller. It avoids a delta if only the other encoding matches the
// request's conditions.
func (f *asset) chooseFor(q *query) *representation {
	weights := requests.ParseAcceptEncoding(q.fields.AcceptEncoding)
	r := f.chooseRepresentation(weights)
	if f.deltas == nil || len(q.fields.AvailableDictionary) != 1 || q.ranged {
		return r
	}
	weight := weights.Of(coding.DCZ)
	if weight == requests.Refused || r != nil && weight < weights.Of(r.coding) {
		return r
	}
	for i := range f.deltas {
		d := &f.deltas[i]
		if d.available != q.fields.AvailableDictionary[0] || r != nil && d.length >= r.length {
			continue
		}
		if r != nil {
			// The condition may be about the content in the other encoding, which the client has.
			verdict, _ := r.evaluateConditions(q.fields)
			if other, _ := d.evaluateConditions(q.fields); verdict != failed && other != notModified && verdict != other {
				return r
			}
		}
		return &d.representation
	}
	return r
}

// useAsDictionary returns the value of the field Use-As-Dictionary for the file t: a client that has the file names it as a dictionary in requests
// for the same path in any version.
func useAsDictionary(t target) string {
	var b strings.Builder
	b.WriteString(`match="` + Prefix)
	writePattern(&b, t.pkg)
	b.WriteString("/:version/")
	writePattern(&b, t.path)
	b.WriteString(`", id="`)
	writePattern(&b, t.version)
	b.WriteString(`"`)
	return b.String()
}

// writePattern writes text to b as a literal of a URLPattern's pathname, in a string of a structured field (RFC 9651 §3.3.3). It percent-encodes
// bytes that browsers encode in paths, and escapes with a backslash what the pattern would interpret; the string escapes that backslash once more.
func writePattern(b *strings.Builder, text string) {
	for _, c := range []byte(text) {
		switch {
		case c <= ' ' || c >= 0x7f || strings.IndexByte("\"#%<>?^`{}\\", c) >= 0:
			fmt.Fprintf(b, "%%%02X", c)
		case strings.IndexByte("+*:()", c) >= 0:
			b.WriteString(`\\`)
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
}
