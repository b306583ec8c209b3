package worker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/testkit/cost"
)

var (
	scriptWords = []string{"(", ")", "[", "]", "{", "}", "!", "~", "-", "+", "a", "=>", "=", "?", ":", ",", ";", "`", "${", "/", "*", "//", "/*", "*/", "\n", " ", "'", "\"", "\\", "function a(){", "class A{", "async ", "await ", "import ", "import('a')", "from", "export ", "let a=", "0x", "1e", "if(a)", "else ", "for(;;)", "return ", "...", "?.", "**", "<!--", "-->", "é", "\\u0061", "@", "#a", "new ", "yield ", "a.b", "switch(a){case 1:", "/[a-z]+/g", ".x=1;"}
	styleWords  = []string{"a", "{", "}", "(", ")", "[", "]", ";", ":", ",", "&", ">", "+", "~", "*", "@media ", "@import ", "@layer a", "@supports ", "@container ", "not ", "and ", "url(", "'", "\"", "\\", "/*", "*/", "<!--", "-->", "--x:", "var(--x)", "calc(", "1px", "#fff", "rgb(1,2,3)", "color:red;", "\n", " ", "!important", ":is(", ":not(", "::before", "hsl(1deg 2% 3%)", "linear-gradient(", "margin:0 1px;", "grid-area:a;", "e", "%", "U+1-2", "@font-face{", "transform:rotate(1deg);"}
	textWords   = []string{"|", "-", "a|", "| - ", "\n", "*", "**", "_", "`", "```", "[", "](", ")", "[a](b)", "![", "<", ">", "> ", "<div>", "</div>", "<b>", "<a href=x>", "<table>", "<td>", "<p>", "<!--", "-->", "<![CDATA[", "<svg>", "<math>", "<select>", "<template>", "&amp;", "&#0;", "#", "# ", "- ", "1. ", "    ", "\t", "~~", "[^1]", "[^1]: ", "[x]: y\n", "[x]", "https://a.b/", "www.a.b ", "a@b.c ", "\\", "===\n", "---\n", "- [ ] ", "<details>", "<a id=x>", "{#id}", "é", "\x00", "<h1>", "*a", "<font>", "<i><b>", ":", "\"", "'"}
	anyWords    = []string{"a", "b", "\n", "a\n", "b\n", "\x00", "\xff", " ", "ab", "ba", "0", "aaaaaaaaaaaaaaaa"}
	rangeWords  = []string{"1", ".", "x", "*", "-", " - ", "||", ">=", "<", "^", "~", "=", "v", " ", "+", "0", "1.2.3", "-a", ",", "\n", "99999999"}
)

func rendered(kind document.Kind, name string) func(string) []byte {
	return func(text string) []byte {
		r := document.Request{Kind: kind, Name: name, Text: text, Lines: 2000, Library: "jar", Version: "1.0.0", Repository: "https://git.example/jar"}
		switch kind {
		case document.Comparison:
			r.Text, r.After = text[:len(text)/2], text[len(text)/2:]
		case document.Ranges:
			r.Text, r.Ranges = "", strings.Split(text, "\n")
		}
		data, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		return data
	}
}

// wrapModule returns a request to build the module of a package with one script.
func wrapModule(text string) []byte {
	data, err := json.Marshal(ModulesRequest{Package: "jar", Files: map[string][]byte{"package.json": []byte("{}"), "index.js": []byte(text)}})
	if err != nil {
		panic(err)
	}
	return data
}

// joinHalves returns a request for the delta from the first half of a text to the second.
func joinHalves(text string) []byte {
	return JoinDelta([]byte(text[:len(text)/2]), []byte(text[len(text)/2:]))
}

func task(t Task) func([]byte) {
	return func(data []byte) { runRequest(request{Task: t, Data: data}) }
}

// parsers are what workers offer.
var parsers = []cost.Parser{
	{Name: "minify-js", Parse: task(MinifyJS), Seeds: []string{"const a = 1;\n", "function f(a, b) { return a ? b : `${a}` }\n", "export default class { x = /a/ }\n"}, Words: scriptWords, Size: 2 << 10, MaxMilliseconds: 60, MaxKiB: 20_000},
	// Nothing but what the minifier joins, on which it takes the square of the number of parts.
	{Name: "minify-js.joined", Parse: task(MinifyJS), Seeds: []string{"a,"}, Words: []string{"a();", "a?b:", "if(a)b;else ", "if(a)return;", "`${a}${b}`,", "[a],", "a&&b,", "a\n", "'aaa'+", "`${a}b`+", "a&&(", "case a:"}, Size: 2 << 10, Large: 8 << 10, MaxMilliseconds: 60, MaxKiB: 20_000},
	{Name: "minify-css", Parse: task(MinifyCSS), Seeds: []string{"a{color:red}\n", "@media (a){b:is(c){d:calc(1px + 2px)}}\n"}, Words: styleWords, Size: 2 << 10, MaxMilliseconds: 20, MaxKiB: 10_000},
	{Name: "find-format", Parse: task(FindFormat), Seeds: []string{"export default 1;\n", "module.exports = require('a');\n"}, Words: scriptWords, Size: 2 << 10, MaxMilliseconds: 60, MaxKiB: 5000},
	{Name: "find-imports", Parse: task(FindImports), Seeds: []string{"import 'a';\n", "import('b');\n"}, Words: scriptWords, Size: 2 << 10, MaxMilliseconds: 60, MaxKiB: 5000},
	{Name: "build-modules", Parse: task(BuildModules), Wrap: wrapModule, Seeds: []string{"export const a = 1;\n", "exports.a = require('b');\n"}, Words: scriptWords, Size: 2 << 10, MaxMilliseconds: 180, MaxKiB: 30_000},
	{Name: "squeeze-br", Parse: task(SqueezeBr), Seeds: []string{"const a = 1;\n"}, Words: anyWords, Size: 4 << 10, MaxMilliseconds: 50, MaxKiB: 30_000},
	{Name: "squeeze-gzip", Parse: task(SqueezeGzip), Seeds: []string{"const a = 1;\n"}, Words: anyWords, Size: 4 << 10, MaxMilliseconds: 50, MaxKiB: 30_000},
	{Name: "encode-delta", Parse: task(EncodeDelta), Wrap: joinHalves, Seeds: []string{"const a = 1;\nconst a = 2;\n"}, Words: anyWords, Size: 4 << 10, MaxMilliseconds: 100, MaxKiB: 60_000},
	{Name: "render-readme", Parse: task(Render), Wrap: rendered(document.Readme, "README.md"), Seeds: []string{"# A\n\nb [c](d)\n", "a|b\n-|-\nc|d\n", "<p>a</p>\n"}, Words: textWords, Size: 4 << 10, MaxMilliseconds: 35, MaxKiB: 10_000},
	{Name: "render-source.js", Parse: task(Render), Wrap: rendered(document.Source, "a.js"), Seeds: []string{"const a = 1;\n", "`${a}` / b /c/g\n"}, Words: scriptWords, MaxMilliseconds: 8, MaxKiB: 3000},
	{Name: "render-source.css", Parse: task(Render), Wrap: rendered(document.Source, "a.css"), Seeds: []string{"a{color:red}\n"}, Words: styleWords, MaxMilliseconds: 8, MaxKiB: 3000},
	{Name: "render-comparison", Parse: task(Render), Wrap: rendered(document.Comparison, "a.js"), Seeds: []string{"const a = 1;\n", "a\nb\n"}, Words: anyWords, MaxMilliseconds: 8, MaxKiB: 3000},
	{Name: "render-imports", Parse: task(Render), Wrap: rendered(document.Imports, "a.js"), Seeds: []string{"import 'a';\n", "import x from \"b\"; import('c')\n"}, Words: scriptWords, MaxMilliseconds: 8, MaxKiB: 3000},
	{Name: "render-ranges", Parse: task(Render), Wrap: rendered(document.Ranges, ""), Seeds: []string{"^1.2.3 || >=2 <3\n"}, Words: rangeWords, MaxMilliseconds: 8, MaxKiB: 3000},
}

func TestCost(t *testing.T) { cost.Check(t, parsers...) }

// TestEveryTaskHasACost holds that whatever a worker offers is among the parsers whose cost is bounded.
func TestEveryTaskHasACost(t *testing.T) {
	has := func(name string) {
		for _, p := range parsers {
			if p.Name == name || strings.HasPrefix(p.Name, name+".") {
				return
			}
		}
		t.Errorf("%s is not in the table: see package cost", name)
	}
	for task := range tasks {
		if task != Render {
			has(string(task))
		}
	}
	for kind := range renderers {
		has("render-" + string(kind))
	}
}
