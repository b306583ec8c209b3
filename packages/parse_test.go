package packages

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expectations in testdata")

// TestProblems runs the package JSONs of testdata/problems.txtar: after each
// {name}.json stands a {name}.want with what is said about it.
func TestProblems(t *testing.T) {
	file := filepath.Join("testdata", "problems.txtar")
	golden, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(golden.Files); i += 2 {
		input, want := golden.Files[i], &golden.Files[i+1]
		p, err := Parse("slider.json", input.Data)
		var got strings.Builder
		var invalid *Invalid
		switch {
		case errors.As(err, &invalid):
			got.WriteString(invalid.Error() + "\n")
			checkProblems(t, input.Data, invalid)
		case err != nil:
			t.Errorf("%s: the error is a %T", input.Name, err)
		default:
			got.WriteString("accepted\n")
			for _, problem := range append(p.Warnings, p.CheckNew()...) {
				got.WriteString(problem.String() + "\n")
			}
		}
		if *rewrite {
			want.Data = []byte(got.String())
		} else if got.String() != string(want.Data) {
			t.Errorf("%s:\ngot\n%swant\n%s", input.Name, got.String(), want.Data)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, txtar.Format(golden), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// checkProblems makes sure that problems point into the file and are in order.
func checkProblems(t *testing.T, data []byte, invalid *Invalid) {
	t.Helper()
	lines := strings.Split(string(data), "\n")
	failed := false
	last := Problem{}
	for _, p := range invalid.Problems {
		failed = failed || p.Severity == Error
		if p.Message == "" {
			t.Errorf("%v says nothing", p)
		}
		if p.Line < 1 || p.Line > len(lines) || p.Column < 1 || p.Column > len([]rune(lines[p.Line-1]))+1 {
			t.Errorf("%v is outside the file", p)
		}
		if p.Line < last.Line || p.Line == last.Line && p.Column < last.Column {
			t.Errorf("%v comes after %v", p, last)
		}
		last = p
	}
	if !failed {
		t.Errorf("refused without an error: %v", invalid)
	}
}

func TestEncoding(t *testing.T) {
	good := string(documentWith(t, []FileSet{{"", []string{"*"}}}, nil))
	var utf16 strings.Builder
	utf16.WriteString("\xff\xfe")
	for _, r := range good {
		utf16.WriteString(string([]byte{byte(r), 0}))
	}
	for _, test := range []struct{ name, data, want string }{
		{"UTF-16", utf16.String(), "1:1: error: the file is not UTF-8 text, perhaps UTF-16; save it as UTF-8"},
		{"UTF-16 without a mark", utf16.String()[2:], "1:1: error: the file is not UTF-8 text, perhaps UTF-16; save it as UTF-8"},
		{"byte order mark", "\xef\xbb\xbf" + good, "1:1: error: the file begins with a byte order mark; save it as UTF-8 without one"},
		{"Latin-1", "{\n\"description\": \"é M\xfcller\"}", "2:20: error: byte 0xfc is not UTF-8; save the file as UTF-8"},
		{"too large", strings.Repeat(" ", MaxFileSize) + good, "1:1: error: the file has 1048888 bytes, over the limit of 1048576; a package JSON needs a few thousand"},
		{"empty", "", "1:1: error: the file is empty; write a package JSON"},
		{"only space", " \n\t", "1:1: error: the file is empty; write a package JSON"},
		{"too deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), "1:1: error: the document is nested more than 32 levels deep; a package needs six"},
		{"far too deep", strings.Repeat("[", MaxFileSize), ""},
		{"Windows line ends", strings.ReplaceAll(good, ",", ",\r\n"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("", []byte(test.data))
			var invalid *Invalid
			if errors.As(err, &invalid) {
				if got := invalid.Problems[0].String(); test.want != "" && got != test.want {
					t.Errorf("got  %s\nwant %s", got, test.want)
				}
			} else if test.want != "" {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// TestParseIsBounded gives Parse files that would cost much if every detail of
// them were reported or compiled.
func TestParseIsBounded(t *testing.T) {
	const size = 64 << 10
	good := string(documentWith(t, []FileSet{{"", []string{"*"}}}, nil))
	fill := func(old, unit string) string {
		return strings.Replace(good, old, strings.Repeat(unit, size/len(unit))+old, 1)
	}
	many := new(strings.Builder)
	for i := range 5_000 {
		many.WriteString(`"x` + strings.Repeat("y", i%7) + string(rune('a'+i%26)) + `":1,`)
	}
	for name, data := range map[string]string{
		"wrong keywords":     fill(`"slider"]`, "1,"),
		"equal keywords":     fill(`"slider"]`, `"a",`),
		"unknown properties": strings.Replace(good, "{", "{"+many.String(), 1),
		"globs":              fill(`"*"`, `"{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}x",`),
		"a long property":    strings.Replace(good, "{", `{"`+strings.Repeat("x", size)+`":1,`, 1),
		"a property twice":   strings.Replace(good, "{", "{"+strings.Repeat(`"`+strings.Repeat("x", 1000)+`":1,`, size/1000), 1),
		"entries":            fill(`{"basePath"`, `{"basePath":"..","files":["/a"]},`),
	} {
		_, err := Parse("", []byte(data))
		var invalid *Invalid
		if !errors.As(err, &invalid) {
			t.Errorf("%s: accepted", name)
			continue
		}
		if len(invalid.Problems) > maxProblems+1 || len(invalid.Error()) > 100*1024 {
			t.Errorf("%s: %d problems, %d bytes", name, len(invalid.Problems), len(invalid.Error()))
		}
	}
}

func TestParseKeepsTheFile(t *testing.T) {
	data := documentWith(t, []FileSet{{"", []string{"*"}}}, nil)
	p, err := Parse("catalogue/packages/s/slider.json", data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.JSON, data) || p.File != "catalogue/packages/s/slider.json" {
		t.Errorf("File %q, JSON %s", p.File, p.JSON)
	}
}

func TestOptimizationDefaults(t *testing.T) {
	for document, want := range map[string]Optimization{
		``:                             {true, true, true, true},
		`,"optimization":{}`:           {true, true, true, true},
		`,"optimization":{"js":false}`: {false, true, true, true},
		`,"optimization":{"css":false,"png":false,"jpg":false,"js":true}`: {true, false, false, false},
	} {
		p, err := Parse("", []byte(`{"name":"a","description":"b","keywords":["c"],"repository":{"type":"git","url":"d"}`+document+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if p.Optimization != want {
			t.Errorf("%s: got %v, want %v", document, p.Optimization, want)
		}
	}
}

func TestAuthor(t *testing.T) {
	p := &Package{Authors: []Author{
		{Name: "Ada", Email: "ada@slider.example", URL: "https://slider.example/"},
		{Name: "Bob", URL: "https://bob.example"},
		{Name: "Carol", Email: "carol@slider.example"},
		{Name: "The Authors"},
	}}
	want := "Ada <ada@slider.example> (https://slider.example/),Bob (https://bob.example),Carol <carol@slider.example>,The Authors"
	if got := p.Author(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := (&Package{}).Author(); got != "" {
		t.Errorf("got %q for no authors", got)
	}
}

func TestPath(t *testing.T) {
	for name, want := range map[string]string{
		"jquery": "packages/j/jquery.json", "Chart.js": "packages/c/Chart.js.json", "6px": "packages/6/6px.json",
	} {
		if got := Path(name); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	golden, err := txtar.ParseFile(filepath.Join("testdata", "problems.txtar"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range golden.Files {
		if strings.HasSuffix(file.Name, ".json") {
			f.Add(file.Data)
		}
	}
	for _, p := range Starter().Packages() {
		f.Add(p.JSON)
	}
	release := []string{"a", "dist/a.js", "../a", "/a", "dist/.a", ""}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("slider.json", data)
		var invalid *Invalid
		switch {
		case err == nil:
			for _, w := range p.Warnings {
				if w.Severity != Warning {
					t.Errorf("%v is no warning", w)
				}
			}
			if p.Name != "slider" || p.Repository == nil || len(p.Keywords) == 0 {
				t.Errorf("accepted an incomplete package: %+v", p)
			}
			for _, s := range p.Select(release) {
				if !isValidFilePath(s.Path) || !strings.HasSuffix(s.Source, s.Path) {
					t.Errorf("selected %+v", s)
				}
			}
			if _, err := Parse("slider.json", p.JSON); err != nil {
				t.Errorf("its JSON is refused: %v", err)
			}
		case errors.As(err, &invalid):
			checkProblems(t, data, invalid)
		default:
			t.Errorf("the error is a %T", err)
		}
	})
}
