package app

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
)

// pageSources are the inputs of pages besides the libraries. Untrusted documents are rendered in worker processes, one at a time:
// each document in a process of its own, or all modules of a release in one.
type pageSources struct {
	changes  library.Changes
	renderer *library.Renderer // of the documents in the store
	workers  *worker.Pool      // which render them
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
