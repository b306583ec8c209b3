package kvstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// BenchmarkLookup measures the lookup of a file among few and among many, with
// the default block cache and with one that holds everything. Each size builds
// its store first, which takes a minute for the large one; -short leaves that
// out.
//
// "uniform" asks for every file equally often, which is the worst case for the
// cache; "zipf" asks as the users of a CDN do, for few files most of the time.
func BenchmarkLookup(b *testing.B) {
	few := map[string]time.Duration{} // the small store's medians
	for _, keys := range []int{70_000, 7_000_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			if testing.Short() && keys > 1_000_000 {
				b.Skip("building the store takes a minute")
			}
			dir := b.TempDir()
			s, err := Open(dir, Options{})
			if err != nil {
				b.Fatal(err)
			}
			fill(b, s, keys)
			b.Logf("%d MB on disk", pebbleOf(s).Metrics().DiskSpaceUsage()>>20)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			for _, cache := range []int64{128 << 20, 1 << 30} {
				for _, access := range []string{"zipf", "uniform"} {
					b.Run(fmt.Sprintf("cache=%dMiB/%s", cache>>20, access), func(b *testing.B) {
						s, err := Open(dir, Options{CacheBytes: cache})
						if err != nil {
							b.Fatal(err)
						}
						defer s.Close()
						median := benchmarkLookup(b, s, chooser(access, keys), keys)
						if few[access] == 0 {
							few[access] = median
						}
						b.ReportMetric(float64(median)/float64(few[access]), "x-of-70000")
					})
				}
			}
		})
	}
}

func benchmarkLookup(b *testing.B, s *Store, next func() int, keys int) (median time.Duration) {
	for range keys { // so that the cache is that of a server that has run for a while
		lookup(b, s, fileKey(next()))
	}
	var took []time.Duration
	before := pebbleOf(s).Metrics().BlockCache
	for b.Loop() {
		key := fileKey(next())
		start := time.Now()
		lookup(b, s, key)
		took = append(took, time.Since(start))
	}
	after := pebbleOf(s).Metrics().BlockCache
	slices.Sort(took)
	median = took[len(took)/2]
	b.ReportMetric(float64(median), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
	b.ReportMetric(float64(after.Misses-before.Misses)/float64(len(took)), "misses/op")
	return median
}

func lookup(b *testing.B, s *Store, key []byte) {
	if _, err := s.Get(Files, key); err != nil {
		b.Fatal(err)
	}
}

// chooser returns a function that returns which file is asked for next.
func chooser(access string, keys int) func() int {
	rng := rand.New(rand.NewPCG(1, 2))
	if access == "uniform" {
		return func() int { return rng.IntN(keys) }
	}
	zipf := rand.NewZipf(rng, 1.1, 1, uint64(keys-1))
	return func() int {
		// Popular files are anywhere, not beside each other.
		return int(zipf.Uint64() * 2_654_435_761 % uint64(keys))
	}
}

// fileKey is the key of file i: 35 files a version, 50 versions a package.
func fileKey(i int) []byte {
	pkg, version, file := i/1750, i/35%50, i%35
	return Key(fmt.Sprintf("library-%d", pkg), fmt.Sprintf("%d.%d.%d", version/20, version/4%5, version%4),
		fmt.Sprintf("dist/components/module-%d.min.js", file))
}

func fill(b *testing.B, s *Store, keys int) {
	rng := rand.NewChaCha8([32]byte{})
	value := make([]byte, 50) // a hash, a size, a time
	for i := 0; i < keys; {
		batch := s.NewBatch()
		for range min(20_000, keys-i) {
			_, _ = rng.Read(value)
			batch.Set(Files, fileKey(i), value)
			i++
		}
		if err := s.write(batch, pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(pebbleOf(s).Flush(), pebbleOf(s).Compact(b.Context(), []byte{0}, []byte{255}, true)); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
}
