package submission

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

var released = time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)

// source returns a registry and the source that reads it.
func source(t *testing.T) (*npmtest.Registry, sources.Source) {
	t.Helper()
	registry := npmtest.New(t)
	registry.Setenv(t)
	config, err := npm.LoadConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return registry, (&sources.Sources{Npm: npm.NewClient(config, getter(t), npm.Options{})}).ForKind(sources.KindNpm)
}

func getter(t *testing.T) *fetch.Client {
	t.Helper()
	client, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// pkg is a package with this filename, base path and globs.
func pkg(t *testing.T, filename, base string, globs ...string) *packages.Package {
	t.Helper()
	files, err := json.Marshal(globs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := packages.Parse("", fmt.Appendf(nil, `{"name":"slider","filename":%q,"description":"d","keywords":["k"],
"repository":{"type":"git","url":"https://github.com/owner/slider.git"},
"autoupdate":{"source":"npm","target":"slider","fileMap":[{"basePath":%q,"files":%s}],"ignoreVersions":["9.*"]}}`, filename, base, files))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// countMinified returns how many minified files would be made of a release.
func countMinified(r *Release) int {
	n, _ := r.Made()
	return n
}

func TestLook(t *testing.T) {
	registry, npm := source(t)
	at := released
	add := func(version string, files map[string]string, options ...npmtest.Option) {
		registry.Add("slider", version, at, files, options...)
		at = at.Add(time.Hour)
	}
	// Times are not what counts, and a prerelease is not the latest.
	add("2.0.0", map[string]string{"dist/slider.js": "window.a", "dist/slider.css": "a{}", "src/x.ts": "x"}, npmtest.Deprecated("use other"))
	add("2.1.0-beta.1", map[string]string{"dist/slider.js": "b"})
	add("1.0.0", map[string]string{"slider.js": "elsewhere"})
	add("1.9.0", map[string]string{"dist/slider.js": "c", "dist/slider.min.js": "d"})
	add("1.8.0", nil, npmtest.Tarball([]byte("no tarball")))
	add("9.0.0", map[string]string{"dist/slider.js": "ignored"})
	preview, err := NewPreview(context.Background(), npm, pkg(t, "slider.min.js", "dist", "*.@(js|css)"), 3)
	if err != nil {
		t.Fatal(err)
	}
	if r := preview.Latest; r.Name != "2.0.0" || r.Entries < 3 || len(r.Files) != 4 || countMinified(&r) != 2 || r.Bytes() != 11 || r.Default != "slider.min.js" || r.Refused != "" {
		t.Errorf("latest: %+v", r)
	} else if len(r.Integrity) != 2 || r.Integrity["slider.js"] != sha512.Sum512([]byte("window.a")) || r.Integrity["slider.css"] != sha512.Sum512([]byte("a{}")) {
		t.Errorf("integrity: %v", r.Integrity)
	}
	var older []string
	for _, r := range preview.Older {
		older = append(older, fmt.Sprintf("%s:%d:%t", r.Name, len(r.Files), r.Refused != ""))
	}
	if got := strings.Join(older, " "); got != "2.1.0-beta.1:2:false 1.9.0:2:false 1.8.0:0:true" {
		t.Errorf("older: %s", got)
	}
	if got := rules(preview.Problems()); got != "warning upstream" { // deprecated
		t.Errorf("problems: %s", got)
	}
	if preview, err = NewPreview(context.Background(), npm, pkg(t, "slider.min.js", "dist", "*.js"), 0); err != nil || len(preview.Older) != 0 {
		t.Errorf("%v, %v", preview, err)
	}

	registry.Add("empty", "9.0.0", released, nil)
	for target, want := range map[string]string{
		"gone":    `the npm registry has no "gone"`,
		"not ok!": `"not ok!" is not the name of an npm package`,
		"empty":   `"empty" has no release that could be published`,
		"../up":   "is not the name of an npm package",
	} {
		p := pkg(t, "a.js", "", "*.js")
		a := *p.Autoupdate
		a.Target, p.Autoupdate = target, &a
		_, err := NewPreview(context.Background(), npm, p, 0)
		if err == nil {
			t.Errorf("%s: no error", target)
			continue
		}
		problem := ProblemOf(p, err)
		if !strings.Contains(problem.Message, want) || problem.Severity != packages.Error || problem.Rule != "upstream" || problem.Line != 3 {
			t.Errorf("%s: %v", target, problem)
		}
	}
	registry.Fail(npmtest.Fault{Status: http.StatusServiceUnavailable})
	p := pkg(t, "a.js", "", "*.js")
	_, err = NewPreview(context.Background(), npm, p, 0)
	if problem := ProblemOf(p, err); !strings.Contains(problem.Message, "could not be looked at") || problem.Severity != packages.Error {
		t.Errorf("registry down: %v", problem)
	}
}

func rules(problems []packages.Problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, p.Severity.String()+" "+p.Rule)
	}
	return strings.Join(all, ", ")
}

// TestModuleProblems holds what is reported of modules that cannot be built, and that their files are listed.
func TestModuleProblems(t *testing.T) {
	registry, npm := source(t)
	registry.Add("slider", "1.0.0", released, map[string]string{"slider.js": "a"})
	skipped := map[string]string{}
	for i := range 7 {
		skipped[fmt.Sprintf("./s%d", i)] = "it imports fs"
	}
	for name, tt := range map[string]struct {
		modules string
		record  logs.Modules
		want    string
	}{
		"all":            {"true", logs.Modules{Subpaths: map[string]string{".": "esm/index.mjs"}}, ""},
		"some":           {"true", logs.Modules{Subpaths: map[string]string{".": "esm/index.mjs"}, Skipped: map[string]string{"./server": "it imports fs"}}, "warning modules"},
		"some of a list": {`[".","./server"]`, logs.Modules{Subpaths: map[string]string{".": "esm/index.mjs"}, Skipped: map[string]string{"./server": "it imports fs"}}, "error modules"},
		"many":           {"true", logs.Modules{Subpaths: map[string]string{".": "esm/index.mjs"}, Skipped: skipped}, strings.Repeat("warning modules, ", 5) + "warning modules"},
		"globals":        {"true", logs.Modules{Subpaths: map[string]string{".": "esm/index.mjs"}, Globals: map[string][]string{"index.js": {"Buffer"}}}, "warning modules"},
		"none":           {"true", logs.Modules{Problem: "it imports fs"}, "error modules, error filename"},
	} {
		p, err := packages.Parse("", []byte(strings.Replace(string(pkg(t, "esm/index.mjs", "", "slider.js").JSON), `"ignoreVersions"`, `"modules": `+tt.modules+`, "ignoreVersions"`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		preview, err := NewPreview(t.Context(), WithMaker(npm, Maker{
			Minify: func(context.Context, string, []byte) error { return errors.New("not now") },
			BuildModules: func(_ context.Context, r ingest.ModulesRelease) (*logs.Modules, []worker.ModuleFile, error) {
				if r.Package != "slider" || !r.Published("slider.js") || r.Published("esm/index.mjs") {
					t.Errorf("%+v", r)
				}
				var files []worker.ModuleFile
				if tt.record.Problem == "" {
					files = []worker.ModuleFile{{Path: "esm/index.mjs", Data: []byte("export{}")}}
				}
				return &tt.record, files, nil
			},
		}), p, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := rules(preview.Problems()); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		r := &preview.Latest
		if tt.record.Problem == "" && (r.Default != "esm/index.mjs" || r.Integrity[r.Default] != sha512.Sum512([]byte("export{}")) || !strings.Contains(r.Describe(), "1 file of the release's 2 would be published, 9 B in all; 1 module would be built in 1 file")) {
			t.Errorf("%s: %+v\n%s", name, r, r.Describe())
		}
	}
}

func TestProblems(t *testing.T) {
	registry, npm := source(t)
	registry.Add("slider", "1.0.0", released, map[string]string{
		"package.json": "{}", "dist/slider.js": "a", "dist/slider.esm.js": "b", "dist/slider.css": "c", "README.md": "r",
	})
	tests := map[string]struct {
		pkg        *packages.Package
		want, says string
	}{
		"good":       {pkg(t, "slider.min.js", "dist", "*.js", "*.css"), "", ""},
		"no file":    {pkg(t, "slidr.js", "dist", "*.js"), "error filename", `did you mean "slider.js"?`},
		"no kind":    {pkg(t, "slider.wasm", "dist", "*.js"), "error filename", "no published file is of its kind"},
		"base":       {pkg(t, "slider.js", "build", "*.js"), "error selection", `"dist" (3)`},
		"one glob":   {pkg(t, "slider.js", "dist", "*.js", "*.woff"), "warning glob", `"*.woff" selects nothing of 1.0.0`},
		"everything": {pkg(t, "dist/slider.js", "", "**/*"), "warning glob", "selects everything of 1.0.0, all 5 files"},
		"unnamed":    {func() *packages.Package { p := pkg(t, "x.js", "dist", "*.js"); p.Filename = ""; return p }(), "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			preview, err := NewPreview(context.Background(), npm, tt.pkg, 0)
			if err != nil {
				t.Fatal(err)
			}
			problems := preview.Problems()
			if got := rules(problems); got != tt.want {
				t.Errorf("got %s, want %s: %v", got, tt.want, problems)
			}
			if tt.says != "" && (len(problems) == 0 || !strings.Contains(problems[0].Message, tt.says)) {
				t.Errorf("nothing says %s: %v", tt.says, problems)
			}
		})
	}
	const composed, decomposed = "caf\u00e9.js", "cafe\u0301.js"
	alike := &Preview{Package: pkg(t, "a.js", "", "*.js"), Latest: Release{Candidate: sources.Candidate{Name: "1.0.0"}, Default: "a.js"}}
	for _, path := range []string{"A.js", "a.js", composed, decomposed} {
		alike.Latest.Files = append(alike.Latest.Files, packages.PlannedFile{Path: path})
	}
	if got := alike.Problems(); rules(got) != "warning alike, warning alike" || !strings.HasPrefix(got[0].Message, `"A.js" and "a.js" of 1.0.0 differ only`) ||
		!strings.HasPrefix(got[1].Message, `"cafe\u0301.js" and "caf\u00e9.js" of 1.0.0`) {
		t.Errorf("alike: %v", got)
	}
	many := &Preview{Package: pkg(t, "a0.js", "", "*.js"), Latest: Release{Candidate: sources.Candidate{Name: "1.0.0"}, Default: "a0.js"}}
	for i := range manyFiles + 1 {
		many.Latest.Files = append(many.Latest.Files, packages.PlannedFile{Path: fmt.Sprintf("a%d.js", i)})
	}
	for i := range 8 {
		many.Latest.LeftOut = append(many.Latest.LeftOut, packages.LeftOut{Path: fmt.Sprintf("l%d", i), Reason: "symbolic link"})
	}
	if got := rules(many.Problems()); strings.Count(got, "warning selection") != 6 || !strings.HasSuffix(got, "warning size") {
		t.Errorf("many: %s", got)
	}
}

func TestPopularity(t *testing.T) {
	count := func(n int64, err error) func(context.Context, string) (int64, error) {
		return func(context.Context, string) (int64, error) { return n, err }
	}
	stars := func(n int64, err error) func(context.Context, string, string) (int64, error) {
		return func(_ context.Context, owner, repository string) (int64, error) {
			if owner != "owner" || repository != "slider" {
				t.Errorf("asked for %s/%s", owner, repository)
			}
			return n, err
		}
	}
	broken := errors.New("broken")
	tests := map[string]struct {
		popularity Popularity
		want       string
		unknown    int
	}{
		"both":               {Popularity{count(800, nil), stars(200, nil)}, "", 0},
		"downloads":          {Popularity{count(800, nil), stars(0, nil)}, "", 0},
		"stars":              {Popularity{count(799, nil), stars(200, nil)}, "", 0},
		"neither":            {Popularity{count(799, nil), stars(199, nil)}, "warning popularity", 0},
		"never counted":      {Popularity{count(0, fetch.ErrNotFound), stars(3, nil)}, "warning popularity", 0},
		"no repository":      {Popularity{count(5000, nil), stars(0, fetch.ErrNotFound)}, "", 0},
		"few, no repository": {Popularity{count(5, nil), stars(0, fetch.ErrNotFound)}, "warning address, warning popularity", 0},
		"one is not known":   {Popularity{count(0, broken), stars(3, nil)}, "", 1},
		"stars not known":    {Popularity{count(3, nil), stars(0, broken)}, "", 1},
		"not asked":          {Popularity{}, "", 2},
	}
	for name, tt := range tests {
		problems, unknown := tt.popularity.Check(context.Background(), pkg(t, "a.js", "", "*.js"))
		if got := rules(problems); got != tt.want || len(unknown) != tt.unknown {
			t.Errorf("%s: got %s %q", name, got, unknown)
		}
	}
}

func TestDownloads(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.EscapedPath() {
		case "/api/downloads/point/last-month/@scope/slider":
			fmt.Fprint(w, `{"downloads":1234,"start":"2024-04-17","end":"2024-05-16","package":"@scope/slider"}`)
		case "/api/downloads/point/last-month/odd":
			fmt.Fprint(w, `{"downloads":"many"}`)
		case "/api/downloads/point/last-month/minus":
			fmt.Fprint(w, `{"downloads":-1}`)
		case "/api/downloads/point/last-month/none":
			fmt.Fprint(w, `{}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":"package x not found"}`)
		}
	}))
	defer server.Close()
	downloads, err := Downloads(getter(t), server.URL+"/api")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := downloads(context.Background(), "@scope/slider"); n != 1234 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := downloads(context.Background(), "unknown"); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	for _, name := range []string{"odd", "minus", "none"} {
		if _, err := downloads(context.Background(), name); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Downloads(getter(t), "nowhere"); err == nil {
		t.Error("no URL, no error")
	}
}

func TestGitHubRepository(t *testing.T) {
	for address, want := range map[string]string{
		"https://github.com/owner/slider.git":     "owner/slider",
		"git://github.com/owner/slider":           "owner/slider",
		"git@github.com:owner/slider.js.git":      "owner/slider.js",
		"git+ssh://git@github.com/owner/slider":   "owner/slider",
		"https://github.com/owner/slider/tree/x":  "owner/slider",
		"https://git.example/github.com/x/y":      "",
		"https://github.com.evil.example/x/y":     "",
		"https://github.com/owner":                "",
		"https://github.com/owner/../../settings": "",
	} {
		owner, repository, ok := gitHubRepository(&packages.Package{Repository: &packages.Repository{URL: address}})
		got := ""
		if ok {
			got = owner + "/" + repository
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestDraft(t *testing.T) {
	registry, npm := source(t)
	const meta = `"description":"d","license":"MIT","repository":"https://git.example/o/r","keywords":["k"]`
	tests := map[string]struct {
		files           string // in the release, besides package.json
		meta            string
		base, glob, def string
		says            string // in a note, or the error where there is no base
	}{
		"dist":            {"dist/p.js dist/p.css dist/p.d.ts src/p.ts README.md", meta, "dist", "**/*.@(js|css)", "p.min.js", "dist/"},
		"maps":            {"dist/p.js dist/p.js.map", meta, "dist", "**/*.js?(.map)", "p.min.js", ""},
		"types only maps": {"dist/p.js dist/p.d.ts.map", meta, "dist", "**/*.js", "p.min.js", ""},
		"fonts":           {"dist/css/p.css dist/fonts/p.woff2", meta, "dist", "**/*.@(css|woff2)", "css/p.min.css", ""},
		"fonts beside":    {"css/p.css fonts/p.woff2 scss/p.scss less/p.less.js", meta, "", "{css,fonts}/**/*.@(css|woff2)", "css/p.min.css", "in css/, fonts/"},
		"scripts beside":  {"css/p.css js/p.js js/p.js.map src/p.ts", meta, "", "{css,js}/**/*.@(js|css)?(.map)", "js/p.min.js", "in css/, js/"},
		"fonts elsewhere": {"dist/p.css fonts/p.woff2", meta, "dist", "**/*.css", "p.min.css", "dist/"},
		"top":             {"p.js p.min.js test.js lib/x.js package.json", meta, "", "*.js", "p.min.js", "top folder"},
		"lib":             {"lib/p.js", meta, "lib", "**/*.js", "p.min.js", ""},
		"other folder":    {"themes/a.css themes/b.css x/y.js", meta, "themes", "**/*.css", "a.min.css", ""},
		"unpkg":           {"dist/a.js dist/b.js", meta + `,"unpkg":"./dist/b.js"`, "dist", "**/*.js", "b.min.js", ""},
		"main":            {"dist/a.js dist/b.js", meta + `,"main":"dist/b"`, "dist", "**/*.js", "b.min.js", ""},
		"browser build":   {"dist/p.cjs.js dist/p.umd.js dist/p.esm.js", meta + `,"main":"dist/p.cjs.js"`, "dist", "**/*.js", "p.umd.min.js", ""},
		"modules":         {"dist/p.mjs", meta, "dist", "**/*.mjs", "p.mjs", ""},
		"no description":  {"dist/p.js", `"repository":"o/r"`, "dist", "**/*.js", "p.min.js", "no description"},
		"odd license":     {"dist/p.js", `"repository":"o/r","license":"Apache 2"`, "dist", "**/*.js", "p.min.js", `"Apache-2.0" is right`},
		"no repository":   {"dist/p.js", `"description":"d"`, "", "", "", "names no repository"},
		"nothing to load": {"lib/p.ts README.md", meta, "", "", "", "none of its"},
	}
	n := 0
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n++
			target := fmt.Sprintf("p%d", n)
			files := map[string]string{}
			for f := range strings.FieldsSeq(tt.files) {
				files[strings.ReplaceAll(f, "p.", target+".")] = "x"
			}
			for f := range files {
				if strings.HasPrefix(f, "README") || f == "package.json" {
					delete(files, f)
				}
			}
			files["package.json"] = "{" + tt.meta + "}"
			files["README.md"] = "x"
			registry.Add(target, "1.0.0", released, files)
			d, err := NewDraft(context.Background(), npm, target, "")
			if tt.glob == "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p := d.Preview.Package
			set := p.Autoupdate.FileMap[0]
			def := strings.ReplaceAll(tt.def, "p.", target+".")
			if set.BasePath != tt.base || set.Files[0] != strings.ReplaceAll(tt.glob, "p.", target+".") || p.Filename != def {
				t.Errorf("got %q %q %q", set.BasePath, set.Files, p.Filename)
			}
			if !strings.Contains(strings.Join(d.Notes, "\n"), tt.says) {
				t.Errorf("notes: %q", d.Notes)
			}
			r := lint.New(lint.Options{New: true}).Check(target+".json", packages.Path(target), d.JSON())
			r.Add(d.Preview.Problems()...)
			if errors, _ := r.Count(); errors > 0 {
				t.Errorf("the draft has errors: %v", r.Problems)
			}
		})
	}
	if _, err := NewDraft(context.Background(), npm, "gone", ""); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("gone: %v", err)
	}
}

func TestRepositoryAddress(t *testing.T) {
	for address, want := range map[string]string{
		"https://git.example/o/r.git":         "https://git.example/o/r.git",
		"git+https://github.com/o/r.git":      "https://github.com/o/r.git",
		"git://github.com/o/r.git":            "https://github.com/o/r.git",
		"git+ssh://git@github.com/o/r.git":    "https://github.com/o/r.git",
		"git@gitlab.com:o/r.git":              "https://gitlab.com/o/r.git",
		"o/r":                                 "https://github.com/o/r.git",
		"gitlab:o/r":                          "https://gitlab.com/o/r.git",
		"https://user:secret@git.example/o/r": "https://git.example/o/r",
		"file:///etc/passwd":                  "",
		"javascript:alert(1)":                 "",
		"":                                    "",
	} {
		if got := repositoryAddress(address, ""); got != want {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

// FuzzManifest holds that whatever a package.json says, a draft from it is a package JSON or an error.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"description":"d","license":{"type":"MIT"},"repository":{"url":"git://github.com/o/r"},"keywords":"a, b","author":{"name":"n"},"contributors":["a <b> (c)"],"main":"x"}`), "dist/a.js\nb.css")
	f.Fuzz(func(t *testing.T, data []byte, names string) {
		var m packageJSON
		if json.Unmarshal(data, &m) != nil {
			return
		}
		var files []string
		for name := range strings.SplitSeq(names, "\n") { // such as package archive lets through
			if fs.ValidPath(name) && !strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }) {
				files = append(files, name)
			}
		}
		d := &Draft{}
		written, err := d.encodePackage("slider", "@scope/slider", &m, files)
		if err != nil {
			return
		}
		if _, err := packages.Parse("slider.json", written); err != nil {
			t.Errorf("%v\n%s", err, written)
		}
	})
}

func FuzzCode(f *testing.F) {
	f.Add("`a``b`|\n<b>")
	f.Fuzz(func(t *testing.T, text string) {
		span := codeSpan(text)
		fence := span[:len(span)-len(strings.TrimLeft(span, "`"))]
		inner := strings.TrimSuffix(strings.TrimPrefix(span, fence), fence)
		if strings.Contains(inner, fence) || strings.HasPrefix(inner, "`") || strings.HasSuffix(inner, "`") || strings.ContainsAny(inner, "\r\n") {
			t.Errorf("%q ends early: %s", text, span)
		}
		if cell := tableCell(text); strings.Count(cell, "|") != strings.Count(cell, `\|`) {
			t.Errorf("%q breaks a table: %s", text, cell)
		}
		body := text + "\n"
		b := codeBlock("", []string{text})
		fence = b[:strings.IndexByte(b, '\n')]
		if !strings.HasPrefix(fence, "```") || strings.Contains(body, fence) {
			t.Errorf("%q ends a block: %s", text, b)
		}
	})
}
