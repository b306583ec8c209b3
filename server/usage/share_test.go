package usage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
)

// A counting is one of several processes, each with a store of its own.
type counting struct {
	*Usage
	fs vfs.FS
}

func (c *counting) open(t *testing.T, at *clock) {
	t.Helper()
	if c.Usage != nil {
		save(t, c.Usage)
		if err := c.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.Usage = Open(Options{Store: openStore(t, c.fs, false), Now: at.now})
}

// reports are the counts that were reported, by store and day.
type reports map[string]map[time.Time][]byte

func (all reports) exchange(t *testing.T, nodes ...*counting) {
	t.Helper()
	for _, c := range nodes {
		save(t, c.Usage)
		name, err := c.Name()
		if err != nil {
			t.Fatal(err)
		}
		if all[name] == nil {
			all[name] = map[time.Time][]byte{}
		}
		if err := c.Report(func(day time.Time, counts []byte) error {
			all[name][day] = counts
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range nodes {
		since, err := c.Since()
		if err != nil {
			t.Fatal(err)
		}
		for name, days := range all {
			for day, counts := range days {
				if day.Before(since) {
					continue
				}
				if err := c.Receive(name, day, counts); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.SetReceived(); err != nil {
			t.Fatal(err)
		}
	}
}

// The counts of several stores are one sum on each, once each, after restarts too, and after a store was lost.
func TestShare(t *testing.T) {
	at, all := noon(), reports{}
	one, two, three := &counting{fs: vfs.NewMem()}, &counting{fs: vfs.NewMem()}, &counting{fs: vfs.NewMem()}
	for _, c := range []*counting{one, two, three} {
		c.open(t, at)
	}
	want := func(requests, bytes, first uint64, nodes ...*counting) {
		t.Helper()
		for i, c := range nodes {
			for version, sum := range map[string]uint64{"": requests, "1.0.0": first} {
				r, err := c.ReportOn("a", version, 60)
				if err != nil || r.Total.Requests != sum || version == "" && r.Total.Bytes != bytes {
					t.Errorf("node %d: %+v of %q, want %d, %d bytes; %v", i, r.Total, version, sum, bytes, err)
				}
			}
			versions, err := c.Versions("a", 60)
			if err != nil || len(versions) != 2 || versions[0].Requests+versions[1].Requests != requests {
				t.Errorf("node %d: %+v, %v", i, versions, err)
			}
		}
	}
	ask(one.Usage, "a", "1.0.0", "a.js", 3, 10)
	ask(two.Usage, "a", "1.0.0", "a.js", 4, 10)
	ask(two.Usage, "a", "2.0.0", "a.js", 5, 10)
	for range 3 {
		all.exchange(t, one, two, three)
	}
	want(12, 120, 7, one, two, three)
	if a, b := one.Popularity("a"), three.Popularity("a"); a != 12 || b != 12 {
		t.Errorf("the package is asked for %v and %v times", a, b)
	}
	two.open(t, at)
	three.open(t, at)
	if got := three.Popularity("a"); got != 12 {
		t.Errorf("after a restart it is asked for %v times", got)
	}
	ask(two.Usage, "a", "1.0.0", "a.js", 1, 10)
	all.exchange(t, one, two, three)
	want(13, 130, 8, one, two, three)

	// Days pass, and what was counted last before midnight is reported after it.
	ask(one.Usage, "a", "1.0.0", "a.js", 2, 10)
	for range 20 {
		at.next(t, one.Usage)
		all.exchange(t, one, two)
	}
	ask(one.Usage, "a", "2.0.0", "a.js", 1, 10)
	all.exchange(t, one, two, three) // which did not hear of it for long
	want(16, 160, 10, one, two, three)

	// A store is lost: its reports stay, and the new one counts besides.
	two.fs, two.Usage = vfs.NewMem(), nil
	two.open(t, at)
	all.exchange(t, one, two, three)
	ask(two.Usage, "a", "1.0.0", "a.js", 4, 10)
	all.exchange(t, one, two, three)
	want(20, 200, 14, one, two, three)
}

// TestSinceAfterAWrongClock holds that a clock that was a year ahead does not hide the reports of other stores for a year, nor let a store that is silent keep
// its place.
func TestSinceAfterAWrongClock(t *testing.T) {
	at := noon()
	right := at.at
	at.at = right.AddDate(1, 0, 0)
	c := &counting{fs: vfs.NewMem()}
	c.open(t, at)
	reporter := strings.Repeat("ab", nameSize)
	if known, err := c.acceptReporter(reporter, dayOf(at.now())); err != nil || !known {
		t.Fatal(known, err)
	}
	if err := c.SetReceived(); err != nil {
		t.Fatal(err)
	}
	at.at = right
	c.open(t, at)
	want := startOf(dayOf(at.now()) - lateDays)
	if since, err := c.Since(); err != nil || !since.Equal(want) {
		t.Errorf("since %v, %v; want %v", since, err, want)
	}
	if known, err := c.acceptReporter(strings.Repeat("cd", nameSize), dayOf(at.now())); err != nil || !known {
		t.Error(known, err)
	}
	if _, err := c.store.Get(kvstore.Usage, append([]byte{kindReporter}, reporter...)); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the row of a store that reported in the future stays: %v", err)
	}
}

// A clock that was far ahead once does not keep a node from reporting what it counts afterwards.
func TestTellAfterAWrongClock(t *testing.T) {
	at, all := noon(), reports{}
	right := at.at
	one, two := &counting{fs: vfs.NewMem()}, &counting{fs: vfs.NewMem()}
	one.open(t, at)
	two.open(t, at)
	ask(one.Usage, "a", "1.0.0", "a.js", 3, 10)
	all.exchange(t, one)
	at.at = right.AddDate(0, 2, 0)
	all.exchange(t, one)
	at.at = right.AddDate(0, 0, 1)
	save(t, one.Usage)
	ask(one.Usage, "a", "1.0.0", "a.js", 4, 10)
	for range 2 {
		all.exchange(t, one, two)
	}
	if r, err := two.ReportOn("a", "1.0.0", 60); err != nil || r.Total.Requests != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Malformed reports change nothing, and the number of stores whose counts are stored is bounded.
func TestTakeIsBounded(t *testing.T) {
	at := noon()
	c := &counting{fs: vfs.NewMem()}
	c.open(t, at)
	good := []byte("\x01\x01a\x051.0.0\x07\x46")
	for i, wrong := range []string{"", "\x02", "\x01\x01a", "\x01\x01a\x051.0.0\x07", "\x01\xff\xff\xff\xff\x0fa", "\x01\x00\x051.0.0\x07\x46", "\x01\x01\x00\x051.0.0\x07\x46",
		string(good) + string(good[1:]), // a release twice
		"\x01\x01b\x051.0.0\x07\x46" + string(good[1:]),
	} {
		if err := c.receive("0123456789abcdef", at.at, []byte(wrong)); !errors.Is(err, errMalformed) {
			t.Errorf("%d: %v", i, err)
		}
		if err := c.Receive("0123456789abcdef", at.at, []byte(wrong)); err != nil { // else it would be asked for again and again
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := c.receive("../elsewhere", at.at, good); !errors.Is(err, errMalformed) {
		t.Errorf("%v", err)
	}
	for i := range mostReporters + 5 {
		if err := c.Receive(fmt.Sprintf("%016x", i), at.at, good); err != nil {
			t.Fatal(err)
		}
	}
	want := func(stores uint64) {
		t.Helper()
		if r, err := c.ReportOn("a", "1.0.0", 60); err != nil || r.Total != (Amount{7 * stores, 70 * stores}) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	want(mostReporters)
	// Those that tell nothing any more leave their places to others, and their counts stay. One that tells keeps its own.
	const stays, comes = "0000000000000001", "00000000000000ff"
	for range lateDays + 1 {
		at.next(t, c.Usage)
		if err := c.Receive(stays, at.at, good); err != nil {
			t.Fatal(err)
		}
	}
	want(mostReporters + lateDays + 1)
	for _, name := range []string{comes, stays} {
		at.next(t, c.Usage)
		if err := c.Receive(name, at.at, good); err != nil {
			t.Fatal(err)
		}
	}
	want(mostReporters + lateDays + 3)
}

// A day of many releases is taken in parts, and each is there once.
func TestTakeALargeDay(t *testing.T) {
	at := noon()
	c := &counting{fs: vfs.NewMem()}
	c.open(t, at)
	const packages, versions = 300, together/300 + 2
	for range 2 {
		report := []byte{rowFormat}
		for i := range packages {
			for v := range versions {
				report = fmt.Appendf(report, "\x04p%03d\x03v%02d\x01\x0a", i, v)
			}
		}
		if err := c.Receive("0123456789abcdef", at.at, report); err != nil {
			t.Fatal(err)
		}
	}
	for i := range packages {
		name := fmt.Sprintf("p%03d", i)
		r, err := c.ReportOn(name, "", 1)
		all, failed := c.Versions(name, 1)
		if err != nil || failed != nil || r.Total.Requests != versions || len(all) != versions || c.Popularity(name) != versions {
			t.Fatalf("%s: %+v, %d versions, %v requests, %v, %v", name, r.Total, len(all), c.Popularity(name), err, failed)
		}
	}
}

// Old days are not reported again because the rest could not be.
func TestTellGoesOn(t *testing.T) {
	at := noon()
	c := &counting{fs: vfs.NewMem()}
	c.open(t, at)
	var all []string
	for range 100 {
		ask(c.Usage, "a", "1.0.0", "a.js", 1, 10)
		all = append(all, at.at.Format(time.DateOnly))
		at.next(t, c.Usage)
	}
	var days []string
	for left := 120; ; {
		var failed bool
		err := c.Report(func(day time.Time, _ []byte) error {
			if failed = len(days)%7 == 6; failed { // once
				left--
				days = append(days, "")
				return errors.New("the bucket does not answer")
			}
			days = append(days, day.Format(time.DateOnly))
			return nil
		})
		if err == nil {
			break
		}
		if left == 0 {
			t.Fatal("it begins anew each time")
		}
	}
	days = slices.DeleteFunc(days, func(day string) bool { return day == "" })
	if len(days) > 2*len(all) {
		t.Errorf("%d days were reported for %d", len(days), len(all))
	}
	slices.Sort(days)
	if days = slices.Compact(days); !slices.Equal(days, all) {
		t.Errorf("reported %v, want %v", days, all)
	}
}
