package browsertest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A waitingRoom is a site with room for one user.
type waitingRoom struct {
	url  string
	rush atomic.Int64 // how far its clock is ahead
}

func (w *waitingRoom) now() time.Time { return time.Now().Add(time.Duration(w.rush.Load())) }

const roomForOne = `- {name: shop, path: /, total_active_users: 1, new_users_per_minute: 1, session_duration: 1, refresh_interval: 5}`

func openRoom(t *testing.T) *waitingRoom {
	t.Helper()
	w := &waitingRoom{}
	rooms, err := config.Parse("rooms.yaml", []byte(roomForOne))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := waitingroom.OpenKeys(t.TempDir())
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
	server := httptest.NewServer(opened.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><main><h1>Welcome to the shop</h1></main>`)
	})))
	w.url = server.URL
	t.Cleanup(func() {
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

// TestWaitingRoom is a visitor's: the shop is full, the page comes back by itself, and one
// day the shop is open.
func TestWaitingRoom(t *testing.T) {
	open(t)
	w := openRoom(t)
	inside := newTabOn(t, &instance{address: w.url})
	inside.visit("/")
	inside.says("welcome to the shop")

	b := newTabOn(t, &instance{address: w.url})
	b.visit("/")
	b.says("you are in line")
	b.says("estimated wait")
	first := eval[string](b, `document.querySelector(".checked").innerText`)
	b.until(fmt.Sprintf(`document.querySelector(".checked") && document.querySelector(".checked").innerText !== %q`, first)) // without a click
	b.says("you are in line")

	w.rush.Add(int64(3 * time.Minute)) // the visitors inside have gone
	b.says("welcome to the shop")
}

// TestWaitingRoomAccessible holds the waiting visitor's page against axe-core, on a phone and on
// a desktop, in light and in dark colours, from left and from right.
func TestWaitingRoomAccessible(t *testing.T) {
	script, err := os.ReadFile(axe)
	if err != nil {
		without(t, fmt.Errorf("no axe-core: %w; `make audit` fetches it", err))
	}
	w := openRoom(t)
	full, err := http.Get(w.url) // it is now
	if err != nil {
		t.Fatal(err)
	}
	full.Body.Close()
	for _, language := range []string{"en", "ar", "ja"} {
		b := newTabOn(t, &instance{address: w.url})
		call(b, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: "Mozilla/5.0", AcceptLanguage: language})
		for _, width := range []int64{390, 1280} {
			for _, dark := range []bool{false, true} {
				b.screen(width, dark)
				b.visit("/")
				if got := eval[string](b, "document.documentElement.lang"); got != language {
					t.Fatalf("the page speaks %s, not %s", got, language)
				}
				eval[any](b, string(script)+"; undefined")
				for _, v := range eval[[]violation](b, `(document.getAnimations().forEach(a => a.cancel()), axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations))`) {
					for _, n := range v.Nodes {
						t.Errorf("%s, %d px, dark %v: %s (%s): %v: %s", language, width, dark, v.ID, v.Help, n.Target, n.FailureSummary)
					}
				}
				if wide := eval[float64](b, "document.documentElement.scrollWidth"); wide > float64(width) {
					t.Errorf("%s, %d px: the page is %v px wide", language, width, wide)
				}
			}
		}
	}
}
