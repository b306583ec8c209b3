package main

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// A lockCheck is an output that records whether the data folder was locked at every write.
type lockCheck struct {
	bytes.Buffer
	data     string
	unlocked bool
}

// Write implements [io.Writer].
func (c *lockCheck) Write(p []byte) (int, error) {
	s := settings.New()
	s.Data = c.data
	r, err := app.OpenReader(s, false, slog.New(slog.DiscardHandler))
	if err == nil {
		err = r.Close()
	}
	c.unlocked = c.unlocked || !errors.Is(err, kvstore.ErrLocked)
	return c.Buffer.Write(p)
}

// TestSecretsArePrintedBeforeClosing tests that what a command prints only once is printed before the data folder is closed,
// which may fail.
func TestSecretsArePrintedBeforeClosing(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for _, command := range []struct{ line, want string }{
		{"webhook add https://ci.example.com/hook", "Its secret"},
		{"log rotate-key", "is signed with a new key"},
	} {
		out := &lockCheck{data: data}
		var problems bytes.Buffer
		code := newCLI(nil, out, &problems).run(t.Context(), append(strings.Fields(command.line), "--data", data))
		if code != exitDone || !strings.Contains(out.String(), command.want) {
			t.Errorf("%s: exit code %d\n%s%s", command.line, code, out, &problems)
		}
		if out.unlocked {
			t.Errorf("%s: printed after the data folder was closed", command.line)
		}
	}
}
