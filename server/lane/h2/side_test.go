package h2

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A shop is a Server: /N is answered with N bytes, /none with the head only, /later by a peer that
// does nothing, and with a body every path is.
type shop struct {
	served   []string
	held     int // bodies
	released int64
	peers    []*peer
}

type peer struct {
	body   []byte
	ended  bool
	sent   int
	broken Code
	fields []Field
}

func (p *peer) Received(b []byte)      { p.body = append(p.body, b...) }
func (p *peer) Ended(trailers []Field) { p.ended, p.fields = true, append(p.fields, trailers...) }
func (p *peer) Sent()                  { p.sent++ }
func (p *peer) Broken(code Code)       { p.broken = code }
func (s *shop) Scarce() bool           { return false }
func (s *shop) Release(sent int64)     { s.held, s.released = s.held-1, s.released+sent }
func (s *shop) ReceiveBody(stream *Stream) Peer {
	p := &peer{broken: 99}
	s.peers = append(s.peers, p)
	return p
}

var zeros [1 << 20]byte

func (s *shop) Serve(stream *Stream) {
	path := strings.Clone(stream.Request.Path)
	n, err := strconv.Atoi(path[1:])
	switch {
	case err == nil && n > 0 && !stream.CanSend():
		stream.Postpone()
		return
	case stream.Peer != nil || path == "/later":
		p, ok := stream.Peer.(*peer)
		if !ok {
			p = s.ReceiveBody(stream).(*peer)
		}
		stream.Delegate(p)
	case err == nil:
		s.held++
		stream.Send(AppendStatus(nil, 200), nil, zeros[:n], s)
	default:
		stream.Send(AppendStatus(nil, 204), nil, nil, nil)
	}
	s.served = append(s.served, path)
}

// A side is the client's side of a connection, and the server that it speaks to.
type side struct {
	*http2.Framer
	sent   bytes.Buffer
	got    bytes.Buffer // what the server has sent and is not read yet
	server *Conn
	shop   *shop
	coder  *hpack.Encoder
	block  bytes.Buffer
	now    time.Time
}

var start = time.Unix(1e9, 0)

func options(s *shop) *Options {
	return &Options{Server: s, HeaderTimeout: 10 * time.Second, Stall: 30 * time.Second, HeaderBytes: 8 << 10, Streams: 10}
}

// connected returns a connection whose beginning is over.
func connected(settings ...http2.Setting) *side {
	c := &side{shop: new(shop), now: start}
	c.server = New(options(c.shop), start)
	c.Framer = http2.NewFramer(&c.sent, &c.got)
	c.AllowIllegalReads, c.AllowIllegalWrites = true, true
	c.coder = hpack.NewEncoder(&c.block)
	c.sent.WriteString(Preface)
	c.WriteSettings(settings...)
	c.said()
	return c
}

func (c *side) fields(pairs ...string) []byte {
	c.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		c.coder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(c.block.Bytes())
}

func (c *side) ask(id uint32, path string, more ...string) {
	b := c.fields(append([]string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", path}, more...)...)
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndStream: true, EndHeaders: true})
}

// post begins a request with a body.
func (c *side) post(id uint32, more ...string) {
	b := c.fields(append([]string{":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/post"}, more...)...)
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true})
}

// deliver gives the server what was written, a piece at a time.
func (c *side) deliver(size int) {
	for b := c.sent.Bytes(); len(b) > 0; {
		n := min(size, len(b))
		c.server.Receive(b[:n], c.now)
		b = b[n:]
	}
	c.sent.Reset()
}

// said returns what the server has sent by now, in short words.
func (c *side) said() (all []string) {
	c.deliver(1 << 20)
	for {
		out := NewOut(len(all)%2 == 0)
		c.server.Gather(out, c.now)
		n := out.Size()
		if out.flat {
			c.got.Write(out.Bytes)
		} else {
			for _, b := range out.Parts() {
				c.got.Write(b)
			}
			out.Sent(n)
		}
		c.server.Free(out)
		if n == 0 {
			break
		}
	}
	for c.got.Len() > 0 {
		f, err := c.ReadFrame()
		if err != nil {
			return append(all, err.Error())
		}
		all = append(all, short(f))
	}
	return all
}

func short(f http2.Frame) string {
	id, end := f.Header().StreamID, ""
	if f.Header().Flags&endStream != 0 {
		end = " end"
	}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return fmt.Sprintf("%d head%s", id, end)
	case *http2.DataFrame:
		return fmt.Sprintf("%d data %d%s", id, len(f.Data()), end)
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("%d reset %v", id, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("goaway %d %v", f.LastStreamID, f.ErrCode)
	case *http2.WindowUpdateFrame:
		return fmt.Sprintf("%d window %d", id, f.Increment)
	case *http2.SettingsFrame, *http2.PingFrame:
		return fmt.Sprintf("%v%s", f.Header().Type, end)
	}
	return f.Header().String()
}

func raw(c *side, kind byte, flags byte, id uint32, payload string) {
	c.WriteRawFrame(http2.FrameType(kind), http2.Flags(flags), id, []byte(payload))
}

// checks looks at what a connection has come to.
func (c *side) checks(t *testing.T, said []string) {
	for _, s := range said {
		if strings.Contains(s, "rror") && !strings.Contains(s, "goaway") && !strings.Contains(s, "reset") || strings.Contains(s, io.ErrUnexpectedEOF.Error()) {
			t.Errorf("the server says what is no frame: %q", s)
		}
	}
	n := 0
	for _, s := range c.server.streams {
		if n += s.weight; s.window > mostWindow || s.recvWindow > streamWindow || s.unconsumed < 0 {
			t.Errorf("stream %d: window %d, %d, %d", s.id, s.window, s.recvWindow, s.unconsumed)
		}
	}
	if len(c.server.streams) > c.server.o.Streams || c.server.window < 0 && c.server.window < -0 || c.server.window > mostWindow || c.server.recvWindow > connWindow || n != c.server.held {
		t.Errorf("%d streams, windows %d and %d, %d bytes held, want %d", len(c.server.streams), c.server.window, c.server.recvWindow, c.server.held, n)
	}
	c.server.Abandon()
	if c.shop.held != 0 || c.server.held != 0 {
		t.Errorf("%d bodies are left, %d bytes", c.shop.held, c.server.held)
	}
}
