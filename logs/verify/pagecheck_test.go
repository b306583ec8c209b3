package verify_test

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// session is one that has seen nothing yet.
func (r *rig) session() *verify.Session {
	r.Helper()
	known, err := verify.ReadKnown(filepath.Join(r.TempDir(), "known-logs"))
	if err != nil {
		r.Fatal(err)
	}
	return &verify.Session{Known: known, Timeout: time.Minute}
}

// site serves a page at / from another host than the rig's.
func (r *rig) site(html string) string {
	r.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/" {
			http.NotFound(w, request)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if strings.Contains(html, "xhtml+xml") {
			w.Header().Set("Content-Type", "application/xhtml+xml")
		}
		w.Write([]byte(html))
	}))
	r.Cleanup(s.Close)
	return s.URL + "/"
}

// imports finds what the modules of these tests import.
func imports(_ context.Context, module []byte) ([]string, error) {
	var names []string
	for _, m := range regexp.MustCompile(`import '([^']*)'`).FindAllSubmatch(module, -1) {
		names = append(names, string(m[1]))
	}
	if strings.Contains(string(module), "(((") {
		return nil, errors.New("it does not parse")
	}
	return names, nil
}

func TestPage(t *testing.T) {
	r := newRig(t)
	r.Register("vue", `{"name":"vue"}`)
	r.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": alert, "m.js": "import './n.js'; import 'd3'; import 'nowhere'", "n.js": "1"})
	r.Publish("vue", "2.0.0", "vue.js", map[string]string{"vue.js": "stolen"})
	r.Register("d3", `{"name":"d3"}`)
	r.Publish("d3", "7.0.0", "d3.js", map[string]string{"d3.js": "d3"})
	r.Withdraw("vue", "2.0.0", "it stole")
	r.sign()
	r.raw["/libraries/vue"] = func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"version":"3.2.1"}`)) }
	lib := r.server.URL + "/ajax/libs/"
	sri := logs.SumSRI([]byte(alert)).String()
	sum384 := sha512.Sum384([]byte(alert))
	tests := []struct {
		name, html string
		outcome    verify.Outcome
		errors     int
		rules      string // of all findings
		references int
	}{
		{"nothing", "", verify.Nothing, 0, "", 0},
		{"right", fmt.Sprintf(`<script src="%svue/3.0.0/vue.js" integrity="%s" crossorigin></script>`, lib, sri), verify.Proven, 0, "outdated", 1},
		{"SHA-384", fmt.Sprintf(`<script src="%svue/3.0.0/vue.js" integrity="sha384-%s" crossorigin></script>`, lib, base64.StdEncoding.EncodeToString(sum384[:])), verify.Proven, 0, "outdated", 1},
		{"no integrity", fmt.Sprintf(`<script src="%svue/3.0.0/vue.js"></script>`, lib), verify.Proven, 1, "integrity-missing outdated", 1},
		{"wrong integrity", fmt.Sprintf(`<script src="%sd3/7.0.0/d3.js" integrity="%s" crossorigin></script>`, lib, sri), verify.Differs, 2, "integrity-wrong not-proven", 1},
		{"an integrity of nothing", fmt.Sprintf(`<script src="%sd3/7.0.0/d3.js" integrity="md5-x" crossorigin></script>`, lib), verify.Proven, 1, "integrity-wrong", 1},
		{"withdrawn", fmt.Sprintf(`<script src="%svue/2.0.0/vue.js" integrity="x" crossorigin></script>`, lib), verify.Withdrawn, 2, "integrity-wrong outdated not-proven", 1},
		{"not there", fmt.Sprintf(`<script src="%svue/9.0.0/vue.js"></script>`, lib), verify.Unproven, 1, "not-proven", 1},
		{"declared as its own", `<script src="/own/app.js"></script>`, verify.Own, 0, "", 1},
		{"not declared as its own", `<script src="/owner.js"></script>`, verify.Unproven, 1, "not-proven", 1},
		{"inline", `<script>1</script><p onclick="1">`, verify.Own, 0, "", 2},
		{"no crossorigin", fmt.Sprintf(`<script src="%sd3/7.0.0/d3.js" integrity="%s"></script>`, lib, logs.SumSRI([]byte("d3"))), verify.Proven, 1, "crossorigin-missing", 1},
		{"two tags", fmt.Sprintf(`<script src="%[1]sd3/7.0.0/d3.js" integrity="%[2]s" crossorigin></script><script src="%[1]sd3/7.0.0/d3.js"></script>`, lib, logs.SumSRI([]byte("d3"))), verify.Proven, 1, "integrity-missing", 2},
		{"a frame", fmt.Sprintf(`<iframe srcdoc='<iframe srcdoc="&lt;script src=%sd3/7.0.0/d3.js&gt;"></iframe><script src=https://stranger.example/x.js></script>'></iframe>`, lib), verify.Unproven, 2, "integrity-missing not-proven", 4},
		{"a frame of another", `<iframe src="https://stranger.example/"></iframe>`, verify.Unproven, 1, "not-proven", 1},
		{"a module in an address", `<script type=module src="data:text/javascript,import 'https://stranger.example/x.js'"></script>`, verify.Unproven, 1, "not-proven", 2},
		{"a module that is not understood", `<script type=module>(((</script>`, verify.Unproven, 1, "not-proven", 2},
		{"XML", "<!-- Content-Type: application/xhtml+xml -->", verify.Unproven, 1, "not-proven", 1},
		{"another's", `<script src="https://stranger.example/app.js"></script>`, verify.Unproven, 1, "not-proven", 1},
		{"modules", fmt.Sprintf(`<script type=importmap>{"imports":{"d3":"%[1]sd3/7.0.0/d3.js"}}</script><script type=module>import '%[1]svue/3.0.0/m.js'</script>`, lib), verify.Proven, 3, "integrity-missing outdated integrity-missing outdated integrity-missing", 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			report, err := r.session().VerifyPage(t.Context(), r.site(tt.html), verify.PageOptions{Server: r.server.URL, Imports: imports, Own: []string{"/own"}})
			if err != nil {
				t.Fatal(err)
			}
			var rules []string
			for _, ref := range report.References {
				for _, f := range ref.Findings {
					rules = append(rules, f.Rule)
				}
			}
			if report.Outcome != tt.outcome || report.Errors != tt.errors || strings.Join(rules, " ") != tt.rules || len(report.References) != tt.references {
				t.Errorf("%s, %d errors, %q, %d references; want %s, %d, %q, %d\n%+v", report.Outcome, report.Errors, rules, len(report.References), tt.outcome, tt.errors, tt.rules, tt.references, report.References)
			}
			csp := report.Headers["Content-Security-Policy"]
			if strings.Contains(csp, "stranger") || tt.name == "right" && !strings.Contains(csp, lib+"vue/3.0.0/vue.js;") {
				t.Errorf("the recipe is %q", report.Headers)
			}
			if _, enforce := report.Headers["Integrity-Policy"]; enforce && strings.Contains(tt.rules, "integrity-missing") {
				t.Errorf("the recipe is %q", report.Headers)
			}
		})
	}
}

// What style sheets import and load counts too, whether they are in the page or elsewhere.
func TestPageOfStyles(t *testing.T) {
	r := newRig(t)
	r.Register("vue", `{"name":"vue"}`)
	sheet := "@import 'more.css'; @font-face { src: url(fonts/a.woff2?#x) } a { background: url(data:,x) } b { background: url(\"https://stranger.example/b.png\") }"
	r.Publish("vue", "3.0.0", "a.css", map[string]string{"a.css": sheet, "more.css": "@import url( 'more.css' );", "fonts/a.woff2": "wOF2"})
	r.sign()
	lib := r.server.URL + "/ajax/libs/vue/3.0.0/"
	for name, html := range map[string]string{
		"a link":     fmt.Sprintf(`<link rel=stylesheet href="%sa.css" integrity="%s" crossorigin>`, lib, logs.SumSRI([]byte(sheet))),
		"in a page":  fmt.Sprintf(`<style>/* @import 'x.css' */ @IMPORT  "%sa.css" screen; a { background: url(own.png) }</style>`, lib),
		"attributes": fmt.Sprintf(`<style>@import "%sa.css"</style><p STYLE="background: url(&quot;own.png&quot;)"><i style="color: red">`, lib),
	} {
		report, err := r.session().VerifyPage(t.Context(), r.site(html), verify.PageOptions{Server: r.server.URL, Own: []string{"/"}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ref := range report.References {
			got = append(got, fmt.Sprintf("%s %s %s", ref.Kind, ref.Outcome, ref.URL[strings.LastIndex(ref.URL, "/")+1:]))
		}
		want := "style proven a.css, import-style proven more.css, style-url proven a.woff2?, style-url unproven b.png"
		if name != "a link" {
			want = "import-style proven a.css, style-url own own.png, import-style proven more.css, style-url proven a.woff2?, style-url unproven b.png"
		}
		if s := strings.Join(got, ", "); s != want || report.Outcome != verify.Unproven {
			t.Errorf("%s: %s: %s\nwant %s", name, report.Outcome, s, want)
		}
		if csp := report.Headers["Content-Security-Policy"]; !strings.Contains(csp, lib+"more.css") || strings.Contains(csp, "woff2") {
			t.Errorf("%s: the recipe is %q", name, csp)
		}
		if told := strings.Contains(strings.Join(report.Notes, "\n"), "style attributes"); told != (name == "attributes") {
			t.Errorf("%s: the notes are %q", name, report.Notes)
		}
	}
}

// The log is read once, however many libraries a page has.
func TestPageReadsTheLogOnce(t *testing.T) {
	r := newRig(t)
	var html strings.Builder
	for i := range 20 {
		name := fmt.Sprintf("lib%d", i)
		r.Register(name, fmt.Sprintf(`{"name":%q}`, name))
		r.Publish(name, "1.0.0", "a.js", map[string]string{"a.js": name})
		fmt.Fprintf(&html, "<script src=%s/ajax/libs/%s/1.0.0/a.js integrity=%s></script>\n", r.server.URL, name, logs.SumSRI([]byte(name)))
	}
	r.Publish("lib0", "2.0.0", "a.js", map[string]string{"a.js": "2"})
	r.Withdraw("lib0", "2.0.0", "it stole")
	fmt.Fprintf(&html, "<script src=%s/ajax/libs/lib0/2.0.0/a.js></script><script src=%s/ajax/libs/lib0/3.0.0/a.js></script>\n", r.server.URL, r.server.URL)
	r.sign()
	report, err := r.session().VerifyPage(t.Context(), r.site(html.String()), verify.PageOptions{Server: r.server.URL})
	if err != nil {
		t.Fatal(err)
	}
	proven := 0
	for _, ref := range report.References {
		if ref.Outcome == verify.Proven && ref.File.Complete {
			proven++
		}
	}
	last := report.References[len(report.References)-2:]
	if proven != 20 || last[0].Outcome != verify.Withdrawn || last[1].Outcome != verify.Unproven || !strings.Contains(last[1].Problem, "does not say that it was published") {
		t.Errorf("%d are proven; %+v", proven, last)
	}
	size := r.Log.Checkpoint().Size
	if n := r.asked[fmt.Sprintf("/log/tile/entries/000.p/%d", size)]; n != 1 {
		t.Errorf("the %d entries were asked for %d times", size, n)
	}
}

// A page does not choose whose log counts, nor what in the user's network is asked.
func TestPageOfAStranger(t *testing.T) {
	r := stocked(t)
	html := fmt.Sprintf(`<script src="%s/ajax/libs/vue/3.0.0/vue.js"></script>`, r.server.URL)
	report, err := r.session().VerifyPage(t.Context(), r.site(html), verify.PageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := report.References[0]; got.Outcome != verify.Unproven || !strings.Contains(got.Problem, "only the page names it") || len(r.asked) > 0 {
		t.Errorf("%+v, asked %v", got, r.asked)
	}
	// With the key, the log would count, but the address is the user's own.
	s := r.session()
	s.Options.Trust.Key = r.signer.Key()
	if report, err = s.VerifyPage(t.Context(), r.site(html), verify.PageOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := report.References[0]; got.Outcome != verify.Unproven || !strings.Contains(got.Problem, "is not public") || len(r.asked) > 0 {
		t.Errorf("%+v, asked %v", got, r.asked)
	}
	// A server that was seen before is named by the user.
	s = r.session()
	address := r.server.URL + "/ajax/libs/vue/3.0.0/vue.js"
	server, name, err := verify.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := s.Verify(t.Context(), verify.Subject{Server: server, Name: name, URL: address}); err != nil || got.Outcome != verify.Proven {
		t.Fatalf("%+v, %v", got, err)
	}
	if report, err = s.VerifyPage(t.Context(), r.site(html), verify.PageOptions{}); err != nil || report.Outcome != verify.Proven {
		t.Errorf("%+v, %v", report, err)
	}
}

// A page on disk, with tags of another host that the server mirrors.
func TestPageFile(t *testing.T) {
	r := stocked(t)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Write([]byte(alert))
	}))
	t.Cleanup(other.Close)
	at := filepath.Join(t.TempDir(), "index.html")
	html := fmt.Sprintf(`<script src="%s/ajax/libs/vue/3.0.0/vue.js" integrity="%s" crossorigin></script><script src="app.js"></script>`, r.server.URL, logs.SumSRI([]byte(alert)))
	if err := os.WriteFile(at, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := r.session().VerifyPage(t.Context(), at, verify.PageOptions{Server: r.server.URL, Own: []string{"/"}})
	if err != nil || report.Outcome != verify.Proven || report.Errors != 0 || len(report.References) != 2 || report.References[1].Outcome != verify.Own {
		t.Errorf("%+v, %v", report, err)
	}
	s := r.session()
	s.Options.Client = verify.NewClient() // so that the other host may be on this machine
	if err := os.WriteFile(at, []byte(strings.ReplaceAll(html, r.server.URL, other.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	if report, err = s.VerifyPage(t.Context(), at, verify.PageOptions{Server: r.server.URL, Own: []string{"/app.js"}}); err != nil || report.Outcome != verify.Proven {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := r.session().VerifyPage(t.Context(), filepath.Join(t.TempDir(), "none.html"), verify.PageOptions{}); err == nil {
		t.Error("a page that is not there was read")
	}
}

// TestPageLinkHeader: what a page's Link header has browsers load is checked as its link elements are.
func TestPageLinkHeader(t *testing.T) {
	r := stocked(t)
	file := r.server.URL + "/ajax/libs/vue/3.0.0/vue.js"
	link := fmt.Sprintf(`<%s>; rel=preload; as=script; crossorigin; integrity=%q`, file, logs.SumSRI([]byte(alert)))
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header()["Link"] = []string{link}
	}))
	t.Cleanup(site.Close)
	for header, want := range map[string]verify.Outcome{
		link: verify.Proven,
		link + ", <https://evil.example/x.js>; rel=modulepreload": verify.Unproven,
		link + ", nonsense": verify.Unproven,
	} {
		link = header
		report, err := r.session().VerifyPage(t.Context(), site.URL+"/", verify.PageOptions{Server: r.server.URL})
		if err != nil || report.Outcome != want || want == verify.Proven && report.Errors > 0 {
			t.Errorf("%s: %+v, %v", header, report, err)
		}
	}
}

// TestProtocolRelativeInFile: browsers open a page on disk with file:, where //host/ would lead nowhere; it stands for the site that the
// page is put on, which is read as https.
func TestProtocolRelativeInFile(t *testing.T) {
	r := stocked(t)
	cdn := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(alert)) }))
	t.Cleanup(cdn.Close)
	at := filepath.Join(t.TempDir(), "page.html")
	html := fmt.Sprintf(`<script src="//%s/ajax/libs/vue/3.0.0/vue.js" integrity="%s" crossorigin></script>`, cdn.Listener.Addr(), logs.SumSRI([]byte(alert)))
	if err := os.WriteFile(at, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	s := r.session()
	s.Options.Client = cdn.Client()
	report, err := s.VerifyPage(t.Context(), at, verify.PageOptions{Server: r.server.URL})
	if err != nil || report.Outcome != verify.Proven || report.Errors > 0 || report.References[0].URL != "https://"+cdn.Listener.Addr().String()+"/ajax/libs/vue/3.0.0/vue.js" {
		t.Errorf("%+v, %v", report, err)
	}
}
