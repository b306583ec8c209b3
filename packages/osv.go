package packages

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
)

const (
	// MaxAdvisoriesSize bounds all records together, in bytes.
	MaxAdvisoriesSize = 1 << 30
	maxOSVRecord      = 8 << 20 // bytes, of a member of an archive
	maxOSVRecords     = 1_000_000
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

// An AdvisoryDatabase has the vulnerabilities of packages, by their names at npm. Nil has none.
type AdvisoryDatabase map[string][]advisoryEntry

// An advisoryEntry is a vulnerability of one package.
type advisoryEntry struct {
	Advisory
	versions []string
	ranges   [][]advisoryEvent
}

// An advisoryEvent says from which version on a package is affected, or not affected any more. One of the fields is set.
type advisoryEvent struct {
	Introduced   string `json:"introduced"`
	Fixed        string `json:"fixed"`
	LastAffected string `json:"last_affected"`
}

// An osvRecord is the part of an OSV record that is read.
type osvRecord struct {
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
			Type   string          `json:"type"`
			Events []advisoryEvent `json:"events"`
		} `json:"ranges"`
		Versions []string `json:"versions"`
	} `json:"affected"`
	Specific struct {
		Severity string `json:"severity"`
	} `json:"database_specific"`
}

// errOSVForm is the error of JSON that is not in the OSV format.
var errOSVForm = errors.New("it must be JSON in the OSV format (records, lists of them, or the response of an OSV API), or a .zip of such files")

// ReadAdvisories reads size bytes of OSV data: records, lists of records or responses of an OSV API, one after another, or a
// zip archive of such files. It keeps the vulnerabilities of npm packages that are not withdrawn. A value that is not in the OSV
// format, data without a value, over [MaxAdvisoriesSize] bytes and over a million records are errors; the database then has the
// records before.
func ReadAdvisories(data io.ReaderAt, size int64) (AdvisoryDatabase, error) {
	if size > MaxAdvisoriesSize {
		return nil, fmt.Errorf("it has over %d bytes", int64(MaxAdvisoriesSize))
	}
	r := osvReader{found: AdvisoryDatabase{}}
	var magic [4]byte
	if _, err := data.ReadAt(magic[:], 0); err == nil && bytes.HasPrefix(magic[:], []byte("PK")) {
		return r.found, r.readArchive(data, size)
	}
	return r.found, r.readRecords(io.NewSectionReader(data, 0, size))
}

// ReadAdvisoryFile reads a file with OSV data as [ReadAdvisories] does, and returns what the system knew of the file when it was
// opened. The FileInfo is nil only if the file could not be opened; an error about its content starts with the file's name.
func ReadAdvisoryFile(name string) (AdvisoryDatabase, os.FileInfo, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	known, err := ReadAdvisories(file, info.Size())
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return known, info, err
}

// An osvReader adds records to a database.
type osvReader struct {
	found   AdvisoryDatabase
	records int
}

// readArchive adds the records in the .json files of a zip archive. A file that is invalid or too large ends it with an
// error.
func (r *osvReader) readArchive(data io.ReaderAt, size int64) error {
	archive, err := zip.NewReader(data, size)
	if err != nil {
		return err
	}
	left := int64(MaxAdvisoriesSize)
	for _, member := range archive.File {
		if path.Ext(member.Name) != ".json" {
			continue
		}
		file, err := member.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", text.Short(member.Name, 100), err)
		}
		room := min(left, maxOSVRecord)
		limited := &io.LimitedReader{R: file, N: room + 1}
		err = errors.Join(r.readRecords(limited), file.Close())
		if limited.N == 0 {
			err = fmt.Errorf("it has over %d bytes, or all files together over %d", int64(maxOSVRecord), int64(MaxAdvisoriesSize))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", text.Short(member.Name, 100), err)
		}
		left -= room + 1 - limited.N
	}
	return nil
}

// readRecords adds the records in JSON data, which is one or more values, one after another. Data without a value is an error.
func (r *osvReader) readRecords(data io.Reader) error {
	decoder := json.NewDecoder(data)
	for read := false; ; read = true {
		var raw json.RawMessage
		switch err := decoder.Decode(&raw); {
		case errors.Is(err, io.EOF) && read:
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", errOSVForm, err)
		}
		if err := r.readValue(raw); err != nil {
			return err
		}
	}
}

// readValue adds the records in one JSON value: a record, a list of records, or the response of an OSV API. Too many records
// so far are an error.
func (r *osvReader) readValue(raw json.RawMessage) error {
	var records []osvRecord
	var one struct {
		osvRecord
		Vulns []osvRecord `json:"vulns"`
	}
	var err error
	if raw[0] == '[' {
		err = json.Unmarshal(raw, &records)
	} else if err = json.Unmarshal(raw, &one); err == nil {
		if records = one.Vulns; one.ID != "" {
			records = append(records, one.osvRecord)
		}
		if records == nil && !bytes.Contains(raw, []byte(`"vulns"`)) && string(raw) != "{}" {
			return errOSVForm
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errOSVForm, err)
	}
	if r.records += len(records); r.records > maxOSVRecords {
		return fmt.Errorf("it has over %d records", maxOSVRecords)
	}
	for _, one := range records {
		r.found.add(one)
	}
	return nil
}

// add adds a record to the entries of each npm package that it is about, with its texts cut and its version ranges sorted. It
// ignores a record that is withdrawn, or whose ID is missing or over 100 bytes.
func (d AdvisoryDatabase) add(r osvRecord) {
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
		known := advisoryEntry{Advisory: a, versions: affected.Versions}
		for _, of := range affected.Ranges {
			if of.Type == "SEMVER" || of.Type == "ECOSYSTEM" {
				slices.SortStableFunc(of.Events, compareAdvisoryEvents)
				known.ranges = append(known.ranges, of.Events)
			}
		}
		d[affected.Package.Name] = append(d[affected.Package.Name], known)
	}
}

// compareAdvisoryEvents compares the versions of two events. The version "0" precedes all others.
func compareAdvisoryEvents(a, b advisoryEvent) int {
	version := func(e advisoryEvent) string { return e.Introduced + e.Fixed + e.LastAffected }
	switch first, second := version(a) == "0", version(b) == "0"; {
	case first && second:
		return 0
	case first:
		return -1
	case second:
		return 1
	}
	return CompareVersions(version(a), version(b))
}

// Of returns the vulnerabilities of a version of an npm package, each ID once, with Fixed set; nil for none. They are in descending
// order of CVE and ID, joined and compared as text: usually those without a CVE come first, and of the others those of later years.
func (d AdvisoryDatabase) Of(npm, version string) []Advisory {
	var found []Advisory
	for _, known := range d[npm] {
		if fixed, affected := known.affects(version); affected {
			known.Fixed = fixed
			found = append(found, known.Advisory)
		}
	}
	slices.SortStableFunc(found, func(x, y Advisory) int { return cmp.Compare(y.Alias+y.ID, x.Alias+x.ID) })
	seen := make(map[string]bool)
	return slices.DeleteFunc(found, func(x Advisory) bool { // a record may be listed twice, with different aliases
		known := seen[x.ID]
		seen[x.ID] = true
		return known
	})
}

// affects reports whether a version has the vulnerability: it is in a range or in the list of versions. fixed is the first later
// version without it, by the range; "" if none is known, as for a version that is only in the list. A version that is not a
// semantic version is in no range.
func (e *advisoryEntry) affects(version string) (fixed string, affected bool) {
	for _, events := range e.ranges {
		if !semver.IsValid("v" + version) {
			break
		}
		in := false
		until := ""
		for _, at := range events {
			switch {
			case at.Introduced == "0" || at.Introduced != "" && CompareVersions(at.Introduced, version) <= 0:
				in, until = true, ""
			case at.Fixed != "" && CompareVersions(at.Fixed, version) <= 0:
				in = false
			case at.Fixed != "" && until == "":
				until = at.Fixed
			case at.LastAffected != "" && CompareVersions(at.LastAffected, version) < 0:
				in = false
			}
		}
		if in {
			return until, true
		}
	}
	return "", slices.Contains(e.versions, version)
}
