package lane_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// A blocker is a handler that may block: for a moment, or until another goroutine has the loop.
type blocker struct{ gate }

func (b *blocker) Answer(x *lane.Exchange) bool {
	switch strings.Clone(x.Target) {
	case "/moment":
		x.MayBlock()
	case "/blocks":
		x.MayBlock()
		time.Sleep(2 * time.Millisecond)
	}
	return b.gate.Answer(x)
}

// Whatever clients do, and while others close what waits, the states of connections change as
// the table says, and each change in it happens.
func TestEveryTransitionHappensAndNoOther(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[[2]string]bool)
	allSeen := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return maps.Equal(seen, lane.Transitions())
	}
	secure := certificate(t)
	secure.NextProtos = []string{"h2", "http/1.1"}
	secure.SessionTicketsDisabled = true // a pipe would wait until the client reads them
	end, limited := t.Deadline()         // some changes are rare, and the machine may be busy: only go test's own limit counts
	for round := 0; round < 3 || !allSeen(); round++ {
		if limited && time.Until(end) < time.Minute {
			mu.Lock()
			defer mu.Unlock()
			t.Fatalf("of %v there were only %v", lane.Transitions(), seen)
		}
		for _, secure := range []*tls.Config{nil, secure} {
			o := patient(&blocker{}, secure)
			o.Logger, o.WriteTimeout, o.StallTimeout = slog.New(slog.DiscardHandler), time.Minute, time.Minute
			if round%2 == 0 { // else HTTP/2 is handed over
				o.Requests, o.Clear, o.HeaderBytes = http.NotFoundHandler(), true, 32<<10
			}
			o.Observe(func(transition [2]string) {
				mu.Lock()
				defer mu.Unlock()
				seen[transition] = true
			})
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			disturb(lane.New(tcp, o), round, func() net.Conn {
				c, err := net.Dial("tcp", tcp.Addr().String())
				if err != nil {
					t.Error(err)
				}
				return c
			}, secure)
			inner := make(pipes)
			front := lane.New(inner, o)
			connect := func() net.Conn {
				ours, theirs := net.Pipe()
				inner <- theirs
				return ours
			}
			disturb(front, round, connect, secure)
			io.Copy(io.Discard, connect()) // when it has stopped
			close(inner)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for transition := range seen {
		if !lane.Transitions()[transition] {
			t.Errorf("%v is not in the table", transition)
		}
	}
}

// disturb has clients do what they can, until the lane has stopped.
func disturb(l *lane.Listener, round int, connect func() net.Conn, secure *tls.Config) {
	var clients, others sync.WaitGroup
	done := make(chan struct{})
	others.Go(func() { // closes what waits
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				l.CloseIdle(time.Now())
			}
		}
	})
	others.Go(func() { // has what is handed over
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	for client := range 6 {
		random := rand.New(rand.NewPCG(uint64(round), uint64(client)))
		clients.Go(func() {
			for range 6 {
				misbehave(connect(), random, secure)
			}
		})
	}
	clients.Wait()
	var left []net.Conn // without a request, after one, in the middle of one
	for i, sent := range []string{"", "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a HT", h2.Preface, begun} {
		c := connect()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if left = append(left, c); secure != nil && sent != "" {
			config := secure.Clone()
			if config.NextProtos = nil; i > 2 {
				config.NextProtos = []string{"h2"}
			}
			c = tls.Client(c, config)
		}
		io.WriteString(c, sent)
		if strings.HasSuffix(sent, "\n") {
			io.ReadFull(c, make([]byte, 10))
		}
	}
	if round%2 == 0 {
		l.Stop()
	}
	l.Abort()
	for _, c := range left {
		c.Close()
	}
	l.Wait(context.Background())
	close(done)
	others.Wait()
}

// begun is the beginning of a connection with HTTP/2: its preface, and no settings.
const begun = h2.Preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// multiplex asks over HTTP/2, for as long as it pleases.
func multiplex(c net.Conn, random *rand.Rand) {
	go io.Copy(io.Discard, c)
	io.WriteString(c, begun[:[]int{4, len(h2.Preface), len(begun), len(begun)}[random.IntN(4)]])
	time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
	if random.IntN(2) == 0 {
		io.WriteString(c, "not a frame")
		time.Sleep(time.Millisecond)
	}
}

// misbehave is what one client does with a connection.
func misbehave(c net.Conn, random *rand.Rand, secure *tls.Config) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if secure != nil {
		config := secure.Clone()
		if config.NextProtos = nil; random.IntN(8) == 0 {
			config.NextProtos = []string{"h2"}
		}
		s := tls.Client(c, config)
		if s.Handshake() != nil {
			return
		}
		if config.NextProtos != nil {
			multiplex(s, random)
			return
		}
		if random.IntN(4) == 0 { // half the head of a record
			time.Sleep(time.Duration(random.IntN(2)) * time.Millisecond)
			c.Write([]byte{23, 3, 3})
			time.Sleep(time.Millisecond)
			return
		}
		c = s
	}
	if secure == nil && random.IntN(4) == 0 {
		multiplex(c, random)
		return
	}
	from := bufio.NewReader(c)
	for range random.IntN(4) {
		if _, err := ask(c, from, []string{"/a", "/moment", "/blocks", "/panic"}[random.IntN(4)]); err != nil {
			return
		}
		from.Discard(from.Buffered())
	}
	switch random.IntN(5) {
	case 0:
		io.WriteString(c, "GET /else HTTP/1.1\r\n\r\n")
	case 1:
		io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		io.CopyN(io.Discard, from, 100<<10)
		return
	case 2:
		io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	case 3:
		io.WriteString(c, "GET /a HT")
		time.Sleep(time.Millisecond)
		io.WriteString(c, "TP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	default:
		return
	}
	io.Copy(io.Discard, from)
}
