package durable

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
)

// BenchmarkEvents tells the events a second that one object and ten thousand answer,
// for one caller after the other and for 256 at once, on the real disk.
func BenchmarkEvents(b *testing.B) {
	read := func(ctx context.Context, s *State) error {
		_, _, err := s.Get(ctx, "counter")
		return err
	}
	write := func(ctx context.Context, s *State) error {
		_, err := unique(ctx, s)
		return err
	}
	for _, objects := range []int{1, 10_000} {
		for _, kind := range []struct {
			name string
			f    step
		}{{"read", read}, {"write", write}} {
			for _, callers := range []int{1, 256} {
				b.Run(fmt.Sprintf("objects=%d/%s/callers=%d", objects, kind.name, callers), func(b *testing.B) {
					benchmarkEvents(b, objects, callers, kind.f)
				})
			}
		}
	}
}

func benchmarkEvents(b *testing.B, objects, callers int, f step) {
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{FS: vfs.Default})
	if err != nil {
		b.Fatal(err)
	}
	r := New(store, Options{})
	ns := scripts(b, r, Limits{Live: 20_000})
	names := make([]Object[step, int], objects)
	for i := range names {
		names[i] = ns.Object(fmt.Sprint("object-", i))
	}
	var n atomic.Int64
	b.SetParallelism((callers + 1) / 2)
	b.ReportAllocs()
	b.ResetTimer()
	one := func() {
		if _, err := names[n.Add(1)%int64(objects)].Send(context.Background(), f); err != nil {
			b.Error(err)
		}
	}
	if callers == 1 {
		for range b.N {
			one()
		}
	} else {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				one()
			}
		})
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	if err := r.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
}
