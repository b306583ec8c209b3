package logs_test

import (
	"fmt"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// publish appends what a release's publication has: three entries.
func publish(tx *logs.Tx, n int) error {
	e := logs.Entry{Time: noon, Actor: "bot", Package: fmt.Sprintf("package%d", n%1000), Version: fmt.Sprintf("1.0.%d", n)}
	for _, e.Kind = range []logs.Kind{logs.Detected, logs.Processed, logs.Published} {
		if e.Kind != logs.Detected {
			e.Manifest = kvstore.Sum(fmt.Append(nil, n))
		}
		if _, err := tx.Append(e); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkAppend publishes releases in a log of 222,000 entries, each in a write of its
// own, which waits for the disk.
func BenchmarkAppend(b *testing.B) {
	for _, releases := range []int{100, 74_000} {
		b.Run(fmt.Sprintf("releases=%d", releases), func(b *testing.B) {
			store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			l, err := logs.Open(store)
			if err != nil {
				b.Fatal(err)
			}
			for n := 0; n < releases; {
				if err := l.Update(func(tx *logs.Tx) error {
					for range min(1000, releases-n) {
						if err := publish(tx, n); err != nil {
							return err
						}
						n++
					}
					return nil
				}); err != nil {
					b.Fatal(err)
				}
			}
			n := releases
			for b.Loop() {
				if err := l.Update(func(tx *logs.Tx) error { return publish(tx, n) }); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}
