package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

// pageSources are the inputs of pages besides the libraries.
type pageSources struct {
	changes   library.Changes
	documents *documents
}

// documents renders untrusted documents in worker processes, one at a time: each document in a process of its own, or all
// modules of a release in one.
type documents struct {
	renderer *library.Renderer
	workers  *worker.Pool
}

// renderTimeout ends a worker that gets no processor time, or whose processor time the system does not count.
const renderTimeout = time.Minute

// newWorkers returns a pool of worker processes of this program, which start when they are first used. The caller closes it. It
// replaces o.Program by the path of this program.
func newWorkers(o worker.Options) *worker.Pool {
	var err error
	if o.Program, err = os.Executable(); err != nil {
		o.Program = program
	}
	return worker.NewPool(o)
}

// newDocuments returns a renderer of the documents in a store, which uses workers. The caller closes workers.
func newDocuments(workers *worker.Pool, store *kvstore.Store, logger *slog.Logger) *documents {
	d := &documents{workers: workers}
	d.renderer = library.NewRenderer(library.RendererOptions{Store: store, Render: d.render, Logger: logger})
	return d
}

// render renders one document in a worker process. Requests to find the imports of modules share a process if they have the
// same owner, a release; every other document gets a process of its own. A [*document.RefusedError] says that the document
// would fail again; other errors may not be the document's fault.
func (d *documents) render(ctx context.Context, owner string, r document.Request) (document.Result, error) {
	if r.Kind != document.Imports {
		owner = "" // so that no other document is rendered in the process
	}
	request, err := json.Marshal(r)
	if err != nil {
		return document.Result{}, err
	}
	data, err := d.workers.Do(ctx, owner, worker.Render, request)
	if err == nil {
		var result document.Result
		if result, err = document.Decode(r.Kind, data); err == nil {
			return result, nil
		}
	}
	return document.Result{}, classifyRenderError(ctx, err)
}

// classifyRenderError returns a [*document.RefusedError], which is stored, if rendering the same document fails again: it exceeded
// its memory or processor time, or the worker reported an error. It returns other errors unchanged: the document may not be the
// cause.
func classifyRenderError(ctx context.Context, err error) error {
	crash, crashed := errors.AsType[*worker.CrashError](err)
	if ctx.Err() != nil || errors.As(err, new(*worker.StartError)) || crashed && !crash.Limited {
		return err
	}
	return &document.RefusedError{Reason: err.Error()}
}
