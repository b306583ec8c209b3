package views

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A File is where one asset's bytes are.
type File struct {
	Hash     kvstore.Hash // of the content
	Size     int64        // of the identity, in bytes
	Released time.Time    // upstream's publish time of the release, to the second
	Module   bool         // a .js file that is an ES module
	// Provisional: nothing but another origin's word vouches for it, so upstream's bytes may
	// still take its place.
	Provisional bool
}

// A Version is a release that is or was published.
type Version struct {
	Package  string       `json:"package"`
	Version  string       `json:"version"`
	Released time.Time    `json:"released"` // upstream's publish time
	Manifest kvstore.Hash `json:"manifest"`
	Entry    int64        `json:"entry"`             // of the publication, confirmation, withdrawal or restoration, whichever was last
	Default  string       `json:"default,omitempty"` // path of the main file, "" for none
	Files    int          `json:"files"`
	Bytes    int64        `json:"bytes"` // of all files' identities
	// Downloads is that of Entry: 0 if that does not publish the release, but confirms, withdraws or restores it.
	Downloads int64 `json:"downloads,omitempty"`
	// Mirror says which other origin the files are from; nil where they were made here.
	Mirror *logs.Mirror `json:"mirror,omitempty"`
	// Withdrawn is nil while the version is served.
	Withdrawn *Withdrawal `json:"withdrawn,omitempty"`
}

// A Withdrawal says why a version is served no longer.
type Withdrawal struct {
	Entry  int64     `json:"entry"` // of the log
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// A Package is one registered package.
type Package struct {
	Name  string          `json:"name"`
	JSON  json.RawMessage `json:"json"`  // the package JSON, white space normalised
	Entry int64           `json:"entry"` // that added, last changed or removed it
	// Removed: the catalogue has it no more, so no release follows. Those that are
	// published stay.
	Removed bool `json:"removed,omitempty"`
}

// LookupFile returns the record of a served file, or kvstore.ErrNotFound.
func LookupFile(r kvstore.Reader, pkg, version, path string) (File, error) {
	data, err := r.Get(kvstore.Files, kvstore.Key(pkg, version, path))
	if err != nil {
		return File{}, err
	}
	f, err := DecodeFile(data)
	if err != nil {
		return File{}, fmt.Errorf("views: file %s of %s %s: %w", path, pkg, version, err)
	}
	return f, nil
}

// A PublishedFile is all that the views know of one file.
type PublishedFile struct {
	Path string
	File
	SRI logs.SRI
}

// Files returns a version's files by path, in byte order; none if the version was withdrawn or is unknown. If a file has no
// row of its integrity, that is an error.
func Files(r kvstore.Reader, pkg, version string) ([]PublishedFile, error) {
	prefix := kvstore.Prefix(pkg, version)
	var files []PublishedFile
	for item, err := range r.Scan(kvstore.Files, kvstore.Range{Prefix: prefix}) {
		if err != nil {
			return nil, fmt.Errorf("views: couldn't list the files of %s %s: %w", pkg, version, err)
		}
		path := string(item.Key[len(prefix):])
		f, err := DecodeFile(item.Value)
		if err != nil {
			return nil, fmt.Errorf("views: file %s of %s %s: %w", path, pkg, version, err)
		}
		files = append(files, PublishedFile{Path: path, File: f})
	}
	i := 0
	for item, err := range r.Scan(kvstore.SRIs, kvstore.Range{Prefix: prefix}) {
		if err != nil {
			return nil, fmt.Errorf("views: couldn't list the integrities of %s %s: %w", pkg, version, err)
		}
		if i == len(files) || files[i].Path != string(item.Key[len(prefix):]) || len(item.Value) != len(logs.SRI{}) {
			break
		}
		files[i].SRI = logs.SRI(item.Value)
		i++
	}
	if i < len(files) {
		return nil, fmt.Errorf("views: the rows of %s %s disagree on %s; `larder fsck` tells more", pkg, version, files[i].Path)
	}
	return files, nil
}

// LookupSRI returns the integrity of a served file, or kvstore.ErrNotFound.
func LookupSRI(r kvstore.Reader, pkg, version, path string) (logs.SRI, error) {
	data, err := r.Get(kvstore.SRIs, kvstore.Key(pkg, version, path))
	if err != nil {
		return logs.SRI{}, err
	}
	if len(data) != len(logs.SRI{}) {
		return logs.SRI{}, fmt.Errorf("views: the integrity of %s of %s %s has %d bytes, not %d", path, pkg, version, len(data), len(logs.SRI{}))
	}
	return logs.SRI(data), nil
}

// LookupVersion returns a published or withdrawn version, or kvstore.ErrNotFound. A release that is absent here, see
// [SetAbsent], has no row either, unless it was withdrawn.
func LookupVersion(r kvstore.Reader, pkg, version string) (Version, error) {
	var v Version
	return v, getJSON(r, kvstore.Versions, kvstore.Key(pkg, version), &v)
}

// Versions returns the published and withdrawn versions of a package in byte order of their names, which is not the order of
// releases: see packages.CompareVersions.
func Versions(r kvstore.Reader, pkg string) ([]Version, error) {
	return scanJSON[Version](r, kvstore.Versions, kvstore.Prefix(pkg))
}

// LookupPackage returns a registered package, also one that the catalogue has no more, or kvstore.ErrNotFound.
func LookupPackage(r kvstore.Reader, name string) (Package, error) {
	var p Package
	return p, getJSON(r, kvstore.Packages, kvstore.Key(name), &p)
}

// Packages returns every registered package, also those that the catalogue has no more, in byte order of their names.
func Packages(r kvstore.Reader) ([]Package, error) {
	return scanJSON[Package](r, kvstore.Packages, nil)
}

// fileFormat begins a files row: the hash, then size and time as varints, then a byte of
// what is so, where anything is.
const (
	fileFormat    = 1
	isModule      = 1
	isProvisional = 2
)

// encode returns the value of the file's row. The time is stored to the second.
func (f File) encode() []byte {
	row := make([]byte, 0, 1+len(f.Hash)+2*binary.MaxVarintLen64)
	row = append(row, fileFormat)
	row = append(row, f.Hash[:]...)
	row = binary.AppendUvarint(row, uint64(f.Size))
	row = binary.AppendVarint(row, f.Released.Unix())
	var is byte
	if f.Module {
		is |= isModule
	}
	if f.Provisional {
		is |= isProvisional
	}
	if is != 0 {
		row = append(row, is)
	}
	return row
}

var errFileRow = errors.New("the row is malformed; `larder fsck` tells what else is")

// DecodeFile parses the value of a row of kvstore.Files. A malformed value and an unknown format are errors.
func DecodeFile(row []byte) (File, error) {
	var f File
	if len(row) < 1+len(f.Hash) || row[0] != fileFormat {
		return File{}, errFileRow
	}
	rest := row[1+copy(f.Hash[:], row[1:]):]
	size, n := binary.Uvarint(rest)
	if n <= 0 || int64(size) < 0 {
		return File{}, errFileRow
	}
	rest = rest[n:]
	seconds, n := binary.Varint(rest)
	if n <= 0 {
		return File{}, errFileRow
	}
	switch rest = rest[n:]; {
	case len(rest) == 1 && rest[0] != 0 && rest[0]&^(isModule|isProvisional) == 0:
		f.Module, f.Provisional = rest[0]&isModule != 0, rest[0]&isProvisional != 0
	case len(rest) > 0:
		return File{}, errFileRow
	}
	f.Size = int64(size)
	f.Released = time.Unix(seconds, 0).UTC()
	return f, nil
}

// jsonFormat begins every row whose value is JSON.
const jsonFormat = 1

// setJSON adds a row with a value as JSON, after a byte for the format, to a batch.
func setJSON(b *kvstore.Batch, ns kvstore.Namespace, key []byte, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("views: couldn't encode the row %q: %w", key, err)
	}
	b.Set(ns, key, append([]byte{jsonFormat}, data...))
	return nil
}

// getJSON reads the row with a key into value. A missing row is kvstore.ErrNotFound.
func getJSON(r kvstore.Reader, ns kvstore.Namespace, key []byte, value any) error {
	data, err := r.Get(ns, key)
	if err != nil {
		return err
	}
	return decodeJSON(key, data, value)
}

// scanJSON returns the values of all rows whose keys begin with a prefix, in the order of their keys.
func scanJSON[T any](r kvstore.Reader, ns kvstore.Namespace, prefix []byte) ([]T, error) {
	var all []T
	for item, err := range r.Scan(ns, kvstore.Range{Prefix: prefix}) {
		if err != nil {
			return nil, err
		}
		var value T
		if err := decodeJSON(item.Key, item.Value, &value); err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, nil
}

// decodeJSON decodes the data of the row with a key into value.
func decodeJSON(key, data []byte, value any) error {
	if len(data) == 0 || data[0] != jsonFormat {
		return fmt.Errorf("views: the row %q has a format that this release of Larder does not know", key)
	}
	if err := json.Unmarshal(data[1:], value); err != nil {
		return fmt.Errorf("views: the row %q is malformed: %w", key, err)
	}
	return nil
}
