package browsertest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

// get asks the instance without a browser.
func get(t *testing.T, address string) []byte {
	t.Helper()
	response, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", address, response.Status, err)
	}
	return body
}

// getRendered returns a page once a worker has rendered all that it shows: on a loaded machine a page shows plain text first.
func getRendered(t *testing.T, address string) []byte {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; { // far longer than anything takes
		body := get(t, address)
		if !bytes.Contains(body, []byte("page in a moment")) {
			return body
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not rendered in ten minutes", address)
		}
	}
}

// integrity is what the API says of a file.
func (b *tab) integrity(name, version, file string) string {
	b.Helper()
	var answer struct{ SRI map[string]string }
	if err := json.Unmarshal(get(b.T, fmt.Sprintf("%s/libraries/%s/%s?fields=sri", b.address, name, version)), &answer); err != nil {
		b.Fatal(err)
	}
	if answer.SRI[file] == "" {
		b.Fatalf("the API knows no integrity of %s %s %s", name, version, file)
	}
	return answer.SRI[file]
}

// copied presses the one copy button with such a name and returns what the clipboard
// has then. The page must say so to users who cannot see it.
func (b *tab) copied(button string) string {
	b.Helper()
	clipboardInUse.Lock()
	defer clipboardInUse.Unlock()
	b.emptyClipboard()
	b.find("button", button).click()
	var text string
	b.wait("something in the clipboard", func() bool {
		text = b.clipboard()
		return text != "nothing yet"
	})
	b.wait("a word about it", func() bool {
		return eval[bool](b, `Array.from(document.querySelectorAll("[role=status], [aria-live=polite], [aria-live=assertive]")).some(e => /copied/i.test(e.textContent))`)
	})
	return text
}

func TestVersionPicker(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/pickle")
	picker := b.find("combobox", "^Version$")
	versions := on[[]string](picker, "function() { return Array.from(this.options, o => o.value) }")
	if want := []string{"2.1.0-beta.1", "2.0.0", "1.1.0", "1.0.0"}; !slices.Equal(versions, want) {
		t.Errorf("the picker has %q, want %q", versions, want)
	}
	if got := on[string](picker, "function() { return this.value }"); got != "2.0.0" {
		t.Errorf("the picker shows %q for the latest version", got)
	}
	picker.focus()
	b.press("1.0")
	b.press(kb.Enter)
	b.untilAt("/library/pickle/1.0.0")
	if got := on[string](b.find("combobox", "^Version$"), "function() { return this.value }"); got != "1.0.0" {
		t.Errorf("the picker shows %q at 1.0.0", got)
	}
}

func TestCopies(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.allowClipboard()
	b.visit("/library/pickle/2.0.0")
	address := b.address + "/ajax/libs/pickle/2.0.0/pickle.min.js"
	integrity := b.integrity("pickle", "2.0.0", "pickle.min.js")
	for button, want := range map[string]string{
		scriptTag:                       fmt.Sprintf(`<script src="%s" integrity="%s" crossorigin="anonymous"></script>`, address, html.EscapeString(integrity)),
		`^Copy URL of pickle\.min\.js$`: address,
		`^Copy SRI of pickle\.min\.js$`: integrity,
	} {
		if got := b.copied(button); got != want {
			t.Errorf("%s copies\n%s\nwant\n%s", button, got, want)
		}
	}
}

// TestCopiesByKeyboard copies the tag with nothing but the keyboard, and sees at each
// stop where the focus is.
func TestCopiesByKeyboard(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.allowClipboard()
	b.visit("/library/pickle/2.0.0")
	button := b.find("button", scriptTag)
	const most = 60
	for n := 0; ; n++ {
		if n == most {
			t.Fatalf("%v cannot be reached with %d presses of the tabulator", button, most)
		}
		b.press(kb.Tab)
		b.until(inView) // the page scrolls there
		if where := eval[string](b, unseenFocus); where != "" {
			t.Errorf("the focus cannot be seen at stop %d, %s", n, where)
		}
		if button.focused() {
			break
		}
	}
	clipboardInUse.Lock()
	defer clipboardInUse.Unlock()
	b.emptyClipboard()
	b.press(kb.Enter)
	b.wait("a tag in the clipboard", func() bool { return strings.HasPrefix(b.clipboard(), "<script ") })
}

// inView is whether what has the focus is on the screen.
const inView = `(() => {
	const box = document.activeElement.getBoundingClientRect();
	return document.activeElement === document.body || box.bottom > 0 && box.top < innerHeight;
})()`

// unseenFocus describes what has the focus where users cannot see that it has, or is "".
const unseenFocus = `(() => {
	const e = document.activeElement;
	if (e === document.body) {
		return "";
	}
	const looks = () => {
		document.getAnimations().forEach(a => a.finish());
		const around = [];
		for (let a = e; a !== document.body; a = a.parentElement) {
			const s = getComputedStyle(a);
			around.push([s.outlineStyle, s.outlineWidth, s.outlineColor, s.boxShadow, s.borderColor, s.backgroundColor]);
		}
		return JSON.stringify(around);
	};
	const box = e.getBoundingClientRect();
	const inside = box.width > 1 && box.height > 1 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
	const focused = looks();
	e.blur();
	const marked = looks() !== focused;
	e.focus({preventScroll: true});
	return marked && inside ? "" : e.outerHTML.slice(0, 120) + (marked ? " is outside of the screen" : " looks as without it");
})()`

func TestManyFiles(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/pantry/1.0.0")
	if n := eval[int](b, "document.querySelectorAll('*').length"); n > 6000 {
		t.Errorf("a page of a release with %d files has %d elements", manyFiles, n)
	}
	b.find("link", "^Next").click()
	b.until(`location.search.includes("page=2") && document.readyState === "complete"`)
	box := b.find("searchbox", "^Filter by path$")
	box.focus()
	b.press("jar-123")
	b.press(kb.Enter)
	b.until(`location.search.includes("filter=jar-123") && document.readyState === "complete"`)
	b.until(`document.body.textContent.includes("shelf/jar-123.json") && !document.body.textContent.includes("shelf/jar-124.json")`)
}

func TestNothingPublished(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/empty-jar")
	b.says("selects none of the release")
	b.find("link", "^More in the history$").click()
	b.untilAt("/history/empty-jar")
	b.says("refused")
}

func TestWithdrawn(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.tolerateFailure()
	if status := b.goTo("/library/jam/1.0.0"); status != 410 {
		t.Errorf("the page of a withdrawn version answers %d", status)
	}
	b.says(regexp.QuoteMeta(withdrawnReason))
	b.visit("/library/jam")
	if got := on[[]string](b.find("combobox", "^Version$"), "function() { return Array.from(this.options, o => o.value) }"); !slices.Equal(got, []string{"1.0.1"}) {
		t.Errorf("the picker has %q beside a withdrawn version", got)
	}
	b.visit("/history/jam")
	b.says("withdrawn")
	b.says(regexp.QuoteMeta(withdrawnReason))
}

func TestUnknownLibrary(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.tolerateFailure()
	if status := b.goTo("/library/pikcle"); status != 404 {
		t.Errorf("the page of an unknown library answers %d", status)
	}
	b.find("link", "^pickle$").click() // what was meant
	b.untilAt("/library/pickle")
}

func TestCompare(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/pickle/2.0.0")
	b.find("link", "^Changes since 1.1.0$").click()
	b.until(`location.pathname === "/compare/pickle" && document.readyState === "complete"`)
	b.says(`legacy\.js`)
	b.says(`pickle\.js\.map`)
	for name, version := range map[string]string{"^From$": "1.1.0", "^to$": "2.0.0"} {
		if got := on[string](b.find("combobox", name), "function() { return this.value }"); got != version {
			t.Errorf("the picker %q shows %q, want %q", name, got, version)
		}
	}
	b.find("combobox", "^From$").focus()
	b.press("1.0")
	b.find("button", "^Compare$").click()
	b.untilAt("/compare/pickle?from=1.0.0&to=2.0.0")
}

func TestHistory(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/pickle")
	b.find("link", "^History$").click()
	b.untilAt("/history/pickle")
	for _, version := range []string{"1.0.0", "1.1.0", "2.0.0", "2.1.0-beta.1"} {
		b.find("link", `^`+regexp.QuoteMeta(version)+"$")
	}
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/statistics")
	b.says(`\b5\s+libraries`)
	b.find("link", "^pickle$")
}

func TestDownload(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/pickle/2.0.0")
	address := on[string](b.find("link", `^Download .tar.gz$`), "function() { return this.href }")
	zipped, err := gzip.NewReader(bytes.NewReader(get(t, address)))
	if err != nil {
		t.Fatal(err)
	}
	if archive, err := io.ReadAll(zipped); err != nil || !bytes.Contains(archive, []byte("pickle.min.js")) {
		t.Errorf("%s is no archive of the release: %v", address, err)
	}
	address = on[string](b.find("link", `^Download .zip$`), "function() { return this.href }")
	if archive := get(t, address); !bytes.HasPrefix(archive, []byte("PK")) {
		t.Errorf("%s is no archive", address)
	}
}
