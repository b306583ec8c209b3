package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// What RFC 9113 says that an error is, is one.
func TestErrors(t *testing.T) {
	connection := func(code http2.ErrCode) string { return fmt.Sprintf("goaway 0 %v", code) }
	of := func(last int, code http2.ErrCode) string { return fmt.Sprintf("goaway %d %v", last, code) }
	stream := func(code http2.ErrCode) string { return fmt.Sprintf("1 reset %v", code) }
	const protocol, flow, size, closed = http2.ErrCodeProtocol, http2.ErrCodeFlowControl, http2.ErrCodeFrameSize, http2.ErrCodeStreamClosed
	word := "\x00\x00\x00\x01"
	for name, test := range map[string]struct {
		send func(*side)
		want string
	}{
		"DATA on the connection":          {func(c *side) { raw(c, data, 0, 0, "x") }, connection(protocol)},
		"DATA on an idle stream":          {func(c *side) { raw(c, data, 0, 1, "x") }, connection(protocol)},
		"DATA on a server's stream":       {func(c *side) { raw(c, data, 0, 2, "x") }, connection(protocol)},
		"DATA after the end":              {func(c *side) { c.ask(1, "/later"); raw(c, data, 0, 1, "x") }, stream(closed)},
		"DATA with too much padding":      {func(c *side) { c.post(1); raw(c, data, padded, 1, "\x05abc") }, of(1, protocol)},
		"DATA with no length of padding":  {func(c *side) { c.post(1); raw(c, data, padded, 1, "") }, of(1, size)},
		"DATA beyond what was said":       {func(c *side) { c.post(1, "content-length", "2"); raw(c, data, 0, 1, "abc") }, stream(protocol)},
		"DATA less than was said":         {func(c *side) { c.post(1, "content-length", "2"); raw(c, data, endStream, 1, "a") }, stream(protocol)},
		"HEADERS on the connection":       {func(c *side) { c.ask(0, "/1") }, connection(protocol)},
		"HEADERS on a server's stream":    {func(c *side) { c.ask(2, "/1") }, connection(protocol)},
		"HEADERS of a lower number":       {func(c *side) { c.ask(5, "/later"); c.ask(3, "/1") }, of(5, protocol)},
		"HEADERS after the end":           {func(c *side) { c.ask(1, "/later"); c.ask(1, "/1") }, stream(closed)},
		"HEADERS that depend on itself":   {func(c *side) { raw(c, headers, endStream|endHeaders|hasPriority, 1, word+"\x00") }, stream(protocol)},
		"HEADERS with half a priority":    {func(c *side) { raw(c, headers, endStream|endHeaders|hasPriority, 1, word) }, connection(size)},
		"HEADERS that do not decode":      {func(c *side) { raw(c, headers, endStream|endHeaders, 1, "\xff\xff") }, of(1, http2.ErrCodeCompression)},
		"trailers that are not the end":   {func(c *side) { c.post(1); c.post(1) }, stream(protocol)},
		"trailers with pseudo-fields":     {func(c *side) { c.post(1); c.ask(1, "/1") }, stream(protocol)},
		"CONTINUATION of nothing":         {func(c *side) { raw(c, continuation, 0, 1, "") }, connection(protocol)},
		"CONTINUATION of another stream":  {func(c *side) { raw(c, headers, endStream, 1, ""); raw(c, continuation, 0, 3, "") }, connection(protocol)},
		"PING in a header block":          {func(c *side) { raw(c, headers, endStream, 1, ""); c.WritePing(false, [8]byte{}) }, connection(protocol)},
		"RST_STREAM on the connection":    {func(c *side) { raw(c, rstStream, 0, 0, word) }, connection(protocol)},
		"RST_STREAM on an idle stream":    {func(c *side) { raw(c, rstStream, 0, 1, word) }, connection(protocol)},
		"RST_STREAM that is too short":    {func(c *side) { c.ask(1, "/later"); raw(c, rstStream, 0, 1, "x") }, of(1, size)},
		"SETTINGS on a stream":            {func(c *side) { raw(c, settings, 0, 1, "") }, connection(protocol)},
		"SETTINGS that are cut off":       {func(c *side) { raw(c, settings, 0, 0, "x") }, connection(size)},
		"SETTINGS acknowledged with text": {func(c *side) { raw(c, settings, ack, 0, "123456") }, connection(size)},
		"SETTINGS of a push":              {func(c *side) { c.WriteSettings(http2.Setting{ID: enablePush, Val: 2}) }, connection(protocol)},
		"SETTINGS of a small frame":       {func(c *side) { c.WriteSettings(http2.Setting{ID: maxFrameSize, Val: 100}) }, connection(protocol)},
		"SETTINGS of a huge frame":        {func(c *side) { c.WriteSettings(http2.Setting{ID: maxFrameSize, Val: 1 << 24}) }, connection(protocol)},
		"SETTINGS of a huge window":       {func(c *side) { c.WriteSettings(http2.Setting{ID: initialWindow, Val: 1 << 31}) }, connection(flow)},
		"SETTINGS that make one huge": {func(c *side) {
			c.ask(1, "/later")
			c.WriteWindowUpdate(1, 1<<31-1-65535)
			c.WriteSettings(http2.Setting{ID: initialWindow, Val: 65536})
		}, of(1, flow)},
		"PUSH_PROMISE":                      {func(c *side) { raw(c, pushPromise, endHeaders, 1, word) }, connection(protocol)},
		"PING on a stream":                  {func(c *side) { raw(c, ping, 0, 1, "12345678") }, connection(protocol)},
		"PING that is too long":             {func(c *side) { raw(c, ping, 0, 0, "123456789") }, connection(size)},
		"GOAWAY on a stream":                {func(c *side) { raw(c, goAway, 0, 1, "12345678") }, connection(protocol)},
		"GOAWAY that is too short":          {func(c *side) { raw(c, goAway, 0, 0, "1234567") }, connection(size)},
		"WINDOW_UPDATE that is too short":   {func(c *side) { raw(c, windowUpdate, 0, 0, "123") }, connection(size)},
		"WINDOW_UPDATE of nothing":          {func(c *side) { raw(c, windowUpdate, 0, 0, "\x00\x00\x00\x00") }, connection(protocol)},
		"WINDOW_UPDATE of a stream, none":   {func(c *side) { c.ask(1, "/later"); raw(c, windowUpdate, 0, 1, "\x80\x00\x00\x00") }, stream(protocol)},
		"WINDOW_UPDATE on an idle stream":   {func(c *side) { raw(c, windowUpdate, 0, 1, word) }, connection(protocol)},
		"WINDOW_UPDATE beyond the limit":    {func(c *side) { c.WriteWindowUpdate(0, 1<<31-1) }, connection(flow)},
		"WINDOW_UPDATE of a stream, beyond": {func(c *side) { c.ask(1, "/later"); c.WriteWindowUpdate(1, 1<<31-1) }, stream(flow)},
		"PRIORITY on the connection":        {func(c *side) { raw(c, priorityFrame, 0, 0, word+"\x00") }, connection(protocol)},
		"PRIORITY that is too short":        {func(c *side) { raw(c, priorityFrame, 0, 1, word) }, stream(size)},
		"PRIORITY of itself":                {func(c *side) { raw(c, priorityFrame, 0, 1, word+"\x00") }, stream(protocol)},
		"PRIORITY_UPDATE on a stream":       {func(c *side) { raw(c, priorityUpdate, 0, 1, word) }, connection(protocol)},
		"PRIORITY_UPDATE of nothing":        {func(c *side) { raw(c, priorityUpdate, 0, 0, "\x00\x00\x00\x00") }, connection(protocol)},
		"PRIORITY_UPDATE that is too short": {func(c *side) { raw(c, priorityUpdate, 0, 0, "123") }, connection(size)},
		"a frame that is too large":         {func(c *side) { raw(c, 0xfa, 0, 0, strings.Repeat("x", largestFrame+1)) }, connection(size)},
		"one stream too many": {func(c *side) {
			for id := uint32(3); id < 23; id += 2 {
				c.ask(id, "/later")
			}
			c.ask(23, "/1")
		}, "23 reset " + http2.ErrCodeRefusedStream.String()},
	} {
		t.Run(name, func(t *testing.T) {
			c := connected()
			test.send(c)
			all := c.said()
			if len(all) == 0 || all[len(all)-1] != test.want {
				t.Errorf("the server says %q, want %s", all, test.want)
			}
		})
	}
}

// Requests that are none are reset, and the connection goes on.
func TestMalformedRequests(t *testing.T) {
	plain := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/1"}
	without := func(name string) (rest []string) {
		for i := 0; i < len(plain); i += 2 {
			if plain[i] != name {
				rest = append(rest, plain[i], plain[i+1])
			}
		}
		return rest
	}
	with := func(pairs ...string) []string { return append(plain[:len(plain):len(plain)], pairs...) }
	for name, fields := range map[string][]string{
		"another scheme": append(without(":scheme"), ":scheme", "ftp"), "no method": without(":method"), "no scheme": without(":scheme"), "no path": without(":path"),
		"an empty path": append(without(":path"), ":path", ""), "a path without a slash": append(without(":path"), ":path", "x"),
		"two paths": with(":path", "/2"), "a pseudo-field after others": append([]string{"a", "b"}, plain...), "an unknown pseudo-field": with(":a", "b"),
		"a status": with(":status", "200"), "upper case": with("Accept", "x"), "no token": with("a b", "x"), "an empty name": with("", "x"),
		"connection": with("connection", "close"), "transfer-encoding": with("transfer-encoding", "chunked"), "upgrade": with("upgrade", "x"),
		"keep-alive": with("keep-alive", "x"), "proxy-connection": with("proxy-connection", "x"), "te": with("te", "gzip"),
		"a line break in a value": with("a", "b\r\nc"), "NUL in a value": with("a", "\x00"), "space before a value": with("a", " b"), "space behind a value": with("a", "b "),
		"a length of no body": with("content-length", "1"), "a length that is none": with("content-length", "+0"), "two lengths": with("content-length", "0", "content-length", "1"),
		"another host": with("host", "y"), "two hosts": with("host", "x", "host", "x"), "a user": append(without(":authority"), ":authority", "a@x"),
		"CONNECT with a path": {":method", "CONNECT", ":authority", "x:1", ":path", "/"}, "CONNECT to nowhere": {":method", "CONNECT"}, "a method that is no token": append(without(":method"), ":method", "G T"),
	} {
		t.Run(name, func(t *testing.T) {
			c := connected()
			c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields(fields...), EndStream: true, EndHeaders: true})
			c.ask(3, "/1")
			got := strings.Join(c.said(), ", ")
			if want := "1 reset PROTOCOL_ERROR, 3 head, 3 data 1 end"; got != want {
				t.Errorf("the server says %q, want %q", got, want)
			}
		})
	}
}

// What is odd and allowed is.
func TestAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		send func(*side)
		want string
	}{
		"unknown frames":            {func(c *side) { raw(c, 0xfa, 0xff, 7, "x"); raw(c, 0xfa, 0, 0, "") }, ""},
		"unknown settings":          {func(c *side) { c.WriteSettings(http2.Setting{ID: 0xfafa, Val: 1 << 31}) }, "SETTINGS end"},
		"PING":                      {func(c *side) { c.WritePing(false, [8]byte{1}) }, "PING end"},
		"WINDOW_UPDATE of the past": {func(c *side) { c.ask(1, "/1"); c.said(); c.WriteWindowUpdate(1, 1) }, ""},
		"RST_STREAM of the past":    {func(c *side) { c.ask(1, "/1"); c.said(); c.WriteRSTStream(1, 8) }, ""},
		"a header block in pieces": {func(c *side) {
			b := c.fields(":method", "GET", ":scheme", "https", ":path", "/none")
			c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:1], EndStream: true})
			c.WriteContinuation(1, false, b[1:2])
			c.WriteContinuation(1, true, b[2:])
		}, "1 head end"},
		"padding and an old priority": {func(c *side) {
			b := c.fields(":method", "GET", ":scheme", "https", ":path", "/none")
			c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b, EndStream: true, EndHeaders: true, PadLength: 9, Priority: http2.PriorityParam{StreamDep: 7, Weight: 1}})
		}, "1 head end"},
		"te: trailers":     {func(c *side) { c.ask(1, "/none", "te", "trailers") }, "1 head end"},
		"an equal host":    {func(c *side) { c.ask(1, "/none", "host", "X") }, "1 head end"},
		"fields too large": {func(c *side) { c.ask(1, "/none", "a", strings.Repeat("b", 9000)) }, "1 head end"},
		"DATA that comes after a reset of the server's": {func(c *side) {
			c.post(1, "content-length", "1")
			raw(c, data, 0, 1, "xx")
			raw(c, data, 0, 1, "xx")
		}, "1 reset PROTOCOL_ERROR, 1 reset STREAM_CLOSED"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connected()
			test.send(c)
			if got := strings.Join(c.said(), ", "); got != test.want {
				t.Errorf("the server says %q, want %q", got, test.want)
			}
			c.ask(101, "/1")
			if got := strings.Join(c.said(), ", "); got != "101 head, 101 data 1 end" {
				t.Errorf("then it says %q", got)
			}
		})
	}
}

// Bodies of requests come whole, with what is behind them, and are taken as they are read.
func TestRequestBodies(t *testing.T) {
	c := connected()
	c.post(1, "content-length", "40000")
	for range 4 {
		c.WriteDataPadded(1, false, zeros[:10000], zeros[:100])
	}
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields("a", "b"), EndStream: true, EndHeaders: true})
	c.said()
	p := c.shop.peers[0]
	if len(p.body) != 40000 || !p.ended || fmt.Sprint(p.fields) != "[{0 a b}]" {
		t.Errorf("%d bytes, ended %v, %v", len(p.body), p.ended, p.fields)
	}
	c.post(3)
	c.said()
	stream := func() *Stream { return c.server.find(3) }
	total := 0
	for range 100 {
		n := min(c.server.find(3).recvWindow, 10000)
		c.WriteData(3, false, zeros[:n])
		c.said()
		stream().Consumed(n)
		total += n
	}
	c.said()
	if total != 1_000_000 {
		t.Errorf("only %d bytes were taken", total)
	}
	c.WriteData(3, false, zeros[:10000])
	for range 6 {
		c.WriteData(3, false, zeros[:10000])
	}
	if got := c.said(); len(got) == 0 || got[len(got)-1] != "3 reset FLOW_CONTROL_ERROR" {
		t.Errorf("more than was allowed is answered with %q", got)
	}
	if c.shop.peers[1].broken != FlowControlError {
		t.Error("the peer was not told")
	}
}

// Nothing is sent beyond the windows, and all that fits.
func TestWindows(t *testing.T) {
	c := connected(http2.Setting{ID: initialWindow, Val: 0})
	say := func(want string) {
		t.Helper()
		if got := strings.Join(c.said(), ", "); got != want {
			t.Errorf("the server says %q, want %q", got, want)
		}
	}
	c.ask(1, "/5")
	c.ask(3, "/none")
	say("3 head end")
	if c.shop.held != 0 {
		t.Error("a body is held that cannot be sent")
	}
	c.WriteWindowUpdate(1, 1)
	say("1 head, 1 data 1")
	c.WriteSettings(http2.Setting{ID: initialWindow, Val: 2})
	say("SETTINGS end, 1 data 2")
	c.WriteSettings(http2.Setting{ID: initialWindow, Val: 0}) // so it is -2
	c.WriteWindowUpdate(1, 2)
	say("SETTINGS end")
	c.WriteWindowUpdate(1, 1)
	say("1 data 1")
	c.WriteWindowUpdate(1, 1<<31-1)
	say("1 data 1 end")
	if c.shop.held != 0 || c.shop.released != 5 {
		t.Errorf("%d bodies are held, %d bytes released", c.shop.held, c.shop.released)
	}
	c.WriteSettings(http2.Setting{ID: initialWindow, Val: 1<<31 - 1})
	c.ask(5, "/65530") // what the connection has left
	c.ask(7, "/3")
	c.said()
	c.WriteWindowUpdate(0, 1)
	say("7 head, 7 data 1")
	c.WriteWindowUpdate(0, 1<<31-1)
	say("7 data 2 end")
}

func TestPriorities(t *testing.T) {
	for name, test := range map[string]struct {
		ask  func(c *side)
		want string
	}{
		"in order": {func(c *side) { c.ask(1, "/20000"); c.ask(3, "/1") }, "1 head, 1 data 16384, 1 data 3616 end, 3 head, 3 data 1 end"},
		"urgent first": {func(c *side) { c.ask(1, "/1"); c.ask(3, "/1", "priority", "u=5"); c.ask(5, "/1", "priority", "u=0") },
			"5 head, 5 data 1 end, 1 head, 1 data 1 end, 3 head, 3 data 1 end"},
		"in turn": {func(c *side) {
			c.ask(1, "/20000", "priority", "i")
			c.ask(3, "/20000", "priority", "u=3, i=?1")
			c.ask(5, "/1", "priority", "i;a=b")
		}, "1 head, 1 data 16384, 3 head, 3 data 16384, 5 head, 5 data 1 end, 1 data 3616 end, 3 data 3616 end"},
		"what is no priority": {func(c *side) { c.ask(1, "/1", "priority", "u=9, i=x, ???"); c.ask(3, "/1", "priority", "u=2;x, u") }, "3 head, 3 data 1 end, 1 head, 1 data 1 end"},
		"by frames": {func(c *side) {
			raw(c, priorityUpdate, 0, 0, "\x00\x00\x00\x05u=0")
			c.ask(1, "/1")
			c.ask(3, "/1")
			c.ask(5, "/1")
			raw(c, priorityUpdate, 0, 0, "\x00\x00\x00\x01u=7")
			raw(c, priorityUpdate, 0, 0, "\x00\x00\x00\x63u=7")
		}, "5 head, 5 data 1 end, 3 head, 3 data 1 end, 1 head, 1 data 1 end"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connected()
			test.ask(c)
			if got := strings.Join(c.said(), ", "); got != test.want {
				t.Errorf("the server says %q, want %q", got, test.want)
			}
		})
	}
}

// Beyond HeldMost bodies wait until others are sent, if they are the connection's to hold.
func TestHeldIsBounded(t *testing.T) {
	c := connected(http2.Setting{ID: initialWindow, Val: 1})
	c.WriteWindowUpdate(0, 1<<30)
	for i := range uint32(8) {
		c.ask(2*i+1, "/1000000", "priority", "i")
	}
	c.said()
	if c.shop.held != 3 { // 1,000,000 bytes each
		t.Errorf("%d bodies are held", c.shop.held)
	}
	for i := range uint32(8) {
		c.WriteWindowUpdate(2*i+1, 1<<30)
	}
	c.said()
	if c.shop.held != 0 || c.server.held != 0 || len(c.shop.served) != 8 {
		t.Errorf("%d bodies are held (%d bytes), %d were sent", c.shop.held, c.server.held, len(c.shop.served))
	}
}

// An end in two steps loses no request that the client has sent before it knew.
func TestDrain(t *testing.T) {
	c := connected()
	c.ask(1, "/later")
	c.said()
	c.server.Announce()
	c.ask(3, "/1")
	if got := strings.Join(c.said(), ", "); got != "goaway 2147483647 NO_ERROR, PING, 3 head, 3 data 1 end" {
		t.Errorf("the server says %q", got)
	}
	c.WritePing(true, [8]byte([]byte(farewell)))
	if got := strings.Join(c.said(), ", "); got != "goaway 3 NO_ERROR" {
		t.Errorf("then it says %q", got)
	}
	c.ask(5, "/1")
	c.WriteWindowUpdate(5, 1)
	if got := c.said(); len(got) > 0 || c.server.Done() {
		t.Errorf("to a stream too late it says %q; done %v", got, c.server.Done())
	}
	c.server.find(1).Send(AppendStatus(nil, 204), nil, nil, nil)
	if got := strings.Join(c.said(), ", "); got != "1 head end" || !c.server.Done() {
		t.Errorf("in the end it says %q; done %v", got, c.server.Done())
	}
}

// Each kind of frame that costs more than it brings ends the connection, when there are many at
// once, and does not when they are few.
func TestFloods(t *testing.T) {
	id := uint32(1)
	next := func() uint32 { id += 2; return id }
	for name, each := range map[string]func(*side){
		"PING":                  func(c *side) { c.WritePing(false, [8]byte{}) },
		"SETTINGS":              func(c *side) { c.WriteSettings() },
		"PRIORITY":              func(c *side) { c.WritePriority(1001, http2.PriorityParam{}) },
		"unknown":               func(c *side) { raw(c, 0xfa, 0, 0, "") },
		"WINDOW_UPDATE":         func(c *side) { c.WriteWindowUpdate(0, 1) },
		"DATA without data":     func(c *side) { c.WriteData(1, false, nil) },
		"resets":                func(c *side) { n := next(); c.ask(n, "/later"); c.WriteRSTStream(n, 8) },
		"resets of the server":  func(c *side) { n := next(); c.ask(n, "/later"); raw(c, windowUpdate, 0, n, "\x00\x00\x00\x00") },
		"malformed requests":    func(c *side) { c.ask(next(), "/1", "te", "x") },
		"requests beyond bound": func(c *side) { c.ask(next(), "/later") },
	} {
		t.Run(name, func(t *testing.T) {
			id = 1
			c := connected()
			c.post(1)
			calm := "goaway"
			for i := range 300 {
				each(c)
				if i%10 == 0 {
					if all := c.said(); len(all) > 0 && strings.HasPrefix(all[len(all)-1], calm) {
						t.Fatalf("the %dth says %q", i, all[len(all)-1])
					}
				}
			}
			for range 4200 {
				each(c)
			}
			if all := c.said(); len(all) == 0 || !strings.HasSuffix(all[len(all)-1], "ENHANCE_YOUR_CALM") {
				t.Errorf("there is no end to it: %q", all[max(0, len(all)-3):])
			}
		})
	}
	t.Run("with time", func(t *testing.T) {
		c := connected()
		for range 100 {
			for range 900 {
				c.WritePing(false, [8]byte{})
			}
			c.said()
			c.now = c.now.Add(time.Second)
		}
		if code, failed := c.server.Failure(); failed {
			t.Errorf("900 a second end it: %v", code)
		}
	})
	t.Run("header block without end", func(t *testing.T) {
		c := connected()
		raw(c, headers, endStream, 1, "")
		for range continuations + 1 {
			raw(c, continuation, 0, 1, "\x82")
		}
		if got := strings.Join(c.said(), ", "); got != "goaway 0 ENHANCE_YOUR_CALM" {
			t.Errorf("the server says %q", got)
		}
	})
}

// What a client has begun and does not end is ended for it.
func TestTimeLimits(t *testing.T) {
	for name, test := range map[string]struct {
		begin func(*side)
		after time.Duration
		want  string
	}{
		"half a frame":        {func(c *side) { c.sent.WriteString("\x00\x00") }, 10 * time.Second, "goaway 0 PROTOCOL_ERROR"},
		"half a header block": {func(c *side) { raw(c, headers, endStream, 1, "\x82") }, 10 * time.Second, "goaway 0 PROTOCOL_ERROR"},
		"a stream's window":   {func(c *side) { c.ask(1, "/70000"); c.WriteWindowUpdate(0, 1<<20) }, 30 * time.Second, "1 reset CANCEL"},
		"no window at all":    {func(c *side) { c.WriteSettings(http2.Setting{ID: initialWindow, Val: 0}); c.ask(1, "/1") }, 30 * time.Second, "1 reset CANCEL"},
		"the connection's":    {func(c *side) { c.WriteSettings(http2.Setting{ID: initialWindow, Val: 1 << 20}); c.ask(1, "/70000") }, 30 * time.Second, "goaway 1 ENHANCE_YOUR_CALM"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connected()
			test.begin(c)
			c.said()
			if due := c.server.NextExpiry(); due != c.now.Add(test.after) {
				t.Fatalf("it is due at %v, want after %v", due, test.after)
			}
			c.now = c.server.NextExpiry()
			c.server.Expire(c.now.Add(-1))
			if got := c.said(); len(got) > 0 {
				t.Errorf("too early the server says %q", got)
			}
			c.server.Expire(c.now)
			if got := strings.Join(c.said(), ", "); got != test.want {
				t.Errorf("the server says %q, want %q", got, test.want)
			}
			if c.shop.held > 0 && test.want[0] != 'g' {
				t.Error("a body is still held")
			}
		})
	}
}

// One that is slow and goes on is not ended: 64 KiB in the time is enough.
func TestSlowIsAllowed(t *testing.T) {
	c := connected(http2.Setting{ID: initialWindow, Val: 1})
	c.WriteWindowUpdate(0, 1<<30)
	c.ask(1, "/1000000")
	for sent := 1; sent < 1000000; sent += 16 << 10 {
		c.said()
		c.now = c.now.Add(7 * time.Second)
		c.server.Expire(c.now)
		c.WriteWindowUpdate(1, 16<<10)
	}
	if got := c.said(); !strings.HasSuffix(strings.Join(got, ", "), " end") {
		t.Errorf("in the end the server says %q", got)
	}
}

// A request is answered from prepared bytes without an allocation.
func TestServingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector a sync.Pool forgets at random")
	}
	c := connected()
	var first, later []byte
	c.ask(1, "/1000", "user-agent", "x", "accept-encoding", "gzip, br")
	first = bytes.Clone(c.sent.Bytes())
	c.sent.Reset()
	c.ask(3, "/1000", "user-agent", "x", "accept-encoding", "gzip, br")
	later = bytes.Clone(c.sent.Bytes())
	s := &quick{head: AppendField(AppendStatus(nil, 200), "content-length", "1000")}
	server := New(&Options{Server: s, HeaderBytes: 8 << 10, Streams: 10, Stall: time.Hour}, start)
	server.Receive([]byte(Preface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), start)
	server.window = 1 << 31
	server.Receive(first, start)
	id := uint32(1)
	allocated := testing.AllocsPerRun(1000, func() {
		id += 2
		later[5], later[6], later[7], later[8] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
		server.Receive(later, start)
		out := NewOut(false)
		server.Gather(out, start)
		server.Free(out)
	})
	if allocated != 0 || s.served != 1002 {
		t.Errorf("a request allocates %v times; %d were answered", allocated, s.served)
	}
}

type quick struct {
	head   []byte
	served int
}

func (q *quick) Serve(s *Stream) {
	q.served++
	s.Send(q.head, nil, zeros[:1000], q)
}
func (q *quick) ReceiveBody(*Stream) Peer { return nil }
func (q *quick) Scarce() bool             { return false }
func (q *quick) Release(int64)            {}

// FuzzConn has a client send anything, in pieces of any size. What the server sends are frames, and
// the same ones however the bytes come; it keeps to the windows and to its bounds.
func FuzzConn(f *testing.F) {
	add := func(send func(*side)) {
		c := connected()
		send(c)
		f.Add(bytes.Clone(c.sent.Bytes()), uint8(7))
	}
	add(func(c *side) { c.ask(1, "/100"); c.ask(3, "/70000", "priority", "u=1, i"); c.ask(5, "/later") })
	add(func(c *side) { c.post(1, "content-length", "3"); c.WriteData(1, true, []byte("abc")) })
	add(func(c *side) {
		c.post(1)
		c.WriteDataPadded(1, false, []byte("abc"), []byte("\x00\x00"))
		c.WriteRSTStream(1, 8)
		c.WriteGoAway(0, 0, nil)
	})
	add(func(c *side) {
		c.WriteSettings(http2.Setting{ID: initialWindow, Val: 1})
		c.ask(1, "/100")
		c.WriteWindowUpdate(1, 7)
		c.WriteWindowUpdate(0, 7)
		c.WritePing(false, [8]byte{1})
		raw(c, priorityUpdate, 0, 0, "\x00\x00\x00\x01u=7, i")
		c.WritePriority(1, http2.PriorityParam{StreamDep: 3})
	})
	f.Fuzz(func(t *testing.T, sent []byte, size uint8) {
		whole, pieces := connected(), connected()
		whole.sent.Write(sent)
		pieces.sent.Write(sent)
		pieces.deliver(int(size) + 1)
		first, second := whole.said(), pieces.said()
		if strings.Join(first, "\n") != strings.Join(second, "\n") {
			t.Errorf("at once it is answered with %q, and in pieces of %d with %q", first, int(size)+1, second)
		}
		for _, c := range []*side{whole, pieces} {
			c.checks(t, first)
		}
	})
}

// TestLatestEarlyPriorityCounts tests that of several priorities for a stream that is still to come the latest counts, also where it has
// replaced the oldest ones that are kept.
func TestLatestEarlyPriorityCounts(t *testing.T) {
	for others := range 2 * updatesKept {
		c := &Conn{}
		for range others {
			c.onPriorityUpdate(0, append(binary.BigEndian.AppendUint32(nil, 99), "u=1"...))
		}
		for _, priority := range []string{"u=7", "u=2"} {
			c.onPriorityUpdate(0, append(binary.BigEndian.AppendUint32(nil, 5), priority...))
		}
		s := &Stream{id: 5}
		if c.applyEarlyPriority(s); s.priority != parsePriority("u=2") {
			t.Errorf("after %d others: the priority is %v", others, s.priority)
		}
	}
}
