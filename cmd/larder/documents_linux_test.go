package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// tableBomb is a table in Markdown whose rows have a character each, and 2,000 cells once they are rendered. One page view of it took the
// serving process to 6 GB.
func tableBomb() string {
	const columns, size = 2000, 64 << 10
	head := "|" + strings.Repeat("a|", columns) + "\n|" + strings.Repeat("-|", columns) + "\n"
	return head + strings.Repeat("|\n", (size-len(head))/2)
}

// TestDocumentBomb has the real program show READMEs and source of a store that was filled before: honest ones are rendered in a worker when
// their page is requested, one that would take gigabytes is plain text, and the serving process takes little memory for it.
func TestDocumentBomb(t *testing.T) {
	t.Parallel()
	registry := npmtest.Start()
	t.Cleanup(registry.Close)
	dir := t.TempDir()
	for name, readme := range map[string]string{"demo": "# Demo\n\nIt is *honest*.", "bomb": tableBomb()} {
		registry.Add(name, "1.0.0", time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC), map[string]string{
			"small.txt": "a", "a.js": "const a = 1;\n", "README.md": readme, // which nothing selects
		})
		text := strings.ReplaceAll(strings.ReplaceAll(faultPackage, `"demo"`, `"`+name+`"`), `"*.txt"`, `"*.txt", "*.js"`)
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	bot := exec.Command("larder", "bot", "--once", "--catalogue", dir, "--private-listen", "off", "--data", data)
	bot.Env = registry.Environ(dir)
	if out, err := bot.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	base := "http://larder.example"
	cmd := larderOn(nil, "serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "off", "--site-base", base, "--asset-base", base)
	url, _ := startSaying(t, cmd, "Larder serves ")
	page := func(path string) (body, caching string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "larder.example"
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		all, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("%s: %s, %v\n%s", path, response.Status, err, all)
		}
		return string(all), response.Header.Get("Cache-Control")
	}
	page("/library/bomb") // it is queued first
	for path, want := range map[string]string{
		"/library/demo":               `<h3 id="readme-demo">Demo</h3>`,
		"/files/demo/1.0.0/a.js":      `<span class="k">const</span>`,
		"/files/demo/1.0.0/small.txt": "<code>a",
		"/library/bomb":               "<pre>|a|a|a|",
	} {
		var body, caching string
		waitFor(t, path, func() bool {
			body, caching = page(path)
			return caching == "no-cache"
		})
		if !strings.Contains(body, want) || strings.Contains(body, "in a moment") || len(body) > 300<<10 {
			t.Errorf("%s has %d bytes and should have %s", path, len(body), want)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if peak, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			if kilobytes, err := strconv.Atoi(strings.Fields(peak)[0]); err != nil || kilobytes > 400<<10 {
				t.Errorf("the serving process took %s, %v", strings.TrimSpace(peak), err)
			} else {
				t.Logf("the serving process took %d MiB", kilobytes>>10)
			}
		}
	}
}
