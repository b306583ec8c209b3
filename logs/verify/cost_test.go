package verify

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

func TestCost(t *testing.T) {
	pageWords := []string{"<", ">", "</", "<!--", "-->", "<a>", "<b>", "</b>", "<p>", "<table>", "<td>", "<svg>", "<math>", "<select>", "<template>", "<script>", "</script>", "<style>", "</style>", "<base href=/a/>", "<script src=a.js>", "<link rel=stylesheet href=b>", "<i><font>", "<form>", "<frameset>", "a=b ", "\"", "'", "&amp;", "&#", "\x00", " ", "<script type=importmap>", "{\"imports\":{", "\"a/\":\"./b/\",", "<meta http-equiv=content-security-policy content=\"", "<![CDATA[", "<plaintext>", "\n", "a"}
	cost.Check(t,
		cost.Parser{Name: "page", Parse: func(data []byte) {
			_, _ = parsePage(t.Context(), data, "", &webURL{scheme: "https", host: "www.example.com", path: "/page.html"})
		}, Seeds: []string{"<base href=/x/><script src=a.js></script><link rel=stylesheet href=b.css>", `<script type=importmap>{"imports":{"a/":"./b/"},"scopes":{"/c/":{"d":"e:f"}}}</script>`}, Words: pageWords, Size: 4 << 10, MaxMilliseconds: 60, MaxKiB: 5000},
		cost.Parser{Name: "style sheet", Parse: func(data []byte) { styleReferences(string(data)) }, Seeds: []string{"@import 'a.css'; a { b: url(c\\29 d) }"},
			Words: []string{"@import ", "url(", "'", "\"", "\\", "/*", "*/", "a", "{", "}", "(", ")", ";", "\n", "\\29 ", "@", "\xff"}, MaxMilliseconds: 10, MaxKiB: 1000},
		cost.Parser{Name: "URL", Parse: func(data []byte) {
			_, _ = parseWebURL(string(data), &webURL{scheme: "https", host: "a.example", path: "/b.css"})
		}, Seeds: []string{"https://a.example/b/../c?d#e"}, Words: []string{"/", "..", "../", "%2e", "%", "\\", "?", "#", ":", "@", "a", "\t", "\n", "é", "xn--", ".", "[", "]", "//", "0x7f."}, MaxMilliseconds: 10, MaxKiB: 2000},
		cost.Parser{Name: "data: URL", Parse: func(data []byte) { _, _, _ = parseDataURL(string(data)) }, Seeds: []string{"text/html;base64,QUJD", "text/css;charset=utf-8,a%7Bb%7D"},
			Words: []string{"%41", "%", "%4", ",", ";base64", "=", "A", "\n", " "}, MaxMilliseconds: 10, MaxKiB: 2000},
	)
}

// TestPercentDecode tests that text is decoded in one pass, whatever is wrong with it.
func TestPercentDecode(t *testing.T) {
	for text, want := range map[string]string{"": "", "a%20b": "a b", "%": "%", "%%41": "%A", "%4": "%4", "%4g%41": "%4gA", "%+1": "%+1", "100%": "100%", "%c3%A9": "é"} {
		if got := percentDecode(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	hostile := strings.Repeat("%41", 20_000) + "%"
	if n := testing.AllocsPerRun(1, func() { percentDecode(hostile) }); n > 50 {
		t.Errorf("%.0f allocations for %d bytes", n, len(hostile))
	}
}
