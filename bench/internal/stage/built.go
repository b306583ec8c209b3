package stage

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BuiltLarder returns the program that BUILT_LARDER names, or builds it. The test runs in a folder of bench.
func BuiltLarder(t testing.TB) string {
	t.Helper()
	if larder := os.Getenv("BUILT_LARDER"); larder != "" {
		return larder
	}
	larder := filepath.Join(t.TempDir(), "larder")
	build := exec.Command("go", "build", "-o", larder, "./cmd/larder")
	build.Dir = "../.."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return larder
}
