package browsertest

import (
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// A page is one that people may come to.
type page struct {
	name   string
	path   string
	status int64
}

// pages are all kinds of pages, with little and with much to show.
var pages = []page{
	{"home", "/", 200},
	{"search", "/search?q=fruit", 200},
	{"search without results", "/search?q=nothingislikethis", 200},
	{"all libraries", "/search", 200},
	{"library", "/library/pickle", 200},
	{"older version", "/library/pickle/1.0.0", 200},
	{"module", "/library/preserve/1.1.0", 200},
	{"style sheet", "/library/shelf-css/3.2.1", 200},
	{"picture", "/library/shelf-css/3.2.1?file=images%2Fwood.png", 200},
	{"many files", "/library/pantry/1.0.0", 200},
	{"nothing published", "/library/empty-jar", 200},
	{"withdrawn", "/library/jam/1.0.0", 410},
	{"unknown library", "/library/pikcle", 404},
	{"unknown version", "/library/pickle/9.9.9", 404},
	{"compare", "/compare/pickle?from=1.1.0&to=2.0.0", 200},
	{"difference of a file", "/compare/pickle?from=1.1.0&to=2.0.0&file=pickle.js", 200},
	{"folder", "/files/pickle/2.0.0", 200},
	{"folder of many files", "/files/pantry/1.0.0/shelf", 200},
	{"source", "/files/pickle/2.0.0/pickle.js", 200},
	{"source of a style sheet", "/files/shelf-css/3.2.1/css/shelf.css", 200},
	{"no source", "/files/shelf-css/3.2.1/images/wood.png", 200},
	{"unknown file", "/files/pickle/2.0.0/pikcle.js", 404},
	{"unknown page", "/nowhere/pickle", 404},
	{"choice of files", "/recipe/pickle/2.0.0", 200},
	{"tags of files", "/recipe/preserve/1.1.0?file=preserve.mjs", 200},
	{"history", "/history/pickle", 200},
	{"history of one state", "/history/pickle?state=published", 200},
	{"history of a refusal", "/history/empty-jar", 200},
	{"history of a withdrawal", "/history/jam", 200},
	{"log", "/history", 200},
	{"log of a library", "/history?package=jam&kind=published", 200},
	{"log of nothing", "/history?package=nothing", 200},
	{"log entry", "/history?entry=0", 200},
	{"history of a version", "/history/pickle/2.0.0", 200},
	{"history of a version of many files", "/history/pantry/1.0.0?page=2", 200},
	{"history of a withdrawn version", "/history/jam/1.0.0", 200},
	{"statistics", "/statistics", 200},
	{"waiting rooms", "/rooms?live=off", 200},
	{"waiting room", "/rooms/downloads?live=off", 200},
	{"API", "/docs", 200},
	{"routes of the API", "/docs/libraries", 200},
	{"schemas of the API", "/docs/schemas", 200},
	{"about", "/about", 200},
}

// rendered matches the paths of pages with something that a worker renders.
var rendered = regexp.MustCompile(`^/(library|files|compare|recipe)/`)

// tolerateFailure says that answers which are no successes are right: the browser
// complains of each.
func (b *tab) tolerateFailure() { b.tolerate(`^network: Failed to load resource: .* (404|410) `) }

// complete reports whether each check loads its page again and everything is checked at each width. In the short form a page is
// loaded once, on a phone, and then only resized. Tests call it, so that go test sees that their results
// depend on the variable.
func complete() bool { return os.Getenv("LARDER_TEST_WHOLE") != "" }

// TestPages checks each kind of page in all ways. It is not parallel itself, so that it ends before the parallel tests,
// which download files, change what the statistics and the waiting rooms show.
func TestPages(t *testing.T) {
	open(t)
	sweep := &sweep{titles: map[string]string{}, outlines: map[string][]string{}}
	t.Run("page", func(t *testing.T) {
		for i, p := range pages {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				b := newTab(t)
				if p.status == 200 && rendered.MatchString(p.path) {
					getRendered(t, b.address+p.path)
				}
				b.tolerateFailure()
				sweep.checkOnPhone(b, p, i)
				sweep.checkOnDesktop(b, p, i)
			})
		}
		t.Run(suggestions, func(t *testing.T) {
			t.Parallel()
			b := newTab(t)
			for _, width := range outlined {
				b.visit("/")
				b.screen(width, false)
				b.suggest("e")
				sweep.draw(b, suggestions, width)
			}
		})
	})
	sweep.compareTitles(t)
	sweep.compareOutlines(t)
}

// A sweep collects what is compared once all pages have been loaded.
type sweep struct {
	mu       sync.Mutex
	titles   map[string]string   // by the name of the page
	outlines map[string][]string // by their headings
}

// checkOnPhone loads a page on the smallest screen.
func (s *sweep) checkOnPhone(b *tab, p page, index int) {
	b.Helper()
	b.screen(320, false)
	if status := b.goTo(p.path); status != p.status {
		b.Errorf("%s answers %d, want %d", p.path, status, p.status)
	}
	title := eval[string](b, "document.title")
	s.mu.Lock()
	s.titles[p.name] = title
	s.mu.Unlock()
	if n := eval[int](b, "document.querySelectorAll('h1').length"); n != 1 {
		b.Errorf("%s has %d headings of the first level", p.name, n)
	}
	b.checkWidth(p, 320)
	b.show(p, 390, false)
	b.checkWidth(p, 390)
	s.draw(b, p.name, 390)
	if complete() || index%3 == 0 {
		b.checkVisible(p, 390)
	}
}

// checkOnDesktop shows a page on a wide screen in the dark.
func (s *sweep) checkOnDesktop(b *tab, p page, index int) {
	b.Helper()
	b.show(p, 1280, true)
	b.checkScheme(p, true)
	b.show(p, 1280, false)
	b.checkScheme(p, false)
	s.draw(b, p.name, 1280)
	if complete() || index%3 == 2 {
		b.checkVisible(p, 1280)
	}
	if complete() || index%3 == 1 {
		b.show(p, 820, false)
		b.checkVisible(p, 820)
	}
}

// show changes the screen, and loads the page anew where there is time.
func (b *tab) show(p page, width int64, dark bool) {
	b.Helper()
	b.screen(width, dark)
	if complete() {
		b.goTo(p.path)
	}
}

func (s *sweep) compareTitles(t *testing.T) {
	t.Helper()
	first := map[string]string{}
	for _, p := range pages {
		title, ok := s.titles[p.name]
		if !ok {
			continue // -run chose others
		}
		if other, ok := first[title]; ok && !strings.Contains(p.path, "file=") {
			t.Errorf("%s has the title %q of %s", p.name, title, other)
		}
		first[title] = p.name
	}
}

// checkWidth holds what no page may do on a small screen: be wider than that.
func (b *tab) checkWidth(p page, width int64) {
	b.Helper()
	if got := eval[int64](b, "document.scrollingElement.scrollWidth"); got > width {
		b.Errorf("%s is %d pixels wide on a screen of %d; too wide: %s", p.name, got, width, eval[string](b, tooWide))
	}
}

// tooWide names the innermost elements that stick out, but for what scrolls by itself.
const tooWide = `Array.from(document.body.querySelectorAll("*"))
	.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("[tabindex]:not(body)") && !e.querySelector("*"))
	.slice(0, 5).map(e => e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40)).join(", ")`

// checkScheme holds what makes a page flash white in the dark: the colours must be known
// before the style sheet is there.
func (b *tab) checkScheme(p page, dark bool) {
	b.Helper()
	if scheme := eval[string](b, "document.head.querySelector('meta[name=color-scheme]')?.content ?? ''"); scheme != "light dark" && scheme != "dark light" {
		b.Errorf("%s has the color-scheme %q in its head, want \"light dark\"", p.name, scheme)
	}
	if light := eval[float64](b, lightness); dark != (light < 0.5) {
		b.Errorf("%s with dark colours %v: the background's lightness is %.2f", p.name, dark, light)
	}
}

// lightness is that of the page's background, from 0 to 1.
const lightness = `(() => {
	const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	for (const e of [document.body, document.documentElement]) {
		const colour = getComputedStyle(e).backgroundColor;
		probe.clearRect(0, 0, 1, 1);
		probe.fillStyle = colour;
		probe.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
		if (a > 0) {
			return (r + g + b) / 3 / 255;
		}
	}
	return matchMedia("(prefers-color-scheme: dark)").matches ? 0 : 1; // the browser's own
})()`
