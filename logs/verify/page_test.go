package verify

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestParsePage(t *testing.T) {
	const text = `<!doctype html>
<base href="/sub/"><!-- <script src="comment.js"></script> -->
<script src="a.js" integrity="sha512-x" onload="x()"></script>
<SCRIPT TYPE="Module" SRC="https://cdn.example.com/m.js"></SCRIPT>
<script type="text/template" src="not.js"><script src="inner.js"></script>
<link rel="preload stylesheet" href="s.css"><link rel=preload as=script href=p.js><link rel=preload as=font href=f.woff>
<link rel="modulepreload" href="m2.js"><link rel=icon href=i.png>
<script type="importmap">{"imports": {"x": "./x.js", "y/": "https://cdn.example.com/y/", "bad/": "./no"},
 "scopes": {"/sub/deep/": {"x": "/deep-x.js"}}, "integrity": {"https://cdn.example.com/m.js": "sha384-m", "./x.js": "sha384-x"}}</script>
<script>alert(1)</script><script/src="slash.js"/></script>
<style>a{}</style><script type=module>import "x"</script><script src=" "></script>
<noscript><link rel=stylesheet href=no.css></noscript><textarea><script src=text.js></script></textarea>`
	address, _ := url.Parse("https://www.example.com/page.html")
	p, err := parsePage([]byte(text), address)
	if err != nil {
		t.Fatal(err)
	}
	want := []Reference{
		{Kind: ClassicScript, URL: "https://www.example.com/sub/a.js", Line: 3, Integrity: "sha512-x"},
		{Kind: ModuleScript, URL: "https://cdn.example.com/m.js", Line: 4, Integrity: "sha384-m"},
		{Kind: StyleSheet, URL: "https://www.example.com/sub/s.css", Line: 6},
		{Kind: Preload, URL: "https://www.example.com/sub/p.js", Line: 6},
		{Kind: ModulePreload, URL: "https://www.example.com/sub/m2.js", Line: 7},
		{Kind: ClassicScript, URL: "https://www.example.com/sub/slash.js", Line: 10},
	}
	if !slices.Equal(p.references, want) {
		t.Errorf("got %+v\nwant %+v", p.references, want)
	}
	if len(p.scripts) != 3 || len(p.styles) != 1 || len(p.modules) != 1 || !p.handlers || len(p.notes) != 1 {
		t.Errorf("got %+v", p)
	}
	if got := p.scripts[1]; got != "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='" {
		t.Errorf("the hash of alert(1) is %s", got)
	}
	for name, want := range map[[2]string]string{
		{"x", "https://www.example.com/sub/m.js"}:        "https://www.example.com/sub/x.js",
		{"x", "https://www.example.com/sub/deep/m.js"}:   "https://www.example.com/deep-x.js",
		{"y/z.js", "https://www.example.com/"}:           "https://cdn.example.com/y/z.js",
		{"y/../../z.js", "https://www.example.com/"}:     "",
		{"bad/a.js", "https://www.example.com/"}:         "",
		{"unknown", "https://www.example.com/"}:          "",
		{"./b.js", "https://cdn.example.com/lib/a.js"}:   "https://cdn.example.com/lib/b.js",
		{"https://e.example/c.js", "https://e.example/"}: "https://e.example/c.js",
	} {
		if got := p.maps.resolve(name[0], name[1]); got != want {
			t.Errorf("%q in %s is %q, want %q", name[0], name[1], got, want)
		}
	}
	if _, err := parsePage(bytes.Repeat([]byte("<script src=a></script>"), maxReferences+1), address); err == nil {
		t.Error("any number of references is taken")
	}
	if _, err := parsePage(make([]byte, MaxPage+1), address); err == nil {
		t.Error("any number of bytes is taken")
	}
}

func TestAdvisories(t *testing.T) {
	const record = `{"id":"GHSA-1","summary":"XSS","affected":[{"package":{"ecosystem":"npm","name":"jquery"},
		"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.9.0"},{"introduced":"3.0.0"},{"last_affected":"3.4.1"}]}],"versions":["7.7.7"]},
		{"package":{"ecosystem":"PyPI","name":"jquery"},"versions":["2.0.0"]}]}`
	for _, data := range []string{record, "[" + record + "]", `{"vulns":[` + record + `]}`} {
		a, err := parseAdvisories([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		for version, want := range map[string]bool{
			"0.0.1": true, "1.8.9": true, "1.9.0": false, "2.0.0": false, "3.0.0-beta": false, "3.0.0": true, "3.4.1": true, "3.4.2": false, "7.7.7": true, "x": false,
		} {
			if got := a.of("jquery", version); (len(got) == 1 && got[0] == "GHSA-1, XSS") != want {
				t.Errorf("%s: %q, want %v", version, got, want)
			}
		}
		if got := a.of("other", "1.0.0"); got != nil {
			t.Errorf("of another package: %q", got)
		}
	}
	a, err := parseAdvisories([]byte(strings.Replace(record, `"id"`, `"withdrawn":"2024-01-01T00:00:00Z","id"`, 1)))
	if err != nil || a.of("jquery", "1.0.0") != nil {
		t.Errorf("a withdrawn one counts: %v", err)
	}
	for _, data := range []string{"", "PK\x03\x04", `{"name":"x"}`, "<html>"} {
		if _, err := parseAdvisories([]byte(data)); err == nil {
			t.Errorf("%q is taken", data)
		}
	}
}

func TestIsPage(t *testing.T) {
	for argument, want := range map[string]bool{
		"https://www.example.com": true, "https://www.example.com/shop/": true, "http://a.example/x.html?y=z.js": true, "index.HTM": true,
		"https://cdn.example.com/jquery.js": false, "https://cdn.example.com/ajax/libs/a/1/b.html": false, "jquery.min.js": false, "html": false,
	} {
		if got := IsPage(argument); got != want {
			t.Errorf("%s: %v", argument, got)
		}
	}
}

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "127.0.0.1": false, "::1": false, "10.0.0.1": false, "169.254.169.254": false,
		"100.64.0.1": false, "fd00::1": false, "::ffff:10.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false, "64:ff9b::a00:1": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

func TestWriteSARIF(t *testing.T) {
	r := PageReport{Page: "dir/index.html", References: []Referred{{
		Reference: Reference{Kind: ClassicScript, URL: "https://cdn.example.com/a.js", Line: 7}, Outcome: Unproven,
		Findings: []Finding{{RuleOutcome, true, "unproven: x"}, {RuleOutdated, false, "old"}},
	}}}
	var b bytes.Buffer
	if err := r.WriteSARIF(&b, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(b.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	schema := jsonschema.NewCompiler().MustCompile("../../packages/lint/testdata/sarif-schema-2.1.0.json")
	if err := schema.Validate(document); err != nil {
		t.Error(err)
	}
	if !strings.Contains(b.String(), `"level": "error"`) || !strings.Contains(b.String(), `"startLine": 7`) {
		t.Errorf("%s", b.String())
	}
}

func FuzzParsePage(f *testing.F) {
	f.Add([]byte("<base href=/x/><script src=a.js></script><link rel=stylesheet href=b.css>"))
	f.Add([]byte(`<script type=importmap>{"imports":{"a/":"./b/"},"scopes":{"/c/":{"d":"e:f"}},"integrity":{"g":1}}</script>`))
	f.Add([]byte("<script/><style></script></style>\x00<plaintext><script src=a>"))
	f.Fuzz(func(t *testing.T, data []byte) {
		address, _ := url.Parse("https://www.example.com/page.html")
		p, err := parsePage(data, address)
		if err != nil {
			return
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, r := range p.references {
			if _, err := url.Parse(r.URL); err != nil || r.Line < 1 || r.Line > lines {
				t.Errorf("%+v of %d lines: %v", r, lines, err)
			}
			if at := p.maps.resolve("a/x", r.URL); strings.ContainsAny(at, "\r\n") {
				t.Errorf("%q", at)
			}
		}
		for _, source := range p.scripts {
			if strings.ContainsAny(source, ";, ") {
				t.Errorf("%q", source)
			}
		}
	})
}

func FuzzAdvisories(f *testing.F) {
	f.Add([]byte(`{"id":"a","affected":[{"package":{"ecosystem":"npm","name":"b"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.0.0"}]}]}]}`), "0.1.0")
	f.Add([]byte("PK\x03\x04"), "1.0.0")
	f.Fuzz(func(_ *testing.T, data []byte, version string) {
		if a, err := parseAdvisories(data); err == nil {
			a.of("b", version)
		}
	})
}
