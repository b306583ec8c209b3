package bot_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages"
)

// TestDemand holds what is known of packages' downloads: what the catalogue says, until npm says it later.
func TestDemand(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"apple", "banana", "cherry"} {
		r.enrol(name, fromNpm("@fruit/"+name, "*.js"))
	}
	adopt := func(popularity string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.catalogue, packages.PopularityFile), []byte(popularity), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := packages.Open(r.catalogue)
		if err == nil {
			err = r.bot.SetCatalogue(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want map[string]int64) {
		t.Helper()
		got, err := bot.ReadDemand(r.store)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		for name, n := range want {
			if got[name].Downloads != n {
				t.Errorf("%s: %s has %+v, want %d", when, name, got[name], n)
			}
		}
	}
	r.open()
	adopt("# as of 2020-01-02\napple\t@fruit/apple\t5000\nbanana\t@fruit/banana\t7000\nunknown\tunknown\t9\n")
	expect("from the catalogue", map[string]int64{"apple": 5000, "banana": 7000})
	p := bot.NewPopularity(r.store, func(name string) float64 { return map[string]float64{"banana": 3}[name] })
	if p.Of("apple") != 5 || p.Of("banana") != 10 || p.Of("cherry") != 0 {
		t.Errorf("the popularity is %v, %v, %v", p.Of("apple"), p.Of("banana"), p.Of("cherry"))
	}

	count := func(n int64, err error) string {
		t.Helper()
		name, failed := r.bot.CountOne(t.Context(), func(context.Context, string) (int64, error) { return n, err })
		if !errors.Is(failed, err) && !(failed == nil && errors.Is(err, fetch.ErrNotFound)) {
			t.Errorf("counting %s: %v", name, failed)
		}
		return name
	}
	seen := map[string]bool{}
	for _, n := range []int64{100, 200, 300} {
		seen[count(n, nil)] = true
	}
	if len(seen) != 3 || count(1, nil) != "" {
		t.Errorf("those asked about are %v, and then another", seen)
	}
	expect("from npm", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})
	adopt("# as of 2020-01-03\napple\t@fruit/apple\t5001\n")
	expect("an older word of the catalogue", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})

	r.now = r.now.Add(31 * 24 * time.Hour)
	refused := errors.New("slow down")
	first := count(0, refused)
	if first == "" || count(0, refused) != first {
		t.Error("after a month, what failed is not asked about again")
	}
	expect("after a failure", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})
	if got := count(0, fetch.ErrNotFound); got != first {
		t.Errorf("%s is asked about, not %s", got, first)
	}
}
