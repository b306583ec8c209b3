package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestReadme runs the commands of README.md and docs/using.md in one process's folder as they are written there. It skips the
// two commands that clone and build, of which it checks that the Makefile has the target.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	readme, using := commandsOf(t, "../README.md"), commandsOf(t, "using.md")
	start := readme["Two commands"]
	if len(start) != 1 || !strings.HasSuffix(start[0], "\nmake run\n") {
		t.Fatalf("the two commands are %q", start)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil || !strings.Contains(string(makefile), "\nrun: ") {
		t.Errorf("make run: %v", err)
	}

	registry := npmtest.New(t)
	for i, version := range []string{"1.12.4", "3.7.1", "4.0.0"} {
		registry.Add("jquery", version, time.Date(2024, 5, 17+i, 8, 30, 0, 0, time.UTC), map[string]string{
			"dist/jquery.js": "var jquery = '" + version + "'\n", "dist/jquery.min.js": "var jquery='" + version + "'\n",
		})
	}
	registry.Add("is-number", "7.0.0", time.Date(2018, 7, 4, 15, 8, 58, 0, time.UTC), map[string]string{
		"index.js":     "module.exports = n => n - n === 0\n",
		"package.json": `{"name": "is-number", "version": "7.0.0", "description": "Tells whether a value is a number.", "keywords": ["number"], "license": "MIT", "main": "index.js", "repository": "https://git.example/is-number.git"}`,
	})
	d := &drill{T: t, dir: t.TempDir(), environ: registry.Environ(t.TempDir())}
	d.write("catalogue/packages/j/jquery.json", `{"name": "jquery", "description": "A library.", "keywords": ["dom"], "filename": "jquery.min.js", "license": "MIT",
		"repository": {"type": "git", "url": "https://git.example/jquery.git"},
		"autoupdate": {"source": "npm", "target": "jquery", "fileMap": [{"basePath": "dist", "files": ["*.js"]}]}}`)
	d.write("catalogue/packages/m/my-library.json", `{"name": "my-library", "description": "Mine.", "keywords": ["mine"], "filename": "mine.js",
		"repository": {"type": "git", "url": "https://git.example/mine.git"}}`)
	d.write("dist/mine.js", "var mine = 1\n")
	d.write("index.html", `<script src="https://code.jquery.com/jquery-3.7.1.min.js"></script>`)
	d.up("--releases", "2")
	waitForProcess(t, "both releases in the API", func() bool {
		found, err := d.command("curl -fsS http://127.0.0.1:8080/libraries/jquery?fields=versions").Output()
		return err == nil && bytes.Contains(found, []byte(`"3.7.1"`)) && bytes.Contains(found, []byte(`"4.0.0"`))
	})
	waitForProcess(t, "both releases in the signed log", func() bool {
		const files = "http://127.0.0.1:8080/ajax/libs/jquery/"
		return d.command("larder verify "+files+"3.7.1/jquery.min.js "+files+"4.0.0/jquery.min.js").Run() == nil
	})

	d.blocks = readme["What users do"]
	d.run(0, 0, `integrity="sha512-`, "index.html: changed 1 tag.", "var jquery='3.7.1'", `"version":"4.0.0"`)
	d.run(1, 0, "proven: ")
	d.run(2, 0, "jquery 1.12.4: published", "my-library 1.0.0 is withdrawn", "my-library 1.0.0 is served again as it was")
	d.run(3, 0, "published", "0 wrong")
	d.run(4, 0, "whsec_")
	if d.done != len(d.blocks) {
		t.Errorf("%d of %d blocks of README.md were run", d.done, len(d.blocks))
	}
	if blocks := using["The API"]; len(using) != 1 || len(blocks) != 1 {
		t.Errorf("docs/using.md has the commands %q", using)
	} else {
		d.shell(0, blocks[0], `"sri":{`, `"4.0.0"`)
	}
}
