package kvstore

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// scrape returns the store's metrics by name.
func scrape(t *testing.T, s *Store) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, family := range families {
		m := family.GetMetric()[0]
		got[family.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return got
}

func TestCollector(t *testing.T) {
	s := inMemory(t)
	h := put(t, s, noise(1, 100_000))
	if err := pebbleOf(s).Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Identity(h); err != nil {
			t.Fatal(err)
		}
	}
	got := scrape(t, s)
	for _, name := range []string{"disk_bytes", "blob_files", "blob_bytes", "blob_live_bytes", "cache_bytes", "cache_hits_total", "cache_misses_total", "memtable_bytes", "read_amplification"} {
		if got["larder_store_"+name] <= 0 {
			t.Errorf("larder_store_%s is %v", name, got["larder_store_"+name])
		}
	}
	if got["larder_store_failed"] != 0 {
		t.Error("it has failed")
	}
}
