package browsertest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A waitingRoom is a site with room for one user.
type waitingRoom struct {
	url     string
	rush    atomic.Int64 // how far its clock is ahead
	rooms   *waitingroom.Rooms
	streams atomic.Int64 // event streams that are open
	most    atomic.Int64 // event streams that have been open at once
}

// serve counts the event streams, which are served by next like all else.
func (w *waitingRoom) serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			w.most.Store(max(w.most.Load(), w.streams.Add(1)))
			defer w.streams.Add(-1)
		}
		next.ServeHTTP(rw, r)
	})
}

func (w *waitingRoom) now() time.Time { return time.Now().Add(time.Duration(w.rush.Load())) }

const roomForOne = `- {name: shop, path: /, total_active_users: 1, new_users_per_minute: 1, session_duration: 1, refresh_interval: %d}`

func openRoom(t *testing.T) *waitingRoom {
	t.Helper()
	return openRoomBefore(t, 5, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><main><h1>Welcome to the shop</h1></main>`)
	})
}

// openRoomBefore opens the room before a site. The waiting page refreshes itself after so many seconds.
func openRoomBefore(t *testing.T, refresh int, site http.HandlerFunc) *waitingRoom {
	t.Helper()
	w := &waitingRoom{}
	rooms, err := config.Parse("rooms.yaml", fmt.Appendf(nil, roomForOne, refresh))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := waitingroom.OpenKeys(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	store, err := kvstore.Open(filepath.Join(t.TempDir(), "store"), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	runtime := durable.New(store, durable.Options{Now: w.now})
	opened, err := waitingroom.New(waitingroom.Options{Rooms: rooms, Keys: keys, Runtime: runtime, Now: w.now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		opened.Run(ctx)
	}()
	server := httptest.NewServer(w.serve(opened.Handler(site)))
	w.url, w.rooms = server.URL, opened
	t.Cleanup(func() {
		opened.EndStreams()
		server.Close()
		cancel()
		<-done
		if err := runtime.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestWaitingRoom is a visitor's: the shop is full, the page updates its place, title and live region without a reload, and one day
// the shop is open.
func TestWaitingRoom(t *testing.T) {
	t.Parallel()
	open(t)
	w := openRoom(t)
	inside := newTabOn(t, &instance{address: w.url})
	inside.visit("/")
	inside.says("welcome to the shop")

	b := newTabOn(t, &instance{address: w.url})
	b.visit("/")
	b.says("you are in line")
	b.says("estimated wait")
	b.says("your place in line")
	b.says("people ahead of you")
	eval[any](b, `window.loadedOnce = true`)
	b.until(`document.title.startsWith("1 · You are in line")`)
	b.until(`document.querySelector("[role=status]").textContent.includes("Your place in line: 1")`)
	// What a screen reader has of the page: its title, the place as a list of terms, and the region that it reads out when it changes.
	b.find("RootWebArea", `^1 · You are in line$`)
	b.find("heading", `^You are in line$`)
	region := b.find("status", "")
	if live := region.property("live"); live != "polite" {
		t.Errorf("the live region is %q", live)
	}
	b.find("StaticText", `^Estimated wait: .*Your place in line: 1\. People ahead of you: 0$|^Your place in line: 1\. People ahead of you: 0$`)
	for _, term := range []string{"Estimated wait", "Your place in line", "People ahead of you"} {
		b.find("StaticText", "^"+term+"$")
	}
	if images := b.all("image", ""); len(images) != 0 {
		t.Errorf("the drawing is not hidden from screen readers: %v", images)
	}
	first := eval[string](b, `document.querySelector(".checked").innerText`)
	b.until(fmt.Sprintf(`document.querySelector(".checked") && document.querySelector(".checked").innerText !== %q`, first)) // without a click
	b.says("you are in line")
	if !eval[bool](b, `window.loadedOnce === true`) {
		t.Error("the page reloads itself although it has an event stream")
	}

	w.rush.Add(int64(3 * time.Minute)) // the visitors inside have gone
	b.says("welcome to the shop")
}

// TestWaitingRoomTabs has ten tabs of a browser wait for different pages over HTTP/1.1, which gives them six connections: one event stream
// does for all, each tab shows the place and can be used, and all enter with one slot. When the tab that holds the stream closes, another one takes it over.
func TestWaitingRoomTabs(t *testing.T) {
	t.Parallel()
	open(t)
	w := openRoomBefore(t, 30, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><main><h1>Welcome to the shop</h1></main>`)
	})
	full, err := http.Get(w.url) // it is now
	if err != nil {
		t.Fatal(err)
	}
	full.Body.Close()
	first := newTabOn(t, &instance{address: w.url})
	tabs := []*tab{first}
	for range 9 {
		tabs = append(tabs, first.another())
	}
	for i, b := range tabs {
		b.visit(fmt.Sprintf("/page/%d", i))
	}
	for _, b := range tabs {
		b.until(`document.documentElement.classList.contains("live") && document.title.startsWith("1 · You are in line")`)
	}
	first.wait("one stream", func() bool { return w.streams.Load() == 1 })
	for i, b := range tabs {
		if eval[bool](b, "Boolean(stream)") {
			b.do(chromedp.Navigate("about:blank"))
			tabs = append(tabs[:i], tabs[i+1:]...)
			break
		}
	}
	tabs[0].wait("another tab holds the stream", func() bool {
		for _, b := range tabs {
			if held, err := tryEval[bool](b, "Boolean(stream)"); err == nil && held {
				return true
			}
		}
		return false
	})
	w.rush.Add(int64(3 * time.Minute)) // the visitor inside has gone
	for _, b := range tabs {
		b.says("welcome to the shop")
	}
	if s, _ := w.rooms.Status("shop"); s.Active != 1 {
		t.Errorf("%d slots are used", s.Active)
	}
	if n := w.most.Load(); n > 5 {
		t.Errorf("%d event streams were open at once", n)
	}
}

// TestWaitingRoomAccessible holds the waiting visitor's page against axe-core, on a phone and on
// a desktop, in light and in dark colours, from left and from right.
func TestWaitingRoomAccessible(t *testing.T) {
	script, err := os.ReadFile(axe)
	if err != nil {
		without(t, fmt.Errorf("no axe-core: %w; `make audit` fetches it", err))
	}
	w := openRoomBefore(t, 30, http.NotFound)
	full, err := http.Get(w.url) // it is now
	if err != nil {
		t.Fatal(err)
	}
	full.Body.Close()
	for i, language := range []string{"en", "ar", "ja", "fa", "hu"} {
		b := newTabOn(t, &instance{address: w.url})
		alter(b, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: "Mozilla/5.0", AcceptLanguage: language})
		for k, s := range screens {
			if !auditing && i > 0 && k%len(screens) != i%len(screens) {
				continue
			}
			s.set(b)
			b.visit("/")
			if got := eval[string](b, "document.documentElement.lang"); got != language {
				t.Fatalf("the page speaks %s, not %s", got, language)
			}
			eval[any](b, string(script)+"; undefined")
			s.check(b, language)
		}
	}
}

// A screen is how a page is looked at.
type screen struct {
	width  int64
	dark   bool
	forced bool // colours, as in Windows' high contrast
}

var screens = []screen{{390, false, false}, {390, true, false}, {1280, false, false}, {1280, true, false}, {390, true, true}, {1280, false, true}}

func (s screen) set(b *tab) {
	b.Helper()
	b.screen(s.width, s.dark)
	if s.forced {
		scheme := map[bool]string{true: "dark", false: "light"}[s.dark]
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: "active"}, {Name: "prefers-color-scheme", Value: scheme}},
		})
	}
}

// check holds a page that has axe-core against it, and its width.
func (s screen) check(b *tab, name string) {
	b.Helper()
	if got := eval[bool](b, `matchMedia("(forced-colors: active)").matches`); got != s.forced {
		b.Fatalf("%s, %+v: colours are forced is %v", name, s, got)
	}
	// Where colours are forced they are the system's, and axe would compare one of them with one that is not shown.
	run := fmt.Sprintf(`(document.getAnimations().forEach(a => a.cancel()), axe.run(document, {resultTypes: ["violations"], rules: {"color-contrast": {enabled: %v}}}).then(r => r.violations))`, !s.forced)
	for _, v := range eval[[]violation](b, run) {
		for _, n := range v.Nodes {
			b.Errorf("%s, %+v: %s (%s): %v: %s", name, s, v.ID, v.Help, n.Target, n.FailureSummary)
		}
	}
	if wide := eval[float64](b, "document.documentElement.scrollWidth"); wide > float64(s.width) {
		b.Errorf("%s, %+v: the page is %v px wide", name, s, wide)
	}
}

// TestWaitingRoomTimes tells the visitor times in the visitor's own zone, and in UTC where there are no scripts.
func TestWaitingRoomTimes(t *testing.T) {
	t.Parallel()
	open(t)
	w := openRoom(t)
	full, err := http.Get(w.url) // it is now
	if err != nil {
		t.Fatal(err)
	}
	full.Body.Close()
	for _, scripts := range []bool{true, false} {
		b := newTabOn(t, &instance{address: w.url})
		alter(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"})
		alter(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts})
		b.visit("/")
		b.says("last checked at")
		got := eval[string](b, `document.querySelector(".checked time").innerText`)
		if strings.Contains(got, "GMT+9") != scripts || strings.Contains(got, "UTC") == scripts {
			t.Errorf("scripts %v: the page was last checked at %s", scripts, got)
		}
	}
}

// TestAssetsOnce has an admitted visitor look at two pages: what both are made with is fetched once, although there
// is a room in front of it.
func TestAssetsOnce(t *testing.T) {
	t.Parallel()
	open(t)
	var mu sync.Mutex
	asked := map[string]int{}
	w := openRoomBefore(t, 5, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/shop.css":
			w.Header().Set("Content-Type", "text/css")
			w.Header().Set("Cache-Control", "public, max-age=3600, s-maxage=60")
			_, _ = io.WriteString(w, "h1 { color: rebeccapurple }")
		case "/shop.js":
			w.Header().Set("Content-Type", "text/javascript")
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = io.WriteString(w, "document.documentElement.dataset.ran = 'yes'")
		case "/jar.svg":
			w.Header().Set("Content-Type", "image/svg+xml")
			w.Header().Set("Cache-Control", "max-age=31536000, immutable")
			_, _ = io.WriteString(w, `<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><rect width="10" height="10"/></svg>`)
		default:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/shop.css"><script type="module" src="/shop.js" crossorigin="anonymous"></script><main><h1>Page %s</h1><img src="/jar.svg" alt="a jar"><a href="/two">Next</a></main>`, r.URL.Path)
		}
	})
	b := newTabOn(t, &instance{address: w.url})
	for _, page := range []string{"/one", "/two", "/three"} {
		b.visit(page)
		b.until(`document.documentElement.dataset.ran === "yes" && document.images[0].complete && getComputedStyle(document.querySelector("h1")).color === "rgb(102, 51, 153)"`)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, path := range []string{"/one", "/two", "/three", "/shop.css", "/shop.js", "/jar.svg"} {
		if asked[path] != 1 {
			t.Errorf("%s was asked for %d times, want once", path, asked[path])
		}
	}
}

// TestRoomsLive has the operator look at a room that a visitor enters: the page shows it without being loaded again, stays as
// it is when it is told to, and refreshes itself where there are no scripts.
func TestRoomsLive(t *testing.T) {
	t.Parallel()
	b := newTabOn(t, serveOnly(t, "pickle", "2.0.0")) // whose room no other test enters
	enter := func() {
		t.Helper()
		res, err := http.Get(b.address + "/download/pickle/2.0.0.zip") // without a cookie, so each is a user of its own
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	for path, shown := range map[string]string{"/rooms/downloads": "#now strong", "/rooms": "#now-downloads strong", "/rooms/downloads?span=week": "#now strong"} {
		b.visit(path)
		b.until(`document.querySelector("button.follow[aria-pressed=true]")`)
		eval[any](b, `window.here = true; document.querySelector("details")?.setAttribute("open", "")`)
		before := eval[string](b, `document.querySelector("`+shown+`").innerText`)
		enter()
		b.until(fmt.Sprintf(`document.querySelector(%q).innerText !== %q`, shown, before))
		if !eval[bool](b, `window.here === true && (document.querySelector("details")?.open ?? true)`) {
			t.Errorf("%s: the page was loaded again, or what was opened is closed", path)
		}
	}
	b.find("button", "Show changes as they come").click()
	b.until(`document.querySelector("button.follow[aria-pressed=false]")`)

	alter(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.visit("/rooms/downloads")
	b.says("loads itself again every 10 seconds")
	b.find("link", "^Pause refresh$").click()
	b.says("stays as it is")
	b.find("link", "^30 days$").click()
	b.says("30 days ago")
}

// TestRoomsAccessible holds the operator's pages against axe-core on every screen, and right to left.
func TestRoomsAccessible(t *testing.T) {
	script, err := os.ReadFile(axe)
	if err != nil {
		without(t, fmt.Errorf("no axe-core: %w; `make audit` fetches it", err))
	}
	b := newTab(t)
	for i, path := range []string{"/rooms/downloads?live=off", "/rooms?live=off", "/rooms/downloads?span=month&live=off"} {
		for k, direction := range []string{"ltr", "rtl"} {
			b.visit(path)
			eval[any](b, string(script)+"; document.documentElement.dir = '"+direction+"'; document.querySelector('details')?.setAttribute('open', '')")
			for n, s := range screens {
				if !auditing && i+k > 0 && n != (i+3*k)%len(screens) {
					continue
				}
				s.set(b)
				s.check(b, path+" "+direction)
			}
		}
	}
}
