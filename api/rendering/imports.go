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

// Imports returns a function that finds out for a client what modules import. It calls pending for each of which that is not known yet. A
// worker's turn reads the module by its hash.
func (x *Renderer) Imports(client netip.Prefix, read func(kvstore.Hash) ([]byte, error), pending func(*PendingError)) library.Imports {
	return func(_ context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
		d, err := imports(owner, module, len(source), func() ([]byte, error) { return read(module) })
		if err != nil {
			return nil, false, err
		}
		r, err := x.Get(client, d)
		var waits *PendingError
		if errors.As(err, &waits) {
			pending(waits)
			return nil, true, nil
		}
		return r.Imports, false, err
	}
}

// ImportsNow is Imports for a caller who waits.
func (x *Renderer) ImportsNow(ctx context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
	d, err := imports(owner, module, len(source), func() ([]byte, error) { return source, nil })
	if err != nil {
		return nil, false, err
	}
	r, err := x.Render(ctx, d)
	return r.Imports, false, err
}
