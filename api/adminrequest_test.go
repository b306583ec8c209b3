package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// contentsOperations are operations with contents.
func contentsOperations(received chan<- error) map[string]Operation {
	return map[string]Operation{
		"length": TypedOperation(func(_ context.Context, r countRequest, contents io.Reader, report func(any)) (any, error) {
			n, err := io.Copy(io.Discard, contents)
			report(r.To)
			return n, err
		}),
		"refuse": TypedOperation(func(_ context.Context, _ countRequest, contents io.Reader, _ func(any)) (any, error) {
			_, err := io.ReadFull(contents, make([]byte, 10))
			return nil, errors.Join(err, errors.New("the disk is full"))
		}),
		"receive": TypedOperation(func(_ context.Context, _ countRequest, contents io.Reader, _ func(any)) (any, error) {
			_, err := io.Copy(io.Discard, contents)
			received <- err
			return nil, err
		}),
	}
}

func TestSend(t *testing.T) {
	large := make([]byte, 8<<20) // more than any buffer on the way
	test := func(t *testing.T, c *AdminClient, received <-chan error) {
		ctx := t.Context()
		for _, contents := range []io.Reader{bytes.NewReader(large), bytes.NewReader(nil), nil, strings.NewReader("\n{}\n")} {
			var want int64
			if r, ok := contents.(interface{ Len() int }); ok {
				want = int64(r.Len())
			}
			event := 0
			n, err := SendOperation[int64](ctx, c, "length", countRequest{To: 7}, contents, func(i int) { event = i })
			if err != nil || n != want || event != 7 {
				t.Errorf("contents of %d bytes: %d, event %d, %v", want, n, event, err)
			}
		}
		_, err := SendOperation[any, any](ctx, c, "refuse", countRequest{}, bytes.NewReader(large), nil)
		if err == nil || err.Error() != "the disk is full" {
			t.Errorf("refused while the client sends: %v", err)
		}
		broken := errors.New("the file cannot be read")
		_, err = SendOperation[any, any](ctx, c, "receive", countRequest{}, io.MultiReader(bytes.NewReader(large), failing{broken}), nil)
		if !errors.Is(err, broken) {
			t.Errorf("contents that cannot be read: %v", err)
		}
		if err := <-received; err == nil {
			t.Error("the operation took half of the contents for all of them")
		}
	}
	t.Run("in process", func(t *testing.T) {
		received := make(chan error, 1)
		c, stop := AdminInProcess(AdminHandler(contentsOperations(received), quiet))
		defer stop()
		test(t, c, received)
	})
	t.Run("socket", func(t *testing.T) {
		received := make(chan error, 1)
		test(t, listen(t, t.TempDir(), AdminHandler(contentsOperations(received), quiet)), received)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A client that sends no more, and does not go away, ends the operation.
func TestSendStalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		received := make(chan error, 1)
		c, stop := AdminInProcess(AdminHandler(contentsOperations(received), quiet))
		read, write := io.Pipe()
		go io.WriteString(write, "half")
		_, err := SendOperation[any, any](t.Context(), c, "receive", countRequest{}, read, nil)
		if err == nil || !strings.Contains(err.Error(), "no byte arrived for 1m0s") {
			t.Errorf("the client is told %v", err)
		}
		if err := <-received; err == nil {
			t.Error("the operation took half of the contents for all of them")
		}
		write.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Contents may take longer than the server's time limit for a request, as long as bytes arrive.
func TestSendTakesLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: AdminHandler(contentsOperations(nil), quiet), ReadTimeout: 30 * time.Second}
		go server.Serve(l)
		defer server.Shutdown(context.Background())
		contents := &slowReader{parts: 10, each: 50 * time.Second}
		n, err := SendOperation[int64, any](t.Context(), newSocketClient(l.dial), "length", countRequest{}, contents, nil)
		if n != 10 || err != nil {
			t.Errorf("%d bytes arrived, %v", n, err)
		}
	})
}

// A slowReader has one byte after each interval. Its clock is that of the test.
type slowReader struct {
	parts int
	each  time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.parts == 0 {
		return 0, io.EOF
	}
	r.parts--
	time.Sleep(r.each)
	return copy(p, "x"), nil
}

// An operation that ends with its process does not wait for the rest of the contents.
func TestSendEndsWithTheProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		process, end := context.WithCancel(t.Context())
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{
			Handler:     AdminHandler(contentsOperations(make(chan error, 1)), quiet),
			BaseContext: func(net.Listener) context.Context { return process },
		}
		go server.Serve(l)
		time.AfterFunc(time.Minute, end)
		contents := &slowReader{parts: 1000, each: 10 * time.Second}
		if _, err := SendOperation[any, any](t.Context(), newSocketClient(l.dial), "receive", countRequest{}, contents, nil); err == nil {
			t.Error("the operation succeeded")
		}
		time.Sleep(10 * time.Second) // the client's connection sees that the server has closed it
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestRequestTooLarge(t *testing.T) {
	c, stop := AdminInProcess(AdminHandler(operations(nil), quiet))
	defer stop()
	_, err := SendOperation[any, any](t.Context(), c, "count", map[string]string{"to": strings.Repeat("x", maxRequest)}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than the limit of %d", maxRequest)) {
		t.Errorf("got %v", err)
	}
}
