package app

import (
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/watch"
)

// A Watch is what `larder watch` does: it tells what happens in a server's log.
type Watch struct {
	watch.Options
	// Folder keeps where the last look ended, unless State says where.
	Folder string
	// Trust says whose signatures count.
	Trust verify.Trust
}

// A WatchEvent is something that a Watch tells.
type WatchEvent = watch.Event

// Open reads where the last look ended.
func (w Watch) Open() (*watch.Watcher, error) {
	w.Verify = verify.Options{Trust: w.Trust, UserAgent: agent()}
	if w.State == "" {
		w.State = watch.StateFile(w.Folder, w.Server, w.Packages)
	}
	return watch.Open(w.Options)
}
