package kvstore

import (
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// Store is an open folder.
type Store struct {
	dir  string
	opts Options
	db   *pebble.DB

	pinned struct {
		sync.Mutex
		count map[Hash]int
	}
	content sync.Mutex // serialises the replacing of contents
}

// Open opens the store in dir, and makes it where there is none.
func Open(dir string, o Options) (*Store, error) {
	o.defaults()
	po := &pebble.Options{
		FS:                 o.FS,
		CacheSize:          o.CacheBytes,
		MemTableSize:       uint64(o.MemTableBytes),
		FormatMajorVersion: pebble.FormatNewest,
		ReadOnly:           o.ReadOnly,
	}
	for i := range po.Levels {
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	po.Logger = quiet{}
	db, err := pebble.Open(dir, po)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", dir, err)
	}
	s := &Store{dir: dir, opts: o, db: db}
	s.pinned.count = make(map[Hash]int)
	return s, nil
}

type quiet struct{}

func (quiet) Infof(string, ...any)          {}
func (quiet) Errorf(string, ...any)         {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// Close closes the store. What was committed is already on the disk.
func (s *Store) Close() error { return s.db.Close() }
