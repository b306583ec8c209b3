package main

import (
	"bytes"
	"net/http"
	"sync"

	"golang.org/x/net/http2/hpack"
)

// blocks prepares header blocks for the lean generator, as a browser sends them: what is the
// same in all of a connection's requests comes from the dynamic table, which the first block
// fills, and what is not never goes into it. So they fit any connection in any order.
type blocks struct {
	authority string
	first     []byte

	mu      sync.Mutex
	out     bytes.Buffer
	encoder *hpack.Encoder
}

func newBlocks(authority string) *blocks {
	b := &blocks{authority: authority}
	b.encoder = hpack.NewEncoder(&b.out)
	b.first = b.of(request{Method: http.MethodGet, Path: missingPath(0)}, validators{})
	return b
}

func (b *blocks) of(q request, v validators) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out.Reset()
	add := func(name, value string, own bool) {
		_ = b.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: own}) // a buffer takes everything
	}
	add(":method", q.Method, q.Method != http.MethodGet)
	add(":authority", b.authority, false)
	add(":scheme", "https", false)
	add(":path", q.Path, true)
	for _, field := range browser {
		add(string(bytes.ToLower([]byte(field[0]))), field[1], false)
	}
	if q.Conditional {
		add("if-none-match", v.etag, true)
		add("if-modified-since", v.modified, true)
	}
	return bytes.Clone(b.out.Bytes())
}
