package sources

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

var errDown = &fetch.Error{URL: "https://registry.example/a", Status: 503, Temporary: true, Err: errors.New("503")}

// While an upstream is down, one caller a minute asks; when it answers, all go on at once. An outage of a month
// makes no difference.
func TestOutage(t *testing.T) {
	for _, length := range []time.Duration{90 * time.Second, time.Hour, 30 * 24 * time.Hour} {
		t.Run(length.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				o := NewBreakers(time.Now, time.Minute, slog.New(slog.DiscardHandler))
				begun := time.Now()
				var asked, served atomic.Int64
				var last atomic.Int64 // when a caller was served, after the begin
				var ask func(string)
				ask = func(who string) {
					if !o.Admit("registry", who, func() { ask(who) }) {
						return
					}
					if now := time.Since(begun); now >= length {
						served.Add(1)
						last.Store(int64(now))
						o.Record("registry", who, nil)
						return
					}
					asked.Add(1)
					o.Record("registry", who, errDown)
					time.AfterFunc(MinWait, func() { ask(who) })
				}
				for i := range 200 {
					go ask(strconv.Itoa(i))
				}
				time.Sleep(length + 2*time.Minute)
				synctest.Wait()
				if served.Load() != 200 || time.Duration(last.Load()) > length+2*time.Minute {
					t.Errorf("%d of 200 went on, the last after %v", served.Load(), time.Duration(last.Load()))
				}
				if most := int64(length/time.Minute) + 200 + 2; asked.Load() > most { // all 200 had begun
					t.Errorf("%d requests while it was down, want %d at most", asked.Load(), most)
				}
			})
		})
	}
}

func TestWhatIsNoOutage(t *testing.T) {
	o := NewBreakers(time.Now, time.Minute, slog.New(slog.DiscardHandler))
	for _, err := range []error{nil, fetch.ErrNotFound, errors.New("its own fault"), &fetch.Error{Err: fetch.ErrTooLarge}, context.Canceled} {
		for range 2 * FailuresDown {
			o.Record("a", "p", err)
		}
		if down := o.IsDown("a"); down {
			t.Errorf("%v takes it down", err)
		}
	}
	for range 3 * FailuresDown { // one package's own 503, between others that are served
		o.Record("a", "p", errDown)
		o.Record("a", "q", nil)
	}
	if down := o.IsDown("a"); down {
		t.Error("it is down although it answers every other request")
	}
	for i := range FailuresDown {
		o.Record("a", strconv.Itoa(i), errDown)
	}
	if down := o.IsDown("a"); !down {
		t.Error("it is up although it answers nothing")
	}
	if down := o.IsDown("b"); down {
		t.Error("another one is down, too")
	}
	o.Record("a", "p", fetch.ErrNotFound)
	if down := o.IsDown("a"); down {
		t.Error("it is down although it answers")
	}
}

// What a registry keeps private, or has no more, is no outage, however many packages that are and however often they
// are asked for. When it keeps everything to itself, it is one.
func TestPrivatePackagesAreNoOutage(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	o := NewBreakers(func() time.Time { return now }, time.Minute, slog.New(slog.DiscardHandler))
	private := &fetch.Error{Status: 403, Err: errors.New("403 Forbidden")}
	ask := func(name string, err error) bool {
		if !o.Admit("a", name, func() {}) {
			return false
		}
		o.Record("a", name, err)
		return true
	}
	for hour := range 10 { // each time the registry is down for a minute at most, and then knows three more of them
		for i := range 20 {
			ask("private"+strconv.Itoa(i), private)
		}
		if down := o.IsDown("a"); down && hour > 20/FailuresDown {
			t.Fatalf("hour %d: private packages take the registry down", hour)
		}
		now = now.Add(probeEvery)
		if !ask("public", nil) || o.IsDown("a") {
			t.Fatalf("hour %d: the registry is down for others", hour)
		}
		now = now.Add(time.Hour)
	}
	for i := range FailuresDown {
		ask("public"+strconv.Itoa(i), private)
	}
	if !o.IsDown("a") {
		t.Error("it is up although it answers nothing")
	}
	now = now.Add(probeEvery)
	if ask("private1", nil); o.IsDown("a") {
		t.Error("it is down although it serves what it kept private")
	}
	for range FailuresDown {
		ask("private1", VanishedError{Err: fetch.ErrNotFound})
	}
	if !o.IsDown("a") {
		t.Error("it is up although it has lost what it served before")
	}
}

// A probe is of a package that has not failed, where there is any.
func TestProbesChooseWell(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	o := NewBreakers(func() time.Time { return now }, time.Minute, slog.New(slog.DiscardHandler))
	defer o.Close()
	for i := range 20 {
		o.Record("a", "private"+strconv.Itoa(i), errDown)
	}
	var asked []string
	for i := range 20 {
		for _, name := range []string{"private" + strconv.Itoa(i), "public"} {
			o.Admit("a", name, func() { asked = append(asked, name) })
		}
	}
	now = now.Add(probeEvery)
	o.resumeOne(o.get("a"))
	if len(asked) != 1 || asked[0] != "public" {
		t.Errorf("asked %v", asked)
	}
}
