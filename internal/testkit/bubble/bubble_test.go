package bubble_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// TestTimersOfOneInstant crashed the race detector in four of five runs: goroutines that
// one timer starts receive from others, while the clock's goroutine fires them.
func TestTimersOfOneInstant(t *testing.T) {
	for range 200 {
		bubble.Test(t, func(*testing.T) {
			var done sync.WaitGroup
			for range 50 {
				timers := make([]*time.Timer, 20)
				for i := range timers {
					timers[i] = time.NewTimer(time.Second)
				}
				done.Add(1)
				time.AfterFunc(time.Second, func() {
					defer done.Done()
					for _, timer := range timers {
						select {
						case <-timer.C:
						default:
						}
					}
				})
			}
			done.Wait()
		})
	}
}

// TestBubblesAtOnce runs bubbles in parallel, each of which sees its own clock.
func TestBubblesAtOnce(t *testing.T) {
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				start := time.Now()
				time.Sleep(time.Hour)
				if waited := time.Since(start); waited != time.Hour {
					t.Errorf("an hour took %v", waited)
				}
			})
		})
	}
}

// TestEachBubbleIsOfThisPackage finds code that calls synctest.Test itself, or imports its package under another name.
func TestEachBubbleIsOfThisPackage(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	direct := regexp.MustCompile(`\bsynctest\.Test\(|\w "testing/synctest"`)
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || strings.HasPrefix(entry.Name(), ".") && path != root):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || filepath.Dir(path) == filepath.Join(root, "internal", "testkit", "bubble"):
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		if direct.Match(text) {
			t.Errorf("%s uses synctest.Test, which crashes the race detector now and then: call bubble.Test", path)
		}
		return err
	})
	if err != nil || files < 500 {
		t.Errorf("%d files were read: %v", files, err)
	}
}
