package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/settings"
)

// A service manager may stop a process that has just announced its address, while parts still start. That is no failure of the
// process, but it is one of a process that was started for a single pass.
func TestStopDuringStart(t *testing.T) {
	for _, test := range []struct {
		name    string
		server  Server
		want    error
		readmes bool // whether it renders those of new releases
	}{
		{"server", Server{Serve: true, Fill: true}, nil, true},
		{"read-only server", Server{Serve: true}, nil, false},
		{"single pass", Server{Serve: true, Fill: true, Once: true}, context.Canceled, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := settings.New()
			for name, value := range map[string]string{
				"data": filepath.Join(dir, "data"), "listen": "127.0.0.1:0", "private-listen": "off", "catalogue": writeDemoCatalogue(t, dir),
			} {
				if err := s.Flags.Set(name, value); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Load(nil); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer // the handler serializes writes
			ctx, stop := context.WithCancel(t.Context())
			test.server.Settings, test.server.Logger = s, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			test.server.Events, test.server.Filled, test.server.Stopping = func(sources.Event) {}, func(sources.Summary) {}, func() {}
			test.server.Serving = func(string, func() (string, error)) { stop() }
			if err := test.server.Run(ctx); !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("Run returned %v, want %v", err, test.want)
			}
			if got := strings.Contains(log.String(), "documents of new releases"); got != test.readmes {
				t.Errorf("the part that renders READMEs was started: %v, want %v", got, test.readmes)
			}
		})
	}
}
