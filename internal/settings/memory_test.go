package settings

import "testing"

// The limit is what the settings come to, and above what is in use by enough for the garbage collector to rest.
func TestMemoryLimitIsRaised(t *testing.T) {
	m := memoryLimit{budget: 1200}
	for _, test := range []struct {
		used, want int64
		exceeded   bool
	}{
		{0, 1200, false}, {900, 1200, false}, {1200, 1600, false}, {3000, 4000, true},
		{1200, 1600, false}, {3000, 4000, false}, // it has been told
	} {
		if got, exceeded := m.next(test.used); got != test.want || exceeded != test.exceeded {
			t.Errorf("of 1200, %d are used: the limit is %d, exceeded %v; want %d, %v", test.used, got, exceeded, test.want, test.exceeded)
		}
	}
}
