package library

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

// importsDocument returns the request to find out what a module imports. owner (NAME@VERSION) is its release, module its
// hash, size its bytes; read returns its source when a worker is to parse it. For a module over [document.MaxSource] bytes
// the error is a *document.RefusedError.
func importsDocument(owner string, module kvstore.Hash, size int, read func() ([]byte, error)) (RenderRequest, error) {
	if size > document.MaxSource {
		return RenderRequest{}, &document.RefusedError{Reason: fmt.Sprintf("it has over %d bytes", document.MaxSource)}
	}
	request := func(context.Context) (document.Request, error) {
		source, err := read()
		return document.Request{Kind: document.Imports, Text: string(source)}, err
	}
	return RenderRequest{Kind: document.Imports, Key: document.ImportsKey(owner, module), Owner: owner, Request: request}, nil
}

// rangesDocument returns the request to parse the version ranges all, such as "^1.2", of the release owner (NAME@VERSION).
func rangesDocument(owner string, all []string) RenderRequest {
	request := func(context.Context) (document.Request, error) {
		return document.Request{Kind: document.Ranges, Ranges: all}, nil
	}
	return RenderRequest{Kind: document.Ranges, Key: document.RangesKey(owner, all), Owner: owner, Request: request}
}

// Documents returns functions that return the imports of modules and the parsed version ranges of releases from the cache.
// If something is not cached, they queue it for the client, call pending, and report it as pending without waiting. read
// returns the source of a module by its hash when a worker is to parse it, from the goroutine of Run.
func (x *Renderer) Documents(client netip.Prefix, read func(kvstore.Hash) ([]byte, error), pending func(*PendingError)) Documents {
	return newDocuments(read, func(_ context.Context, d RenderRequest) (document.Result, bool, error) {
		r, err := x.Get(client, d)
		var waits *PendingError
		if errors.As(err, &waits) {
			pending(waits)
			return r, true, nil
		}
		return r, false, err
	})
}

// DocumentsNow returns functions that return the imports of modules and the parsed version ranges of releases. They have a
// worker render what is not cached, and wait for the result, so nothing is pending.
func (x *Renderer) DocumentsNow() Documents {
	return newDocuments(nil, func(ctx context.Context, d RenderRequest) (document.Result, bool, error) {
		r, err := x.Render(ctx, d)
		return r, false, err
	})
}

// newDocuments returns functions that get the imports of modules and the parsed version ranges of releases by calling get, which
// reports whether a result is pending. With read, the source of a module is read again by its hash when a worker is to parse it,
// so that a queued one takes no memory. If read is nil, get waits for the result, and the worker parses the source that the
// caller passed.
func newDocuments(read func(kvstore.Hash) ([]byte, error), get func(context.Context, RenderRequest) (document.Result, bool, error)) Documents {
	return Documents{
		Imports: func(ctx context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
			load := func() ([]byte, error) { return read(module) }
			if read == nil {
				load = func() ([]byte, error) { return source, nil }
			}
			d, err := importsDocument(owner, module, len(source), load)
			if err != nil {
				return nil, false, err
			}
			r, waits, err := get(ctx, d)
			return r.Imports, waits, err
		},
		Ranges: func(ctx context.Context, owner string, all []string) ([]document.Range, bool, error) {
			r, waits, err := get(ctx, rangesDocument(owner, all))
			return r.Ranges, waits, err
		},
	}
}
