package verify

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/larder-cdn/larder/internal/text"
)

// Limits of data about vulnerabilities.
const (
	maxOSV        = 512 << 20 // bytes, of a file or a response
	maxAdvisory   = 8 << 20   // bytes, of a record in an archive
	maxAdvisories = 1_000_000
)

// Advisories are known vulnerabilities of npm packages, as in https://ossf.github.io/osv-schema/.
type Advisories struct{ byName map[string][]advisory }

// An advisory is one vulnerability of one package.
type advisory struct {
	id, summary string
	versions    []string
	ranges      [][]osvEvent
}

type osvEvent struct {
	Introduced   string `json:"introduced"`
	Fixed        string `json:"fixed"`
	LastAffected string `json:"last_affected"`
}

type osvRecord struct {
	ID        string `json:"id"`
	Summary   string `json:"summary"`
	Withdrawn string `json:"withdrawn"`
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
}

// ReadAdvisories reads known vulnerabilities from a file or URL: an OSV record, a list of them, the response of an OSV API, or
// a zip archive of records.
func ReadAdvisories(ctx context.Context, o Options, at string) (*Advisories, error) {
	var data []byte
	var err error
	if IsURL(at) {
		o.Server = at
		data, err = o.newRemote().get(ctx, "", maxOSV)
	} else {
		data, err = readAtMost(at, maxOSV)
	}
	if err == nil && len(data) > maxOSV {
		err = fmt.Errorf("%s has over %d bytes", at, maxOSV)
	}
	if err != nil {
		return nil, err
	}
	a, err := parseAdvisories(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return a, nil
}

// parseAdvisories parses OSV data, as JSON or as a zip archive.
func parseAdvisories(data []byte) (*Advisories, error) {
	a := &Advisories{byName: map[string][]advisory{}}
	if bytes.HasPrefix(data, []byte("PK\x03\x04")) {
		return a, a.addArchive(data)
	}
	return a, a.addRecords(data)
}

// addArchive adds the OSV records in a zip archive.
func (a *Advisories) addArchive(data []byte) error {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	if len(z.File) > maxAdvisories {
		return fmt.Errorf("it has over %d records", maxAdvisories)
	}
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".json") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		record, err := io.ReadAll(io.LimitReader(r, maxAdvisory+1))
		r.Close()
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", text.Short(f.Name, 100), err)
		case len(record) > maxAdvisory:
			return fmt.Errorf("%s has over %d bytes", text.Short(f.Name, 100), maxAdvisory)
		}
		if err := a.addRecords(record); err != nil {
			return fmt.Errorf("%s: %w", text.Short(f.Name, 100), err)
		}
	}
	return nil
}

// addRecords adds the OSV records in JSON data: one record, a list, or the response of an OSV API. It ignores withdrawn
// records and those about other packages than npm's.
func (a *Advisories) addRecords(data []byte) error {
	var records []osvRecord
	trimmed := bytes.TrimSpace(data)
	if bytes.HasPrefix(trimmed, []byte("[")) {
		if err := json.Unmarshal(trimmed, &records); err != nil {
			return err
		}
	} else {
		var one struct {
			osvRecord
			Vulns []osvRecord `json:"vulns"`
		}
		if err := json.Unmarshal(trimmed, &one); err != nil {
			return err
		}
		if records = one.Vulns; one.ID != "" {
			records = append(records, one.osvRecord)
		}
		if records == nil && !bytes.Contains(trimmed, []byte(`"vulns"`)) && !bytes.Equal(trimmed, []byte("{}")) {
			return errors.New("it must be an OSV record, a list of them, or the response of an OSV API")
		}
	}
	for _, r := range records {
		if r.Withdrawn != "" {
			continue
		}
		for _, affected := range r.Affected {
			if affected.Package.Ecosystem != "npm" {
				continue
			}
			found := advisory{id: r.ID, summary: r.Summary, versions: affected.Versions}
			for _, of := range affected.Ranges {
				if of.Type == "SEMVER" || of.Type == "ECOSYSTEM" {
					found.ranges = append(found.ranges, of.Events)
				}
			}
			a.byName[affected.Package.Name] = append(a.byName[affected.Package.Name], found)
		}
	}
	return nil
}

// describe returns a line of text for each known vulnerability of a version of an npm package; none if a is nil.
func (a *Advisories) describe(name, version string) []string {
	if a == nil {
		return nil
	}
	var known []string
	for _, v := range a.byName[name] {
		if !slices.Contains(v.versions, version) && !slices.ContainsFunc(v.ranges, func(events []osvEvent) bool { return isAffected(events, version) }) {
			continue
		}
		said := strings.TrimSuffix(text.Short(v.id, 60)+", "+text.Short(v.summary, 200), ", ")
		if !slices.Contains(known, said) {
			known = append(known, said)
		}
	}
	return known
}

// isAffected reports whether a version is in the affected range that the events of an OSV record describe. A version that is
// not a semantic version is not.
func isAffected(events []osvEvent, version string) bool {
	v := "v" + version
	if !semver.IsValid(v) {
		return false
	}
	at := func(e osvEvent) string { return "v" + e.Introduced + e.Fixed + e.LastAffected } // one of them is set
	sorted := slices.Clone(events)
	slices.SortStableFunc(sorted, func(a, b osvEvent) int { return semver.Compare(at(a), at(b)) })
	affected := false
	for _, e := range sorted {
		order := semver.Compare(v, at(e))
		switch {
		case e.Introduced == "0" || e.Introduced != "" && order >= 0:
			affected = true
		case e.Fixed != "" && order >= 0, e.LastAffected != "" && order > 0:
			affected = false
		}
	}
	return affected
}
