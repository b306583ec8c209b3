package rendering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

// importsDocument returns the request to find out what a module imports. owner (NAME@VERSION) is its release, module its
// hash, size its bytes; read returns its source when a worker is to parse it. For a module over [document.MaxSource] bytes
// the error is a *document.RefusedError.
func importsDocument(owner string, module kvstore.Hash, size int, read func() ([]byte, error)) (Document, error) {
	if size > document.MaxSource {
		return Document{}, &document.RefusedError{Reason: fmt.Sprintf("it has over %d bytes", document.MaxSource)}
	}
	return Document{Kind: document.Imports, Key: document.ImportsKey(owner, module), Owner: owner, Request: func(context.Context) (document.Request, error) {
		source, err := read()
		return document.Request{Kind: document.Imports, Text: string(source)}, err
	}}, nil
}

// rangesDocument returns the request to parse the version ranges all, such as "^1.2", of the release owner (NAME@VERSION).
func rangesDocument(owner string, all []string) Document {
	return Document{Kind: document.Ranges, Key: document.RangesKey(owner, all), Owner: owner, Request: func(context.Context) (document.Request, error) {
		return document.Request{Kind: document.Ranges, Ranges: all}, nil
	}}
}

// Documents returns functions that return the imports of modules and the parsed version ranges of releases from the cache.
// If something is not cached, they queue it for the client, call pending, and report it as pending without waiting. read
// returns the source of a module by its hash when a worker is to parse it, from the goroutine of Run.
func (x *Renderer) Documents(client netip.Prefix, read func(kvstore.Hash) ([]byte, error), pending func(*PendingError)) library.Documents {
	get := func(d Document) (document.Result, bool, error) {
		r, err := x.Get(client, d)
		var waits *PendingError
		if errors.As(err, &waits) {
			pending(waits)
			return r, true, nil
		}
		return r, false, err
	}
	return library.Documents{
		Imports: func(_ context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
			d, err := importsDocument(owner, module, len(source), func() ([]byte, error) { return read(module) })
			if err != nil {
				return nil, false, err
			}
			r, waits, err := get(d)
			return r.Imports, waits, err
		},
		Ranges: func(_ context.Context, owner string, all []string) ([]document.Range, bool, error) {
			r, waits, err := get(rangesDocument(owner, all))
			return r.Ranges, waits, err
		},
	}
}

// DocumentsNow returns functions that return the imports of modules and the parsed version ranges of releases. They have a
// worker render what is not cached, and wait for the result, so nothing is pending.
func (x *Renderer) DocumentsNow() library.Documents {
	return library.Documents{
		Imports: func(ctx context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
			d, err := importsDocument(owner, module, len(source), func() ([]byte, error) { return source, nil })
			if err != nil {
				return nil, false, err
			}
			r, err := x.Render(ctx, d)
			return r.Imports, false, err
		},
		Ranges: func(ctx context.Context, owner string, all []string) ([]document.Range, bool, error) {
			r, err := x.Render(ctx, rangesDocument(owner, all))
			return r.Ranges, false, err
		},
	}
}
