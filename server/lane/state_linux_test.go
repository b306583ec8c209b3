package lane_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
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

// A blocker is a handler that may block: for a moment, or as long as block does.
type blocker struct {
	gate
	block func()
}

func (b *blocker) Answer(x *lane.Exchange) bool {
	switch strings.Clone(x.Target) {
	case "/moment":
		x.MayBlock()
	case "/blocks":
		x.MayBlock()
		b.block()
	}
	return b.gate.Answer(x)
}

// A transitionLog has the transitions of connections that have happened.
type transitionLog struct {
	mu      sync.Mutex
	changed sync.Cond
	seen    map[[2]string]bool
}

func newTransitionLog() *transitionLog {
	l := &transitionLog{seen: make(map[[2]string]bool)}
	l.changed.L = &l.mu
	return l
}

func (l *transitionLog) add(transition [2]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[transition] = true
	l.changed.Broadcast()
}

func (l *transitionLog) has(from, to string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[[2]string{from, to}]
}

// await returns when a transition has happened.
func (l *transitionLog) await(from, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.seen[[2]string{from, to}] {
		l.changed.Wait()
	}
}

// A transitionCase brings a connection through transitions, each of which is certain to happen.
type transitionCase struct {
	piped, secure bool          // whether there is no loop, and whether there is TLS
	stall         time.Duration // of the options; 0 for a minute
	want          string
	run           func(t *testing.T, connect func() net.Conn, l *lane.Listener, log *transitionLog)
}

var transitionCases = map[string]transitionCase{
	"silent": {want: "opening-fresh fresh-onLoop onLoop-fresh fresh-closing", run: func(_ *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		connect()
		log.await("onLoop", "fresh")
	}},
	"two requests": {want: "onLoop-idle idle-onLoop onLoop-closing", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		get(t, c, "/a")
		log.await("onLoop", "idle")
		io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		answered(t, bufio.NewReader(c), "/a")
	}},
	"room for others": {want: "idle-closing", run: func(t *testing.T, connect func() net.Conn, l *lane.Listener, log *transitionLog) {
		get(t, connect(), "/a")
		log.await("onLoop", "idle")
		l.CloseIdle(time.Now().Add(time.Minute))
	}},
	"in pieces": {want: "onLoop-alone alone-idle alone-closing", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		io.WriteString(c, "GET /a HT")
		log.await("onLoop", "alone")
		io.WriteString(c, "TP/1.1\r\nHost: x\r\n\r\n")
		answered(t, bufio.NewReader(c), "/a")
		log.await("alone", "idle")
		io.WriteString(c, "GE")
		c.Close()
		log.await("alone", "closing")
	}},
	"for net/http": {want: "alone-handed", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		io.WriteString(connect(), "GET /else HTTP/1.1\r\nHost: x\r\n\r\n")
		log.await("alone", "handed")
	}},
	"a large body, and a request behind it": {want: "onLoop-sending sending-onLoop", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n")
		log.await("onLoop", "sending")
		from := bufio.NewReader(c)
		answered(t, from, string(large))
		answered(t, from, "/a")
		get(t, c, "/b")
	}},
	"a large body, requested in pieces": {want: "alone-sending", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		io.WriteString(c, "GET /lar")
		log.await("onLoop", "alone")
		io.WriteString(c, "ge HTTP/1.1\r\nHost: x\r\n\r\n")
		log.await("alone", "sending")
		answered(t, bufio.NewReader(c), string(large))
		get(t, c, "/a")
	}},
	"a large body that the client does not take": {stall: 50 * time.Millisecond, want: "sending-closing", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		io.WriteString(connect(), "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		log.await("sending", "closing")
	}},
	"handler that is back soon": {want: "onLoop-mayBlock mayBlock-onLoop", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		for n := 0; n < 10_000 && !log.has("mayBlock", "onLoop"); n++ { // at once, unless the machine is busy
			get(t, c, "/moment")
		}
	}},
	"handler that blocks": {want: "mayBlock-alone", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, _ *transitionLog) {
		get(t, connect(), "/blocks")
	}},
	"HTTP/2": {want: "onLoop-busy busy-fresh fresh-busy busy-idle idle-busy busy-closing", run: func(_ *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		c := connect()
		io.WriteString(c, h2.Preface)
		log.await("busy", "fresh")
		io.WriteString(c, begun[len(h2.Preface):])
		log.await("busy", "idle")
		io.WriteString(c, "\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping")
		log.await("idle", "busy")
	}},
	"TLS": {secure: true, want: "opening-alone alone-fresh", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		if err := tls.Client(connect(), &tls.Config{InsecureSkipVerify: true}).Handshake(); err != nil {
			t.Error(err)
		}
		log.await("alone", "fresh")
	}},
	"no TLS": {secure: true, want: "opening-handed", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		io.WriteString(connect(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		log.await("opening", "handed")
	}},
	"two requests without a loop": {piped: true, want: "opening-fresh fresh-alone alone-idle idle-alone", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, _ *transitionLog) {
		c := connect()
		get(t, c, "/a")
		get(t, c, "/a")
	}},
	"HTTP/2 without a loop": {piped: true, want: "alone-busy", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		io.WriteString(connect(), h2.Preface)
		log.await("alone", "busy")
	}},
	"HTTP/2 over TLS without a loop": {piped: true, secure: true, want: "opening-busy", run: func(t *testing.T, connect func() net.Conn, _ *lane.Listener, log *transitionLog) {
		if err := tls.Client(connect(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake(); err != nil {
			t.Error(err)
		}
		log.await("opening", "busy")
	}},
	"too late": {piped: true, want: "opening-closing", run: func(_ *testing.T, connect func() net.Conn, l *lane.Listener, log *transitionLog) {
		l.Abort()
		connect()
		log.await("opening", "closing")
	}},
}

// Each transition in the table happens. A lifecycle panics where another one does.
func TestEveryTransitionHappens(t *testing.T) {
	missing := lane.Transitions()
	for name, test := range transitionCases {
		t.Run(name, func(t *testing.T) {
			log := newTransitionLog()
			o := transient(t, &blocker{block: func() { log.await("mayBlock", "alone") }}, test.secure)
			o.StallTimeout = cmp.Or(test.stall, o.StallTimeout)
			o.Observe(log.add)
			l, connect := listenForTransitions(t, o, test.piped)
			var handed sync.WaitGroup
			handed.Go(func() { closeHandedOver(l) })
			test.run(t, connect, l, log)
			l.Abort()
			l.Wait(context.Background())
			handed.Wait()
			for want := range strings.FieldsSeq(test.want) {
				from, to, _ := strings.Cut(want, "-")
				if !log.has(from, to) {
					t.Errorf("%s does not happen", want)
				}
				delete(missing, [2]string{from, to})
			}
		})
	}
	for transition := range missing {
		t.Errorf("no case wants %v", transition)
	}
}

// transient returns the options of a lane that speaks HTTP/2, too.
func transient(t *testing.T, h lane.Handler, secure bool) lane.Options {
	o := patient(h, nil)
	if secure {
		o.TLS = certificate(t)
		o.TLS.NextProtos = []string{"h2", "http/1.1"}
		o.TLS.SessionTicketsDisabled = true // a pipe would wait until the client reads them
	}
	o.Logger, o.WriteTimeout, o.StallTimeout = slog.New(slog.DiscardHandler), time.Minute, time.Minute
	o.Requests, o.Clear, o.HeaderBytes = http.NotFoundHandler(), true, 32<<10
	return o
}

// listenForTransitions returns a lane, and a way to connect to it, over a pipe where there is to be no loop.
func listenForTransitions(t *testing.T, o lane.Options, piped bool) (*lane.Listener, func() net.Conn) {
	var inner net.Listener
	var connect func() net.Conn
	if piped {
		pipes := make(pipes)
		inner, connect = pipes, func() net.Conn {
			ours, theirs := net.Pipe()
			pipes <- theirs
			return ours
		}
		t.Cleanup(func() { close(pipes) })
	} else {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		inner, connect = tcp, func() net.Conn {
			c, err := net.Dial("tcp", tcp.Addr().String())
			if err != nil {
				t.Error(err)
			}
			return c
		}
	}
	return lane.New(inner, o), func() net.Conn {
		c := connect()
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// closeHandedOver closes what a lane hands over, until that is closed. It waits for no client.
func closeHandedOver(l *lane.Listener) {
	var closing sync.WaitGroup
	defer closing.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		closing.Go(func() { c.Close() })
	}
}

// Whatever clients do, and while others close what waits, connections only change their states as the table says, and end.
func TestNoOtherTransitionHappens(t *testing.T) {
	for round := range 3 {
		for _, secure := range []bool{false, true} {
			for _, piped := range []bool{false, true} {
				o := transient(t, &blocker{block: func() { time.Sleep(2 * time.Millisecond) }}, secure)
				o.IdleAtEnd = 10 * time.Millisecond
				if round%2 == 1 { // HTTP/2 is handed over
					o.Requests, o.Clear = nil, false
				}
				l, connect := listenForTransitions(t, o, piped)
				disturb(l, round, connect, o.TLS)
				if piped {
					io.Copy(io.Discard, connect()) // when it has stopped
				}
			}
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
	others.Go(func() { closeHandedOver(l) })
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
		clients.Go(func() { io.WriteString(c, sent) }) // a pipe may be closed with a goodbye that waits to be read
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
	clients.Wait()
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
