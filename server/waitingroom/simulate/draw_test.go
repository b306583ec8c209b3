package simulate

import (
	"bytes"
	"image/png"
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
	res, err := Run(t.Context(), small(1))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	files, err := res.Draw(dir, "fifo")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".svg") {
			if !bytes.Contains(data, []byte("</svg>")) {
				t.Errorf("%s is no SVG", file)
			}
			continue
		}
		img, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		colours := map[[3]uint32]bool{}
		for y := 0; y < img.Bounds().Dy(); y += 3 {
			for x := 0; x < img.Bounds().Dx(); x += 3 {
				r, g, b, _ := img.At(x, y).RGBA()
				colours[[3]uint32{r, g, b}] = true
			}
		}
		if len(colours) < 5 {
			t.Errorf("%s has %d colours", file, len(colours))
		}
	}
	// a run in which nobody comes in can be drawn too
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
	for name, change := range map[string]func(*Options){
		"settings":     func(o *Options) { o.Settings.TotalActiveUsers = 0 },
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
		if o.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
