package views

import (
	"errors"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Standing says what names a content.
type Standing int

// The standings. The worst comes first.
const (
	Unnamed   Standing = iota // nothing, as far as the log says: never published, or not yet
	NamedOnce                 // only releases that were withdrawn
	NamedLive                 // a release that is served, or an entry itself
)

// A row of Named has half of a content's hash, whether what names it is live, and which
// release that is, as a part of its key in the map of live releases; zeros for an entry. So
// the first row of a hash says whether the content may be served, however many
// releases have the same file. Half of a hash leaves no room for chance, and rows small.
const (
	namedHash    = 16
	namedRelease = 8
	namedLive    = 0
	namedGone    = 1
)

var byEntry [namedRelease]byte

// releaseID returns the part of a row's key that identifies a release: the first bytes of its key in the map of live
// releases.
func releaseID(pkg, version string) [namedRelease]byte {
	key := logs.LiveKey(pkg, version)
	return [namedRelease]byte(key[:])
}

// namedKey returns the key of a row that says that a release, or an entry if release is zero, names a content. state says
// whether the release is live.
func namedKey(h kvstore.Hash, state byte, release [namedRelease]byte) []byte {
	key := append(make([]byte, 0, namedHash+1+namedRelease), h[:namedHash]...)
	return append(append(key, state), release[:]...)
}

// namedRow is the value of every row: the version of its form.
var namedRow = []byte{1}

// StandingOf returns what names a content, the best standing if several entries or releases do. It reads one row.
func StandingOf(r kvstore.Reader, h kvstore.Hash) (Standing, error) {
	for item, err := range r.Scan(kvstore.Named, kvstore.Range{Prefix: h[:namedHash]}) {
		switch {
		case err != nil:
			return Unnamed, err
		case len(item.Key) > namedHash && item.Key[namedHash] == namedLive:
			return NamedLive, nil
		}
		return NamedOnce, nil
	}
	return Unnamed, nil
}

// nameDocuments adds to the batch, for each document that the change's entry names, the row that says that some entry
// names it. The row does not say which entry, so it is the same for all, and no later change deletes it.
func nameDocuments(b *kvstore.Batch, c Change) {
	for _, h := range c.Entry.Contents() {
		b.Set(kvstore.Named, namedKey(h, namedLive, byEntry), namedRow)
	}
}

// nameFiles adds to the batch rows that say that a release names its files, and whether it is live. For a withdrawn
// release, it deletes the live rows. For a live one, rows of a withdrawal before remain: the live ones sort first.
func nameFiles(b *kvstore.Batch, c Change) {
	release := releaseID(c.Package, c.Version)
	for _, f := range c.Manifest.Files {
		if c.Kind != logs.Withdrawn {
			b.Set(kvstore.Named, namedKey(f.SHA256, namedLive, release), namedRow)
			continue
		}
		b.Set(kvstore.Named, namedKey(f.SHA256, namedGone, release), namedRow)
		b.Delete(kvstore.Named, namedKey(f.SHA256, namedLive, release))
	}
}

// SetAbsent adds to the batch a row that says that this node does not have the contents of a release: a mirror leaves it
// out, or it was withdrawn before the mirror copied it. While the log has it live, the views are as if it was never
// published.
func SetAbsent(b *kvstore.Batch, pkg, version string) {
	b.Set(kvstore.Absent, kvstore.Key(pkg, version), namedRow)
}

// ClearAbsent adds to the batch the deletion of the row of [SetAbsent]: this node has the contents of the release.
func ClearAbsent(b *kvstore.Batch, pkg, version string) {
	b.Delete(kvstore.Absent, kvstore.Key(pkg, version))
}

// IsAbsent reports whether this node does not have the contents of a release, see [SetAbsent].
func IsAbsent(r kvstore.Reader, pkg, version string) (bool, error) {
	_, err := r.Get(kvstore.Absent, kvstore.Key(pkg, version))
	if errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
