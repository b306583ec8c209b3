package server

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// live returns how much memory is in use after fill, beyond what was before.
func live(fill func() (keep any)) int64 {
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // so that pools are empty, too
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	keep := fill()
	after := heap()
	runtime.KeepAlive(keep)
	return after - before
}

// What a cache is said to take is what it takes, overheads included, when far more is asked
// for than it holds. The garbage collector runs for a limit here and for nothing else.
func TestCachesStayWithinTheirBounds(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	const bound = 16 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(m.Sys) + 3*bound))
	// The caches' own tables: sketch, queues and hash map.
	const tables = bound / 8

	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 100_000)
	t.Run("bodies", func(t *testing.T) {
		got := live(func() any {
			b := newTestBodies(t, bound, bound)
			for range 100_000 {
				i := zipf.Uint64()
				size := int64(500 + i%64*600)
				x, err := b.acquire(key(i), size, netip.Prefix{}, func() ([]byte, error) { return make([]byte, size), nil })
				if err != nil {
					t.Fatal(err)
				}
				b.release(x)
			}
			bodyCache(b).CleanUp()
			if kept := bodyCache(b).WeightedSize(); kept < bound/2 {
				t.Errorf("only %d bytes are kept", kept)
			}
			return b
		})
		if got > bound+tables {
			t.Errorf("bodies take %d bytes, more than %d", got, bound)
		}
	})
	t.Run("rows", func(t *testing.T) {
		got := live(func() any {
			r, err := newRows(new(Options), bound, newMetrics().rows)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(30_000) {
				sum := key(i)
				assetCache(r).Set(fmt.Sprintf("package-%d/1.0.0/dist/file-%d.min.js", i, i), newAsset(target{path: "dist/file.min.js"},
					views.File{Hash: sum, Released: time.Unix(1e9, 0)},
					kvstore.Content{Size: 100_000, Representations: []kvstore.Representation{
						{Coding: coding.Brotli, Length: 20_000, Sum: sum}, {Coding: coding.Gzip, Length: 25_000, Sum: sum},
					}}, true))
			}
			assetCache(r).CleanUp()
			if kept := assetCache(r).WeightedSize(); kept < bound/2 {
				t.Errorf("only %d bytes are kept", kept)
			}
			return r
		})
		if got > bound+tables {
			t.Errorf("rows take %d bytes, more than %d", got, bound)
		}
	})
}

func key(i uint64) (sum kvstore.Hash) {
	binary.LittleEndian.PutUint64(sum[:], i*0x9e3779b97f4a7c15)
	return sum
}
