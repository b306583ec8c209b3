package verify_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/larder-cdn/larder/logs/verify"
)

// TestAgainstBrowser opens generated pages in Chromium and compares its requests with the report of each page: every script that
// Chromium requests has to be in it. LARDER_TEST_WHOLE=1 has 2,000 pages, and LARDER_TEST_SEED chooses others.
func TestAgainstBrowser(t *testing.T) {
	seed, pages := uint64(1), 60
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		pages = 2000
	}
	if text := os.Getenv("LARDER_TEST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	s := newPageServer(t)
	for n := range pages {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		page := generatePage(r, n)
		page.link = generateLink(r, n)
		s.pages = append(s.pages, page)
	}
	requests := s.browse(t)
	asked, unread, unneeded := 0, 0, 0
	for n, urls := range requests {
		report := s.verify(t, n)
		reported, needed := map[string]bool{}, map[string]bool{}
		readable := true
		for _, r := range report.References {
			reported[withoutUser(r.URL)] = true
			unknown := r.Kind == verify.Document || r.Kind == verify.Frame && r.Outcome == verify.Unproven
			readable = readable && !unknown && !strings.HasPrefix(r.Problem, "its address ")
		}
		if !readable {
			unread++ // such a page fails, whatever it loads
			continue
		}
		for _, at := range urls {
			asked++
			if at = withoutUser(at); !reported[at] {
				t.Errorf("page %d (LARDER_TEST_SEED=%d): Chromium loads %s, which is not in the report\n%q\n%q", n, seed, at, s.pages[n].data, slices.Sorted(keys(reported)))
			}
			needed[at] = true
		}
		for _, r := range report.References {
			if !needed[withoutUser(r.URL)] && (r.Kind == verify.ClassicScript || r.Kind == verify.ModuleScript) {
				unneeded++
			}
		}
	}
	t.Logf("%d pages, %d of which cannot be read; %d requests for scripts; %d scripts are reported that Chromium does not load", pages, unread, asked, unneeded)
	if asked < pages/2 || unread > pages/5 {
		t.Error("that is not enough to compare")
	}
}

// withoutUser removes the name and the password, which browsers send with some requests only.
func withoutUser(at string) string { return userPattern.ReplaceAllString(at, "//") }

var userPattern = regexp.MustCompile(`//[^/@]*@`)

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// A generatedPage is a page as a server sends it.
type generatedPage struct {
	data        string
	contentType string
	link        string // the Link header
}

// A pageServer has the pages and all that they load, under any host.
type pageServer struct {
	address string
	pages   []generatedPage
}

var pageNumber = regexp.MustCompile(`/p/(\d+)/`)

func newPageServer(t *testing.T) *pageServer {
	s := &pageServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		m := pageNumber.FindStringSubmatch(r.URL.Path)
		switch {
		case strings.HasSuffix(r.URL.Path, "/page") && m != nil:
			n, _ := strconv.Atoi(m[1])
			w.Header().Set("Content-Type", s.pages[n].contentType)
			if s.pages[n].link != "" {
				w.Header().Set("Link", s.pages[n].link)
			}
			_, _ = w.Write([]byte(s.pages[n].data))
		case strings.HasSuffix(r.URL.Path, ".html"):
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<script src=in-frame.js></script>"))
		case strings.HasSuffix(r.URL.Path, ".css"):
			w.Header().Set("Content-Type", "text/css")
		case strings.HasSuffix(r.URL.Path, "/m.js"):
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write([]byte("import './n.js'; import 'http://evil.test" + r.URL.Path + "/deep.js'"))
		default:
			w.Header().Set("Content-Type", "text/javascript")
		}
	}))
	t.Cleanup(server.Close)
	s.address = server.Listener.Addr().String()
	return s
}

// verify verifies a page, all hosts of which are its own, so that whatever it loads is looked into.
func (s *pageServer) verify(t *testing.T, n int, own ...string) *verify.PageReport {
	t.Helper()
	client := verify.NewClient()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.address)
	}
	defer client.CloseIdleConnections()
	session := &verify.Session{Known: &verify.Known{}, Timeout: time.Minute, Options: verify.Options{Client: client}}
	report, err := session.VerifyPage(t.Context(), fmt.Sprintf("http://page.test/p/%d/page", n), verify.PageOptions{Imports: generatedImports, Own: append(own, "http://page.test/", "http://evil.test/")})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var importPattern = regexp.MustCompile(`import\s*\(?\s*(?:"([^"\n]*)"|'([^'\n]*)')`)

// generatedImports finds the imports that generated scripts have. Those that mutations have broken may be found too.
func generatedImports(_ context.Context, module []byte) ([]string, error) {
	var names []string
	for _, m := range importPattern.FindAllSubmatch(module, -1) {
		names = append(names, strings.ReplaceAll(string(m[1])+string(m[2]), `\\`, `\`))
	}
	return names, nil
}

// findChromium returns where the browser is, or skips the test.
func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("CHROME_PATH"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium found")
	return ""
}

// browse opens every page and returns the scripts that Chromium requests for each.
func (s *pageServer) browse(t *testing.T) [][]string {
	allocator, _ := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(findChromium(t)), chromedp.Flag("headless", true), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-site-isolation-trials", true), chromedp.Flag("disable-features", "IsolateOrigins,site-per-process,IsolateSandboxedIframes,HttpsUpgrades"),
		chromedp.Flag("host-resolver-rules", "MAP * "+s.address))
	browser, stop := chromedp.NewContext(allocator)
	t.Cleanup(stop)
	if err := chromedp.Do(browser); err != nil {
		t.Fatal(err)
	}
	requests := make([][]string, len(s.pages))
	var mu sync.Mutex
	next := 0
	var tabs sync.WaitGroup
	for range 4 {
		tabs.Go(func() {
			current := -1
			tab, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(func(event any) {
				sent, ok := event.(*network.EventRequestWillBeSent)
				if !ok || sent.Type != network.ResourceTypeScript || !strings.HasPrefix(sent.Request.URL, "http") {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				n := current
				if m := pageNumber.FindStringSubmatch(sent.DocumentURL); m != nil && strings.HasSuffix(sent.DocumentURL, "/page") { // of the page before, maybe
					n, _ = strconv.Atoi(m[1])
				}
				if m := pageNumber.FindStringSubmatch(sent.Request.URL); m != nil && m[1] != "9999" && m[1] != strconv.Itoa(n) {
					return // of the page before
				}
				if n >= 0 && n < len(requests) && !slices.Contains(requests[n], sent.Request.URL) {
					requests[n] = append(requests[n], sent.Request.URL)
				}
			}))
			defer end()
			if err := chromedp.Do(tab); err != nil { // the tab lives as long as the context that it is opened with
				t.Error(err)
				return
			}
			for {
				mu.Lock()
				current = next
				next++
				n := current
				mu.Unlock()
				if n >= len(s.pages) {
					return
				}
				ctx, cancel := context.WithTimeout(tab, 20*time.Second)
				_ = chromedp.Do(ctx, chromedp.Navigate(fmt.Sprintf("http://page.test/p/%d/page", n))) // a page may replace itself
				cancel()
			}
		})
	}
	tabs.Wait()
	return requests
}

// generatePage makes a page of fragments that hide scripts, and changes some of its bytes.
func generatePage(r *rand.Rand, n int) generatedPage {
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	scripts := 0
	address := func() string {
		scripts++
		return strings.NewReplacer("N", strconv.Itoa(n), "S", strconv.Itoa(scripts)).Replace(pick(addresses))
	}
	var fragment func(depth int) string
	fragment = func(depth int) string {
		text := pick(fragments)
		for strings.Contains(text, "{U}") {
			text = strings.Replace(text, "{U}", address(), 1)
		}
		for strings.Contains(text, "{J}") { // in a string of JavaScript
			text = strings.Replace(text, "{J}", strings.ReplaceAll(address(), `\`, `\\`), 1)
		}
		for strings.Contains(text, "{F}") {
			inner := ""
			if depth < 3 {
				inner = fragment(depth + 1)
			}
			text = strings.Replace(text, "{F}", inner, 1)
		}
		for strings.Contains(text, "{Q}") {
			text = strings.Replace(text, "{Q}", strings.NewReplacer("&", "&amp;", `"`, "&quot;").Replace(fragment(depth+2)), 1)
		}
		return text
	}
	var b strings.Builder
	b.WriteString(pick([]string{"<!doctype html>", "", "<!doctype html><meta charset=utf-8>", "<html><head>", "<meta charset=windows-1251>"}))
	for range 1 + r.IntN(4) {
		b.WriteString(fragment(0))
		b.WriteString(pick([]string{"", "\n", "</p>", "text", "</div></svg>", "</table>"}))
	}
	text := b.String()
	if r.IntN(2) == 0 {
		for range 1 + r.IntN(4) {
			at := r.IntN(len(text))
			switch r.IntN(4) {
			case 0:
				text = text[:at] + text[at+1:]
			case 1:
				end := min(len(text), at+r.IntN(30))
				text = text[:end] + text[at:]
			default:
				text = text[:at] + pick(disturbances) + text[at:]
			}
			if text == "" {
				break
			}
		}
	}
	return encodePage(r, text)
}

// generateLink returns the Link header of some pages.
func generateLink(r *rand.Rand, n int) string {
	if r.IntN(5) > 0 {
		return ""
	}
	var links []string
	for i := range 1 + r.IntN(3) {
		address := strings.NewReplacer("N", strconv.Itoa(n), "S", fmt.Sprint("link", i), "\n", "", "\t", "").Replace(addresses[r.IntN(len(addresses))])
		parameters := linkParameters[r.IntN(len(linkParameters))]
		links = append(links, "<"+address+">"+parameters)
	}
	return strings.Join(links, []string{",", ", ", " , ,", ";,"}[r.IntN(4)])
}

var linkParameters = []string{
	";rel=preload;as=script", `; rel="preload"; as="script"; crossorigin`, "; REL=PRELOAD; AS=script", " ; rel = modulepreload", `; title="a, b; \"<c>\""; rel="x preload"; as=script`, "; as=script", "; rel=preload; as=style", "; rel=preload; as=script; nonsense",
	`; rel="preload`, "; rel=modulepreload <", "rel=preload", ";;rel=preload;as=script", `; rel='preload'; as=script`, "; rel=preload; rel=x; as=script", "; rel=x; rel=preload; as=script",
}

// encodePage sends some pages in other encodings.
func encodePage(r *rand.Rand, text string) generatedPage {
	var order binary.AppendByteOrder = binary.LittleEndian
	switch r.IntN(20) {
	case 0:
		order = binary.BigEndian
		fallthrough
	case 1:
		data := order.AppendUint16(nil, 0xfeff)
		for _, c := range text {
			data = order.AppendUint16(data, uint16(c))
		}
		return generatedPage{data: string(data), contentType: "text/html"}
	case 2:
		return generatedPage{data: "\xef\xbb\xbf" + text, contentType: "text/html; charset=iso-8859-1"}
	case 3:
		return generatedPage{data: text, contentType: "text/html; charset=shift_jis"}
	case 4:
		return generatedPage{data: text, contentType: "text/html"}
	}
	return generatedPage{data: text, contentType: "text/html; charset=utf-8"}
}

// In addresses, N is the number of the page, and S that of the script in it.
var addresses = []string{
	"http://evil.test/p/N/S.js", "//evil.test/p/N/S.js", `\\evil.test\p\N\S.js`, "/p/N/S.js", "S.js", "./S.js?a=b&amp;c=d e", "../N/S.js#x", "http:/\\evil.test/p/N/S.js",
	"http://ev\til.test/p/N/\nS.js", "  http://evil.test/p/N/S.js  ", "/\\evil.test/p/N/S.js", "http:///evil.test/p/N/S.js", "http:S.js", "https://evil.test/p/N/S.js", "http://EVIL.test:80/p/N/S.js",
	"http://evil.test/p/N/x/%2e%2E/S.js", "http://evil.test/p/N/x/..\\S.js", "&#104;ttp://evil.test/p/N/S.js", "http&colon;//evil&period;test/p/N/S.js", "http://ｅvil.test/p/N/S.js", "http://user:pw@evil.test/p/N/S.js",
	"/p/N/%zz|{S}.js?'\"", "/p/N/m.js", "http://evil.test/p/N/m.js", "data:text/javascript,1", "/p/N/é S.js", "?S.js", "javascript:1", "&Tab;//evil.test/p/N/S.js", "http://evil.test:0080/p/N/^S.js", "HTTP://evil.test/p/N/./.%2e/N/S.js",
	"http://%65vil.test/p/N/S.js", "http://evil.test\\@page.test/p/N/S.js", "https:/p/N/S.js",
}

var fragments = []string{
	`<script src="{U}"></script>`, `<script src='{U}' async></script>`, "<script src={U}></script>", `<SCRIPT/SRC="{U}"/></SCRIPT>`, `<script type="module" src="{U}"></script>`, `<script src="{U}">var a = "<!--<script>"</script>`,
	`<svg><script href="{U}"></script></svg>`, `<svg><script xlink:href="{U}"/></svg>`, `<svg><g><script href="{U}" />{F}</g></svg>`, `<svg><foreignObject>{F}</foreignObject></svg>`, "<svg><desc>{F}</desc></svg>", "<svg><title>{F}</title></svg>",
	"<svg><style>{F}</style></svg>", "<svg><![CDATA[{F}]]></svg>", "<svg><p>{F}", "<math><mi>{F}</mi></math>", `<math><annotation-xml encoding="text/html">{F}</annotation-xml></math>`, "<math><mtext><table><mglyph>{F}", "<math>{F}</math>",
	`<iframe srcdoc="{Q}"></iframe>`, `<iframe src="/p/9999/frame.html"></iframe>`, "<iframe>{F}</iframe>", `<iframe src="data:text/html,<script src=http://evil.test/data.js></script>"></iframe>`,
	`<object data="http://evil.test/p/9999/frame.html"></object>`, `<embed src="/frame.html">`, "<table>{F}</table>", "<table><tr><td>{F}<caption>{F}", "<select>{F}</select>", "<select><option>{F}", "<template>{F}</template>", `<div><template shadowrootmode="open">{F}</template></div>`,
	"<noscript>{F}</noscript>", "<textarea>{F}</textarea>", "<title>{F}</title>", "<style>{F}</style>", "<xmp>{F}</xmp>", "<noembed>{F}</noembed>", "<!-- {F} -->", "<!-->{F}-->", "<!--->{F}", "<!-- --!>{F}", "<? {F} ?>", "<!{F}>", "</{F}>",
	"<form>{F}<form>{F}", "<button><p>{F}</button>", "<b><i><p>{F}</b>{F}</i>", "<a href=x>{F}<a>{F}", `<p title="{Q}">`, "<p title='{F}'>", "<p title=`{F}`>", `<p a="1"{F}`, "<frameset><frame src=/p/9999/frame.html></frameset>", "<plaintext>{F}",
	`<base href="http://evil.test/based/">`, `<base href="{U}">`, `<base target="x">`, `<link rel="preload" as="script" href="{U}">`, `<link rel="modulepreload" href="{U}">`, `<link rel="stylesheet" href="/a.css">`,
	`<script type="module">import "{J}"</script>`, `<script type=module>import 'bare'; import "./m.js"</script>`, `<script type="importmap">{"imports": {"bare": "{J}"}}</script>`, `<script>import("{J}")</script>`, `<script type="text/x-template">{F}</script>`,
	`<script language="javascript" src="{U}"></script>`, `<script type=" TEXT/javascript " src="{U}"></script>`, `<script type="text/javascript;a=b" src="{U}"></script>`, `<script nomodule src="{U}"></script>`, "<script>\nvar a = '</scr' + 'ipt>'\n</script>",
	`<script for=x event=y src="{U}"></script>`, `<link rel="PRELOAD modulepreload" as=script href="{U}">`, "<head>{F}</head>", "<body>{F}</body>", "</body>{F}", "</html>{F}", "<dialog>{F}</dialog>", "<marquee>{F}", "<image src=x>{F}", "<isindex>{F}", "<br/>{F}",
	"<search>{F}</search>", "<noframes>{F}</noframes>", "<audio><video><source>{F}", "<ruby><rtc>{F}", "<nobr>{F}<nobr>{F}", "<h1>{F}<h2>{F}", "<li>{F}<dd>{F}", "<colgroup>{F}", "<svg><a><p>{F}", "<svg><use href='#'>{F}", "<svg></p><style><!--</style>{F}-->",
}

var disturbances = []string{
	"<", ">", `"`, "'", "/", "=", "\x00", "<!--", "-->", "</script>", "<script>", "\r", "\t", "\f", "<svg>", "</svg>", "<math>", "<table>", "</table>", "<p>", "</p>", "]]>", "<![CDATA[", "&lt;", "&", "<b>", "</b>", "<select>", "</select>",
	"<template>", "</template>", "<style>", "</style>", "<title>", "</title>", "<desc>", "<br>", "--!>", "\\", " ", "é", "\xff", "<textarea>", "</textarea>", "<a>", "</a>", "<td>", "<noscript>", "</noscript>", "<form>", "</form>",
}
