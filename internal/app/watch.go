package app

import (
	"github.com/larder-cdn/larder/logs/verify"
)

// A Watch reports the events in a server's log, for `larder log watch`.
type Watch struct {
	verify.WatchOptions
	// Folder has the state of the last poll, unless State names a file.
	Folder string
	// Trust says whose signatures count.
	Trust verify.Trust
}

// A WatchEvent is an event that a Watch reports.
type WatchEvent = verify.WatchEvent

// Open returns a watcher of the server's log, which continues after the last poll. Without w.State it keeps its state in a file
// in w.Folder.
func (w Watch) Open() (*verify.Watcher, error) {
	w.Verify = verify.Options{Trust: w.Trust, UserAgent: userAgent()}
	if w.State == "" {
		w.State = verify.WatchStateFile(w.Folder, w.Server, w.Packages)
	}
	return verify.OpenWatcher(w.WatchOptions)
}
