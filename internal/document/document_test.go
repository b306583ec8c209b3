package document

import (
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
)

func TestResultsComeBack(t *testing.T) {
	for _, r := range []Result{
		{Kind: Readme, Markup: `<h3 id="readme-a">A</h3><p>x &lt; y<br/><a href="https://a.example/?b=c&amp;d" rel="nofollow noopener">b</a></p><pre tabindex="0"><code>c</code></pre>`},
		{Kind: Readme},
		{Kind: Source, Markup: "<span class=\"k\">const</span> a\n\n", Cut: true},
		{Kind: Comparison, Markup: "<span>@@ -1 +1 @@\n</span><del>-a\n</del><ins>+b\n</ins>", Added: 1, Removed: 1},
		{Kind: Ranges, Ranges: []Range{{{{">=", "1.0.0"}, {"<", "2.0.0-0"}}, {{"=", "3.0.0"}}}, nil}},
		{Kind: Imports, Imports: []Import{{"./a.js", false}, {"b c", true}}},
	} {
		data, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(r.Kind, data)
		if err != nil || back.Markup != r.Markup || back.Added != r.Added || back.Removed != r.Removed || back.Cut != r.Cut || len(back.Imports) != len(r.Imports) || !reflect.DeepEqual(back.Ranges, r.Ranges) {
			t.Errorf("%+v became %+v, %v", r, back, err)
		}
		for i := range r.Imports {
			if back.Imports[i] != r.Imports[i] {
				t.Errorf("%v became %v", r.Imports[i], back.Imports[i])
			}
		}
	}
	if _, err := (Result{Kind: Readme, Markup: strings.Repeat("a", MaxReadmeMarkup+1)}).Encode(); err == nil {
		t.Error("a result over its limit")
	}
}

// TestHostileResults holds that a renderer that was taken over gets nothing into a page that an honest one could not.
func TestHostileResults(t *testing.T) {
	for kind, all := range map[Kind][]string{
		Readme: {
			"<script>alert(1)</script>", "<SCRIPT>", "<img src=x>", "<p onclick=\"x\">a</p>", "<p style=\"x\">a</p>", "<p class=\"notice\">a</p>", "<div>a</div>", "<h1>a</h1>", "<h2>a</h2>", "<form></form>",
			"<a href=\"javascript:alert(1)\">a</a>", "<a href=\"JavaScript:x\">a</a>", "<a href=\"java&#115;cript:x\">a</a>", "<a href=\" https://a\">a</a>", "<a href=\"//a.example\">a</a>", "<a href=\"data:text/html,x\">a</a>",
			"<a href='https://a'>a</a>", "<a href=https://a>a</a>", "<a href=\"https://a\" onclick=\"x\">a</a>", "<a href=\"https://a\"onclick=\"x\">a</a>", "<a href=\"#content\">a</a>", "<a href=\"/rooms\">a</a>", "<a rel=\"opener\">a</a>",
			"<h3 id=\"content\">a</h3>", "<p>a", "a</p>", "<p><em>a</p></em>", "</div>", "<p", "<!-- a -->", "<!DOCTYPE html>", "<?a?>", "<svg/onload=x>", "<p/onclick=x>a</p>", "< p>a</p>", "<p\n>a</p>", "<pre tabindex=\"9\">a</pre>",
			"<p =\"a\">a</p>", "<p\t>a</p>", "<math>", "<noscript>", "<plaintext>", "<p><![CDATA[", strings.Repeat("<p>", 101) + strings.Repeat("</p>", 101), "<a href=\"https://a<b>\">c</a>",
		},
		Source:     {"<b>a</b>\n", "<span>a\n</span>", "<span class=\"notice\">a</span>\n", "<span class=\"k\" id=\"x\">a</span>\n", "</code></pre>\n", "<span class=\"k\">a\n", strings.Repeat("\n", MaxLines+1)},
		Comparison: {"<ins class=\"k\">a</ins>", "<p>a</p>", "<ins>a</del>", "<script>"},
		Ranges:     {"1.0.0\n", "x1.0.0\n", ">=1.0.0  <2.0.0\n", ">=1.0.0 ||\n", " \n", strings.Repeat("\n", maxRanges+1), strings.Repeat("=1.0.0 ", maxBounds) + "=1.0.0\n"},
		Imports:    {"./a.js\n", "x ./a.js\n", "<script>\n", strings.Repeat("s a\n", MaxImports+1)},
	} {
		for _, body := range all {
			if r, err := Decode(kind, []byte(string(kind)+" 0 0 false\n"+body)); err == nil {
				t.Errorf("%s: %q is accepted: %+v", kind, body, r)
			}
		}
		for _, data := range []string{"", "\n", string(kind), string(kind) + " 0 0 false", string(kind) + " -1 0 false\n", string(kind) + " 0 0 maybe\n", string(kind) + " 0 0\n", "other 0 0 false\n", string(kind) + " 0 0 false\n" + strings.Repeat("a\n", MaxMarkup)} {
			if _, err := Decode(kind, []byte(data)); err == nil {
				t.Errorf("%s: %.40q is accepted", kind, data)
			}
		}
	}
}

// TestKeys holds that what makes another result has another key.
func TestKeys(t *testing.T) {
	a, b := kvstore.Sum([]byte("a")), kvstore.Sum([]byte("b"))
	seen := map[Key]string{}
	for name, key := range map[string]Key{
		"readme": ReadmeKey(a, ""), "readme of another release": ReadmeKey(b, ""), "readme with links": ReadmeKey(a, "https://a.example"),
		"source": SourceKey("jar@1", a, ".js", 0), "source as styles": SourceKey("jar@1", a, ".css", 0), "second page": SourceKey("jar@1", a, ".js", 2000),
		"comparison": ComparisonKey("jar@1", a, b), "the other way": ComparisonKey("jar@1", b, a), "added": ComparisonKey("jar@1", kvstore.Hash{}, a), "imports": ImportsKey("jar@1", a),
		"source of another release": SourceKey("jar@2", a, ".js", 0), "comparison of another release": ComparisonKey("jar@2", a, b), "imports of another release": ImportsKey("jar@2", a),
		"ranges": RangesKey("jar@1", []string{"1", "2"}), "one range": RangesKey("jar@1", []string{"12"}), "ranges of another release": RangesKey("jar@2", []string{"1", "2"}),
		"two inputs": NewKey(Readme, "ab", "c"), "cut elsewhere": NewKey(Readme, "a", "bc"), "one input": NewKey(Readme, "abc"),
	} {
		if other, ok := seen[key]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[key] = name
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("<p>a &amp; b</p>")
	f.Add("<a href=\"https://a\" rel=\"nofollow noopener\">b</a><br/>")
	f.Add("<h3 id=\"readme-a\">b</h3><table><tbody><tr><td>c</td></tr></tbody></table>")
	f.Fuzz(func(t *testing.T, body string) {
		r, err := Decode(Readme, []byte("readme 0 0 false\n"+body))
		if err != nil {
			return
		}
		// Whatever is accepted has no "<" but those of elements with a known name.
		for rest := r.Markup; ; {
			i := strings.IndexByte(rest, '<')
			if i < 0 {
				break
			}
			rest = strings.TrimPrefix(rest[i+1:], "/")
			name := rest[:strings.IndexAny(rest, " />")]
			if !IsReadmeElement(name) {
				t.Fatalf("%q has <%s>", body, name)
			}
		}
		if strings.Contains(strings.ToLower(r.Markup), "href=\"javascript") {
			t.Fatalf("%q leads to a script", body)
		}
	})
}
