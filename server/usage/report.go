package usage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// MostDays is the most days that a report is about: two years.
const MostDays = 731

// A Report has the requests for a package, or for a version of it.
type Report struct {
	// From and To are the first and the last day, in UTC. The last one is today, and not over yet.
	From, To time.Time
	Total    Amount
	Days     []Amount // of each day from From to To, also of days without requests
}

// An Amount is requests, and the bytes of their responses' bodies.
type Amount struct{ Requests, Bytes uint64 }

// add adds the requests and bytes of n to the amount.
func (a *Amount) add(n count) {
	a.Requests += n.requests
	a.Bytes += n.bytes
}

// A Version has the requests for a version.
type Version struct {
	Version string
	Amount
}

// A File is one of the most requested files.
type File struct {
	Version, Path string
	// Requests is about how many requests there were lately, and never too low. AtLeast is a number that is never too high. In
	// both, a request of 30 days ago counts half.
	Requests, AtLeast float64
}

// ReportOn returns the requests for a package on each of the last days, today included; days is bounded to 1 to [MostDays].
// With a version other than "", it covers only that version. It includes counts that are not written yet, and those of other
// nodes. It skips damaged rows.
func (u *Usage) ReportOn(pkg, version string, days int) (*Report, error) {
	s := u.takeSnapshot(pkg)
	defer s.close()
	from := s.day + 1 - min(max(days, 1), MostDays)
	r := &Report{From: startOf(from), To: startOf(s.day), Days: make([]Amount, s.day-from+1)}
	put := func(day int, n count) {
		if from <= day && day <= s.day {
			r.Days[day-from].add(n)
			r.Total.add(n)
		}
	}
	for month := monthOf(from); month <= monthOf(s.day); month++ {
		key := packageKey(month, pkg)
		if version != "" {
			key = versionKey(month, release{pkg, version})
		}
		row, err := readDaily(s.rows, key)
		if err != nil && !errors.Is(err, errDamaged) {
			return nil, fmt.Errorf("usage: %s: %w", pkg, err)
		}
		for i, n := range row {
			put(firstOf(month)+i, n)
		}
		of, kind := kvstore.Key(pkg), byte(kindOthersPackage)
		if version != "" {
			of, kind = kvstore.Key(pkg, version), kindOthersVersion
		}
		if err := s.eachCount(othersKey(kind, month, of, ""), func(_ []byte, day int, n count) { put(firstOf(month)+day, n) }); err != nil {
			return nil, fmt.Errorf("usage: %s: %w", pkg, err)
		}
	}
	for at, n := range s.fresh {
		if version == "" || at.version == version {
			put(at.day, n)
		}
	}
	return r, nil
}

// Versions returns how much each version of a package was requested in the last days, today included, the most requested
// version first, and of equal ones the newer version. days is bounded to 1 to [MostDays]. It includes counts that are not
// written yet, and those of other nodes, and omits versions without requests and damaged rows.
func (u *Usage) Versions(pkg string, days int) ([]Version, error) {
	s := u.takeSnapshot(pkg)
	defer s.close()
	from := s.day + 1 - min(max(days, 1), MostDays)
	amounts := map[string]*Amount{}
	put := func(version string, day int, n count) {
		if day < from || day > s.day {
			return
		}
		if amounts[version] == nil {
			amounts[version] = new(Amount)
		}
		amounts[version].add(n)
	}
	for month := monthOf(from); month <= monthOf(s.day); month++ {
		for _, kind := range []byte{kindVersion, kindOthersVersion} {
			err := s.eachCount(append(monthPrefix(kind, month), kvstore.Prefix(pkg)...), func(key []byte, day int, n count) {
				put(versionOf(key), firstOf(month)+day, n)
			})
			if err != nil {
				return nil, fmt.Errorf("usage: %s: %w", pkg, err)
			}
		}
	}
	for at, n := range s.fresh {
		put(at.version, at.day, n)
	}
	versions := make([]Version, 0, len(amounts))
	for _, version := range slices.SortedFunc(maps.Keys(amounts), func(a, b string) int {
		return cmp.Or(cmp.Compare(amounts[b].Requests, amounts[a].Requests), packages.CompareVersions(b, a))
	}) {
		versions = append(versions, Version{version, *amounts[version]})
	}
	return versions, nil
}

// Files returns the files of a package that are among the ten thousand files of all packages most requested lately from this
// node, the most requested first; nil if there are none. Their counts are approximate and include requests that are not
// written yet.
func (u *Usage) Files(pkg string) []File {
	const most = 10_000
	u.mu.Lock()
	u.gather()
	all := u.topFiles.all()
	u.mu.Unlock()
	var files []File
	for _, f := range all[:min(most, len(all))] {
		rest, of := strings.CutPrefix(f.name, pkg+"/")
		if !of {
			continue
		}
		version, path, _ := strings.Cut(rest, "/")
		files = append(files, File{version, path, f.count, f.count - f.over})
	}
	return files
}

// A snapshot is all counts of a package at one moment.
type snapshot struct {
	day   int
	rows  *kvstore.Snapshot
	fresh map[slot]count // what is not in the rows
}

// eachCount calls put with the counts in the rows of one month whose keys begin with prefix: once for each key and day with
// requests. day is the day of the month, from 0. It skips damaged rows.
func (s *snapshot) eachCount(prefix []byte, put func(key []byte, day int, n count)) error {
	for item, err := range s.rows.Scan(kvstore.Usage, kvstore.Range{Prefix: prefix}) {
		if err != nil {
			return err
		}
		row, err := decodeDaily(item.Value)
		if err != nil {
			continue // the rest is reported
		}
		for day, n := range row {
			if n != (count{}) {
				put(item.Key, day, n)
			}
		}
	}
	return nil
}

// close releases the snapshot of the store.
func (s *snapshot) close() { s.rows.Close() }

// takeSnapshot returns the rows of the store, and the counts of a package that are not in them, at one moment. Before, it
// gathers the counts of all counters. Counts that are being written are either in the rows or added from memory: the number
// of the last save says which. The caller must close the snapshot.
func (u *Usage) takeSnapshot(pkg string) *snapshot {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changeDay()
	u.gather()
	s := &snapshot{day: u.day, rows: u.store.Snapshot(), fresh: map[slot]count{}}
	take := func(counts map[slot]count) {
		for at, n := range counts {
			if at.pkg == pkg {
				s.fresh[at] = s.fresh[at].plus(n)
			}
		}
	}
	take(u.fresh)
	if u.writing != nil {
		value, err := s.rows.Get(kvstore.Usage, []byte{kindSaves})
		if written, _ := binary.Uvarint(value); err != nil || written != u.saves {
			take(u.writing)
		}
	}
	return s
}
