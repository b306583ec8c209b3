// Package archive reads archives that come from strangers: .tar.gz, .tar, .zip and plain folders.
//
// What it guarantees, whatever the bytes are:
//
//   - Nothing is ever written to disk, and no link is ever followed.
//   - Every name handed out is a clean relative path: UTF-8, slashes only, no empty, "." or ".."
//     component, no control character, no name twice, no name that is a file and a folder at once.
//   - An archive that breaks a rule is refused as a whole with a [RefusedError]: absolute names, "..",
//     backslashes or NUL in a name, a name given twice, too many bytes or entries, a compression bomb,
//     sparse files, encrypted, truncated or corrupt data.
//   - Links, devices and the like, and files whose names cannot stand in a URL or a log (not UTF-8,
//     control characters), are left out and reported through [Entry].Skipped.
//   - Memory is bounded by [Limits], never by what an archive claims.
//
// The limits count the bytes that really come out, also of the entries a caller does not read. When
// [Walk] returns nil the whole archive has been read and was sound; before that its entries are only
// candidates, so whoever must not act on half a bad archive walks it twice.
//
// The package must not know what a release or a package is, nor where archives come from.
package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Entry is one file of an archive, or one thing in it that is left out.
type Entry struct {
	// Name is the entry's clean path. For a skipped entry it is only good for showing to people:
	// bytes that are not UTF-8 are replaced.
	Name string
	// Size is the file's length in bytes, 0 for skipped entries.
	Size int64
	// Skipped says why the entry is left out ("symbolic link", "hard link", "device"…). It is empty
	// for a file to be used.
	Skipped string
}

// Limits bound what an archive may cost. A zero field means its default.
type Limits struct {
	// Unpacked is the most bytes that all files together may have; default 1 GiB.
	Unpacked int64
	// Entries is the most entries, of any kind, and also the most folders; default 50,000.
	Entries int
	// NameLength is the longest name in bytes; default 1024.
	NameLength int
	// Ratio is how many times larger than its compressed form an archive may be, once it is over
	// 16 MiB; default 200. Text reaches 20, a bomb 1000.
	Ratio int64
}

// DefaultLimits are the limits for archives from strangers.
var DefaultLimits = Limits{Unpacked: 1 << 30, Entries: 50_000, NameLength: 1024, Ratio: 200}

const (
	// ratioFrom is the size below which a high ratio harms nobody.
	ratioFrom = 16 << 20
	// maxDepth bounds the components of a name, and with them the folders one entry can bring in.
	maxDepth = 100
	// entryOverhead is what a tar may spend on headers and padding for each entry.
	entryOverhead = 4096
)

func (l Limits) withDefaults() Limits {
	if l.Unpacked <= 0 {
		l.Unpacked = DefaultLimits.Unpacked
	}
	if l.Entries <= 0 {
		l.Entries = DefaultLimits.Entries
	}
	if l.NameLength <= 0 {
		l.NameLength = DefaultLimits.NameLength
	}
	if l.Ratio <= 0 {
		l.Ratio = DefaultLimits.Ratio
	}
	return l
}

// RefusedError says that an archive breaks a rule and must not be used at all. Trying again does not
// help: the same bytes will be refused again.
type RefusedError struct {
	// Entry is the name as it stands in the archive, or empty where the whole archive is at fault.
	Entry string
	// Reason is for people: "the same name twice", "absolute name"….
	Reason string
}

func (e *RefusedError) Error() string {
	if e.Entry == "" {
		return "archive refused: " + e.Reason
	}
	return fmt.Sprintf("archive refused: entry %s: %s", quote(e.Entry), e.Reason)
}

// quote makes a stranger's name safe and short enough for a log line.
func quote(name string) string {
	const most = 200
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}

// Walk reads src from beginning to end and calls fn for each file and each thing left out, in the
// archive's order (a folder's: sorted by name). Folders themselves are not reported.
//
// The reader gives the file's bytes; it is good until fn returns and gives nothing for skipped
// entries. fn need not read it. Walk reads the rest, so that the limits and checksums cover all of
// it; only a folder's unread files stay unread.
//
// An error from fn ends the walk and is returned as it is, except [fs.SkipAll], which ends it without
// one and leaves the rest of the archive unchecked. Other errors are a *[RefusedError], ctx's error,
// or the source's own read error.
func Walk(ctx context.Context, src Source, limits Limits, fn func(Entry, io.Reader) error) error {
	if src.walk == nil {
		return errors.New("archive: walking a Source that nothing was opened for")
	}
	w := &walker{
		ctx:    ctx,
		limits: limits.withDefaults(),
		fn:     fn,
		strip:  src.strip,
		below:  src.below,
		leave:  src.leave,
		names:  make(map[string]kind),
	}
	err := src.walk(w)
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}
