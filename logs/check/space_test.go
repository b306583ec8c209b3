package check

import (
	"errors"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
)

// A new store is not begun where the disk has no room for it.
func TestSpace(t *testing.T) {
	e := newEngine(RepairOptions{Data: t.TempDir()})
	if err := e.checkSpace(1 << 20); err != nil {
		t.Errorf("a megabyte: %v", err)
	}
	if err := e.checkSpace(1 << 60); !errors.Is(err, kvstore.ErrDiskFull) || !strings.Contains(err.Error(), "free some space; nothing was changed") {
		t.Errorf("far too much: %v", err)
	}
}
