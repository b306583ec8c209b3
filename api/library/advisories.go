package library

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// Advisories are the known vulnerabilities of npm packages, read from a file in the OSV format
// (https://ossf.github.io/osv-schema/): one record, a list of them, one a line, or a .zip of such files, which is how
// osv.dev exports them. The file is read again when it changes. The methods may be called at the same time.
type Advisories struct {
	file    string
	now     func() time.Time
	logger  *slog.Logger
	mu      sync.Mutex
	looked  time.Time
	read    os.FileInfo // as it was
	packets map[string][]advisory
	version uint64 // how many times they were read again
}

// An Advisory is what is known against a version.
type Advisory struct {
	ID       string // such as GHSA-gxr4-xjj5-5px2
	Alias    string // its CVE, "" where it has none
	Summary  string
	Severity string // such as "moderate", "" where unknown
	Fixed    string // the version that has it no more, "" where none is known
	Link     string // to the details
}

type advisory struct {
	Advisory
	versions []string
	ranges   [][]osvEvent
}

// The part of the OSV format that is read.
type (
	osvRecord struct {
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
				Type   string     `json:"type"`
				Events []osvEvent `json:"events"`
			} `json:"ranges"`
			Versions []string `json:"versions"`
		} `json:"affected"`
		Specific struct {
			Severity string `json:"severity"`
		} `json:"database_specific"`
	}
	osvEvent struct {
		Introduced   string `json:"introduced"`
		Fixed        string `json:"fixed"`
		LastAffected string `json:"last_affected"`
	}
)

const (
	lookAtAdvisories = time.Minute
	maxAdvisoryFile  = 1 << 30 // bytes, of all that is in it
	maxAdvisory      = 4 << 20 // of one record
	maxAdvisories    = 400_000
)

// OpenAdvisories reads the file. It fails where that cannot be read at all; what is wrong with it later is logged, and
// what was known stays.
func OpenAdvisories(file string, logger *slog.Logger) (*Advisories, error) {
	a := &Advisories{file: file, now: time.Now, logger: cmp.Or(logger, slog.New(slog.DiscardHandler))}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("vulnerabilities: %w", err)
	}
	if a.packets, err = readAdvisories(file); err != nil {
		return nil, err
	}
	a.read, a.looked = info, a.now()
	return a, nil
}

// Version changes when something else is known. A nil Advisories never knows anything.
func (a *Advisories) Version() uint64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	return a.version
}

// Of returns what is known against a version of an npm package, the newest first. A nil Advisories knows nothing.
func (a *Advisories) Of(npm, version string) []Advisory {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	var found []Advisory
	for _, known := range a.packets[npm] {
		if fixed, affected := known.affects(version); affected {
			known.Fixed = fixed
			found = append(found, known.Advisory)
		}
	}
	slices.SortFunc(found, func(x, y Advisory) int { return cmp.Compare(y.Alias+y.ID, x.Alias+x.ID) })
	return found
}

// Affected returns which of the versions of an npm package something is known against. A nil Advisories knows nothing.
func (a *Advisories) Affected(npm string, versions []string) []string {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	var affected []string
	for _, version := range versions {
		for _, known := range a.packets[npm] {
			if _, hit := known.affects(version); hit {
				affected = append(affected, version)
				break
			}
		}
	}
	return affected
}

// Recheck has the next page read the file again if it has changed.
func (a *Advisories) Recheck() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looked = time.Time{}
}

// refresh reads the file again where it has changed, once a minute at most.
func (a *Advisories) refresh() {
	if now := a.now(); now.Sub(a.looked) >= lookAtAdvisories {
		a.looked = now
		info, err := os.Stat(a.file)
		if err == nil && info.ModTime().Equal(a.read.ModTime()) && info.Size() == a.read.Size() {
			return
		}
		var packets map[string][]advisory
		if err == nil {
			packets, err = readAdvisories(a.file)
		}
		if err != nil {
			a.logger.Error("library: couldn't read the vulnerabilities again; what was known stays", "err", err)
			return
		}
		a.read, a.packets = info, packets
		a.version++
	}
}

// affects reports whether a version has it, and which one has it no more.
func (a *advisory) affects(version string) (fixed string, affected bool) {
	affected = slices.Contains(a.versions, version)
	for _, events := range a.ranges {
		in := false
		until := ""
		for _, e := range events { // they are in order
			switch {
			case e.Introduced == "0" || e.Introduced != "" && packages.CompareVersions(e.Introduced, version) <= 0:
				in, until = true, ""
			case e.Fixed != "" && packages.CompareVersions(e.Fixed, version) <= 0:
				in = false
			case e.Fixed != "" && until == "":
				until = e.Fixed
			case e.LastAffected != "" && packages.CompareVersions(e.LastAffected, version) < 0:
				in = false
			}
		}
		if in {
			return until, true
		}
	}
	return "", affected
}

// readAdvisories returns what a file knows, by npm package.
func readAdvisories(file string) (map[string][]advisory, error) {
	found := map[string][]advisory{}
	count := 0
	take := func(r osvRecord) error {
		if count++; count > maxAdvisories {
			return fmt.Errorf("it has over %d records", maxAdvisories)
		}
		r.addTo(found)
		return nil
	}
	var err error
	if strings.EqualFold(path.Ext(file), ".zip") {
		err = readZippedAdvisories(file, take)
	} else {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			err = decodeAdvisories(f, maxAdvisoryFile, take)
			f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("vulnerabilities: %s: %w; it must be JSON in the OSV format, or a .zip of such files", file, err)
	}
	return found, nil
}

func readZippedAdvisories(file string, take func(osvRecord) error) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer z.Close()
	left := int64(maxAdvisoryFile)
	for _, member := range z.File {
		if path.Ext(member.Name) != ".json" {
			continue
		}
		r, err := member.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", member.Name, err)
		}
		counted := &io.LimitedReader{R: r, N: left}
		err = decodeAdvisories(counted, maxAdvisory, take)
		r.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", member.Name, err)
		}
		if left = counted.N; left <= 0 {
			return fmt.Errorf("it holds over %d bytes", int64(maxAdvisoryFile))
		}
	}
	return nil
}

// decodeAdvisories reads one record after another, or lists of them, of at most that many bytes.
func decodeAdvisories(r io.Reader, most int64, take func(osvRecord) error) error {
	d := json.NewDecoder(io.LimitReader(r, most))
	for {
		var raw json.RawMessage
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '[' {
			raw = slices.Concat([]byte("["), raw, []byte("]"))
		}
		var records []osvRecord
		if err := json.Unmarshal(raw, &records); err != nil {
			return err
		}
		for _, record := range records {
			if err := take(record); err != nil {
				return err
			}
		}
	}
}

// addTo adds a record to each npm package that it is about.
func (r osvRecord) addTo(found map[string][]advisory) {
	if r.Withdrawn != "" || r.ID == "" || len(r.ID) > 100 {
		return
	}
	details := Advisory{ID: text.Plain(r.ID), Summary: text.Short(cmp.Or(r.Summary, r.Details, "No summary is given."), 300), Severity: strings.ToLower(text.Short(r.Specific.Severity, 20))}
	details.Link = "https://osv.dev/vulnerability/" + escape(r.ID)
	for _, alias := range r.Aliases {
		if strings.HasPrefix(alias, "CVE-") && len(alias) < 30 {
			details.Alias = alias
			break
		}
	}
	for _, affected := range r.Affected {
		if affected.Package.Ecosystem != "npm" {
			continue
		}
		known := advisory{Advisory: details, versions: affected.Versions}
		for _, events := range affected.Ranges {
			if events.Type == "SEMVER" || events.Type == "ECOSYSTEM" {
				known.ranges = append(known.ranges, events.Events)
			}
		}
		name := affected.Package.Name
		found[name] = append(found[name], known)
	}
}
