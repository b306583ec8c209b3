package settings

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// TestRepeatedRecords tests that equal warnings and errors are written once, and then every ten seconds with their count, and that nothing else is
// left out.
func TestRepeatedRecords(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out testkit.Buffer // timers write to it beside the test
		taken := 0
		take := func() string {
			text := out.String()[taken:]
			taken += len(text)
			return text
		}
		logger := slog.New(newRepeatHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})))
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			if got := strings.TrimSuffix(take(), "\n"); got != strings.Join(lines, "\n") {
				t.Errorf("written:\n%s\nwant:\n%s", got, strings.Join(lines, "\n"))
			}
		}
		rooms := logger.With("part", "rooms")
		for range 1000 {
			rooms.Error("full", "room", "sale")
			time.Sleep(time.Millisecond)
		}
		want("msg=full part=rooms room=sale")
		rooms.Error("full", "room", "downloads")
		logger.Error("full", "room", "sale")
		rooms.Warn("full", "room", "sale")
		want("msg=full part=rooms room=downloads", "msg=full room=sale", "msg=full part=rooms room=sale")
		for range 3 {
			rooms.Info("full", "room", "sale")
		}
		want("msg=full part=rooms room=sale", "msg=full part=rooms room=sale", "msg=full part=rooms room=sale")
		time.Sleep(repeatInterval)
		want("msg=full part=rooms room=sale repeated=999")
		rooms.Error("full", "room", "sale")
		want("")
		time.Sleep(repeatInterval)
		want("msg=full part=rooms room=sale repeated=1")
		time.Sleep(2 * repeatInterval)
		rooms.Error("full", "room", "sale")
		want("msg=full part=rooms room=sale")

		// A random reference in each does not help to fill the disk, nor do messages that strangers write.
		count := func(want int, what string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Count(take(), "\n"); got != want {
				t.Errorf("%d lines were written of %s, want %d", got, what, want)
			}
			time.Sleep(3 * repeatInterval)
			take()
		}
		time.Sleep(2 * repeatInterval)
		take()
		for i := range 10 * maxAlike {
			logger.Error("failed", "ref", i)
		}
		count(maxAlike+1, "errors with different references")
		for i := range 10 * maxMessages {
			logger.Warn(fmt.Sprint("message ", i))
		}
		count(maxMessages+1, "different messages")
		// What an attribute points to may change later.
		name := &changingText{"before"}
		logger.Warn("changes", "name", name)
		logger.Warn("changes", "name", name)
		name.text = "after"
		time.Sleep(repeatInterval)
		want("msg=changes name=before", "msg=changes name=before repeated=1")
		time.Sleep(3 * repeatInterval)
	})
}

// A changingText is the value of an attribute that changes.
type changingText struct{ text string }

// String implements [fmt.Stringer].
func (t *changingText) String() string { return t.text }
