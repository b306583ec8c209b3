package check

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
)

// A second set of views in memory ends with an error when it takes more than it may.
func TestSecondSetInMemoryIsBounded(t *testing.T) {
	const most = 1 << 20
	full := fmt.Errorf("%w: no space in the test", kvstore.ErrDiskFull)
	for _, test := range []struct {
		rows int // of a kilobyte
		want error
	}{{10, nil}, {2 * most >> 10, kvstore.ErrDiskFull}} {
		s, err := newViewsInMemory(most, full)
		if err != nil {
			t.Fatal(err)
		}
		random, value := rand.NewChaCha8([32]byte{}), make([]byte, 1<<10) // that no compression makes smaller
		for i := range test.rows {
			random.Read(value)
			s.batch.Set(kvstore.Files, fmt.Append(nil, i), value)
			s.rows++
		}
		if err := s.commit(); !errors.Is(err, test.want) {
			t.Errorf("%d KiB: %v, want %v", test.rows, err, test.want)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
