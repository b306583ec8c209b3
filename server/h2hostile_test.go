package server_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server"
)

const demoPath = "/ajax/libs/demo/1.0.0/demo.js"

// A flood is what a client sends again and again.
type flood struct {
	n     int // how often, on each connection
	begin func(*framed)
	each  func(c *framed, i int)
	deaf  bool // whether the client reads nothing
}

func oddStream(i int) uint32 { return uint32(2*i + 1) }

// thenReset asks for a path and does then what has the stream reset.
func thenReset(path string, reset func(c *framed, stream uint32)) func(*framed, int) {
	return func(c *framed, i int) {
		c.ask(oddStream(i), true, "GET", path)
		reset(c, oddStream(i))
	}
}

func cancel(c *framed, stream uint32) { c.WriteRSTStream(stream, http2.ErrCodeCancel) }

// inBlock sends a request whose header block goes on with those bytes.
func inBlock(more []byte) func(*framed, int) {
	return func(c *framed, i int) {
		block := append(c.block("GET", demoPath), more...)
		first := block[:min(len(block), 16<<10)]
		c.WriteHeaders(http2.HeadersFrameParam{StreamID: oddStream(i), BlockFragment: first, EndStream: true, EndHeaders: len(first) == len(block)})
		for rest := block[len(first):]; len(rest) > 0; {
			n := min(len(rest), 16<<10)
			c.WriteContinuation(oddStream(i), n == len(rest), rest[:n])
			rest = rest[n:]
		}
	}
}

// literal is a field that goes into the dynamic table.
func literal(name, value string) []byte {
	var b bytes.Buffer
	hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: name, Value: value})
	return b.Bytes()
}

func openPost(c *framed) { c.ask(1, false, "POST", "/hold") }

func openHeaders(c *framed) {
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block("GET", demoPath), EndStream: true})
}

// floods are known attacks, with the name that they have, and kin of them.
func floods() map[string]flood {
	all := map[string]flood{
		"PING":                  {n: 20_000, each: func(c *framed, i int) { c.WritePing(false, [8]byte{byte(i)}) }},
		"PING acknowledgements": {n: 20_000, each: func(c *framed, i int) { c.WritePing(true, [8]byte{byte(i)}) }},
		"SETTINGS": {n: 20_000, each: func(c *framed, i int) {
			c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
		}},
		"SETTINGS, empty":           {n: 20_000, each: func(c *framed, i int) { c.WriteSettings() }},
		"SETTINGS acknowledgements": {n: 20_000, each: func(c *framed, i int) { c.WriteSettingsAck() }},
		"SETTINGS of the table": {n: 20_000, each: func(c *framed, i int) {
			c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i % 2 << 30)})
		}},
		"PRIORITY": {n: 20_000, each: func(c *framed, i int) {
			c.WritePriority(oddStream(i), http2.PriorityParam{StreamDep: oddStream(i + 1), Weight: 7})
		}},
		"PRIORITY_UPDATE": {n: 20_000, each: func(c *framed, i int) {
			c.WriteRawFrame(0x10, 0, 0, append(binary.BigEndian.AppendUint32(nil, oddStream(i)), "u=1"...))
		}},
		"unknown frames":                     {n: 20_000, each: func(c *framed, i int) { c.WriteRawFrame(0xfa, 0xff, uint32(i), nil) }},
		"unknown frames, large":              {n: 1_000, each: func(c *framed, i int) { c.WriteRawFrame(0xfa, 0, 0, make([]byte, 16<<10)) }},
		"WINDOW_UPDATE":                      {n: 20_000, each: func(c *framed, i int) { c.WriteWindowUpdate(0, 1) }},
		"WINDOW_UPDATE of a stream":          {n: 20_000, begin: openPost, each: func(c *framed, i int) { c.WriteWindowUpdate(1, 1) }},
		"DATA, empty":                        {n: 20_000, begin: openPost, each: func(c *framed, i int) { c.WriteData(1, false, nil) }},
		"DATA, all padding":                  {n: 20_000, begin: openPost, each: func(c *framed, i int) { c.WriteDataPadded(1, false, nil, make([]byte, 255)) }},
		"DATA beyond the window":             {n: 1_000, begin: openPost, each: func(c *framed, i int) { c.WriteData(1, false, make([]byte, 16<<10)) }},
		"DATA of a stream that is over":      {n: 1_000, begin: func(c *framed) { c.ask(1, true, "GET", demoPath) }, each: func(c *framed, i int) { c.WriteData(1, false, make([]byte, 1000)) }},
		"CONTINUATION without end":           {n: 2_000, begin: openHeaders, each: func(c *framed, i int) { c.WriteContinuation(1, false, bytes.Repeat(literal("a", "b"), 4000)) }},
		"CONTINUATION of small fields":       {n: 20_000, begin: openHeaders, each: func(c *framed, i int) { c.WriteContinuation(1, false, []byte{0x90}) }},
		"CONTINUATION of one long field":     {n: 2_000, begin: openHeaders, each: continuationOfOneField},
		"rapid reset":                        {n: 10_000, each: thenReset(demoPath, cancel)},
		"rapid reset of large files":         {n: 5_000, each: thenReset("/ajax/libs/demo/1.0.0/noise.bin", cancel)},
		"rapid reset of inflated files":      {n: 2_000, each: thenReset("/ajax/libs/demo/1.0.0/big.js", cancel)},
		"rapid reset of what is handed over": {n: 5_000, each: thenReset("/hold", cancel)},
		"rapid reset of what is missing":     {n: 10_000, each: func(c *framed, i int) { thenReset(fmt.Sprintf("/ajax/libs/demo/1.0.0/%d", i), cancel)(c, i) }},
		"provoked by an empty WINDOW_UPDATE": {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.WriteWindowUpdate(s, 0) })},
		"provoked by overflow of a window":   {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.WriteWindowUpdate(s, 1<<31-1) })},
		"provoked by DATA after the end":     {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.WriteData(s, true, []byte("x")) })},
		"provoked by HEADERS after the end":  {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.ask(s, true, "GET", "/hold") })},
		"provoked by PRIORITY on itself":     {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.WritePriority(s, http2.PriorityParam{StreamDep: s}) })},
		"provoked by a short PRIORITY":       {n: 5_000, each: thenReset("/hold", func(c *framed, s uint32) { c.WriteRawFrame(http2.FramePriority, 0, s, []byte("x")) })},
		"provoked by a wrong length": {n: 5_000, each: func(c *framed, i int) {
			c.ask(oddStream(i), false, "POST", "/hold", "content-length", "1")
			c.WriteData(oddStream(i), true, []byte("xx"))
		}},
		"provoked by malformed requests": {n: 10_000, each: func(c *framed, i int) {
			c.ask(oddStream(i), true, "GET", demoPath, "connection", "close", "UPPER", "x")
		}},
		"more requests than allowed": {n: 5_000, each: func(c *framed, i int) { c.ask(oddStream(i), true, "GET", "/hold") }},
		"requests that never end":    {n: 5_000, each: func(c *framed, i int) { c.ask(oddStream(i), false, "GET", "/hold") }},
		"bodies that never end":      {n: 5_000, each: func(c *framed, i int) { c.ask(oddStream(i), false, "POST", demoPath, "content-length", "1000000") }},
		"HPACK bomb":                 {n: 500, each: inBlock(append(literal("cookie", strings.Repeat("a", 4000)), bytes.Repeat([]byte{0xbe}, 15_000)...))},
		"many small fields":          {n: 500, each: inBlock(bytes.Repeat([]byte{0x90}, 15_000))},
		"cookie crumbs":              {n: 50, each: inBlock(bytes.Repeat([]byte{0x60, 0x01, 'a'}, 5_000))},
		"table sizes in a block":     {n: 500, each: inBlock(bytes.Repeat([]byte{0x20, 0x3f, 0xe1, 0x1f}, 4_000))},
		"long integers in a block":   {n: 500, each: inBlock(append([]byte{0xff}, bytes.Repeat([]byte{0x80}, 15_000)...))},
	}
	for _, name := range []string{"PING", "SETTINGS", "rapid reset", "rapid reset of large files", "provoked by an empty WINDOW_UPDATE", "provoked by malformed requests", "DATA of a stream that is over"} {
		f := all[name]
		f.deaf = true
		all[name+", and deaf"] = f
	}
	return all
}

// continuationOfOneField announces a value of 2 GB and goes on with it for ever.
func continuationOfOneField(c *framed, i int) {
	value := bytes.Repeat([]byte{'a'}, 16<<10)
	if i == 0 {
		value = append([]byte{0x00, 0x01, 'a', 0x7f, 0x80, 0xff, 0xff, 0xff, 0x07}, value[16:]...)
	}
	c.WriteContinuation(1, false, value)
}

const (
	floodConnections = 4
	// What all of a flood's connections together may take, at both ends: for each of as many
	// streams as are allowed the largest head there may be, and as much again.
	floodMemory     = floodConnections * answers.Streams * 2 * (32 << 10)
	floodGoroutines = floodConnections * (answers.Streams + 10)
)

// inUse is the memory of what is reachable and of goroutines' stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // so that pools are empty, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// However a few clients flood the server, its memory and its goroutines are bounded, no more is
// handled for them than is allowed, others are served meanwhile, and nothing is left of it.
func TestFloodsAreBounded(t *testing.T) {
	store := fixture(t)
	for name, f := range floods() {
		eachTransport(t, func(t *testing.T, secure bool) {
			t.Run(name, func(t *testing.T) {
				if secure && !f.deaf && !strings.Contains(name, "CONTINUATION") {
					t.Skip("TLS makes a difference to buffers only")
				}
				g := newTarget(t, secure, server.Options{Store: store})
				g.serveOthers(8, demoPath, demoJS())
				memory, goroutines := inUse(), runtime.NumGoroutine()
				var sent atomic.Int64
				attackers := make([]*framed, floodConnections)
				over := make(chan struct{}, floodConnections)
				var all sync.WaitGroup
				for i := range attackers {
					c := g.dial()
					attackers[i] = c
					if !f.deaf {
						all.Go(func() { io.Copy(io.Discard, c.Conn) })
					}
					all.Go(func() {
						defer func() { over <- struct{}{} }()
						if f.begin != nil {
							f.begin(c)
						}
						for i := range f.n {
							f.each(c, i)
							if _, err := c.out.Write(nil); err != nil {
								return // the server has ended it
							}
							sent.Add(1)
						}
						c.out.Flush()
					})
				}
				// A server that takes no more from a client that reads nothing is right, too.
				for ended, still, before := 0, 0, int64(-1); ended < floodConnections && still < 20; {
					g.serveOthers(1, demoPath, demoJS())
					select {
					case <-over:
						ended++
					default:
					}
					if now := sent.Load(); now == before {
						still++
					} else {
						still, before = 0, now
					}
				}
				g.serveOthers(8, demoPath, demoJS())
				if n := runtime.NumGoroutine() - goroutines; n > floodGoroutines {
					t.Errorf("there are %d goroutines more, want at most %d", n, floodGoroutines)
				}
				if n := inUse() - memory; n > floodMemory {
					t.Errorf("%d bytes more are in use, want at most %d", n, floodMemory)
				}
				if n := g.held.Load(); n > floodConnections*answers.Streams {
					t.Errorf("%d requests were handled at a time for %d connections", n, floodConnections)
				}
				for _, c := range attackers {
					c.Close()
				}
				all.Wait()
				g.eventually("nothing is sent any more", func() bool {
					return g.gauge("larder_assets_sending_bytes") == 0 && g.gauge("larder_assets_in_flight_requests") == 0
				})
				g.eventually("goroutines end", func() bool {
					return runtime.NumGoroutine()-goroutines-int(g.holding.Load()) < 20
				})
			})
		})
	}
}

// Windows are counted exactly, from one byte to 2 GB, below nothing and beyond the limit.
func TestWindows(t *testing.T) {
	store := fixture(t)
	window := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n} }
	tiny := []byte("0123456789")
	eachTransport(t, func(t *testing.T, secure bool) {
		g := newTarget(t, secure, server.Options{Store: store})
		t.Run("of a byte", func(t *testing.T) {
			c := g.dial(window(1))
			c.ask(1, true, "GET", "/ajax/libs/demo/1.0.0/tiny.txt")
			var got []byte
			c.until(t, func(f http2.Frame) bool {
				d, ok := f.(*http2.DataFrame)
				if !ok {
					return false
				}
				if len(d.Data()) > 1 {
					t.Errorf("%d bytes where one is allowed", len(d.Data()))
				}
				got = append(got, d.Data()...)
				c.WriteWindowUpdate(1, 1)
				c.out.Flush()
				return d.StreamEnded()
			})
			if !bytes.Equal(got, tiny) {
				t.Errorf("got %q", got)
			}
		})
		t.Run("of the connection", func(t *testing.T) {
			c := g.dial(window(1<<31 - 1))
			c.ask(1, true, "GET", "/ajax/libs/demo/1.0.0/noise.bin")
			sent := 0
			count := func(f http2.Frame) {
				if d, ok := f.(*http2.DataFrame); ok {
					sent += len(d.Data())
				}
			}
			c.until(t, func(f http2.Frame) bool { count(f); return sent >= 65535 })
			c.echoed(t, count)
			if sent != 65535 {
				t.Errorf("%d bytes in a window of 65535", sent)
			}
			c.WriteWindowUpdate(0, 1<<31-1-65535)
			c.until(t, func(f http2.Frame) bool { count(f); return f.Header().Flags.Has(http2.FlagDataEndStream) })
			if sent != 300<<10 {
				t.Errorf("%d bytes in all", sent)
			}
		})
		t.Run("below nothing", func(t *testing.T) {
			c := g.dial(window(1000))
			c.WriteWindowUpdate(0, 1<<20)
			c.ask(1, true, "GET", "/ajax/libs/demo/1.0.0/noise.bin")
			sent := 0
			count := func(f http2.Frame) {
				if d, ok := f.(*http2.DataFrame); ok {
					sent += len(d.Data())
				}
			}
			c.until(t, func(f http2.Frame) bool { count(f); return sent >= 1000 })
			c.WriteSettings(window(100)) // so the window is -900
			c.echoed(t, count)
			for _, step := range []struct{ more, want uint32 }{{800, 1000}, {100, 1000}, {10, 1010}} {
				c.WriteWindowUpdate(1, step.more)
				if sent < int(step.want) {
					c.until(t, func(f http2.Frame) bool { count(f); return sent >= int(step.want) })
				}
				c.echoed(t, count)
				if sent != int(step.want) {
					t.Errorf("%d bytes after %d more are allowed, want %d", sent, step.more, step.want)
				}
			}
			c.WriteSettings(window(1<<31 - 1))
			c.until(t, func(f http2.Frame) bool {
				count(f)
				return f.Header().Flags.Has(http2.FlagDataEndStream) && f.Header().Type == http2.FrameData
			})
			if sent != 300<<10 {
				t.Errorf("%d bytes in all", sent)
			}
		})
		t.Run("beyond the limit, of a stream", func(t *testing.T) {
			c := g.dial(window(0))
			c.ask(1, true, "GET", "/ajax/libs/demo/1.0.0/noise.bin")
			c.WriteWindowUpdate(1, 1<<31-1)
			c.WriteWindowUpdate(1, 1<<31-1)
			c.until(t, func(f http2.Frame) bool {
				r, ok := f.(*http2.RSTStreamFrame)
				return ok && r.ErrCode == http2.ErrCodeFlowControl
			})
			c.echoed(t, nil)
		})
		for name, overflow := range map[string]func(*framed){
			"beyond the limit, of the connection": func(c *framed) { c.WriteWindowUpdate(0, 1<<31-1) },
			"beyond the limit, by SETTINGS":       func(c *framed) { c.WriteSettings(window(1 << 31)) },
			"beyond the limit, of all streams": func(c *framed) {
				c.ask(1, true, "GET", "/ajax/libs/demo/1.0.0/noise.bin")
				c.WriteWindowUpdate(1, 1<<31-1-65535)
				c.WriteSettings(window(1<<31 - 1))
			},
		} {
			t.Run(name, func(t *testing.T) {
				c := g.dial(window(0))
				c.WriteSettings(window(65535))
				overflow(c)
				c.until(t, func(f http2.Frame) bool {
					g, ok := f.(*http2.GoAwayFrame)
					return ok && g.ErrCode == http2.ErrCodeFlowControl
				})
			})
		}
	})
}

// A request whose end never comes is answered, and its place is free again.
func TestHalfClosedStreamsAreFree(t *testing.T) {
	eachTransport(t, func(t *testing.T, secure bool) {
		g := newTarget(t, secure, server.Options{Store: fixture(t)})
		c := g.dial(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		c.WriteWindowUpdate(0, 1<<30)
		want := demoJS()
		for round := range 20 {
			const some = 50
			for i := range some {
				c.ask(oddStream(round*some+i), false, "GET", demoPath)
			}
			c.collect(t, (round+1)*some)
		}
		for stream, a := range c.answers {
			if a.status != http.StatusOK || !bytes.Equal(a.body, want) {
				t.Fatalf("stream %d: status %d, %d bytes, %v", stream, a.status, len(a.body), a.reset)
			}
		}
	})
}
