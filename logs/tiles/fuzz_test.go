package tiles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/transparency-dev/tessera/api/layout"
)

// FuzzPath holds the paths that are taken against those that Tessera makes: each
// thing has one.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/log/checkpoint", "/log/key", "/log/keys", "/log/tile/0/000", "/log/tile/5/x001/x234/067.p/8", "/log/tile/entries/999", "/log/tile/entries/x001/000.p/255",
		"/log/tile/data/000", "/log/tile/63/000", "/log/tile/64/000", "/log/tile/-0/000", "/log/tile/0/x000/001", "/log/tile/0/000.p/256", "/log/tile//000",
		"/log/content/7/00000000000000000000000000000000000000000000000000000000000000ff", "/log/content/07/", "/log/content/-1/ff",
		"/log/tile/0/x009/x223/x372/x036/x854/x775/808", "/log/tile/0/x018/x446/x744/x073/x709/x551/616", "/log/tile/0/000.p/", "/log/tile/0/.p/1",
		"/log/live/vue/3.0.0", "/log/live/@vue/core/3.0.0", "/log/live/%40vue%2fcore/3.0.0", "/log/live//3.0.0", "/log/live/vue/%00", "/log/live/vue/%zz", "/log/live/@a/b",
		"/log/proof/vue/3.0.0/dist/vue.js.tlog-proof", "/log/proof/vue/3.0.0/.tlog-proof", "/log/proof/@vue/core/3.0.0/a%20b%2Fc.js.tlog-proof",
	} {
		f.Add(path, int64(70_000))
	}
	f.Fuzz(func(t *testing.T, path string, size int64) {
		target := parsePath(path)
		var again string
		partial := uint8(target.width % Width)
		switch target.kind {
		case noKind:
			return
		case live, proof:
			f := target.file
			if f.pkg == "" || f.version == "" || (f.path == "") != (target.kind == live) || strings.ContainsRune(f.pkg+f.version+f.path, 0) {
				t.Errorf("%q is of %+v", path, f)
			}
			if target.kind == live {
				if path, _, _ = strings.Cut(LivePath(f.pkg, f.version, 1), "?"); parsePath(path) != target {
					t.Errorf("%+v is not what %q is of", f, path)
				}
			}
			return
		case checkpoint, key, keys:
			again = target.kind.String()
		case content:
			again = strings.TrimPrefix(ContentPath(target.n, target.hash), Prefix)
		case entries:
			again = layout.EntriesPath(uint64(target.n), partial)
		case hashes:
			again = layout.TilePath(uint64(target.level), uint64(target.n), partial)
		}
		if Prefix+again != path {
			t.Fatalf("%q is taken for %s", path, again)
		}
		if target.n < 0 || target.level < 0 || target.level > 63 || target.width < 0 || target.width > 256 {
			t.Fatalf("%q is %+v", path, target)
		}
		if (target.kind == hashes || target.kind == entries) && size >= 0 {
			within := target.isWithin(size)
			last := fmt.Sprint(target.n, target.width)
			if within && (target.n > size>>8 || size>>(8*target.level) == 0) {
				t.Errorf("%d entries have %s at level %d", size, last, target.level)
			}
		}
	})
}
