package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
)

// TestRefusedDocuments checks that only failures that happen again are stored as refusals.
func TestRefusedDocuments(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, test := range []struct {
		name    string
		ctx     context.Context
		err     error
		refused bool
	}{
		{"an error of the task", t.Context(), errors.New("it nests too deeply"), true},
		{"memory or processor time", t.Context(), &worker.CrashError{Limited: true}, true},
		{"no thread, or a crash", t.Context(), &worker.CrashError{Reason: "failed to create new OS thread"}, false},
		{"a signal", t.Context(), &worker.CrashError{Killed: true}, false},
		{"the clock", t.Context(), &worker.CrashError{TimedOut: true}, false},
		{"no worker", t.Context(), &worker.StartError{Err: errors.New("cannot allocate memory")}, false},
		{"a stop", ended, errors.New("signal: killed"), false},
	} {
		if err := classifyRenderError(test.ctx, test.err); errors.As(err, new(*document.RefusedError)) != test.refused {
			t.Errorf("%s: %v, want a refusal: %v", test.name, err, test.refused)
		}
	}
}

// spins is the name under which this program is a worker that uses more processor time than it may.
const spins = "spins"

func spin() {
	var response bytes.Buffer
	field := func(data []byte) {
		_ = binary.Write(&response, binary.BigEndian, uint32(len(data)))
		response.Write(data)
	}
	field(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1<<40), 1<<40)) // so that no limit of memory ends it
	field(nil)
	_, _ = response.WriteTo(os.Stdout)
	for used := (unix.Rusage{}); used.Utime.Nano()+used.Stime.Nano() < worker.RenderTime.Nanoseconds()*3/2; {
		if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
			return
		}
	}
	field(nil)
	field(nil)
	_, _ = response.WriteTo(os.Stdout)
	time.Sleep(time.Hour)
}

// TestRenderingTimeIsBounded renders a document of each kind in a worker that uses too much processor time.
func TestRenderingTimeIsBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the system does not count the processor time of each process")
	}
	program, err := os.Executable()
	path := filepath.Join(t.TempDir(), spins)
	if err := errors.Join(err, os.Symlink(program, path)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []document.Kind{document.Readme, document.Imports} {
		d := &pageSources{workers: worker.NewPool(worker.Options{Program: path, Size: 1, Nice: true, Timeout: renderTimeout})}
		_, err := d.render(t.Context(), "jar@1.0.0", document.Request{Kind: kind})
		if crash, ok := errors.AsType[*worker.CrashError](err); ok && crash.TimedOut {
			t.Skip("other processes left the worker too little processor time")
		}
		if refused := new(document.RefusedError); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "processor time") {
			t.Errorf("%s: %v, want that it used too much processor time", kind, err)
		}
		d.workers.Close()
	}
}
