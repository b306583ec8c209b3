package worker

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/internal/document"
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

// TestPieces holds that colours change nothing.
func TestPieces(t *testing.T) {
	f := func(file, source string) {
		var b strings.Builder
		for _, p := range splitSource(file, source) {
			b.WriteString(p.text)
		}
		if b.String() != source {
			t.Errorf("%s: %q became %q", file, source, b.String())
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"/", "`", "${", "}", "{", "'", "\"", "\\", "\n", "\r\n", "//", "/*", "*/", "<!--", "-->", "a", " ", "1e", "0x", "#", "é", "\u2028", "url(", ")", "@", "--x", "return", "=", "\x00", "\xff"}
	for range 3000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		for _, file := range []string{"a.js", "a.css", "a.json", "a.txt"} {
			f(file, b.String())
		}
	}
}

func FuzzPieces(f *testing.F) {
	f.Add(true, "a = b / c /d/ `x${`y`}` // z")
	f.Add(false, "@import url(x); a{b:c} /* d")
	f.Fuzz(func(t *testing.T, script bool, source string) {
		file := "a.css"
		if script {
			file = "a.js"
		}
		var b strings.Builder
		for _, p := range splitSource(file, source) {
			b.WriteString(p.text)
		}
		if b.String() != source {
			t.Errorf("%q became %q", source, b.String())
		}
		for _, line := range markUpLines(splitSource(file, source)) {
			if strings.Count(string(line), "<") != 2*strings.Count(string(line), "<span") {
				t.Errorf("%q is not one line of markup", line)
			}
		}
	})
}

func FuzzReadme(f *testing.F) {
	f.Add("README.md", introduction)
	f.Add("README", "<b>")
	f.Add("readme.md", strings.Repeat("<div>", 300)+strings.Repeat("> ", 200)+"[x](y)")
	f.Add("README.md", "<a>x</a><a href=https://a.example>y<b>z</a></b><br><p>u<hr>&amp;&lt;<details><summary>s</details>")
	f.Fuzz(func(t *testing.T, name, source string) {
		if len(source) > 16<<10 {
			return
		}
		result, err := RenderDocument(document.Request{Kind: document.Readme, Name: name, Text: source, Library: "barrel", Version: "1.0.0", Repository: "https://github.com/a/b"})
		if err != nil {
			t.Fatal(err)
		}
		data, err := result.Encode()
		if err == nil {
			_, err = document.Decode(document.Readme, data)
		}
		if err != nil && len(data) > 0 {
			t.Errorf("%q makes what is not accepted: %v\n%s", source, err, data)
		}
		body, err := html.Parse(strings.NewReader("<body>" + result.Markup + "</body>"))
		if err != nil {
			t.Fatal(err)
		}
		for d := range body.Descendants() {
			for _, a := range d.Attr {
				switch a.Key {
				case "href", "rel", "id", "tabindex":
				default:
					t.Errorf("%q makes <%s %s=%q>", source, d.Data, a.Key, a.Val)
				}
				if a.Key == "href" && !strings.HasPrefix(a.Val, "#readme-") && !strings.HasPrefix(a.Val, "/files/barrel/") && !strings.HasPrefix(a.Val, "http") && !strings.HasPrefix(a.Val, "mailto:") {
					t.Errorf("%q leads to %q", source, a.Val)
				}
			}
			if d.Data == "script" || d.Data == "img" || d.Data == "style" || d.Data == "iframe" {
				t.Errorf("%q makes a <%s>", source, d.Data)
			}
		}
	})
}

// TestCostlyReadmes holds that READMEs on which the parser of Markdown takes the square of a number are refused, and none that people write.
func TestCostlyReadmes(t *testing.T) {
	for text, refused := range map[string]string{
		strings.Repeat(">", 20_000):           "quotes and lists in each other",
		strings.Repeat("> ", 200) + "a":       "quotes and lists in each other",
		strings.Repeat("- ", 200) + "a":       "quotes and lists in each other",
		strings.Repeat("1. ", 200) + "a":      "quotes and lists in each other",
		"a " + strings.Repeat("~~", 2000):     "next to each other",
		"a\n" + strings.Repeat("=", 3000):     "",
		strings.Repeat("-", 3000):             "",
		strings.Repeat("|-", 200) + "|\n":     "",
		strings.Repeat("> > - a\n", 2000):     "",
		strings.Repeat("```\n~~~\n```\n", 50): "",
	} {
		_, err := RenderDocument(document.Request{Kind: document.Readme, Name: "README.md", Text: text})
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%.60q: %v, want %q", text, err, refused)
		}
	}
}

// TestHeadingLevels keeps the order of a README's headings, below those of the page, and skips no level.
func TestHeadingLevels(t *testing.T) {
	for _, test := range []struct{ markdown, want string }{
		{"# a\n## b\n### c\n", "h3 a, h4 b, h5 c"},
		{"### a\n# b\n#### c\n## d\n", "h3 a, h3 b, h4 c, h4 d"},
		{"## a\n\n## b\n\n###### c\n", "h3 a, h3 b, h4 c"},
		{"# a\n## b\n### c\n#### d\n##### e\n###### f\n", "h3 a, h4 b, h5 c, h6 d, h6 e, h6 f"},
		{"<h4>a</h4>\n\n<h6>b</h6>\n\n# c\n", "h3 a, h4 b, h3 c"},
	} {
		result, err := renderReadme(document.Request{Text: test.markdown})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range regexp.MustCompile(`<(h\d)[^>]*>([^<]*)<`).FindAllStringSubmatch(result.Markup, -1) {
			got = append(got, m[1]+" "+m[2])
		}
		if all := strings.Join(got, ", "); all != test.want {
			t.Errorf("%q: %s, want %s", test.markdown, all, test.want)
		}
	}
}
