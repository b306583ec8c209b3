package main

import (
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/term"
)

// terminal is standard error as a running process uses it. While bars are shown, what is written goes above them.
type terminal struct {
	stderr      io.Writer
	interactive bool

	mu sync.Mutex
	to io.Writer
}

func newTerminal(stderr io.Writer) *terminal {
	file, ok := stderr.(*os.File)
	return &terminal{stderr: stderr, to: stderr, interactive: ok && term.IsTerminal(int(file.Fd()))}
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.to.Write(p); err == nil {
		return n, nil
	}
	return t.stderr.Write(p) // the bars have just been taken away
}

// divert has everything written to w from now on.
func (t *terminal) divert(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to = w
}

// newLogger returns a log that goes to w: from --log-level on where that was given, from least on otherwise.
func (s *settings) newLogger(w io.Writer, least slog.Level) *slog.Logger {
	if s.given("log-level") {
		least = s.logLevel
	}
	options := &slog.HandlerOptions{Level: least}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
