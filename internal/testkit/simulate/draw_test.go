package simulate

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

func small(seed uint64) Options {
	return Options{
		Settings: queue.Settings{TotalActiveUsers: 20, NewUsersPerMinute: 20, SessionDuration: time.Minute},
		Visitors: 200, Over: 3 * time.Minute, Seed: seed,
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, seed := range []uint64{1, 1, 2} {
		res, err := Run(t.Context(), small(seed))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := res.Table(&b); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b.String())
	}
	if texts[0] != texts[1] || texts[0] == texts[2] {
		t.Error("the same seed has to give the same table, and another one another")
	}
	for _, want := range []string{"minute  arrived  admitted", "200 of 200 visitors came in", "active users: 20 at most, of 20 allowed"} {
		if !strings.Contains(texts[0], want) {
			t.Errorf("the table lacks %q:\n%s", want, texts[0])
		}
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	res, err := Run(t.Context(), small(1))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	files, err := res.Draw(dir, "fifo")
	if err != nil || len(files) != 2 || filepath.Base(files[0]) != "fifo-waits.svg" || filepath.Base(files[1]) != "fifo-room.svg" {
		t.Fatal(files, err)
	}
	for i, wants := range [][]string{
		{"by minute of arrival (fifo, counter)", "Heat map of 200 users", "minute of arrival", "wait in minutes", ">users<", `class="heat heat-10"`},
		{"Active and waiting users (fifo, counter)", "at most 20 active, of 20 allowed", ">minute<", ">users<", ">waiting<", ">active<", "limit 20", `class="curve curve-1"`},
	} {
		data, err := os.ReadFile(files[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(data, new(struct{})); err != nil {
			t.Errorf("%s is no XML: %v", files[i], err)
		}
		for _, want := range wants {
			if !bytes.Contains(data, []byte(want)) {
				t.Errorf("%s lacks %q", files[i], want)
			}
		}
	}
	heat := res.waitsChart().Heat // every visitor is in one cell, that of the arrival and the wait
	for minute, waits := range res.waitsByArrival() {
		if minute >= len(heat.Columns) {
			break
		}
		sum := 0.0
		for _, n := range heat.Columns[minute] {
			sum += n
		}
		if int(sum) != len(waits) {
			t.Errorf("minute %d: %v visitors of %d", minute, sum, len(waits))
		}
	}
	// a run in which no visitor comes in can be drawn too
	o := small(1)
	o.Settings.QueueAll = true
	o.Longest = 2 * time.Minute
	if res, err = Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := res.Draw(dir, "none"); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"visitors":     func(o *Options) { o.Visitors = -1 },
		"over":         func(o *Options) { o.Over = 1 },
		"stay":         func(o *Options) { o.Stay = 1 },
		"data centres": func(o *Options) { o.DataCentres = 101 },
		"delay":        func(o *Options) { o.Delay = time.Hour },
		"loss":         func(o *Options) { o.Loss = 1 },
		"clocks":       func(o *Options) { o.Clocks = time.Hour },
		"profile":      func(o *Options) { o.Profile = "flood" },
		"longest":      func(o *Options) { o.Longest = 1 },
		"failure":      func(o *Options) { o.Failures = []Failure{{Kind: Down, DataCentre: 7}} },
	} {
		o := small(1)
		change(&o)
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
