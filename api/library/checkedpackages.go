package library

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/packages"
)

// A CheckedPackage has the vulnerabilities of an npm package that were known at a time: the records (Vulns) that an OSV API
// returned.
type CheckedPackage struct {
	Package string            `json:"package"`
	Checked time.Time         `json:"checked"`
	Vulns   []json.RawMessage `json:"vulns"`
}

// NewCheckedPackage returns a CheckedPackage of the npm package name, with the records that an OSV API returned at the time
// checked, which it cuts to seconds in UTC. It returns an error if the records are not in the OSV format.
func NewCheckedPackage(name string, checked time.Time, records []json.RawMessage) (CheckedPackage, error) {
	p := CheckedPackage{Package: name, Checked: checked.UTC().Truncate(time.Second), Vulns: records}
	data, err := json.Marshal(p)
	if err == nil {
		_, err = packages.ReadAdvisories(bytes.NewReader(data), int64(len(data)))
	}
	if err != nil {
		return CheckedPackage{}, fmt.Errorf("vulnerabilities of npm package %s: %w", name, err)
	}
	return p, nil
}

// WriteCheckedPackages writes the vulnerabilities of packages to a file, one package a line in JSON, sorted by name, which
// [FollowAdvisories] and [ReadCheckedPackages] read. It replaces the file atomically.
func WriteCheckedPackages(file string, known map[string]CheckedPackage) error {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if err := encoder.Encode(known[name]); err != nil {
			return fmt.Errorf("vulnerabilities: %w", err)
		}
	}
	if err := disk.Replace(file, lines.Bytes(), 0o644); err != nil {
		return fmt.Errorf("vulnerabilities: %w", err)
	}
	return nil
}

// ReadCheckedPackages reads a file of [WriteCheckedPackages] and returns its packages by name, with their known
// vulnerabilities. The result is never nil; it is empty if the file does not exist. If the file cannot be read or is
// damaged, it logs that and returns the packages before the damage: the next requests for vulnerabilities replace the file.
// logger must not be nil.
func ReadCheckedPackages(file string, logger *slog.Logger) map[string]CheckedPackage {
	known := map[string]CheckedPackage{}
	f, err := os.Open(file)
	if err == nil {
		for decoder := json.NewDecoder(io.LimitReader(f, packages.MaxAdvisoriesSize)); err == nil; {
			var p CheckedPackage
			if err = decoder.Decode(&p); err == nil {
				known[p.Package] = p
			}
		}
		f.Close()
	}
	if err != io.EOF && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("couldn't read the stored vulnerabilities; they are requested again", "file", file, "err", err)
	}
	return known
}
