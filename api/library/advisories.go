package library

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/packages"
)

// Advisories are the known vulnerabilities of npm packages, read from a file in the OSV format
// (https://ossf.github.io/osv-schema/): one record, a list of them, one a line, or a .zip of such files, which is how
// osv.dev exports them; or a file of [WriteCheckedPackages]. Its methods read the file again if it has changed, which they
// check once a minute. They may be called at the same time. A nil Advisories knows no vulnerability.
type Advisories struct {
	file    string
	later   bool // the file is one of WriteCheckedPackages, which may be created later
	now     func() time.Time
	logger  *slog.Logger
	reading sync.Mutex  // held while the file is read
	read    os.FileInfo // as it was; nil before there is a file; guarded by reading
	mu      sync.Mutex  // guards the fields below
	looked  time.Time
	set     advisorySet
}

// lookAtAdvisories is how often the file is compared with the one that was read.
const lookAtAdvisories = time.Minute

// OpenAdvisories reads the vulnerabilities in a file in the OSV format. It returns an error only if the file cannot be read
// now; later failures are logged, and what was read before stays in use. logger may be nil.
func OpenAdvisories(file string, logger *slog.Logger) (*Advisories, error) {
	a := &Advisories{file: file, now: time.Now, looked: time.Now(), logger: cmp.Or(logger, slog.New(slog.DiscardHandler))}
	if err := a.readFile(); err != nil {
		return nil, err
	}
	return a, nil
}

// FollowAdvisories returns the vulnerabilities in a file of [WriteCheckedPackages], which may be created later: until then,
// none are known. It reads nothing yet: the file is read when the advisories are first used. A failure is logged. logger may
// be nil.
func FollowAdvisories(file string, logger *slog.Logger) *Advisories {
	return &Advisories{file: file, later: true, now: time.Now, logger: cmp.Or(logger, slog.New(slog.DiscardHandler))}
}

// An advisorySet is what Advisories know at one time. It never changes.
type advisorySet struct {
	known   packages.AdvisoryDatabase
	checked map[string]CheckedPackage // of a file of WriteCheckedPackages
	version uint64                    // how many times they were read
}

// HasChecked reports whether the vulnerabilities of an npm package were requested from their source, so that a version
// without any is known to have none. For a file in the OSV format it is true for each package. It is false for the name ""
// and if a is nil.
func (a *Advisories) HasChecked(npm string) bool {
	if a == nil || npm == "" {
		return false
	}
	_, ok := a.current().checked[npm]
	return ok || !a.later
}

// Version returns how many times the vulnerabilities were read, which increases with each change of the file; 0 if a is nil
// or none were read yet.
func (a *Advisories) Version() uint64 { return a.current().version }

// Of returns the known vulnerabilities of a version of an npm package, in the descending order of the text of their CVE or
// other identifier, which is mostly newest first; nil if none is known or a is nil.
func (a *Advisories) Of(npm, version string) []packages.Advisory {
	return a.current().known.Of(npm, version)
}

// Affected returns those of the given versions of an npm package that have known vulnerabilities, in their order.
func (a *Advisories) Affected(npm string, versions []string) []string {
	known := a.current().known
	return slices.DeleteFunc(slices.Clone(versions), func(version string) bool { return len(known.Of(npm, version)) == 0 })
}

// current returns what is known now, nothing if a is nil. It first reads the file again if that has changed, which it checks
// once a minute.
func (a *Advisories) current() advisorySet {
	if a == nil {
		return advisorySet{}
	}
	a.refresh()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.set
}

// Recheck makes the next call of another method check at once whether the file has changed, even if the last check is less
// than a minute ago. It reads nothing itself. a may be nil.
func (a *Advisories) Recheck() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looked = time.Time{}
}

// refresh reads the file again if its time or size has changed; it checks that once a minute at most. While one goroutine
// does so, others continue with what is known. It logs a failure, and what was known stays. A file of WriteCheckedPackages
// that does not exist is no failure.
func (a *Advisories) refresh() {
	if !a.reading.TryLock() {
		return
	}
	defer a.reading.Unlock()
	a.mu.Lock()
	due := a.now().Sub(a.looked) >= lookAtAdvisories
	if due {
		a.looked = a.now() // before it is read, so that a Recheck meanwhile counts
	}
	a.mu.Unlock()
	if !due {
		return
	}
	info, err := os.Stat(a.file)
	if a.later && errors.Is(err, fs.ErrNotExist) || err == nil && a.read != nil && info.ModTime().Equal(a.read.ModTime()) && info.Size() == a.read.Size() {
		return
	}
	if err := a.readFile(); err != nil {
		a.logger.Error("library: couldn't read the vulnerabilities again; what was known stays", "err", err)
	}
}

// readFile reads the file, replaces the known vulnerabilities and increases their version. With an error, those that were read
// before stay. The caller holds a.reading, or is the only user of a.
func (a *Advisories) readFile() error {
	known, info, err := packages.ReadAdvisoryFile(a.file)
	if err != nil {
		return fmt.Errorf("vulnerabilities: %w", err)
	}
	next := advisorySet{known: known}
	if a.later {
		next.checked = ReadCheckedPackages(a.file, a.logger)
	}
	a.read = info
	a.mu.Lock()
	defer a.mu.Unlock()
	next.version = a.set.version + 1
	a.set = next
	return nil
}
