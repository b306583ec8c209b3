package browsertest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// interactive is when a page can be worked with, in milliseconds since its navigation began: it shows something, its scripts
// have run, and the last task of over 50 ms before five quiet seconds is done.
const interactive = `new Promise((resolve) => {
	const [navigation] = performance.getEntriesByType('navigation');
	let last = navigation.domContentLoadedEventEnd;
	const observer = new PerformanceObserver((list) => {
		for (const e of list.getEntries()) last = Math.max(last, e.entryType === 'longtask' ? e.startTime + e.duration : e.startTime);
	});
	observer.observe({type: 'longtask', buffered: true});
	observer.observe({type: 'paint', buffered: true});
	const look = () => performance.now() - last > 5000 ? resolve(last) : setTimeout(look, 100);
	look();
})`

// TestInteractive measures that for the library page of a release of 25,000 files, in a profile of its own each time, as
// docs/site.md has it.
func TestInteractive(t *testing.T) {
	if os.Getenv("LARDER_TEST_INTERACTIVE") == "" {
		t.Skip("publishes 25,000 files; set LARDER_TEST_INTERACTIVE=1")
	}
	shared, _ := open(t)
	folder := filepath.Join(t.TempDir(), "warehouse")
	files := map[string]string{"pantry.js": "globalThis.pantry = true;\n"}
	for n := len(files); n < 25_000-1; n++ { // one is made: pantry.min.js
		files[fmt.Sprintf("shelf-%d/jar-%05d.min.js", n/1000, n)] = fmt.Sprint(n)
	}
	if err := writeFiles(folder, files); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	if out, err := larder(shared.binary, data, "import", "pantry", "1.0.0", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	instance, err := serve(shared.binary, data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(instance.stop)
	var took []float64
	for n := range 5 {
		b := newTabOn(t, instance)
		b.screen(1280, false)
		b.visit(fmt.Sprintf("/library/pantry?n=%d", n)) // so that none is kept
		took = append(took, eval[float64](b, interactive))
		b.says(`25,000 files`)
	}
	slices.Sort(took)
	t.Logf("interactive after %.0f ms; five visits: %.0f", took[2], took)
}
