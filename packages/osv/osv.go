// Package osv reads known vulnerabilities of npm packages in the OSV format (https://ossf.github.io/osv-schema/), and finds
// those of a version.
//
// It guarantees that withdrawn records, and those about packages of other registries, do not count, and that every text it
// returns is short and printable. The package must not know where the data come from, nor how they are displayed.
package osv

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

const (
	// MaxSize bounds all records together, in bytes.
	MaxSize    = 1 << 30
	maxRecord  = 8 << 20 // bytes, of a member of an archive
	maxRecords = 1_000_000
)

// An Advisory is a known vulnerability of a version.
type Advisory struct {
	ID       string // such as GHSA-gxr4-xjj5-5px2
	Alias    string // its CVE, "" without one
	Summary  string
	Severity string // such as "moderate", "" if unknown
	Fixed    string // the first later version without the vulnerability, "" if none is known
	Link     string // to a page with details
}

// A Database has the vulnerabilities of packages, by their names at npm. Nil has none.
type Database map[string][]entry

// An entry is a vulnerability of one package.
type entry struct {
	Advisory
	versions []string
	ranges   [][]event
}

// An event says from which version on a package is affected, or not affected any more. One of the fields is set.
type event struct {
	Introduced   string `json:"introduced"`
	Fixed        string `json:"fixed"`
	LastAffected string `json:"last_affected"`
}

// A record is the part of an OSV record that is read.
type record struct {
	ID        string   `json:"id"`
	Withdrawn string   `json:"withdrawn"`
	Aliases   []string `json:"aliases"`
	Summary   string   `json:"summary"`
	Details   string   `json:"details"`
	Affected  []struct {
		Package struct {
			Ecosystem string `json:"ecosystem"`
			Name      string `json:"name"`
		} `json:"package"`
		Ranges []struct {
			Type   string  `json:"type"`
			Events []event `json:"events"`
		} `json:"ranges"`
		Versions []string `json:"versions"`
	} `json:"affected"`
	Specific struct {
		Severity string `json:"severity"`
	} `json:"database_specific"`
}

// errForm is the error of JSON that is not in the OSV format.
var errForm = errors.New("it must be JSON in the OSV format (records, lists of them, or the response of an OSV API), or a .zip of such files")

// Read reads size bytes of OSV data: records, lists of records or responses of an OSV API, one after another, or a zip archive of such
// files.
func Read(data io.ReaderAt, size int64) (Database, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("it has over %d bytes", int64(MaxSize))
	}
	r := reader{found: Database{}}
	var magic [4]byte
	if _, err := data.ReadAt(magic[:], 0); err == nil && bytes.HasPrefix(magic[:], []byte("PK")) {
		return r.found, r.readArchive(data, size)
	}
	return r.found, r.readRecords(io.NewSectionReader(data, 0, size))
}

// ReadFile reads a file with OSV data as [Read] does, and returns what the system knew of the file when it was opened.
func ReadFile(name string) (Database, os.FileInfo, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	known, err := Read(file, info.Size())
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return known, info, err
}

// A reader adds records to a database.
type reader struct {
	found   Database
	records int
}

// readArchive adds the records in the JSON files of a zip archive.
func (r *reader) readArchive(data io.ReaderAt, size int64) error {
	archive, err := zip.NewReader(data, size)
	if err != nil {
		return err
	}
	left := int64(MaxSize)
	for _, member := range archive.File {
		if path.Ext(member.Name) != ".json" {
			continue
		}
		file, err := member.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", text.Short(member.Name, 100), err)
		}
		room := min(left, maxRecord)
		limited := &io.LimitedReader{R: file, N: room + 1}
		err = errors.Join(r.readRecords(limited), file.Close())
		if limited.N == 0 {
			err = fmt.Errorf("it has over %d bytes, or all files together over %d", int64(maxRecord), int64(MaxSize))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", text.Short(member.Name, 100), err)
		}
		left -= room + 1 - limited.N
	}
	return nil
}

// readRecords adds the records in JSON data.
func (r *reader) readRecords(data io.Reader) error {
	decoder := json.NewDecoder(data)
	for read := false; ; read = true {
		var raw json.RawMessage
		switch err := decoder.Decode(&raw); {
		case errors.Is(err, io.EOF) && read:
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", errForm, err)
		}
		if err := r.readValue(raw); err != nil {
			return err
		}
	}
}

// readValue adds the records in one JSON value: a record, a list of records, or the response of an OSV API.
func (r *reader) readValue(raw json.RawMessage) error {
	var records []record
	var one struct {
		record
		Vulns []record `json:"vulns"`
	}
	var err error
	if raw[0] == '[' {
		err = json.Unmarshal(raw, &records)
	} else if err = json.Unmarshal(raw, &one); err == nil {
		if records = one.Vulns; one.ID != "" {
			records = append(records, one.record)
		}
		if records == nil && !bytes.Contains(raw, []byte(`"vulns"`)) && string(raw) != "{}" {
			return errForm
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errForm, err)
	}
	if r.records += len(records); r.records > maxRecords {
		return fmt.Errorf("it has over %d records", maxRecords)
	}
	for _, one := range records {
		r.found.add(one)
	}
	return nil
}

// add adds a record for each npm package that it is about.
func (d Database) add(r record) {
	if r.Withdrawn != "" || r.ID == "" || len(r.ID) > 100 {
		return
	}
	a := Advisory{
		ID: text.Plain(r.ID), Summary: text.Short(cmp.Or(r.Summary, r.Details, "No summary is given."), 300),
		Severity: strings.ToLower(text.Short(r.Specific.Severity, 20)), Link: "https://osv.dev/vulnerability/" + url.PathEscape(r.ID),
	}
	if i := slices.IndexFunc(r.Aliases, func(alias string) bool { return strings.HasPrefix(alias, "CVE-") && len(alias) < 30 }); i >= 0 {
		a.Alias = r.Aliases[i]
	}
	for _, affected := range r.Affected {
		if affected.Package.Ecosystem != "npm" {
			continue
		}
		known := entry{Advisory: a, versions: affected.Versions}
		for _, of := range affected.Ranges {
			if of.Type == "SEMVER" || of.Type == "ECOSYSTEM" {
				slices.SortStableFunc(of.Events, compareEvents)
				known.ranges = append(known.ranges, of.Events)
			}
		}
		d[affected.Package.Name] = append(d[affected.Package.Name], known)
	}
}

// compareEvents compares the versions of two events. The version "0" precedes all others.
func compareEvents(a, b event) int {
	version := func(e event) string { return e.Introduced + e.Fixed + e.LastAffected }
	switch first, second := version(a) == "0", version(b) == "0"; {
	case first && second:
		return 0
	case first:
		return -1
	case second:
		return 1
	}
	return packages.CompareVersions(version(a), version(b))
}

// Of returns the vulnerabilities of a version of an npm package, each once, the newest first.
func (d Database) Of(npm, version string) []Advisory {
	var found []Advisory
	for _, known := range d[npm] {
		if fixed, affected := known.affects(version); affected {
			known.Fixed = fixed
			found = append(found, known.Advisory)
		}
	}
	slices.SortStableFunc(found, func(x, y Advisory) int { return cmp.Compare(y.Alias+y.ID, x.Alias+x.ID) })
	return slices.CompactFunc(found, func(x, y Advisory) bool { return x.ID == y.ID })
}

// affects reports whether a version has the vulnerability, and returns the first later version without it, "" if none is known. A
// version that is not a semantic version is in no range.
func (e *entry) affects(version string) (fixed string, affected bool) {
	for _, events := range e.ranges {
		if !semver.IsValid("v" + version) {
			break
		}
		in := false
		until := ""
		for _, at := range events {
			switch {
			case at.Introduced == "0" || at.Introduced != "" && packages.CompareVersions(at.Introduced, version) <= 0:
				in, until = true, ""
			case at.Fixed != "" && packages.CompareVersions(at.Fixed, version) <= 0:
				in = false
			case at.Fixed != "" && until == "":
				until = at.Fixed
			case at.LastAffected != "" && packages.CompareVersions(at.LastAffected, version) < 0:
				in = false
			}
		}
		if in {
			return until, true
		}
	}
	return "", slices.Contains(e.versions, version)
}
