package usage

import (
	"cmp"
	"encoding/binary"
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

// plus returns the sum of two amounts.
func (a Amount) plus(o Amount) Amount { return Amount{a.Requests + o.Requests, a.Bytes + o.Bytes} }

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
	s := u.takeSnapshot(pkg, days)
	defer s.rows.Close()
	own, others, of := byte(kindPackage), byte(kindOthersPackage), kvstore.Key(pkg)
	if version != "" {
		own, others, of = kindVersion, kindOthersVersion, kvstore.Key(pkg, version)
	}
	r := &Report{From: startOf(s.from), To: startOf(s.day), Days: make([]Amount, s.day-s.from+1)}
	err := s.eachCount(func(month int) []kvstore.Range {
		key := append(monthPrefix(own, month), of...)
		return []kvstore.Range{{From: key, To: append(key, 0)}, {Prefix: othersKey(others, month, of, "")}}
	}, func(named string, day int, n Amount) {
		if version == "" || named == version {
			r.Days[day-s.from] = r.Days[day-s.from].plus(n)
			r.Total = r.Total.plus(n)
		}
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Versions returns how much each version of a package was requested in the last days, today included, the most requested
// version first, and of equal ones the newer version. days is bounded to 1 to [MostDays]. It includes counts that are not
// written yet, and those of other nodes, and omits versions without requests and damaged rows.
func (u *Usage) Versions(pkg string, days int) ([]Version, error) {
	s := u.takeSnapshot(pkg, days)
	defer s.rows.Close()
	amounts := map[string]Amount{}
	err := s.eachCount(func(month int) []kvstore.Range {
		of := kvstore.Prefix(pkg)
		return []kvstore.Range{{Prefix: append(monthPrefix(kindVersion, month), of...)}, {Prefix: append(monthPrefix(kindOthersVersion, month), of...)}}
	}, func(version string, _ int, n Amount) { amounts[version] = amounts[version].plus(n) })
	if err != nil {
		return nil, err
	}
	versions := make([]Version, 0, len(amounts))
	for _, version := range slices.SortedFunc(maps.Keys(amounts), func(a, b string) int {
		return cmp.Or(cmp.Compare(amounts[b].Requests, amounts[a].Requests), packages.CompareVersions(b, a))
	}) {
		versions = append(versions, Version{version, amounts[version]})
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
	pkg       string
	from, day int // the first and the last day that are counted
	rows      *kvstore.Snapshot
	fresh     map[slot]Amount // what is not in the rows
}

// eachCount calls put with each count of the snapshot and its day: with those in the rows of the ranges that rows returns for a month, and
// with those that are not written yet. version is "" for rows of a package. It skips damaged rows.
func (s *snapshot) eachCount(rows func(month int) []kvstore.Range, put func(version string, day int, n Amount)) error {
	within := func(version string, day int, n Amount) {
		if n != (Amount{}) && s.from <= day && day <= s.day {
			put(version, day, n)
		}
	}
	for month := monthOf(s.from); month <= monthOf(s.day); month++ {
		for _, r := range rows(month) {
			for item, err := range s.rows.Scan(kvstore.Usage, r) {
				if err != nil {
					return fmt.Errorf("usage: %s: %w", s.pkg, err)
				}
				version := versionOf(item.Key)
				row, _ := decodeDaily(item.Value) // of a damaged row nothing is counted
				for i, n := range row {
					within(version, firstOf(month)+i, n)
				}
			}
		}
	}
	for at, n := range s.fresh {
		within(at.version, at.day, n)
	}
	return nil
}

// takeSnapshot returns the rows of the store, and the counts of a package that are not in them, at one moment, for the last days, today
// included; days is bounded to 1 to [MostDays]. Before, it gathers the counts of all counters. It does not wait for a save that is under
// way: the number of the last save in the store says whether the rows have the counts of that one, or they are added from memory. The
// caller must close the snapshot's rows.
func (u *Usage) takeSnapshot(pkg string, days int) *snapshot {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changeDay()
	u.gather()
	s := &snapshot{pkg: pkg, from: u.day + 1 - min(max(days, 1), MostDays), day: u.day, rows: u.store.Snapshot(), fresh: map[slot]Amount{}}
	add := func(counts map[slot]Amount) {
		for at, n := range counts {
			if at.pkg == pkg {
				s.fresh[at] = s.fresh[at].plus(n)
			}
		}
	}
	add(u.fresh)
	if u.writing != nil {
		value, err := s.rows.Get(kvstore.Usage, []byte{kindSaves})
		if written, _ := binary.Uvarint(value); err != nil || written != u.saves {
			add(u.writing)
		}
	}
	return s
}
