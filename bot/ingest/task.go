package ingest

import (
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
)

// A Task is a release to fetch.
type Task struct {
	Pkg      *packages.Package
	Version  sources.Candidate
	Released time.Time
	Fresh    bool   // it has appeared since the first poll of the package, so it precedes every backlog
	Tried    int    // attempts that failed
	Rank     int    // position among the tasks of one poll, 0 for the newest, so that every package's newest come first
	Actor    string // of the log entries: ActorBot or ActorOperator
	Override string // that of [pendingRelease]
}

// ID returns the id of the task's version in queues and [Claims]; see [ReleaseID].
func (t Task) ID() string { return ReleaseID(t.Pkg.Name, t.Version.Name) }

// ReleaseID returns the id of a version in queues and claims: the package's name, a space, and the version.
func ReleaseID(pkg, version string) string { return pkg + " " + version }
