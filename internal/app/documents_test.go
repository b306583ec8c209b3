package app

import (
	"context"
	"errors"
	"testing"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
)

// TestRefusedDocuments checks that only failures that happen again are stored as refusals.
func TestRefusedDocuments(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, test := range []struct {
		name    string
		ctx     context.Context
		err     error
		refused bool
	}{
		{"an error of the task", t.Context(), errors.New("it nests too deeply"), true},
		{"memory or processor time", t.Context(), &worker.CrashError{Limited: true}, true},
		{"no thread, or a crash", t.Context(), &worker.CrashError{Reason: "failed to create new OS thread"}, false},
		{"a signal", t.Context(), &worker.CrashError{Killed: true}, false},
		{"the clock", t.Context(), &worker.CrashError{TimedOut: true}, false},
		{"no worker", t.Context(), &worker.StartError{Err: errors.New("cannot allocate memory")}, false},
		{"a stop", ended, errors.New("signal: killed"), false},
	} {
		if err := classifyRenderError(test.ctx, test.err); errors.As(err, new(*document.RefusedError)) != test.refused {
			t.Errorf("%s: %v, want a refusal: %v", test.name, err, test.refused)
		}
	}
}
