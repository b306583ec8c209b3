package check_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
)

// live is all rows of the map of live releases.
func (s *logShelf) live() map[string][]byte {
	s.t.Helper()
	rows := map[string][]byte{}
	for item, err := range s.store.Scan(kvstore.LogLive, kvstore.Range{}) {
		if err != nil {
			s.t.Fatal(err)
		}
		rows[string(item.Key)] = append([]byte(nil), item.Value...)
	}
	return rows
}

// TestRepairMakesTheMapAgain damages and removes each row of the map, one after the other, and
// adds one.
func TestRepairMakesTheMapAgain(t *testing.T) {
	s := changeable(t)
	damages := map[string]map[string][]byte{"one more": {"\x00\x03\x20\xff\xff\xff\xff\xff\xff\xff\xff": {0}}, "all are gone": {}}
	for row, value := range s.live() {
		if row[0] == 0xff {
			continue // what was replaced before, which says nothing of now
		}
		flipped := append([]byte(nil), value...)
		flipped[len(flipped)/2] ^= 1
		damages["all are gone"][row] = nil
		damages[fmt.Sprintf("%x is changed", row)] = map[string][]byte{row: flipped}
	}
	for name, damage := range damages {
		s := changeable(t)
		for row, value := range damage {
			s.change(kvstore.LogLive, []byte(row), value)
		}
		sum, found := s.rows(false)
		if !sum.Sound {
			t.Errorf("%s: the log is not sound", name)
		}
		earlier := len(found) == 0 && strings.Contains(name, " is changed") // it is no row of the newest map
		if len(found) == 0 && !earlier {
			t.Errorf("%s: nothing is found", name)
		}
		if sum, found := s.rows(true); len(found) == 0 && !earlier || sum.Repaired != int64(len(found)) {
			t.Errorf("%s: %d rows are repaired: %q", name, sum.Repaired, found)
		}
		if _, found := s.rows(false); len(found) > 0 {
			t.Errorf("%s: after the repair: %q", name, found)
		}
		s.mayAppend(name)
	}
}

// mayAppend has the log go on, which takes the map.
func (s *logShelf) mayAppend(name string) {
	s.t.Helper()
	log, err := logs.Open(s.store)
	if err != nil {
		s.t.Fatal(err)
	}
	s.log = log
	s.publish("vue", "9.0.0-"+strings.ReplaceAll(name, " ", "-"), "vue.js", "v9")
}

// TestNoEntryFollowsADamagedMap, because its root would be wrong.
func TestNoEntryFollowsADamagedMap(t *testing.T) {
	s := stocked(t)
	row, err := logs.LiveRootRow(s.store, s.log.Checkpoint().Size)
	if err != nil || row == nil {
		t.Fatal(row, err)
	}
	s.change(kvstore.LogLive, row, []byte{1})
	log, err := logs.Open(s.store)
	if err != nil {
		t.Fatal(err)
	}
	err = log.Update(func(tx *logs.Tx) error {
		_, err := tx.Append(logs.Entry{Kind: logs.Detected, Package: "vue", Version: "9"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "`larder repair` rebuilds it from the log") {
		t.Error(err)
	}
}

// TestCheckFindsAWrongRoot has the holder of the key leave a withdrawn release in the map.
func TestCheckFindsAWrongRoot(t *testing.T) {
	s := stocked(t)
	s.publish("left-pad", "1.0.0", "index.js", "pad")
	size := s.log.Checkpoint().Size
	published, err := logs.ReadEntry(s.store, size-1)
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.TamperLog(s.store, logs.Entry{Kind: logs.Withdrawn, Time: noon, Actor: "operator", Package: "left-pad", Version: "1.0.0", Manifest: published.Manifest, Reason: "a virus", Live: published.Live}); err != nil {
		t.Fatal(err)
	}
	sum, told := s.findings(check.Options{})
	if sum.Sound || !strings.Contains(told, fmt.Sprintf("log entry %d: the root of the map of live releases is %s, and the entries up to it make ", size, published.Live)) {
		t.Errorf("%+v: %s", sum, told)
	}
	for range 2 {
		if err := testkit.TamperLog(s.store, logs.Entry{Kind: logs.Detected, Time: noon, Actor: "bot", Package: "left-pad", Version: "2.0.0", Live: published.Live}); err != nil {
			t.Fatal(err)
		}
	}
	if _, told := s.findings(check.Options{}); !strings.Contains(told, fmt.Sprintf("; those up to entry %d have wrong roots too", size+2)) {
		t.Error(told)
	}
	// The truth again ends that.
	m := logs.NewLiveMap()
	for e, err := range logs.Entries(s.store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if err := logs.ApplyLive(m, e.Index, e.Entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := testkit.TamperLog(s.store, logs.Entry{Kind: logs.Detected, Time: noon, Actor: "bot", Package: "left-pad", Version: "2.0.0", Live: m.Root()}); err != nil {
		t.Fatal(err)
	}
	if _, told := s.findings(check.Options{}); !strings.Contains(told, fmt.Sprintf("; those up to entry %d have wrong roots too", size+2)) {
		t.Error(told)
	}
}

// TestCheckFindsAWrongRootOfFiles has an entry say of its files what its manifest does not.
func TestCheckFindsAWrongRootOfFiles(t *testing.T) {
	s := stocked(t)
	c := s.publish("left-pad", "1.0.0", "index.js", "pad")
	s.again(c, logs.Withdrawn, "a virus")
	m := logs.NewLiveMap()
	for e, err := range logs.Entries(s.store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if err := logs.ApplyLive(m, e.Index, e.Entry); err != nil {
			t.Fatal(err)
		}
	}
	e := logs.Entry{Kind: logs.Published, Time: noon, Actor: "bot", Package: "left-pad", Version: "1.0.0", Manifest: c.Entry.Manifest}
	size := s.log.Checkpoint().Size
	if err := logs.ApplyLive(m, size, e); err != nil {
		t.Fatal(err)
	}
	e.Live = m.Root()
	if err := testkit.TamperLog(s.store, e); err != nil {
		t.Fatal(err)
	}
	if _, told := s.findings(check.Options{}); !strings.Contains(told, fmt.Sprintf("log entry %d: the root of the files is 0000", size)) {
		t.Error(told)
	}
}

func (s *logShelf) findings(o check.Options) (check.Summary, string) {
	s.t.Helper()
	var told strings.Builder
	o.Temp = s.t.TempDir()
	sum, err := check.Run(s.t.Context(), s.store, o, func(f check.Finding) { fmt.Fprintf(&told, "%s %s: %s\n", f.Kind, f.Where, f.Problem) })
	if err != nil {
		s.t.Fatal(err)
	}
	return sum, told.String()
}
