package lane_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

// However connections end, no client is answered what another asked, and each gives its place
// back: descriptors are numbers, which the system gives to the next connection.
func TestConnectionsStayApart(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		const most, clients, each = 40, 16, 25
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := lane.New(lane.Limit(tcp.(*net.TCPListener), most), lane.Options{
			Handler: &gate{}, TLS: secure, Logger: slog.New(slog.DiscardHandler),
			HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
		})
		address := tcp.Addr().String()
		var others sync.WaitGroup
		others.Go(func() { // takes what is handed over, and makes room
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				others.Go(func() {
					io.Copy(c, c)
					c.Close()
				})
				l.CloseIdle(time.Now())
			}
		})
		var all sync.WaitGroup
		var answers atomic.Int64
		for client := range clients {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(client)))
				for n := range each {
					c := dial(t, address, secure)
					if err := visit(c, random, fmt.Sprintf("/%02d%02d", client, n), &answers); err != nil {
						t.Errorf("client %d, visit %d: %v", client, n, err)
					}
					c.Close()
				}
			})
		}
		all.Wait()
		if n := answers.Load(); n < clients*each/2 {
			t.Errorf("only %d requests were answered", n)
		}
		var conns []client
		for range most { // all places are free again, or will be
			c := dial(t, address, secure)
			get(t, c, "/end")
			conns = append(conns, c)
		}
		l.Abort()
		for _, c := range conns {
			c.Close()
		}
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		others.Wait()
	})
}

// visit asks for the target in one of the ways that a client may, and ends in one.
// A connection that is closed because others need room is no mistake.
func visit(c client, random *rand.Rand, target string, answers *atomic.Int64) error {
	from := bufio.NewReader(c)
	for range 1 + random.IntN(3) {
		r, err := ask(c, from, target)
		if err != nil {
			return nil // it was closed to make room
		}
		if body, err := io.ReadAll(r.Body); err == nil && string(body) != target {
			return fmt.Errorf("%s is answered with %q", target, body)
		}
		answers.Add(1)
	}
	switch random.IntN(7) {
	case 0: // it just goes
	case 1:
		io.WriteString(c, "GET "+target) // and no more
	case 2:
		io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		io.CopyN(io.Discard, from, 100<<10)
	case 3: // as case 2, and it does not even look
		io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
	case 4:
		c.CloseWrite()
		if rest, err := io.ReadAll(from); err == nil && len(rest) > 0 {
			return fmt.Errorf("after the end comes %q", rest)
		}
	case 5: // no goodbye
		if secure, ok := c.(*tls.Conn); ok {
			secure.NetConn().Close()
		}
	case 6:
		const echoed = "GET /else HTTP/1.1\r\n\r\n"
		io.WriteString(c, echoed)
		got := make([]byte, len(echoed))
		if _, err := io.ReadFull(from, got); err == nil && string(got) != echoed {
			return fmt.Errorf("the one it is handed to has read %q", got)
		}
	}
	return nil
}

func ask(c net.Conn, from *bufio.Reader, target string) (*http.Response, error) {
	if _, err := io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return nil, err
	}
	return http.ReadResponse(from, nil)
}

// TestChurningClient has a client connect and leave more often than it may, while an eighth of the limit is silent. Its next
// connection is served all the same, and those that wait to be served are closed when the server ends.
func TestChurningClient(t *testing.T) {
	t.Parallel()
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := lane.New(lane.Limit(tcp.(*net.TCPListener), 100), lane.Options{
			Handler: sender{}, TLS: secure, Logger: slog.New(slog.DiscardHandler),
			HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
		})
		t.Cleanup(l.Abort)
		go func() { // as net/http does with failed handshakes
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				c.Close()
			}
		}()
		address := tcp.Addr().String()
		churn := func() {
			for range 50 {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
		}
		for range 100/8 + 1 {
			silent := dial(t, address, nil)
			t.Cleanup(func() { silent.Close() })
		}
		churn()
		c := dial(t, address, secure)
		if io.WriteString(c, small); !isAnswered(c) {
			t.Error("the client is not served any more")
		}
		churn()
		late := dial(t, address, nil)
		l.Abort()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Wait(ctx); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(late); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection that waits to be served is still open")
		}
	})
}
