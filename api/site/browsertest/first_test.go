package browsertest

import (
	"path/filepath"
	"testing"
)

// TestFirstRelease sees a new instance as its operator does right after the start:
// empty shelves, and a library that is there once it is imported.
func TestFirstRelease(t *testing.T) {
	t.Parallel()
	stocked, _ := open(t)
	instance, err := serve(stocked.binary, filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(instance.stop)
	b := newTabOn(t, instance)
	for _, path := range []string{"/", "/search", "/statistics"} {
		b.visit(path)
		b.says("yet|still empty")
	}

	out, err := larder(instance.binary, instance.data, "import", "pickle", "1.0.0", "testdata/releases/pickle/1.0.0").CombinedOutput()
	if err != nil {
		t.Fatalf("larder import: %v\n%s", err, out)
	}
	b.wait("the library on the front page", func() bool {
		b.visit("/")
		return len(b.all("link", "^pickle$")) > 0
	})
	b.suggest("pickle")
}
