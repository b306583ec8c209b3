package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages"
)

// slider is a package JSON in its final form.
const slider = `{
  "name": "slider",
  "filename": "slider.min.js",
  "description": "Slides.",
  "keywords": [
    "slider"
  ],
  "homepage": "https://slider.example/",
  "license": "MIT",
  "repository": {
    "type": "git",
    "url": "https://git.example/owner/slider.git"
  },
  "autoupdate": {
    "source": "npm",
    "target": "slider",
    "fileMap": [
      {
        "basePath": "dist",
        "files": [
          "**/*.js"
        ]
      }
    ]
  }
}
`

func catalogue(t *testing.T, files map[string]string) (*packages.Catalogue, string) {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		at := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := packages.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c, folder
}

// shown writes problems as "line:column severity rule", one after the other.
func shown(r *Result) string {
	var all []string
	for _, p := range r.Problems {
		all = append(all, fmt.Sprintf("%d:%d %s %s", p.Line, p.Column, p.Severity, p.Rule))
	}
	return strings.Join(all, ", ")
}

func TestCheck(t *testing.T) {
	change := func(pairs ...string) string {
		changed := strings.NewReplacer(pairs...).Replace(slider)
		if changed == slider {
			t.Fatalf("%q changes nothing", pairs)
		}
		return changed
	}
	c, _ := catalogue(t, map[string]string{
		"packages/s/slider.json": slider,
		"packages/o/other.json": change(`"name": "slider"`, `"name": "other"`, `"target": "slider"`, `"target": "git@git.example:owner/other.git"`,
			`"source": "npm"`, `"source": "git"`),
		"packages/b/Big.json": change(`"name": "slider"`, `"name": "Big"`, `"target": "slider"`, `"target": "big"`),
	})
	tests := map[string]struct {
		data, place string
		isNew       bool
		want, says  string
	}{
		"good":           {data: slider, place: "packages/s/slider.json", isNew: true},
		"at home":        {data: slider},
		"folder":         {data: slider, place: "packages/x/slider.json", want: "2:11 error path", says: `"packages/s/slider.json"`},
		"below a folder": {data: slider, place: "packages/s/more/slider.json", want: "2:11 error path"},
		"upper case":     {data: slider, place: "packages/S/slider.json", want: "2:11 error path"},
		"license": {data: change(`"MIT"`, `"Apache 2"`), want: "9:14 warning license",
			says: `"Apache 2" is not an SPDX licence identifier or expression; did you mean "Apache-2.0"?`},
		"license of a new one":  {data: change(`"MIT"`, `"Proprietary thing"`), isNew: true, want: "9:14 error license", says: "spdx.org/licenses"},
		"no license":            {data: change("  \"license\": \"MIT\",\n", ""), want: "1:1 warning license"},
		"homepage":              {data: change("https://slider.example/", "slider.example"), want: "8:15 warning address"},
		"homepage with scripts": {data: change("https://slider.example/", "javascript:alert(1)"), want: "8:15 warning address"},
		"git protocol": {data: change("https://git.example", "git://git.example"), want: "12:12 warning address",
			says: `write "https://git.example/owner/slider.git"`},
		"same upstream": {data: change(`"target": "slider"`, `"target": "big"`), want: "16:15 warning duplicate", says: `"Big"`},
		"same upstream, new, in another form": {data: change(`"source": "npm"`, `"source": "git"`, `"target": "slider"`, `"target": "https://Git.example/owner/other/"`),
			isNew: true, want: "16:15 error duplicate", says: `"other"`},
		"unlike upstream":     {data: change(`"target": "slider"`, `"target": "other"`)},
		"layout":              {data: change("  \"filename\"", "    \"filename\""), want: "3:3 warning format"},
		"no line break":       {data: strings.TrimSuffix(slider, "\n"), want: "26:2 warning format"},
		"Windows line breaks": {data: strings.ReplaceAll(slider, "\n", "\r\n"), want: "1:2 warning format"},
		"order, as it is":     {data: change("  \"license\": \"MIT\",\n", "", "  \"name\"", "  \"license\": \"MIT\",\n  \"name\"")},
		"order of a new one": {data: change("  \"license\": \"MIT\",\n", "", "  \"name\"", "  \"license\": \"MIT\",\n  \"name\""),
			isNew: true, want: "1:1 warning order", says: "name, filename, description"},
		"without autoupdate": {data: slider[:strings.Index(slider, ",\n  \"autoupdate\"")] + "\n}\n"},
		"new without autoupdate": {data: slider[:strings.Index(slider, ",\n  \"autoupdate\"")] + "\n}\n", isNew: true,
			want: "1:1 error autoupdate"},
		"near miss": {data: change(`"basePath"`, `"basepath"`), isNew: true, want: "18:7 error required, 19:9 error unknown-property", says: `did you mean "basePath"?`},
		"all at once": {data: change(`"description"`, `"descripton"`, `"MIT"`, `"mit"`), place: "packages/x/slider.json",
			want: "1:1 error required, 2:11 error path, 4:3 error unknown-property, 9:14 warning license", says: `did you mean "MIT"?`},
		"no JSON":               {data: "{", want: "1:2 error syntax"},
		"nothing":               {data: "", want: "1:1 error encoding"},
		"many bytes":            {data: strings.Repeat(" ", packages.MaxFileSize+1), want: "1:1 error encoding"},
		"after wide characters": {data: change(`"Slides."`, `"日本語 ü 👍",   "license": "MIT License"`, "  \"license\": \"MIT\",\n", ""), want: "4:28 warning format, 4:42 warning license"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := New(Options{Catalogue: c, New: tt.isNew}).Check("slider.json", tt.place, []byte(tt.data))
			if got := shown(r); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if r.Package == nil && !strings.Contains(tt.want, "error") {
				t.Error("no package and no error")
			}
			if !slices.ContainsFunc(r.Problems, func(p packages.Problem) bool { return strings.Contains(p.Message, tt.says) }) && tt.says != "" {
				t.Errorf("nothing says %s: %v", tt.says, r.Problems)
			}
		})
	}
	big := change(`"name": "slider"`, `"name": "bIG"`)
	if got := shown(New(Options{Catalogue: c}).Check("bIG.json", "packages/b/bIG.json", []byte(big))); got != "2:11 warning duplicate, 16:15 warning duplicate" {
		t.Errorf("another case: got %s", got)
	}
}

func TestLicense(t *testing.T) {
	valid := []string{"MIT", "0BSD", "Apache-2.0", "(MIT OR GPL-3.0-only)", "MIT OR Apache-2.0", "MIT AND (LGPL-2.1-or-later OR BSD-3-Clause)",
		"GPL-2.0", "GPL-2.0+", "GPL-2.0-or-later WITH Bison-exception-2.2", "WTFPL", "Unlicense", "OFL-1.1", "LicenseRef-Own", "DocumentRef-a:LicenseRef-b OR MIT", "((MIT))", "(MIT)AND(ISC)", "Apache-2.0 WITH LLVM-exception"}
	for _, text := range valid {
		if !validLicense(text) {
			t.Errorf("%q is not valid", text)
		}
	}
	near := map[string]string{
		"mit": "MIT", "MIT License": "MIT", "The MIT License": "MIT", "Apache 2": "Apache-2.0", "Apache License, Version 2.0": "Apache-2.0", "Apache-2": "Apache-2.0",
		"apache-2.0": "Apache-2.0", "BSD 3-Clause": "BSD-3-Clause", "New BSD": "BSD-3-Clause", "BSD-2": "BSD-2-Clause", "GPLv3": "GPL-3.0-only", "GPL v2": "GPL-2.0-only",
		"LGPLv3": "LGPL-3.0-only", "MPL 2.0": "MPL-2.0", "CC0": "CC0-1.0", "Unlicence": "Unlicense",
		"BSD": "", "GPL": "", "Public Domain": "", "UNLICENSED": "", "SEE LICENSE IN LICENSE.md": "", "": "", "MIT/": "MIT", "x": "", "MIT AND": "", "((((": "", "()": "", "(MIT": "MIT", "MIT)": "MIT", "MIT ISC": "", "MIT WITH MIT": "", "AND": "", "MIT or ISC": "",
		"MIT or Apache-2.0": "", strings.Repeat("(", 10000): "", "\x00": "",
	}
	for text, want := range near {
		if validLicense(text) {
			t.Errorf("%.50q is valid", text)
		}
		if got := nearestLicense(text); got != want {
			t.Errorf("%.50q: got %q, want %q", text, got, want)
		}
	}
	seen := map[string]bool{}
	for name, written := range usual {
		if !validLicense(name) {
			t.Errorf("usual suggests %q", name)
		}
		for _, text := range strings.Fields(written) {
			if normalizeLicense(text) != text || seen[text] {
				t.Errorf("usual has %q, which normalizeLicense makes %q of, or which is there twice: it is never found", text, normalizeLicense(text))
			}
			seen[text] = true
		}
	}
}

func FuzzLicense(f *testing.F) {
	for _, seed := range []string{"MIT", "(MIT OR GPL-3.0-only)", "GPLv3+", "MIT WITH", "LicenseRef-", "DocumentRef-a:LicenseRef-b", "+", "()"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if hint := nearestLicense(text); hint != "" && !validLicense(hint) {
			t.Errorf("%q: suggests %q, which is not valid", text, hint)
		}
		validLicense(text)
	})
}

// FuzzCheck holds that whatever a file says, problems point into it, are in order and of known rules.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(slider), "packages/s/slider.json", true)
	f.Add([]byte(`{"name":"slider","license":"x","homepage":"é","repository":{"url":"git://x/y"}}`), "", false)
	l := [2]*Linter{New(Options{Catalogue: packages.Starter()}), New(Options{Catalogue: packages.Starter(), New: true})}
	known := map[string]bool{}
	for _, rule := range Rules() {
		known[rule.Name] = true
	}
	f.Fuzz(func(t *testing.T, data []byte, place string, isNew bool) {
		linter := l[0]
		if isNew {
			linter = l[1]
		}
		r := linter.Check("slider.json", place, data)
		lines := strings.Split(string(data), "\n")
		last := packages.Problem{}
		for _, p := range r.Problems {
			if !known[p.Rule] {
				t.Errorf("unknown rule: %v [%s]", p, p.Rule)
			}
			if p.Line < 1 || p.Line > len(lines) || p.Column < 1 || p.Column > len([]rune(lines[p.Line-1]))+1 {
				if len(data) <= packages.MaxFileSize {
					t.Errorf("%v is outside the file", p)
				}
			}
			if p.Line < last.Line || p.Line == last.Line && p.Column < last.Column {
				t.Errorf("%v comes after %v", p, last)
			}
			last = p
		}
		if errors, _ := r.Count(); errors == 0 && r.Package == nil {
			t.Error("refused without an error")
		}
	})
}

func TestPlace(t *testing.T) {
	folder := t.TempDir()
	for name, want := range map[string]string{
		"packages/a/a.json":            "packages/a/a.json",
		"packages/packages.json":       "packages/packages.json",
		"packages/x/packages/a/a.json": "packages/a/a.json",
		"a.json":                       "",
		"packages.json":                "",
	} {
		place, root := cataloguePath(filepath.Join(folder, filepath.FromSlash(name)))
		if place != want {
			t.Errorf("%s: got %q, want %q", name, place, want)
		}
		if want != "" && filepath.Join(root, filepath.FromSlash(place)) != filepath.Join(folder, filepath.FromSlash(name)) {
			t.Errorf("%s: folder %q", name, root)
		}
	}
}

func TestFiles(t *testing.T) {
	_, folder := catalogue(t, map[string]string{
		"packages/a/a.json": slider, "packages/b/b.json": slider, "packages/b/notes.txt": "", "packages/.hidden/c.json": slider,
		"packages/a/.d.json": slider, "other.json": slider, "flat/e.json": slider, "none/readme": "",
	})
	if err := os.Symlink(filepath.Join(folder, "other.json"), filepath.Join(folder, "packages", "a", "link.json")); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		".":                      "packages/a/a.json packages/b/b.json",
		"packages/b":             "packages/b/b.json",
		"flat":                   "flat/e.json",
		"other.json":             "other.json",
		"packages/a/link.json":   "packages/a/link.json", // told by Read
		"other.json flat":        "other.json flat/e.json",
		"none":                   "",
		"missing.json":           "",
		"packages/b missing.txt": "",
	}
	for names, want := range tests {
		var all []string
		for name := range strings.FieldsSeq(names) {
			all = append(all, filepath.Join(folder, name))
		}
		files, err := Files(all)
		var got []string
		for _, file := range files {
			relative, _ := filepath.Rel(folder, file)
			got = append(got, filepath.ToSlash(relative))
		}
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %v, %v", names, got, err)
		}
	}
	if _, err := Read(filepath.Join(folder, "packages", "a", "link.json")); err == nil || !strings.Contains(err.Error(), "link") {
		t.Errorf("a link: %v", err)
	}
	if _, err := Read(filepath.Join(folder, "packages")); err == nil {
		t.Error("a folder was read")
	}
}

// TestFilesOfFolderThatCannotBeRead checks that the error names the folder that was given, and the one below that cannot be read.
func TestFilesOfFolderThatCannotBeRead(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads every folder")
	}
	_, folder := catalogue(t, map[string]string{"packages/a/a.json": slider})
	below := filepath.Join(folder, "packages", "a")
	if err := os.Chmod(below, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(below, 0o700)
	if files, err := Files([]string{folder}); err == nil || !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "packages/a") {
		t.Errorf("%v, %v", files, err)
	}
}

// TestStarter holds the catalogue in the program to what is asked of new packages.
func TestStarter(t *testing.T) {
	l := New(Options{Catalogue: packages.Starter(), New: true})
	for _, p := range packages.Starter().Packages() {
		for _, problem := range l.Check(p.File, packages.Path(p.Name), p.JSON).Problems {
			t.Errorf("%s:%s", p.File, problem)
		}
	}
}

// TestPublicCatalogue checks every eighth file of a real catalogue, where it is there: every file
// with LARDER_TEST_WHOLE=1.
func TestPublicCatalogue(t *testing.T) {
	archive := filepath.Join("..", "..", "..", "shared", "data", "cdnjs-packages.tar.gz")
	if _, err := os.Stat(archive); err != nil {
		t.Skip("no catalogue at ../shared/data")
	}
	c, err := packages.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	l := New(Options{Catalogue: c})
	var results []*Result
	share := 8
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		share = 1
	}
	for i, p := range c.Packages() {
		if i%share == 0 {
			results = append(results, l.Check(p.File, p.File, p.JSON))
		}
	}
	for _, r := range results {
		if formatted, err := packages.Format(r.Data, true); err == nil {
			checkSame(t, r.Data, formatted)
		} else {
			t.Errorf("%s: %v", r.File, err)
		}
	}
	var b strings.Builder
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	t.Log(b.String())
}
