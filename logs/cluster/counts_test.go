package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// What nodes have counted is heard once, and again when it has changed; old days are neither read again nor kept for ever.
func TestCounts(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	day := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	tell := func(name string, day time.Time, counts string) {
		t.Helper()
		if err := one.PutCounts(ctx, name, day, []byte(counts)); err != nil {
			t.Fatal(err)
		}
	}
	reader := CountsReader{Node: two.Node, Name: "b"}
	fails := false
	hear := func(want ...string) {
		t.Helper()
		var got []string
		err := reader.ReadNew(ctx, day.AddDate(0, 0, -7), day, func(name string, day time.Time, counts []byte) error {
			if fails {
				return errors.New("not now")
			}
			got = append(got, fmt.Sprintf("%s %s %s", day.Format(time.DateOnly), name, counts))
			return nil
		})
		if (err != nil) != fails || !slices.Equal(got, want) {
			t.Errorf("heard %q, want %q; %v", got, want, err)
		}
	}
	hear()
	tell("a", day, "1")
	tell("b", day, "2")
	tell("a", day.AddDate(0, 0, -5), "5")
	tell("a", day.AddDate(0, 0, -8), "8")
	tell("d", day.AddDate(9, 0, 0), "9") // by a clock that is wrong
	fails = true
	hear()
	fails = false
	for range 2 {
		hear("2026-03-05 a 5", "2026-03-10 a 1")
	}
	hear()
	tell("a", day, "3")
	tell("c", day.AddDate(0, 0, -1), "4")
	hear("2026-03-09 c 4", "2026-03-10 a 3")
	if err := one.DeleteCounts(ctx, day); err != nil {
		t.Fatal(err)
	}
	reader.known = nil
	hear("2026-03-10 a 3")
	err := reader.ReadNew(ctx, day.AddDate(0, 0, 1), day.AddDate(0, 0, 8), func(string, time.Time, []byte) error { return errors.New("it is too old") })
	if err != nil || len(reader.known) > 0 {
		t.Errorf("a week later %d of the counts are still remembered; %v", len(reader.known), err)
	}
}
