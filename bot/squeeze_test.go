package bot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// dieIfTold ends a worker process by a signal, as it starts for its first job, for each of the files
// that mortal made beside its program.
func dieIfTold() {
	deaths, _ := filepath.Glob(filepath.Join(filepath.Dir(os.Args[0]), "death-*"))
	for _, death := range deaths {
		if os.Remove(death) == nil {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
	}
}

// mortal returns a program whose worker processes are killed so many times.
func mortal(t *testing.T, deaths int) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "mortal")
	err = os.Symlink(program, path)
	for i := range deaths {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, fmt.Sprintf("death-%d", i)), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKilledEncoderIsTriedAgain(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("kills by signal")
	}
	text := strings.Repeat("All that is compressible is compressed, sooner or later.\n", 200)
	for _, tt := range []struct {
		deaths  int // of two encoders each time that the content is tried
		left    int // after the first command
		givenUp int
	}{{1, 0, 0}, {4, 0, 0}, {6, 0, 1}} {
		t.Run(fmt.Sprintf("killed %d times", tt.deaths), func(t *testing.T) {
			r := newRig(t)
			r.worker = mortal(t, tt.deaths)
			r.register("a", fromNpm("a", "*.txt"))
			r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.txt": text})
			r.open()
			r.once()
			left, err := recompression.ReadQueue(r.store)
			if err != nil || left.Contents != 1 || left.Bytes != int64(len(text)) {
				t.Fatalf("before: %+v, %v", left, err)
			}
			var notes []string
			r.during = func(e sources.Event) {
				if e.Kind == sources.Note {
					notes = append(notes, e.Reason)
				}
			}
			sum, err := r.bot.RecompressAll(context.Background())
			if err != nil || sum.Contents != 1-tt.givenUp || sum.GivenUp != tt.givenUp || sum.Left != tt.left {
				t.Errorf("squeezed %+v, %v", sum, err)
			}
			f, err := views.LookupFile(r.store, "a", "1.0.0", "a.txt")
			if err != nil {
				t.Fatal(err)
			}
			if c, err := r.store.Content(f.Hash); err != nil || c.Squeezed != (tt.givenUp == 0) {
				t.Errorf("%+v, %v", c, err)
			}
			if len(notes) != tt.givenUp || tt.givenUp > 0 && !strings.Contains(notes[0], f.Hash.String()) {
				t.Errorf("told: %q", notes)
			}
			if got := r.bot.Backlog(); got != 0 {
				t.Errorf("%d wait", got)
			}
			status, err := bot.ReadStatus(r.store, "")
			if err != nil || status.Squeezing.GivenUp != tt.givenUp || status.Unsqueezed != 0 {
				t.Errorf("status: %+v, %v", status.Squeezing, err)
			}
			// Being asked for does not bring back what was given up, and the operator's word does.
			r.bot.Prioritize(f.Hash)
			r.open()
			if got := r.bot.Backlog(); got != 0 {
				t.Errorf("%d wait after a restart", got)
			}
			sum, err = r.bot.RecompressAll(context.Background())
			if err != nil || sum.Contents != tt.givenUp || sum.GivenUp != 0 {
				t.Errorf("squeezed again: %+v, %v", sum, err)
			}
			if c, err := r.store.Content(f.Hash); err != nil || !c.Squeezed {
				t.Errorf("%+v, %v", c, err)
			}
			for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{}) {
				t.Errorf("left in the queue: %q, %v", item.Key, err)
			}
			r.sound()
		})
	}
}

// While a huge content is squeezed, others are, what is published in the meantime among them.
func TestHugeContentHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.register("huge", fromNpm("huge", "*.bin"))
	r.register("small", fromNpm("small", "*.txt"))
	text := strings.Repeat("All that is compressible is compressed, sooner or later.\n", 20)
	huge := string(noiseOf(9<<20)) + strings.Repeat(text, 1000)
	r.registry.Add("huge", "1.0.0", hour(900), map[string]string{"a.bin": huge})
	for i := range 10 {
		r.registry.Add("small", fmt.Sprintf("1.0.%d", i), hour(i), map[string]string{"a.txt": text + fmt.Sprint(i)})
	}
	r.open()
	r.once()
	order := make(chan int64, 100)
	r.during = func(e sources.Event) {
		if e.Kind == sources.Recompressed {
			order <- int64(e.Waiting)
		}
	}
	f, err := views.LookupFile(r.store, "huge", "1.0.0", "a.bin")
	if err != nil {
		t.Fatal(err)
	}
	stop := r.run()
	for range 10 {
		select {
		case <-order:
		case <-time.After(time.Minute):
			t.Fatal("small contents wait")
		}
		if c, err := r.store.Content(f.Hash); err != nil || c.Squeezed {
			t.Errorf("the huge content came before a small one: %+v, %v", c, err)
		}
	}
	stop()
}
