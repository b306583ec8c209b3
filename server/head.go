package server

import (
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// This file makes the heads of responses that have an asset, or say that the client has it:
// the bytes that go over the fast lane, as lines of HTTP/1.1 or as a header block of HTTP/2, from
// which net/http gets the same fields. Most of a head is the same for many assets, so it is put
// together of a few pieces for each response, which takes less time than reading 600 bytes that are
// not in the processor's cache.

// heads are for making heads in.
var heads = sync.Pool{New: func() any {
	b := make(lane.Head, 0, 1<<10)
	return &b
}}

// A form is how a head is written.
type form int

const (
	plain form = iota // lines, the last of which the sender completes with the date
	block             // of HTTP/2, without the date
	forms
)

// A piece is a part of a head in each form.
type piece [forms]string

// lastModified is the length of a date.
const lastModified = len(http.TimeFormat)

// A mediaType is a Content-Type, and what depends on that alone.
type mediaType struct {
	contentType string
	begin       [codings]piece // of the head of a 200 response in each coding, up to the length
	notModified piece          // the begin of the head of a 304 response
}

// mediaTypes makes the pieces of all types on first use. New makes them, so that no request does.
var mediaTypes = sync.OnceValue(func() map[string]*mediaType {
	types := map[string]*mediaType{octets: newMediaType(octets)}
	for _, name := range contentTypes {
		types[name] = newMediaType(name)
	}
	return types
})

// newMediaType returns the mediaType of a Content-Type, with the prepared pieces of response heads that depend on it.
func newMediaType(name string) *mediaType {
	t := &mediaType{contentType: name}
	lines, _ := splitHead(http.StatusNotModified, sandboxFields(name)...)
	t.notModified = piece{lines, string(h2.AppendStatus(nil, http.StatusNotModified)) + encodeBlock(sandboxFields(name)...)}
	for c := range t.begin {
		fields := append(sandboxFields(name), answers.Field{Name: "Content-Type", Value: name})
		if c := coding.Coding(c); c != coding.Identity {
			fields = append(fields, answers.Field{Name: "Content-Encoding", Value: c.String()})
		}
		lines, _ := splitHead(http.StatusOK, append(fields, answers.Field{Name: "Content-Length", Value: "0"})...)
		block := string(h2.AppendStatus(nil, http.StatusOK)) + encodeBlock(fields...) + h2.AppendableName("content-length")
		t.begin[c] = piece{strings.TrimSuffix(lines, "0"), block}
	}
	return t
}

// sandboxFields returns the Content-Security-Policy for a document of unknown author, so that its scripts run with an origin of their own, not with
// that of this host. It returns nil for content types that are not HTML or XML documents.
func sandboxFields(contentType string) []answers.Field {
	name, _, _ := strings.Cut(contentType, ";")
	if name != "text/html" && !strings.HasSuffix(name, "/xml") && !strings.HasSuffix(name, "+xml") {
		return nil
	}
	return []answers.Field{{Name: "Content-Security-Policy", Value: "sandbox allow-scripts"}}
}

// mediaTypeOf returns the Content-Type of the file at path, with its prepared pieces of response heads.
func mediaTypeOf(path string) *mediaType { return mediaTypes()[contentType(path)] }

// splitHead returns the HTTP/1.1 head of a response with a status and fields in two parts, between which more fields can be added: up to the last
// field, without its line end, and from that line end to "Date: ".
func splitHead(status int, fields ...answers.Field) (before, after string) {
	const between = "\r\nBetween: "
	before, after, _ = strings.Cut(string(lane.NewHead(status, append(fields, answers.Field{Name: "Between"})...)), between)
	return before, after
}

// The pieces. What does not describe the body goes with a 304, too, because a cache may have
// to update it (RFC 9110 §15.4.5).
var (
	_, headEnd = splitHead(http.StatusOK)
	tagged     = piece{"\r\nEtag: ", h2.AppendableName("etag")}
	dated      = piece{"\r\nLast-Modified: ", h2.AppendableName("last-modified")}
	immutable  = answers.Field{Name: "Cache-Control", Value: answers.CacheImmutable(answers.Forever).Control()}
	kept       = newPiece(immutable)
	inParts    = newPiece(answers.Field{Name: "Accept-Ranges", Value: "bytes"})
	// The same for what may yet become other bytes.
	provisional = answers.Field{Name: "Cache-Control", Value: answers.Provisional.Control()}
	keptBriefly = newPiece(provisional)
	varied      = newPiece(answers.Field{Name: "Vary", Value: "Accept-Encoding"})
	// variedByDictionary is for files that have deltas.
	variedByDictionary = newPiece(answers.Field{Name: "Vary", Value: variesByDictionary})
	usable             = piece{"\r\nUse-As-Dictionary: ", h2.AppendableName("use-as-dictionary")}
	// A shared cache would hardly serve a delta twice, so it leaves that to the clients.
	private       = answers.Field{Name: "Cache-Control", Value: strings.Replace(immutable.Value, "public", "private", 1)}
	keptPrivately = newPiece(private)
	afterTags     = piece{newPiece(answers.AnyOrigin...)[plain] + headEnd, newPiece(answers.AnyOrigin...)[block]}
)

// newPiece returns fields as a piece of a head in both forms: HTTP/1.1 lines and an HTTP/2 header block.
func newPiece(fields ...answers.Field) piece {
	without, _ := splitHead(http.StatusOK)
	with, _ := splitHead(http.StatusOK, fields...)
	return piece{strings.TrimPrefix(with, without), encodeBlock(fields...)}
}

// encodeBlock returns fields as a part of an HTTP/2 header block, with names in lower case.
func encodeBlock(fields ...answers.Field) string {
	var b []byte
	for _, f := range fields {
		b = h2.AppendField(b, strings.ToLower(f.Name), f.Value)
	}
	return string(b)
}

// appendValue appends only the value of a header field to b, in the form f. For plain, b already ends with the field's name and ": ", and appendValue
// adds no line end. For block, b ends with the encoded name, and the value is preceded by its length.
func appendValue[T string | []byte](b []byte, f form, value T) []byte {
	if f == block {
		return h2.AppendValue(b, value)
	}
	return append(b, value...)
}

// okHead returns the head of a 200 response with the whole representation, written in the form f. The head is from the pool heads; the caller puts it
// back.
func (r *representation) okHead(f form) *lane.Head {
	h := heads.Get().(*lane.Head)
	var digits [20]byte
	b := appendValue(append((*h)[:0], r.begin[r.coding][f]...), f, strconv.AppendInt(digits[:0], r.length, 10))
	b = appendValue(append(b, tagged[f]...), f, r.tag)
	if !r.released.IsZero() {
		b = appendValue(append(b, dated[f]...), f, r.lastModified[:])
	}
	b = append(b, r.caching()[f]...)
	if r.coding != coding.DCZ {
		b = append(b, inParts[f]...)
	}
	if r.dictionary != "" {
		b = appendValue(append(b, usable[f]...), f, r.dictionary)
	}
	*h = r.appendCommon(b, f)
	return h
}

// notModifiedHead returns the head of a 304 response with the entity tag tag, written in the form f. The head is from the pool heads; the caller puts
// it back.
func (r *representation) notModifiedHead(f form, tag string) *lane.Head {
	h := heads.Get().(*lane.Head)
	b := append((*h)[:0], r.mediaType.notModified[f]...)
	b = appendValue(append(b, tagged[f]...), f, tag)
	*h = r.appendCommon(append(b, r.caching()[f]...), f)
	return h
}

// caching returns the piece with Cache-Control.
func (r *representation) caching() *piece {
	switch {
	case r.coding == coding.DCZ:
		return &keptPrivately
	case r.provisional:
		return &keptBriefly
	}
	return &kept
}

// appendCommon appends to b, a head in the form f, the last fields of both 200 and 304 responses: Vary, cache tags and CORS, and for HTTP/1.1 the end
// up to the date.
func (r *representation) appendCommon(b lane.Head, f form) lane.Head {
	switch {
	case r.deltas != nil:
		b = append(b, variedByDictionary[f]...)
	case r.vary:
		b = append(b, varied[f]...)
	}
	if f == block {
		b = r.purged.appendBlock(b)
	} else {
		b = r.purged.appendLines(b)
	}
	return append(b, afterTags[f]...)
}

// setHeader copies the fields of a prepared HTTP/1.1 head into a header of net/http, and puts the head back into the pool heads. The caller must not
// use it afterwards.
func setHeader(to http.Header, h *lane.Head) {
	_, rest, _ := strings.Cut(string(*h), "\r\n")
	heads.Put(h)
	values := make([]string, 0, 16) // each field has a part of it
	for {
		line, after, more := strings.Cut(rest, "\r\n")
		if !more {
			return // the date is not here yet
		}
		name, value, _ := strings.Cut(line, ": ")
		values = append(values, value)
		to[name] = values[len(values)-1 : len(values) : len(values)]
		rest = after
	}
}
