package bot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// treeOf writes files of noon below a new folder; "-> x" is a link to x.
func treeOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(data, "-> "); link {
			err = os.Symlink(to, name)
		} else {
			err = errors.Join(os.WriteFile(name, []byte(data), 0o644), os.Chtimes(name, noon, noon))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// importTree imports, and returns what was received of releases that were not imported, sorted.
func (r *rig) importTree(tree ingest.Tree) (sum ingest.TreeSummary, problems string, err error) {
	r.Helper()
	var received []string
	sum, err = r.bot.ImportTree(r.Context(), tree, func(e ingest.TreeEvent) {
		if e.Problem != "" {
			received = append(received, fmt.Sprintf("%s %s: %s: %s", e.Package, e.Version, e.Problem, e.Detail))
		}
	})
	slices.Sort(received)
	return sum, strings.Join(received, "\n"), err
}

func sriOf(data string) string { return logs.SumSRI([]byte(data)).String() }

func TestImportTree(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("@scope/a", "dist/*.js"))
	r.register("b", "")
	r.registry.Add("@scope/a", "1.0.0", hour(1), map[string]string{"dist/a.js": "upstream's"})
	r.registry.Add("@scope/a", "1.1.0", hour(2), map[string]string{"dist/a.js": "upstream's"})
	outside := treeOf(t, map[string]string{"secret": "s", "1.0.0/a.js": "s"})
	dir := treeOf(t, map[string]string{
		"a/1.0.0/a.js":        library,
		"a/1.0.0/sub/b.css":   "a { color: red }",
		"a/1.0.0/a.min.js":    "minified as it is",
		"a/1.0.0/link":        "-> " + outside + "/secret",
		"a/1.1.0/a.js":        library,
		"a/1.2.0":             "-> " + outside + "/1.0.0",
		"a/package.json":      "{}",
		"b/2.0/b.js":          "b",
		"c":                   "-> " + outside,
		"jquery/1.0/j.js":     "j",
		"unknown/1.0/u.js":    "u",
		"a/dist/a.js":         "no version",
		"a/2.0.0/back\\slash": "x",
		"a/2.0.1/l.js":        "-> ../1.0.0/a.js",
	})
	if err := os.Mkdir(filepath.Join(dir, "a/3.0.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.registry.Add("@scope/a", "2.0.0", hour(3), map[string]string{"dist/a.js": "upstream's"})
	r.registry.Add("@scope/a", "2.0.1", hour(3), map[string]string{"dist/a.js": "upstream's"})
	r.registry.Add("@scope/a", "3.0.0", hour(3), map[string]string{"dist/a.js": "upstream's"})
	r.open()

	sum, problems, err := r.importTree(ingest.Tree{Dir: dir, Released: ingest.ByPackument})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Packages != 2 || sum.Releases != 7 || sum.Published != 2 || sum.Files != 4 || sum.Same != 0 ||
		sum.Unknown.String() != "jquery, unknown" || sum.Beside.Count != 3 || sum.LeftOut.String() != "a/1.0.0/link (symbolic link)" {
		t.Errorf("%+v", sum)
	}
	for i, want := range []string{
		`a 2.0.0: not an acceptable release: archive refused: entry "back\\slash": backslash in the name`,
		`a 2.0.1: not an acceptable release: nothing is left to publish: all 1 selected files are left out, such as "l.js" (symbolic link)`,
		"a 3.0.0: not an acceptable release: there are no files in it",
		"a dist: the folder's name is not a version: ",
		"b 2.0: no release date: only npm has dates",
	} {
		if got := strings.Split(problems, "\n"); len(got) != 5 || !strings.HasPrefix(got[i], want) {
			t.Errorf("received\n%s\nwant %s", problems, want)
		}
	}
	m := r.manifest("a", "1.0.0")
	if got, want := paths(m), "a.js a.min.js sub/b.css"; got != want || m.Default != "a.js" || !m.Released.Equal(hour(1)) {
		t.Errorf("%s, default %s, released %s; want %s", got, m.Default, m.Released, want)
	}
	if got := r.file("a", "1.0.0", "a.min.js"); got != "minified as it is" {
		t.Errorf("a.min.js is %q", got)
	}

	// Again, with a file that changed, one that is new, and dates of their own for the rest.
	for name, data := range map[string]string{"a/1.1.0/a.js": strings.ToUpper(library), "a/1.1.0/new.js": "n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{"a/dist", "a/2.0.0", "a/2.0.1", "a/3.0.0"} {
		if err := os.RemoveAll(filepath.Join(dir, gone)); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(dir, "b/2.0/b.js"), at, at); err != nil {
		t.Fatal(err)
	}
	sum, problems, err = r.importTree(ingest.Tree{Dir: dir, Released: ingest.ByTimes})
	if want := "a 1.1.0: published already, with other files: a.js differs, new.js is not published, and a published version is never rewritten"; err != nil || problems != want || sum.Same != 1 || sum.Published != 1 {
		t.Errorf("%v, %+v, received\n%s", err, sum, problems)
	}
	if m := r.manifest("b", "2.0"); !m.Released.Equal(at) {
		t.Errorf("b 2.0 was released at %s", m.Released)
	}
	r.sound()

	// The bot goes on from there.
	r.registry.Add("@scope/a", "4.0.0", hour(4), map[string]string{"dist/a.js": "upstream's"})
	r.once()
	if s := r.state("a", "4.0.0"); s.Kind != views.Published {
		t.Errorf("4.0.0 is %s", s.Kind)
	}
	r.sound()
}

// TestImportTreeKeepsChangedPackages changes a package JSON during an import, which goes on with the package as it was.
func TestImportTreeKeepsChangedPackages(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	files := make(map[string]string)
	for i := range 3 * bot.DownloadsAtOnce {
		files[fmt.Sprintf("a/1.%d.0/a.js", i)] = library
	}
	tree := ingest.Tree{Dir: treeOf(t, files), Released: ingest.ByTimes}
	r.open()
	var changed *packages.Package
	sum, err := r.bot.ImportTree(r.Context(), tree, func(ingest.TreeEvent) {
		if changed != nil {
			return
		}
		r.register("a", fromNpm("changed", "*.js"))
		catalogue, err := packages.Open(r.catalogue)
		if err != nil {
			t.Error(err)
			return
		}
		changed, _ = catalogue.Get("a")
		if err := r.bot.Register(r.Context(), changed); err != nil {
			t.Error(err)
		}
	})
	if err != nil || sum.Published != len(files) {
		t.Errorf("%v, %+v", err, sum)
	}
	if p, err := views.LookupPackage(r.store, "a"); err != nil || !strings.Contains(string(p.JSON), "changed") {
		t.Errorf("the package is %s, %v", p.JSON, err)
	}
	r.sound()
}

func TestImportTreeHoldsIntegrities(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	dir := treeOf(t, map[string]string{
		"a/1.0.0/a.js": "one", "a/1.0.0/b.js": "b",
		"a/1.1.0/a.js": "two",
		"a/1.2.0/a.js": "three",
		"a/1.3.0/a.js": "four",
	})
	list := treeOf(t, map[string]string{
		"sri.json": fmt.Sprintf(`{"a": {"1.0.0": {"a.js": %q, "b.js": "sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0="}},
			"a/1.1.0/a.js": %q, "a/1.2.0": {"gone.js": %q}, "a": {"9.0.0": {"a.js": %[1]q}}}`, sriOf("one"), sriOf("other"), sriOf("x")),
		"folder/a/1.0.0.json": fmt.Sprintf(`{"a.js": %q}`, sriOf("one")),
		"folder/a/1.1.0.json": fmt.Sprintf(`{"a.js": %q}`, sriOf("other")),
		"folder/a/1.2.0.json": `{"a.js": "sha512-short"}`,
	})
	r.open()
	sum, problems, err := r.importTree(ingest.Tree{Dir: dir, Released: ingest.ByTimes, SRI: filepath.Join(list, "sri.json")})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("a 1.1.0: an integrity does not hold: a.js is %s and not %s\na 1.2.0: an integrity does not hold: gone.js is not in the release", sriOf("two"), sriOf("other"))
	if problems != want || sum.Published != 2 || sum.Unlisted.String() != "a 1.3.0" || sum.Missing.String() != "a 9.0.0" {
		t.Errorf("%+v, received\n%s\nwant\n%s", sum, problems, want)
	}
	if _, err := views.LookupState(r.store, "a", "1.1.0"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the refused release left %v", err)
	}
	sum, problems, err = r.importTree(ingest.Tree{Dir: dir, Released: ingest.ByTimes, SRI: filepath.Join(list, "folder")})
	if err != nil || sum.Same != 2 || !strings.Contains(problems, `a 1.2.0: an integrity does not hold: a/1.2.0.json: "a.js": "sha512-short" is not a sha512 or sha256 integrity`) {
		t.Errorf("%v, %+v, received\n%s", err, sum, problems)
	}
	r.sound()
}

func TestImportTreeWithBadInput(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	dir := treeOf(t, map[string]string{"a/1.0.0/a.js": "one"})
	r.open()
	dates := func(text string) ingest.Tree {
		return ingest.Tree{Dir: dir, Released: filepath.Join(treeOf(t, map[string]string{"f": text}), "f")}
	}
	sris := func(text string) ingest.Tree {
		return ingest.Tree{Dir: dir, Released: ingest.ByTimes, SRI: filepath.Join(treeOf(t, map[string]string{"f": text}), "f")}
	}
	tests := map[string]struct {
		tree ingest.Tree
		want string
	}{
		"no folder":          {ingest.Tree{Dir: filepath.Join(dir, "nope"), Released: ingest.ByTimes}, "no such file"},
		"empty":              {ingest.Tree{Dir: t.TempDir(), Released: ingest.ByTimes}, "it has no folders;"},
		"too far up":         {ingest.Tree{Dir: filepath.Dir(dir), Released: ingest.ByTimes}, "the catalogue has no package of that name; of a public"},
		"too far down":       {ingest.Tree{Dir: filepath.Join(dir, "a"), Released: ingest.ByTimes}, "it has 1 folder, such as 1.0.0, and"},
		"no versions":        {ingest.Tree{Dir: treeOf(t, map[string]string{"a/a.js": "x"}), Released: ingest.ByTimes}, "folders of 1 package, but no versions"},
		"dates gone":         {ingest.Tree{Dir: dir, Released: filepath.Join(dir, "nope")}, "no such file"},
		"dates no object":    {dates(`["2020"]`), "a JSON object is expected"},
		"dates cut off":      {dates(`{"a": {"1.0.0": "2020-01-02"}`), "unexpected EOF"},
		"dates garbled":      {dates(`{"a": {1.0.0: "2020-01-02"}}`), "byte 7: invalid character"},
		"dates too deep":     {dates(`{"a": {"1.0.0": {"a.js": "2020-01-02"}}}`), `"a/1.0.0/a.js": package/version is expected`},
		"date no string":     {dates(`{"a": {"1.0.0": 2020}}`), `"a/1.0.0": a string is expected`},
		"date no date":       {dates(`{"a/1.0.0": "yesterday"}`), `"yesterday" is no date`},
		"date in the future": {dates(`{"a/1.0.0": "2999-01-02"}`), "2999-01-02 00:00:00 cannot be when it was released"},
		"date of npm's":      {dates(`{"a/1.0.0": "1985-10-26T08:15:00Z"}`), "cannot be when it was released"},
		"two dates":          {dates(`{"a/1.0.0": "2020-01-02", "a": {"1.0.0": "2020-01-03"}}`), "it has two dates"},
		"more follows":       {dates(`{"a/1.0.0": "2020-01-02"} {}`), "something follows the JSON object"},
		"sri gone":           {ingest.Tree{Dir: dir, Released: ingest.ByTimes, SRI: filepath.Join(dir, "nope")}, "no such file"},
		"sri of sha1":        {sris(`{"a/1.0.0/a.js": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="}`), "is not a sha512 or sha256 integrity"},
		"sri not base64":     {sris(`{"a/1.0.0/a.js": "sha512-%%%"}`), "is not a sha512 or sha256 integrity"},
		"sri of a version":   {sris(`{"a": {"1.0.0": "sha512-x"}}`), "package/version/file is expected"},
		"two sris":           {sris(fmt.Sprintf(`{"a/1.0.0/a.js": %q, "a/1.0.0/a.js": %q}`, sriOf("x"), sriOf("y"))), "it has two integrities"},
		"sri too deep":       {sris(strings.Repeat(`{"a":`, 20) + `""` + strings.Repeat("}", 20)), "a string is expected"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := r.importTree(tt.tree); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if got := r.kinds(); got != "" {
		t.Errorf("the log is\n%s", got)
	}

	// Releases that have no date, or none that can be.
	_, problems, err := r.importTree(dates(`{"a/2.0.0": "2020-01-02"}`))
	if err != nil || problems != "a 1.0.0: no release date: the file of dates does not have it" {
		t.Errorf("%v, received\n%s", err, problems)
	}
	old := time.Date(1985, 10, 26, 8, 15, 0, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(dir, "a/1.0.0/a.js"), old, old); err != nil {
		t.Fatal(err)
	}
	_, problems, err = r.importTree(ingest.Tree{Dir: dir, Released: ingest.ByTimes})
	if err != nil || !strings.HasPrefix(problems, "a 1.0.0: no release date: 1985-10-26 08:15:00 cannot be") {
		t.Errorf("%v, received\n%s", err, problems)
	}
}

// TestImportTreeWhileUpstreamIsDown publishes nothing with a guessed date.
func TestImportTreeWhileUpstreamIsDown(t *testing.T) {
	r := newRig(t)
	files := map[string]string{}
	for i := range 10 {
		name := fmt.Sprintf("a%d", i)
		r.register(name, fromNpm(name, "*.js"))
		files[name+"/1.0.0/a.js"] = name
		r.registry.Add(name, "1.0.0", hour(i), map[string]string{"a.js": "a"})
	}
	r.registry.Fail(npmtest.Fault{Status: 503})
	r.open()
	tree := ingest.Tree{Dir: treeOf(t, files), Released: ingest.ByPackument}
	sum, problems, err := r.importTree(tree)
	if err != nil || sum.Published != 0 || sum.Refused[0].Count != 10 || !strings.Contains(problems, "import the tree again when it can be asked") {
		t.Errorf("%v, %+v, received\n%s", err, sum, problems)
	}
	if asked := len(r.registry.Requests()); asked > 6 {
		t.Errorf("asked %d times", asked)
	}
	r.sound()
}

// TestImportTreeThatVanishes has folders go away under an import.
func TestImportTreeThatVanishes(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("a/1.%d.0/a.js", i)] = "a"
	}
	dir := treeOf(t, files)
	r.open()
	var received []ingest.TreeEvent
	sum, err := r.bot.ImportTree(t.Context(), ingest.Tree{Dir: dir, Released: ingest.ByTimes}, func(e ingest.TreeEvent) {
		if e.Done == 1 {
			if err := os.RemoveAll(filepath.Join(dir, "a/1.0.0")); err != nil {
				t.Error(err)
			}
		}
		if e.Problem != "" {
			received = append(received, e)
		}
	})
	if err != nil || sum.Published != 9 || len(received) != 1 || received[0].Version != "1.0.0" || received[0].Problem != "could not be read" {
		t.Errorf("%v, %+v, %+v", err, sum, received)
	}
	r.sound()
}
