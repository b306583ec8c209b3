package rendering

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

func imports(owner string, module kvstore.Hash, source []byte) (Document, error) {
	if len(source) > document.MaxSource {
		return Document{}, &document.RefusedError{Reason: fmt.Sprintf("it has over %d bytes", document.MaxSource)}
	}
	return Document{Kind: document.Imports, Key: document.ImportsKey(owner, module), Owner: owner, Request: func() (document.Request, error) {
		return document.Request{Kind: document.Imports, Text: string(source)}, nil
	}}, nil
}

// Imports returns what finds out what modules import. It calls pending for each of which that is not known yet.
func (x *Renderer) Imports(pending func(*PendingError)) library.Imports {
	return func(_ context.Context, owner string, module kvstore.Hash, source []byte) ([]document.Import, bool, error) {
		d, err := imports(owner, module, source)
		if err != nil {
			return nil, false, err
		}
		r, err := x.Get(d)
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
	d, err := imports(owner, module, source)
	if err != nil {
		return nil, false, err
	}
	r, err := x.Render(ctx, d)
	return r.Imports, false, err
}
