package library_test

import (
	"errors"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
)

// Nothing is ready before all libraries have been read.
func TestReadyAfterTheFirstReading(t *testing.T) {
	t.Parallel()
	shelf := testkit.NewShelf(t)
	x := library.New(library.Options{Store: shelf.Store, Log: shelf.Log}) // which does not run
	if err := x.Ready(); !errors.Is(err, library.ErrNotReady) {
		t.Errorf("it is said to be ready: %v", err)
	}
	if err := shelf.Index(library.Options{}).Ready(); err != nil {
		t.Error(err)
	}
}
