package repair

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
)

// OpenFolder returns a backup's folder, another data folder, or a store in a folder, as a
// source. It is opened to be read only; it may be damaged itself.
func OpenFolder(dir string, logger *slog.Logger) (Source, error) {
	store := filepath.Join(dir, storeName)
	if _, err := os.Stat(store); err != nil {
		store = dir
	}
	s, err := kvstore.Open(store, kvstore.Options{ReadOnly: true, CacheBytes: 16 << 20, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("couldn't open %s to take from it what is lost: %w", dir, err)
	}
	return stored{s, dir}, nil
}
