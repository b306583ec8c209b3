package site

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

const introduction = `# Barrel

[![build](https://badges.example/x.svg)](https://ci.example/) <img src="https://tracker.example/p.gif" alt="tracked" onerror="alert(1)">
![no link](pic.png)

Jump to [Use](#use) or [what was cut off](#gone), read [the source](src/barrel.js), [more](docs/more.md), [out](//elsewhere.example/x), [bad](javascript:alert(1)), [data](data:text/html,x).

## Use

- [x] done
- [ ] open

| a | b |
| - | - |
| 1 | <b onclick="x()">2</b> |

` + "```js\nimport '<script>';\n```" + `

<script>alert(1)</script><style>body{display:none}</style><iframe src="https://x.example"></iframe><svg onload=alert(1)><a xlink:href="javascript:x">y</a></svg>
<form action="https://x.example"><input name=q><button>go</button></form>
<div style="position:fixed" class="notice" id="content">boxed</div>
<h1 id="main">Deep</h1>
`

func TestReadme(t *testing.T) {
	shelf := filled(t)
	shelf.Register("barrel", packageJSON(t, "barrel", map[string]any{
		"keywords":   []string{"wood", "round things"},
		"autoupdate": map[string]any{"source": "npm", "target": "barrel", "fileMap": []map[string]any{{"basePath": "", "files": []string{"*"}}}},
	}))
	about := &logs.About{
		Readme: introduction, ReadmeFile: "README.md", ReadmeCut: true,
		Dependencies: map[string]string{"@jars/pickle": "^1.0.0", "nowhere": "*"}, Peers: map[string]string{"@jars/pickle": "^9.0.0"},
	}
	for i, version := range []string{"1.0.0", "1.1.0", "2.0.0"} {
		shelf.PublishAbout("barrel", version, "barrel.js", map[string]string{"barrel.js": script(10 * (i + 1)), "src/barrel.js": "1"}, about)
	}
	osv := filepath.Join(t.TempDir(), "osv.json")
	if err := os.WriteFile(osv, []byte(`{"id":"GHSA-1","aliases":["CVE-2020-1"],"summary":"It <b>leaks</b>.","affected":[{"package":{"ecosystem":"npm","name":"barrel"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"2.0.0"}]}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	advisories, err := library.OpenAdvisories(osv, nil)
	if err != nil {
		t.Fatal(err)
	}
	site := newSite(t, shelf, func(o *Options) {
		o.Advisories = advisories
		o.Library = shelf.Index(library.Options{Deprecations: func(_ kvstore.Reader, name string) (map[string]string, error) {
			if name == "barrel" {
				return map[string]string{"1.0.0": "use <glass>"}, nil
			}
			return nil, nil
		}})
	})
	body := get(t, site, "/library/barrel/1.0.0").Body.String()
	for _, want := range []string{
		`<h3 id="readme-barrel">Barrel</h3>`, `<h4 id="readme-use">Use</h4>`, `href="#readme-use"`, `href="/files/barrel/1.0.0/src/barrel.js"`, `href="https://github.com/jars/barrel/blob/HEAD/docs/more.md"`,
		`href="https://elsewhere.example/x"`, `href="https://ci.example/"`, ">build</a>", "tracked", "no link", "☑", "☐", "boxed", "import &#39;&lt;script&gt;&#39;;", "It goes on", "or what was cut off, read",
		`<a href="/search?q=round&#43;things">round things</a>`, "use &lt;glass&gt;", "CVE-2020-1", "It &lt;b&gt;leaks&lt;/b&gt;.", "(fixed in 2.0.0)", `href="https://osv.dev/vulnerability/GHSA-1"`,
		"pickle 1.1.0 is here", "only pickle 2.0.0 is here", ">not here<", "Size of the main file over 3 versions: 280 B in 1.0.0, 840 B in 2.0.0",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	readme := find(t, body, func(n *html.Node) bool { return attr(n, "class") == "readme-text" })
	if len(readme) != 1 {
		t.Fatalf("%d READMEs", len(readme))
	}
	for d := range readme[0].Descendants() {
		if d.Type != html.ElementNode {
			continue
		}
		switch d.Data {
		case "img", "script", "style", "iframe", "svg", "form", "input", "button", "h1", "h2", "div", "object":
			t.Errorf("there is a <%s>", d.Data)
		}
		for _, a := range d.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "class" || a.Key == "src" || strings.Contains(a.Val, "script:") || strings.HasPrefix(a.Val, "data:") {
				t.Errorf("there is %s=%q", a.Key, a.Val)
			}
		}
	}
	latest := get(t, site, "/library/barrel").Body.String()
	for _, never := range []string{"CVE-2020-1", "Deprecated upstream"} {
		if strings.Contains(latest, never) {
			t.Errorf("the latest release has %s", never)
		}
	}
}
