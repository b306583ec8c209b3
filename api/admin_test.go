package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type countRequest struct {
	To int `json:"to"`
}

func operations(canceled chan<- struct{}) map[string]Operation {
	return map[string]Operation{
		"count": TypedOperation(func(_ context.Context, r countRequest, _ io.Reader, report func(any)) (any, error) {
			for i := range r.To {
				report(i)
			}
			return r.To, nil
		}),
		"fail": func(_ context.Context, _ OperationRequest, report func(any)) (any, error) {
			report(1)
			return nil, errors.New("the disk is full")
		},
		"panic":   func(context.Context, OperationRequest, func(any)) (any, error) { panic("boom") },
		"nothing": func(context.Context, OperationRequest, func(any)) (any, error) { return nil, nil },
		"hang": func(ctx context.Context, _ OperationRequest, report func(any)) (any, error) {
			report(1)
			<-ctx.Done()
			close(canceled)
			return nil, ctx.Err()
		},
	}
}

// overBoth runs a test with a client in this process, and with one over a socket.
func overBoth(t *testing.T, test func(t *testing.T, c *AdminClient, canceled <-chan struct{})) {
	t.Run("in process", func(t *testing.T) {
		canceled := make(chan struct{})
		c, stop := AdminInProcess(AdminHandler(operations(canceled), quiet))
		defer stop()
		test(t, c, canceled)
	})
	t.Run("socket", func(t *testing.T) {
		canceled := make(chan struct{})
		c := listen(t, t.TempDir(), AdminHandler(operations(canceled), quiet))
		test(t, c, canceled)
	})
}

func listen(t *testing.T, dir string, h http.Handler) *AdminClient {
	t.Helper()
	l, err := ListenAdmin(dir)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	c, err := DialAdmin(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCall(t *testing.T) {
	overBoth(t, func(t *testing.T, c *AdminClient, _ <-chan struct{}) {
		ctx := t.Context()
		var events []int
		got, err := SendOperation[int](ctx, c, "count", countRequest{To: 3}, nil, func(i int) { events = append(events, i) })
		if err != nil || got != 3 || len(events) != 3 || events[2] != 2 {
			t.Errorf("count: %d, %v, events %v", got, err, events)
		}
		if _, err := SendOperation[any](ctx, c, "nothing", nil, nil, func(any) {}); err != nil {
			t.Errorf("an operation without a result: %v", err)
		}
		for operation, want := range map[string]string{
			"fail":  "the disk is full",
			"panic": "internal error: boom",
			"dance": `does not know the operation "dance"`,
		} {
			if _, err := SendOperation[any](ctx, c, operation, nil, nil, func(any) {}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", operation, err, want)
			}
		}
		_, err = SendOperation[any](ctx, c, "count", map[string]int{"too": 3}, nil, func(any) {})
		if err == nil || !strings.Contains(err.Error(), "another release of Larder") {
			t.Errorf("a request of another shape: %v", err)
		}
	})
}

func TestCancel(t *testing.T) {
	overBoth(t, func(t *testing.T, c *AdminClient, canceled <-chan struct{}) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := SendOperation[any](ctx, c, "hang", nil, nil, func(any) { cancel() })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-canceled // the operation saw it
	})
}

func TestCutOff(t *testing.T) {
	c := listen(t, t.TempDir(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"event":1}` + "\n"))
	}))
	if _, err := SendOperation[any](t.Context(), c, "x", nil, nil, func(any) {}); !errors.Is(err, ErrCutOff) {
		t.Errorf("got %v", err)
	}
}

func TestNoProcess(t *testing.T) {
	dir := t.TempDir()
	for _, dir := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := DialAdmin(t.Context(), dir); !errors.Is(err, ErrNoProcess) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// A process that was killed leaves its socket behind.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := DialAdmin(t.Context(), dir); !errors.Is(err, ErrNoProcess) {
		t.Errorf("stale socket: %v", err)
	}
	c := listen(t, dir, AdminHandler(operations(nil), quiet))
	if got, err := SendOperation[int, any](t.Context(), c, "count", countRequest{To: 2}, nil, nil); got != 2 || err != nil {
		t.Errorf("after the stale socket was replaced: %d, %v", got, err)
	}
}

func TestSocketIsPrivateAndGone(t *testing.T) {
	// A folder whose path no socket's address could hold.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := ListenAdmin(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v", info.Mode())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestProcessEnds(t *testing.T) {
	dir := t.TempDir()
	l, err := ListenAdmin(dir)
	if err != nil {
		t.Fatal(err)
	}
	process, end := context.WithCancel(t.Context())
	server := &http.Server{
		Handler:     AdminHandler(operations(make(chan struct{})), quiet),
		BaseContext: func(net.Listener) context.Context { return process },
	}
	go server.Serve(l)
	defer server.Close()
	c, err := DialAdmin(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = SendOperation[any](t.Context(), c, "hang", nil, nil, func(any) { end() })
	if err == nil || err.Error() != ErrCutOff.Error() {
		t.Errorf("got %v", err)
	}
}
