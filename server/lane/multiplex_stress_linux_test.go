package lane_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// pattern has the bodies of mixed, at any offset, so that one that is out of order is seen.
var pattern = func() []byte {
	b := make([]byte, 512<<10)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// part returns what is to be answered to a path: /KIND/FROM/SIZE.
func part(path string) (kind string, body []byte) {
	p := strings.Split(path, "/")
	from, _ := strconv.Atoi(p[2])
	size, _ := strconv.Atoi(p[3])
	return p[1], pattern[from : from+size]
}

// A mixed answers from memory, which is overwritten when it is released, from what is not in
// memory, with a Writer, or not at all.
type mixed struct{ held sync.WaitGroup }

type overwritten struct {
	of   *mixed
	body []byte
}

func (overwritten) Scarce() bool { return false }

func (o overwritten) Release(int64) {
	clear(o.body)
	o.of.held.Done()
}

func (m *mixed) Answer(x *lane.Exchange) bool {
	kind, body := part(strings.Clone(x.Path))
	switch kind {
	case "hit":
		if !x.Ready() {
			return false
		}
		o := overwritten{m, bytes.Clone(body)}
		m.held.Add(1)
		x.Send(h2.AppendStatus(nil, 200), o.body, o)
		return true
	case "brief":
		w := x.Writer()
		w.WriteHeader(200)
		w.Write(body)
		return true
	case "miss":
		return x.MayBlock()
	}
	return false
}

func (m *mixed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, body := part(r.URL.Path)
	if r.Method == http.MethodPost {
		if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, body) {
			return
		}
	}
	for len(body) > 0 && kind == "pieces" {
		n := min(len(body), 1+len(body)/3)
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		http.NewResponseController(w).Flush()
		body = body[n:]
	}
	w.Write(body)
}

// A mixer is a client that checks all that it gets.
type mixer struct {
	*speaker
	rand   *rand.Rand
	window int               // of a stream at first
	asked  uint32            // the stream that was opened last
	open   map[uint32]*taken // streams without the end of their answer
	untold int               // bytes that the connection's window is to grow by
	pings  int               // that are not answered
	storms int
}

type taken struct {
	path   string
	left   []byte
	headed bool
	untold int
}

const (
	mixerTakes = 1 << 20 // the connection's window
	// mixerPosts is how many bodies of at most 30,000 bytes the server takes at once.
	mixerPosts = 4
	// mixerStorm is how many PINGs are sent at once, so that their answers fill what is kept of such.
	mixerStorm = 1000
)

func (m *mixer) posts() (n int) {
	for _, s := range m.open {
		if strings.HasPrefix(s.path, "/post/") {
			n++
		}
	}
	return n
}

func (m *mixer) request() {
	r := m.rand
	sizes := []int{0, 1, 100, 4 << 10, 5000, 16 << 10, 30_000, 60_000, 200_000}
	size := min(100*m.window, sizes[r.IntN(len(sizes))])
	kinds := [...]string{"hit", "hit", "hit", "brief", "miss", "else", "pieces", "post"}
	path := fmt.Sprintf("/%s/%d/%d", kinds[r.IntN(len(kinds))], r.IntN(len(pattern)/2), size)
	kind, body := part(path)
	if kind == "post" && (size > 30_000 || m.posts() == mixerPosts) {
		kind, path = "else", "/else"+strings.TrimPrefix(path, "/post")
	}
	m.asked += 2
	m.open[m.asked] = &taken{path: path, left: body}
	if kind != "post" {
		m.ask(m.asked, path)
		return
	}
	m.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", path}} {
		m.coder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	m.WriteHeaders(http2.HeadersFrameParam{StreamID: m.asked, BlockFragment: m.block.Bytes(), EndHeaders: true})
	for len(body) > 0 {
		n := min(len(body), 1+r.IntN(10_000))
		m.WriteData(m.asked, false, body[:n])
		body = body[n:]
	}
	m.WriteData(m.asked, true, nil)
}

// hear takes a frame.
func (m *mixer) hear() error {
	frame, err := m.ReadFrame()
	if err != nil {
		return fmt.Errorf("%w, with %d streams open, %d PINGs unanswered", err, len(m.open), m.pings)
	}
	id := frame.Header().StreamID
	s := m.open[id]
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		if s != nil {
			s.headed = true
			m.end(id, f.StreamEnded())
		}
	case *http2.DataFrame:
		n := len(f.Data())
		if m.untold += n; m.untold > m.rand.IntN(mixerTakes) {
			m.WriteWindowUpdate(0, uint32(m.untold))
			m.untold = 0
		}
		if s == nil {
			return nil // it was reset
		}
		if !s.headed || n > len(s.left) || !bytes.Equal(f.Data(), s.left[:n]) {
			return fmt.Errorf("%s: %d wrong bytes of %d", s.path, n, len(s.left))
		}
		s.left = s.left[n:]
		if s.untold += n; s.untold > m.rand.IntN(m.window) {
			m.WriteWindowUpdate(id, uint32(s.untold))
			s.untold = 0
		}
		if m.end(id, f.StreamEnded()); f.StreamEnded() && len(s.left) > 0 {
			return fmt.Errorf("%s: %d bytes are missing", s.path, len(s.left))
		}
	case *http2.PingFrame:
		m.pings--
	case *http2.SettingsFrame:
		if !f.IsAck() {
			m.WriteSettingsAck()
		}
	case *http2.RSTStreamFrame:
		if s != nil {
			return fmt.Errorf("%s: %v", s.path, f.ErrCode)
		}
	case *http2.GoAwayFrame:
		return fmt.Errorf("%v", f)
	}
	return nil
}

func (m *mixer) end(id uint32, over bool) {
	if over {
		delete(m.open, id)
	}
}

// mix asks so often, and returns when all is answered.
func (m *mixer) mix(times int) error {
	r := m.rand
	for times > 0 || len(m.open) > 0 || m.pings > 0 {
		for n := r.IntN(16); n > 0 && times > 0 && len(m.open) < 64; n-- {
			m.request()
			times--
		}
		switch r.IntN(50) {
		case 0:
			n := 1
			if m.storms < 2 { // more would be too many for the server
				n = mixerStorm
				m.storms++
			}
			for range n {
				m.WritePing(false, [8]byte{})
				m.pings++
			}
		case 1:
			for id := range m.open {
				m.WriteRSTStream(id, http2.ErrCodeCancel)
				delete(m.open, id)
				break
			}
		}
		for n := 1 + r.IntN(20); n > 0 && len(m.open)+m.pings > 0; n-- {
			if err := m.hear(); err != nil {
				return err
			}
		}
	}
	return nil
}

// A sluggish connection takes little at a time. It fails where nothing has come for long.
type sluggish struct {
	net.Conn
	most int
}

func (s sluggish) Read(p []byte) (int, error) {
	s.SetDeadline(time.Now().Add(2 * time.Minute))
	return s.Conn.Read(p[:min(len(p), s.most)])
}

// Whatever is asked on several connections at a time, with windows and buffers of any size, is
// answered whole: nothing that could go on is forgotten.
func TestNothingIsForgottenOverHTTP2(t *testing.T) {
	for _, loops := range []bool{true, false} {
		t.Run("loops "+strconv.FormatBool(loops), func(t *testing.T) {
			plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
				mixAll(t, rand.Uint64(), secure, loops)
			})
		})
	}
}

func mixAll(t *testing.T, seed uint64, secure *tls.Config, loops bool) {
	m := new(mixed)
	o := multiplexing(m)
	o.Handler = m
	o.HeaderTimeout, o.IdleTimeout, o.ReadTimeout, o.WriteTimeout, o.StallTimeout = time.Hour, time.Hour, time.Hour, time.Hour, time.Hour
	if secure != nil {
		o.TLS = secure.Clone()
		o.TLS.NextProtos = []string{"h2"}
	}
	buffer := 32 << 10
	if loops {
		buffer = 8 << 10 // too little for a record: TCP would have a goroutine wait much
	}
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, buffer) })
	}}
	inner, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := inner.Addr().String()
	if !loops {
		inner = struct{ net.Listener }{inner}
	}
	l := lane.New(inner, o)
	var all sync.WaitGroup
	for i, window := range []int{1, 100, 5000, 65535, 65535, 1 << 20} {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c = sluggish{c, []int{700, 5000, 1 << 20}[r.IntN(3)]}
			if secure != nil {
				c = tls.Client(c, o.TLS)
			}
			defer c.Close()
			q := &queued{Conn: c, wake: make(chan []byte, 10_000)} // it never waits with what it asks
			defer close(q.wake)
			go func() {
				for b := range q.wake {
					if _, err := c.Write(b); err != nil {
						return // it cannot be read from either
					}
				}
			}()
			client := &mixer{speaker: speak(q), rand: r, window: window, asked: 1<<32 - 1, open: make(map[uint32]*taken)}
			client.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(window)})
			client.WriteWindowUpdate(0, mixerTakes-65535)
			if err := client.mix(200); err != nil {
				t.Errorf("seed %d, window %d: %v", seed, window, err)
			}
		})
	}
	all.Wait()
	l.Abort()
	if err := l.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	m.held.Wait() // the last may be in the hands of a goroutine that writes
}
