package verify

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs"
)

// However long the names and versions of a log are, what is kept of them is a state that the next start reads.
func TestRememberIsBoundedInBytes(t *testing.T) {
	o := WatchOptions{State: filepath.Join(t.TempDir(), "state")}
	w, err := OpenWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(version string) {
		for i := range 1000 {
			w.recordPublication(logs.Entry{Kind: logs.Published, Package: fmt.Sprint(i), Version: version})
		}
		if data, err := json.Marshal(w.state.Last); err != nil || len(data) > maxStateBytes {
			t.Errorf("%d bytes are kept, %v", len(data), err)
		}
	}
	fill("1.0.0")
	if n := len(w.state.Last); n != 1000 {
		t.Errorf("%d packages are kept", n)
	}
	fill(strings.Repeat("<", 16<<10)) // six bytes each in JSON
	if err := w.saveState(); err != nil {
		t.Fatal(err)
	}
	if w, err = OpenWatcher(o); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		w.recordPublication(logs.Entry{Kind: logs.Published, Package: fmt.Sprintf("b%d", i), Version: strings.Repeat("v", 16<<10)})
	}
	fill("2.0.0")
	if got := w.state.Last["0"].Version; got != "2.0.0" {
		t.Errorf("a package that is kept is not kept up with: %.20s", got)
	}
}
