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

func imports(owner string, module kvstore.Hash, size int, read func() ([]byte, error)) (Document, error) {
	if size > document.MaxSource {
		return Document{}, &document.RefusedError{Reason: fmt.Sprintf("it has over %d bytes", document.MaxSource)}
	}
	return Document{Kind: document.Imports, Key: document.ImportsKey(owner, module), Owner: owner, Request: func(context.Context) (document.Request, error) {
		source, err := read()
		return document.Request{Kind: document.Imports, Text: string(source)}, err
	}}, nil
}

func ranges(owner string, all []string) Document {
	return Document{Kind: document.Ranges, Key: document.RangesKey(owner, all), Owner: owner, Request: func(context.Context) (document.Request, error) {
		return document.Request{Kind: document.Ranges, Ranges: all}, nil
	}}
}

// Documents finds out for a client what documents say. It calls pending for each of which that is not known yet. A worker's turn reads a module by its
// hash.
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
			d, err := imports(owner, module, len(source), func() ([]byte, error) { return read(module) })
			if err != nil {
				return nil, false, err
			}
			r, waits, err := get(d)
			return r.Imports, waits, err
		},
		Ranges: func(_ context.Context, owner string, all []string) ([]document.Range, bool, error) {
			r, waits, err := get(ranges(owner, all))
			return r.Ranges, waits, err
		},
	}
}

// DocumentsNow is Documents for callers who wait.
func (x *Renderer) DocumentsNow() library.Documents {
	return library.Documents{
		Imports: func(ctx context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
			d, err := imports(owner, module, len(source), func() ([]byte, error) { return source, nil })
			if err != nil {
				return nil, false, err
			}
			r, err := x.Render(ctx, d)
			return r.Imports, false, err
		},
		Ranges: func(ctx context.Context, owner string, all []string) ([]document.Range, bool, error) {
			r, err := x.Render(ctx, ranges(owner, all))
			return r.Ranges, false, err
		},
	}
}
