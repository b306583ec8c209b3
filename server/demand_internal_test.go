package server

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
)

// A clock is moved by the test.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func openStore(t *testing.T, fs vfs.FS, readOnly bool) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open("data", kvstore.Options{FS: fs, MinFreeBytes: -1, ReadOnly: readOnly})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

func rowOf(t *testing.T, store *kvstore.Store) string {
	t.Helper()
	value, err := store.Get(kvstore.Meta, demandKey)
	if err != nil && err != kvstore.ErrNotFound {
		t.Fatal(err)
	}
	return string(value)
}

func ask(d *Demand, name string, times int) {
	for range times {
		d.Counter(name).Add()
	}
}

func want(t *testing.T, d *Demand, name string, want float64) {
	t.Helper()
	if got := d.Of(name); math.Abs(got-want) > 1e-9*want {
		t.Errorf("the demand for %s is %v, want %v", name, got, want)
	}
}

func TestDemandFades(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	d := OpenDemand(DemandOptions{Store: openStore(t, vfs.NewMem(), false), Now: c.now})
	want(t, d, "jquery", 0)
	ask(d, "jquery", 8)
	want(t, d, "jquery", 8)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	c.at = c.at.Add(halfLife)
	want(t, d, "jquery", 4)
	ask(d, "jquery", 1)
	want(t, d, "jquery", 5)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	want(t, d, "jquery", 5)
	c.at = c.at.Add(-24 * time.Hour) // the clock is set back
	want(t, d, "jquery", 5)
}

func TestDemandSurvivesARestart(t *testing.T) {
	c, fs := &clock{time.Unix(1e9, 0)}, vfs.NewMem()
	store := openStore(t, fs, false)
	d := OpenDemand(DemandOptions{Store: store, Now: c.now})
	ask(d, "jquery", 8)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d.Run(ctx)
	if row := rowOf(t, store); row != "" {
		t.Errorf("%q was written before the last requests were counted", row)
	}
	ask(d, "once", 1) // of a client that was still being answered
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	c.at = c.at.Add(2 * halfLife)
	store = openStore(t, fs, false)
	d = OpenDemand(DemandOptions{Store: store, Now: c.now})
	want(t, d, "jquery", 2)
	want(t, d, "once", 0.25)
	c.at = c.at.Add(5 * halfLife)
	ask(d, "jquery", 1)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	if row := rowOf(t, store); strings.Contains(row, "once") || !strings.Contains(row, "jquery") {
		t.Errorf("the row is %s, want jquery in it and not what is long past", row)
	}
}

func TestNothingIsWrittenWithoutChange(t *testing.T) {
	c, store := &clock{time.Unix(1e9, 0)}, openStore(t, vfs.NewMem(), false)
	d := OpenDemand(DemandOptions{Store: store, Now: c.now})
	d.Counter("jquery")
	if err := d.Save(); err != nil || rowOf(t, store) != "" {
		t.Errorf("%q was written before any request (%v)", rowOf(t, store), err)
	}
	ask(d, "jquery", 1)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	before := rowOf(t, store)
	c.at = c.at.Add(time.Hour)
	if err := d.Save(); err != nil || rowOf(t, store) != before {
		t.Errorf("%q was written after %q without a request (%v)", rowOf(t, store), before, err)
	}
}

// What could not be written is not lost.
func TestFailedSaveIsTriedAgain(t *testing.T) {
	fs := vfs.NewMem()
	openStore(t, fs, false).Close()
	store := openStore(t, fs, true)
	d := OpenDemand(DemandOptions{Store: store})
	ask(d, "jquery", 3)
	if d.Save() == nil {
		t.Error("a store that can only be read was written")
	}
	want(t, d, "jquery", 3)
	if d.Save() == nil {
		t.Error("it was not tried again")
	}
}

func TestRowThatCannotBeRead(t *testing.T) {
	for name, row := range map[string]string{
		"damaged":     `{"format":1,"packages":{"jquery":`,
		"newer":       `{"format":2,"packages":{"jquery":7}}`,
		"of old":      `{"format":0}`,
		"wrong types": `{"format":1,"packages":["jquery"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, vfs.NewMem(), false)
			batch := store.NewBatch()
			defer batch.Close()
			batch.Set(kvstore.Meta, demandKey, []byte(row))
			if err := batch.Commit(); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			d := OpenDemand(DemandOptions{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			want(t, d, "jquery", 0)
			if !strings.Contains(log.String(), "begins anew") {
				t.Errorf("the log says %q", log.String())
			}
			ask(d, "jquery", 1)
			if err := d.Save(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := decodeDemand([]byte(rowOf(t, store))); err != nil {
				t.Errorf("the row was not replaced: %v", err)
			}
		})
	}
}

func TestCountingTogether(t *testing.T) {
	store := openStore(t, vfs.NewMem(), false)
	d := OpenDemand(DemandOptions{Store: store})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				d.Counter(fmt.Sprint("p", i%5)).Add()
				if i%250 == 0 {
					if err := d.Save(); err != nil {
						t.Error(err)
					}
					d.Of("p3")
				}
			}
		})
	}
	wg.Wait()
	var all float64
	for i := range 5 {
		all += d.Of(fmt.Sprint("p", i))
	}
	if math.Abs(all-8000) > 1 { // less what faded meanwhile
		t.Errorf("8000 requests make a demand of %v", all)
	}
}

func FuzzRow(f *testing.F) {
	f.Add([]byte(`{"format":1,"at":"2026-01-01T00:00:00Z","packages":{"jquery":7.5,"b":-1,"c":1e308}}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		scores, _, err := decodeDemand(value)
		if err != nil {
			return
		}
		for name, score := range scores {
			if score < negligible || math.IsInf(score, 0) || math.IsNaN(score) {
				t.Fatalf("%q has the score %v", name, score)
			}
		}
	})
}

// BenchmarkSave is for as many packages as the public service has.
func BenchmarkSave(b *testing.B) {
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	d := OpenDemand(DemandOptions{Store: store})
	names := make([]string, 4118)
	for i := range names {
		names[i] = fmt.Sprintf("package-%d", i)
	}
	for b.Loop() {
		for _, name := range names {
			d.Counter(name).Add()
		}
		if err := d.Save(); err != nil {
			b.Fatal(err)
		}
	}
	value, err := store.Get(kvstore.Meta, demandKey)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(value)), "bytes")
}
