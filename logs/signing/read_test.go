package signing_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/logs/signing"
)

// TestReadFolder reads what is there, and nothing else after any bit of it flipped.
func TestReadFolder(t *testing.T) {
	r := newRig(t)
	r.grow(5, "vue")
	s := r.open()
	r.sign(s)
	dir := s.Folder()
	signed, key, err := signing.ReadFolder(dir)
	if err != nil || signed.Checkpoint != r.log.Checkpoint() || key != s.Key() {
		t.Fatalf("%+v, %s, %v", signed, key, err)
	}
	for _, name := range []string{"checkpoint", "log.pub"} {
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range 8 * len(good) {
			bad := bytes.Clone(good)
			bad[bit/8] ^= 1 << (bit % 8)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := signing.ReadFolder(dir); err == nil {
				t.Errorf("%s with bit %d of byte %d flipped (%q for %q) is taken for good", name, bit%8, bit/8, bad[bit/8], good[bit/8])
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := signing.ReadFolder(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without %s: %v", name, err)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.close(s)
}
