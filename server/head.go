package server

import (
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/lane"
)

// This file makes the heads of answers that have an asset, or say that the client has it:
// the bytes that go over the fast lane, from which net/http gets the same fields. Most of a
// head is the same for many assets, so it is put together of a few pieces for each answer,
// which takes less time than reading 600 bytes that nobody has touched for a while.

// heads are for making heads in.
var heads = sync.Pool{New: func() any {
	b := make(lane.Head, 0, 1<<10)
	return &b
}}

// lastModified is the length of a date.
const lastModified = len(http.TimeFormat)

// A mediaType is a Content-Type, and what depends on that alone.
type mediaType struct {
	contentType string
	begin       [codings]string // of the head of a 200 answer in each coding, up to the length
}

var mediaTypes = func() map[string]*mediaType {
	types := map[string]*mediaType{octets: newMediaType(octets)}
	for _, name := range contentTypes {
		types[name] = newMediaType(name)
	}
	return types
}()

func newMediaType(name string) *mediaType {
	t := &mediaType{contentType: name}
	for c := range t.begin {
		fields := []*field{newField("Content-Type", name)}
		if c := coding.Coding(c); c != coding.Identity {
			fields = append(fields, newField("Content-Encoding", c.String()))
		}
		t.begin[c], _ = around(http.StatusOK, append(fields, newField("Content-Length", "0"))...)
		t.begin[c] = strings.TrimSuffix(t.begin[c], "0")
	}
	return t
}

func mediaTypeOf(path string) *mediaType { return mediaTypes[contentType(path)] }

// around returns what a head with those fields has before and after all others.
func around(status int, fields ...*field) (before, after string) {
	const between = "\r\nBetween: "
	before, after, _ = strings.Cut(string(newHead(status, append(fields, newField("Between", "")))), between)
	return before, after
}

// The pieces. What does not describe the body goes with a 304, too, because a cache may have
// to update it (RFC 9110 §15.4.5).
var (
	notModifiedBegin, headEnd = around(http.StatusNotModified)
	kept                      = lines(newField("Cache-Control", cacheForever))
	keptInParts               = kept + lines(newField("Accept-Ranges", "bytes"))
	varied                    = lines(newField("Vary", "Accept-Encoding"))
	afterTags                 = lines(crossOrigin...) + headEnd
)

// lines returns fields as they stand in a head.
func lines(fields ...*field) string {
	without, _ := around(http.StatusOK)
	with, _ := around(http.StatusOK, fields...)
	return strings.TrimPrefix(with, without)
}

// okHead returns the head of a 200 answer with all of r. It must go back to heads.
func (r *representation) okHead() *lane.Head {
	h := heads.Get().(*lane.Head)
	b := append((*h)[:0], r.begin[r.coding]...)
	b = strconv.AppendInt(b, r.length, 10)
	b = append(append(b, "\r\nEtag: "...), r.tag...)
	if !r.released.IsZero() {
		b = append(append(b, "\r\nLast-Modified: "...), r.lastModified[:]...)
	}
	*h = r.appendRest(append(b, keptInParts...))
	return h
}

// notModifiedHead returns the head of a 304 answer that carries tag. It must go back to heads.
func (r *representation) notModifiedHead(tag string) *lane.Head {
	h := heads.Get().(*lane.Head)
	b := append((*h)[:0], notModifiedBegin...)
	b = append(append(b, "\r\nEtag: "...), tag...)
	*h = r.appendRest(append(b, kept...))
	return h
}

func (r *representation) appendRest(b lane.Head) lane.Head {
	if r.vary {
		b = append(b, varied...)
	}
	return append(r.purged.AppendLines(b), afterTags...)
}

// setFields gives an answer over net/http the fields of the head, and the head back to heads.
func setFields(to http.Header, h *lane.Head) {
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
