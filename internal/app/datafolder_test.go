package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// firstLine is a log handler that reports its first line.
type firstLine struct {
	slog.Handler
	first chan struct{}
}

func (w firstLine) Enabled(context.Context, slog.Level) bool { return true }

func (w firstLine) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelInfo {
		close(w.first)
	}
	return nil
}

// A command may have the data folder open when a process starts, and between two runs of its roles. The process waits for it.
func TestOpenPatiently(t *testing.T) {
	for _, again := range []bool{false, true} {
		dir := t.TempDir()
		s := &settings.Settings{Listen: []string{"127.0.0.1:0"}, Data: filepath.Join(dir, "data"), Keys: filepath.Join(dir, "keys")}
		command, err := kvstore.Open(storeDir(s.Data), kvstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan struct{})
		r := &roleRun{settings: s, logger: slog.New(firstLine{slog.DiscardHandler, first}), again: again}
		done := make(chan error)
		var w *Writer
		go func() {
			var err error
			w, err = r.openWhenUnlocked(t.Context(), writerConfig{})
			done <- err
		}()
		select {
		case <-first:
		case err := <-done:
			t.Fatalf("the process has not waited: %v", err)
		}
		if err := command.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A node of a cluster that has caught up once serves at once in its next run, and in the process that takes its place.
func TestCaughtUpStays(t *testing.T) {
	v := &supervisor{}
	run := func() *clusterNode { return &clusterNode{memory: &v.node} }
	if run().mayServe() {
		t.Error("an empty node serves")
	}
	run().memory.caughtUp.Store(true)
	if !run().mayServe() {
		t.Error("the node is behind again in its next run")
	}
	for text, want := range map[string]bool{`{"sockets": [], "caughtUp": true}`: true, `{"sockets": []}`: false} {
		t.Setenv(handedVariable, text)
		if handed, _, err := receiveHandover(); err != nil || handed.CaughtUp != want {
			t.Errorf("%s: %+v, %v", text, handed, err)
		}
	}
}
