package browsertest

import (
	"strings"
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
	{"about", "/about", 200},
}

// tolerateFailure says that answers which are no successes are right: the browser
// complains of each.
func (b *tab) tolerateFailure() { b.tolerate(`^network: Failed to load resource: .* (404|410) `) }

func TestPages(t *testing.T) {
	b := newTab(t)
	b.tolerateFailure()
	titles := map[string]string{}
	for _, p := range pages {
		if status := b.goTo(p.path); status != p.status {
			t.Errorf("%s answers %d, want %d", p.path, status, p.status)
		}
		title := eval[string](b, "document.title")
		if other, ok := titles[title]; ok && !strings.Contains(p.path, "file=") {
			t.Errorf("%s has the title %q of %s", p.name, title, other)
		}
		titles[title] = p.name
		if n := eval[int](b, "document.querySelectorAll('h1').length"); n != 1 {
			t.Errorf("%s has %d headings of the first level", p.name, n)
		}
	}
}

// TestPhone holds what no page may do on a small screen: be wider than that.
func TestPhone(t *testing.T) {
	b := newTab(t)
	b.tolerateFailure()
	for _, width := range []int64{320, 390} {
		b.screen(width, false)
		for _, p := range pages {
			b.goTo(p.path)
			if got := eval[int64](b, "document.scrollingElement.scrollWidth"); got > width {
				t.Errorf("%s is %d pixels wide on a screen of %d; too wide: %s", p.name, got, width, eval[string](b, tooWide))
			}
		}
	}
}

// tooWide names the innermost elements that stick out, but for what scrolls by itself.
const tooWide = `Array.from(document.body.querySelectorAll("*"))
	.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("[tabindex]:not(body)") && !e.querySelector("*"))
	.slice(0, 5).map(e => e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40)).join(", ")`

// TestDark holds what makes a page flash white in the dark: the colours must be known
// before the style sheet is there.
func TestDark(t *testing.T) {
	b := newTab(t)
	b.tolerateFailure()
	for _, dark := range []bool{false, true} {
		b.screen(1280, dark)
		for _, p := range pages {
			b.goTo(p.path)
			if scheme := eval[string](b, "document.head.querySelector('meta[name=color-scheme]')?.content ?? ''"); scheme != "light dark" && scheme != "dark light" {
				t.Fatalf("%s has the color-scheme %q in its head, want \"light dark\"", p.name, scheme)
			}
			if light := eval[float64](b, lightness); dark != (light < 0.5) {
				t.Errorf("%s with dark colours %v: the background's lightness is %.2f", p.name, dark, light)
			}
		}
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
