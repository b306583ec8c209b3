package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/larder-cdn/larder/packages"
)

func one(file, data string, p packages.Problem) []*Result {
	return []*Result{{File: file, Data: []byte(data), Problems: []packages.Problem{p}}}
}

func TestWriteText(t *testing.T) {
	tests := map[string]struct {
		data         string
		line, column int
		want         string
	}{
		"simple":       {"{\n  \"a\": 1\n}", 2, 3, "  2 |   \"a\": 1\n    |   ^\n"},
		"wide":         {`{"日本": 1}`, 1, 7, "  1 | {\"日本\": 1}\n    |         ^\n"},
		"tabs":         {"{\n\t\t\"a\": 1\n}", 2, 3, "  2 |   \"a\": 1\n    |   ^\n"},
		"Windows":      {"{\r\n\"a\": 1\r\n}", 2, 6, "  2 | \"a\": 1\n    |      ^\n"},
		"escapes":      {"{\"\x1b[31m\u202e\": 1}", 1, 2, "  1 | {\" [31m \": 1}\n    |  ^\n"},
		"no text":      {"{\"\xff\xfe\": 1}", 1, 2, "  1 | {\"  \": 1}\n    |  ^\n"},
		"end of file":  {"{", 1, 2, "  1 | {\n    |  ^\n"},
		"empty line":   {"{\n\n}", 2, 1, ""},
		"beyond":       {"{", 7, 1, ""},
		"long":         {strings.Repeat("x", 200) + "HERE" + strings.Repeat("y", 200), 1, 201, "  1 | …" + strings.Repeat("x", 60) + "HERE" + strings.Repeat("y", 36) + "…\n    | " + strings.Repeat(" ", 61) + "^\n"},
		"no file":      {"", 1, 1, ""},
		"two digits":   {strings.Repeat("\n", 9) + "a", 10, 1, "  10 | a\n     | ^\n"},
		"workflow end": {"a\n::stop-commands::x ##[error]", 2, 1, "  2 | ::stop-commands::x ## [error]\n    | ^\n"},
	}
	for name, tt := range tests {
		var b strings.Builder
		if err := WriteText(&b, one("dir/a.json", tt.data, packages.Problem{Line: tt.line, Column: tt.column, Message: "Bad.", Rule: "r"})); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("dir/a.json:%d:%d: error: Bad. [r]\n%s", tt.line, tt.column, tt.want)
		if b.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, b.String(), want)
		}
	}
}

func TestWriteGitHub(t *testing.T) {
	p := packages.Problem{Line: 3, Column: 5, Rule: "a,b:c", Message: "50%: a,b\r\n::error::x"}
	var b strings.Builder
	if err := WriteGitHub(&b, one("packages/a,b:c%.json", "", p)); err != nil {
		t.Fatal(err)
	}
	p.Severity = packages.Warning
	if err := WriteGitHub(&b, one("a.json", "", p)); err != nil {
		t.Fatal(err)
	}
	want := "::error file=packages/a%2Cb%3Ac%25.json,line=3,col=5,title=a%2Cb%3Ac::50%25: a,b%0D%0A::error::x\n" +
		"::warning file=a.json,line=3,col=5,title=a%2Cb%3Ac::50%25: a,b%0D%0A::error::x\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// FuzzWriteGitHub reads annotations as the runner does: a line each, properties up to the next "::",
// separated by commas.
func FuzzWriteGitHub(f *testing.F) {
	f.Add("a.json", "message", "rule")
	f.Add("a,file=b::c\n::add-mask::x", "%0A\r\n::error::", "a=b")
	f.Fuzz(func(t *testing.T, file, message, rule string) {
		var b strings.Builder
		if err := WriteGitHub(&b, one(file, "", packages.Problem{Line: 1, Column: 2, Message: message, Rule: rule})); err != nil {
			t.Fatal(err)
		}
		line := b.String()
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || strings.Contains(line, "\r") {
			t.Fatalf("not one line: %q", line)
		}
		head, data, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "::error "), "::")
		if !ok {
			t.Fatalf("no command: %q", line)
		}
		unescape := strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%")
		got := map[string]string{}
		for property := range strings.SplitSeq(head, ",") {
			name, value, _ := strings.Cut(property, "=")
			got[name] = unescape.Replace(value)
		}
		if len(got) != 4 || got["file"] != file || got["title"] != rule || got["line"] != "1" || got["col"] != "2" {
			t.Errorf("%q: properties %q", line, got)
		}
		if got := strings.NewReplacer("%0D", "\r", "%0A", "\n", "%25", "%").Replace(data); got != message {
			t.Errorf("message %q, want %q", got, message)
		}
	})
}

func FuzzWriteSARIF(f *testing.F) {
	f.Add("packages/a b/é%.json", "a \"message\"", uint8(3))
	f.Add("/a:b", "\xff", uint8(200))
	f.Fuzz(func(t *testing.T, file, message string, rule uint8) {
		rules := Rules()
		checkSARIF(t, one(file, "", packages.Problem{Line: 1, Column: 2, Message: message, Rule: rules[int(rule)%len(rules)].Name}))
	})
}

// sarifSchema is the standard's own (errata 01).
var sarifSchema = sync.OnceValue(func() *jsonschema.Schema {
	return jsonschema.NewCompiler().MustCompile("testdata/sarif-schema-2.1.0.json")
})

// checkSARIF holds a log to the standard's schema and to what was found.
func checkSARIF(t *testing.T, results []*Result) {
	t.Helper()
	var b bytes.Buffer
	if err := WriteSARIF(&b, "1.2.3", results); err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := sarifSchema().Validate(document); err != nil {
		t.Fatalf("%v\n%s", err, b.Bytes())
	}
	var log struct {
		Runs []struct {
			Tool struct {
				Driver struct {
					Rules []struct{ ID string }
				}
			}
			Results []struct {
				RuleID    string
				RuleIndex int
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine, StartColumn int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &log); err != nil {
		t.Fatal(err)
	}
	run := log.Runs[0]
	n := 0
	for _, r := range results {
		for _, p := range r.Problems {
			got := run.Results[n]
			n++
			at := got.Locations[0].PhysicalLocation
			if at.Region.StartLine != p.Line || at.Region.StartColumn != p.Column || got.RuleID != p.Rule ||
				got.Message.Text != string([]rune(p.Message)) {
				t.Errorf("%v became %s", p, b.Bytes())
			}
			if run.Tool.Driver.Rules[got.RuleIndex].ID != p.Rule {
				t.Errorf("%s has the index %d", p.Rule, got.RuleIndex)
			}
			if u, err := url.Parse(at.ArtifactLocation.URI); err != nil || u.Host != "" || u.RawQuery != "" || u.Fragment != "" {
				t.Errorf("%q became the address %q: %v", r.File, at.ArtifactLocation.URI, err)
			}
		}
	}
	if n != len(run.Results) {
		t.Errorf("%d results, want %d", len(run.Results), n)
	}
}

func TestWriteSARIF(t *testing.T) {
	checkSARIF(t, nil)
	l := New(Options{New: true})
	var results []*Result
	for _, data := range []string{slider, "{", strings.Replace(slider, "MIT", "mit", 1)} {
		results = append(results, l.Check("slider.json", "packages/x/slider.json", []byte(data)))
	}
	checkSARIF(t, results)
	for file, want := range map[string]string{"packages/a/a.json": "packages/a/a.json", "./a.json": "a.json", "a b%.json": "a%20b%25.json", "/x/a.json": "file:///x/a.json", "a:b.json": "./a:b.json"} {
		if got := fileReference(file); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
}

func TestWriteJSONAndTable(t *testing.T) {
	l := New(Options{})
	results := []*Result{
		l.Check("slider.json", "packages/x/slider.json", []byte(strings.Replace(slider, "MIT", "mit", 1))),
		l.Check("slider.json", "", []byte(slider)),
		Unreadable("gone.json", "no such file"),
	}
	var b bytes.Buffer
	if err := WriteJSON(&b, results); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Files, Errors, Warnings int
		Problems                []struct {
			File, Property, Severity, Rule, Message string
			Line, Column                            int
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Files != 3 || got.Errors != 2 || got.Warnings != 1 || len(got.Problems) != 3 || got.Problems[1].Rule != "license" || got.Problems[1].Property != "license" || got.Problems[1].Line != 9 {
		t.Errorf("got %s", b.Bytes())
	}
	b.Reset()
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	const want = "RULE        ERRORS  WARNINGS  FILES  FIRST\npath        1       0         1      slider.json:2\nunreadable  1       0         1      gone.json:1\nlicense     0       1         1      slider.json:9\n" +
		"3 files checked: 2 errors in 2 files, 1 warning.\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
