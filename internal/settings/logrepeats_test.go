package settings

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// TestRepeatedRecords tests that equal warnings and errors are written once, and then every ten seconds with their count, and that nothing else is
// left out.
func TestRepeatedRecords(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(newRepeatHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})))
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			if got := strings.TrimSuffix(out.String(), "\n"); got != strings.Join(lines, "\n") {
				t.Errorf("written:\n%s\nwant:\n%s", got, strings.Join(lines, "\n"))
			}
			out.Reset()
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

		time.Sleep(2 * repeatInterval)
		for i := range 2 * maxRepeating {
			for range 2 {
				rooms.Error("full", "room", fmt.Sprint(i))
			}
		}
		synctest.Wait()
		if got := strings.Count(out.String(), "\n"); got != 3*maxRepeating {
			t.Errorf("%d lines were written, want %d", got, 3*maxRepeating)
		}
		time.Sleep(3 * repeatInterval)
	})
}
