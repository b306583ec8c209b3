package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRoomsStayInForce upgrades a process, starts it on a damaged store, and repairs that: version and history of the
// rooms' settings stay what they were, whatever file the process finds. TestClusterRoomsReloaded does the same by a promotion.
func TestRoomsStayInForce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data, file := t.TempDir(), filepath.Join(t.TempDir(), "rooms.yaml")
	if err := os.WriteFile(file, []byte("- {name: shop, path: /shop, total_active_users: 10, new_users_per_minute: 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stockNoise(t, data, 1, 1000)
	start := func() *onSocket { return startOn(t, data, nil, "--private-listen", "off", "--rooms", file) }
	larder := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("larder", append(args, "--data", data)...).CombinedOutput()
		if err != nil {
			t.Fatalf("larder %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	version, limits := regexp.MustCompile(`\nVersion .*`), regexp.MustCompile(`"(total_active|new)_users.*": \d+`)
	inForce := func() string {
		t.Helper()
		return larder("room", "history") + larder("room", "history", "2") + version.FindString(larder("room", "status")) + "\n" + strings.Join(limits.FindAllString(larder("room", "status", "shop", "--json"), -1), "\n")
	}
	p := start()
	larder("room", "set", "shop", "total_active_users=20")
	larder("room", "set", "shop", "total_active_users=30")
	larder("room", "undo")
	want := inForce()
	if !strings.Contains(want, "\nVersion 4 ") || !strings.Contains(want, `"total_active_users": 20`) {
		t.Fatalf("before: %s", want)
	}
	unchanged := func(after string) {
		t.Helper()
		if got := inForce(); got != want {
			t.Errorf("after %s:\n%s\nwant\n%s", after, got, want)
		}
	}
	p.upgrade(data)
	unchanged("an upgrade")
	p.stop()
	markers, err := filepath.Glob(filepath.Join(data, "store", "marker.manifest.*"))
	if err != nil || len(markers) == 0 {
		t.Fatalf("the store has no marker of its manifest (%v)", err)
	}
	for _, name := range markers {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	start()
	if out := larder("status"); !strings.Contains(out, "runs read-only") {
		t.Errorf("the process on a damaged store: %s", out)
	}
	unchanged("a start in read-only mode")
	larder("repair")
	if out := larder("status"); strings.Contains(out, "runs read-only") {
		t.Errorf("the process after the repair: %s", out)
	}
	unchanged("a repair")
}
