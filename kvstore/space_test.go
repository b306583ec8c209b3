package kvstore

import "testing"

func TestDiskState(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		free, total int64
		want        diskState
	}{
		{50 * gib, 100 * gib, diskAmple}, {9 * gib, 100 * gib, diskLow}, {2 * gib, 8 * gib, diskAmple},
		{gib - 1, 4 * gib, diskLow}, {271 << 20, 4 * gib, diskLow}, {gib/4 - 1, 4 * gib, diskFull},
	} {
		if got := diskStateOf(test.free, test.total, gib/4); got != test.want {
			t.Errorf("%d of %d: %d, want %d", test.free, test.total, got, test.want)
		}
	}
}
