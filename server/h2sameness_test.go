package server_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server"
)

// An h2Exchange is what one connection sends: frames, a request, the frames once more, and in
// the end a plain request, which tells whether the connection is still of use.
type h2Exchange struct {
	// fields are lines of "name: value", pseudo-fields as well, in the order and case given.
	fields string
	block  []byte // more of the header block, as it goes over the wire
	body   string // pieces of it between bars, each a frame of DATA; "" for none
	after  string // fields of trailers
	split  int    // bytes of the header block in each frame; 0 for all in one
	// frames are frames with a byte each for type, flags, stream and length, and the payload.
	frames []byte
}

const h2Request = ":method: GET\n:scheme: http\n:authority: x\n:path: "

// h2Oddities are requests and frames, valid, odd and hostile.
func h2Oddities() map[string]h2Exchange {
	all := map[string]h2Exchange{}
	hit := h2Request + demoPath + "\naccept-encoding: gzip, deflate, br"
	for name, fields := range map[string]string{
		"hit":                     "",
		"If-None-Match: *":        "if-none-match: *",
		"If-None-Match: other":    "if-none-match: \"x\", W/\"y\"",
		"two If-None-Match":       "if-none-match: \"x\"\nif-none-match: *",
		"If-Match":                "if-match: \"x\"",
		"If-Modified-Since":       "if-modified-since: Thu, 29 Feb 2024 12:30:45 GMT",
		"If-Unmodified-Since":     "if-unmodified-since: Thu, 29 Feb 2020 12:30:45 GMT",
		"Range":                   "range: bytes=0-9",
		"Ranges":                  "range: bytes=0-9,20-29",
		"Range and If-Range":      "range: bytes=0-9\nif-range: \"x\"",
		"416":                     "range: bytes=99999999-",
		"two Accept-Encoding":     "accept-encoding: br;q=0, gzip;q=0",
		"many Accept-Encoding":    strings.Repeat("accept-encoding: br;q=0.1\n", 5),
		"priority":                "priority: u=1, i",
		"odd priority":            "priority: u=9, i=?2;;",
		"Expect":                  "expect: 100-continue",
		"other Expect":            "expect: miracles",
		"host as well":            "host: x",
		"another host as well":    "host: y",
		"length 0":                "content-length: 0",
		"length without a body":   "content-length: 5",
		"two lengths":             "content-length: 0\ncontent-length: 5",
		"odd length":              "content-length: +0",
		"cookies":                 "cookie: a=b\ncookie: c=d",
		"TE: trailers":            "te: trailers",
		"trailer":                 "trailer: a",
		"trailer of a length":     "trailer: content-length",
		"empty values":            "a:\nb: ",
		"long value":              "a: " + strings.Repeat("a", 5000),
		"longer value":            "a: " + strings.Repeat("a", 20000),
		"too long":                "a: " + strings.Repeat("a", 50000),
		"many fields":             strings.Repeat("a: b\n", 500),
		"too many fields":         strings.Repeat("a: b\n", 2000),
		"high bytes":              "a: \xc3\xbc\xff",
		"spaces around":           "a:  \tb ",
		"Connection":              "connection: close",
		"Connection: keep-alive":  "connection: keep-alive",
		"Keep-Alive":              "keep-alive: 5",
		"Proxy-Connection":        "proxy-connection: close",
		"Transfer-Encoding":       "transfer-encoding: chunked",
		"Upgrade":                 "upgrade: h2c",
		"TE: gzip":                "te: gzip",
		"upper case":              "A: b",
		"odd name":                "a(: b",
		"empty name":              ": b",
		"space in a name":         "a b: c",
		"NUL in a value":          "a: b\x00c",
		"CR in a value":           "a: b\rc",
		"DEL in a value":          "a: b\x7fc",
		"pseudo-field at the end": ":path: /x",
		"unknown pseudo-field":    ":what: x",
		"pseudo-field of answers": ":status: 200",
		"protocol":                ":protocol: websocket",
	} {
		all[name] = h2Exchange{fields: hit + "\n" + fields}
	}
	for name, fields := range map[string]string{
		"HEAD":             ":method: HEAD\n:scheme: http\n:authority: x\n:path: " + demoPath,
		"HEAD of nothing":  ":method: HEAD\n:scheme: http\n:authority: x\n:path: /ajax/libs/demo/1.0.0/nothing",
		"OPTIONS":          ":method: OPTIONS\n:scheme: http\n:authority: x\n:path: " + demoPath,
		"OPTIONS *":        ":method: OPTIONS\n:scheme: http\n:authority: x\n:path: *",
		"PUT":              ":method: PUT\n:scheme: http\n:authority: x\n:path: " + demoPath,
		"DELETE elsewhere": ":method: DELETE\n:scheme: http\n:authority: x\n:path: /x",
		"CONNECT":          ":method: CONNECT\n:authority: x:80",
		"odd CONNECT":      ":method: CONNECT\n:scheme: http\n:authority: x:80\n:path: /",
		"lower case":       ":method: get\n:scheme: http\n:authority: x\n:path: " + demoPath,
		"odd method":       ":method: G ET\n:scheme: http\n:authority: x\n:path: " + demoPath,
		"empty method":     ":method: \n:scheme: http\n:authority: x\n:path: " + demoPath,
		"no method":        ":scheme: http\n:authority: x\n:path: " + demoPath,
		"no scheme":        ":method: GET\n:authority: x\n:path: " + demoPath,
		"no authority":     ":method: GET\n:scheme: http\n:path: " + demoPath,
		"only a host":      ":method: GET\n:scheme: http\n:path: " + demoPath + "\nhost: x",
		"empty authority":  ":method: GET\n:scheme: http\n:authority: \n:path: " + demoPath,
		"odd authority":    ":method: GET\n:scheme: http\n:authority: a@x/y z\n:path: " + demoPath,
		"no path":          ":method: GET\n:scheme: http\n:authority: x",
		"two paths":        h2Request + demoPath + "\n:path: " + demoPath,
		"other scheme":     ":method: GET\n:scheme: ftp\n:authority: x\n:path: " + demoPath,
		"https":            ":method: GET\n:scheme: https\n:authority: x\n:path: " + demoPath,
		"other order":      ":path: " + demoPath + "\n:authority: x\n:scheme: http\n:method: GET",
		"JSON":             h2Request + "/ajax/libs/demo/1.0.0/nothing\naccept: application/json",
		"410":              h2Request + "/ajax/libs/demo/0.9.0/demo.js\naccept: application/json",
		"406":              h2Request + demoPath + "\naccept-encoding: identity;q=0",
		"empty":            "",
	} {
		all[name] = h2Exchange{fields: fields}
	}
	for _, host := range []string{"files.test", "site.test", "SITE.test.:80"} {
		for _, path := range []string{demoPath, "/ajax/libs/demo/1.0.0/active/page.html", "/libraries", "/log/checkpoint"} {
			all["host "+host+" "+path] = h2Exchange{fields: ":method: GET\n:scheme: http\n:authority: " + host + "\n:path: " + path}
		}
		all["forwarded "+host] = h2Exchange{fields: hit + "\nx-forwarded-host: " + host}
		all["from "+host] = h2Exchange{fields: strings.Replace(hit, ":authority: x", ":authority: "+host, 1) + "\nx-forwarded-host: files.test"}
	}
	for _, path := range []string{
		"", "/", "*", "x", "//", "/ajax/libs", "/ajax/libs/", "noise.bin", "big.js", "empty.txt", "tiny.txt", "nothing", "../0.9.0/demo.js", "%2e%2e/demo.js", "a//demo.js", "demo%2ejs", "demo.js%", "demo.js?%zz", "demo.js?a=b", "demo.js?",
		"demo.js#a", "odd/a%20b.js", "odd/a b.js", "odd/ünïcødé-文.js", "odd/100%25.js", "\xff", "%00", "a\x00", "a\\b", "/AJAX/libs/demo/1.0.0/demo.js", "http://x" + demoPath, "/libraries?a=b", "/x/../ajax/libs/demo/1.0.0/demo.js", strings.Repeat("a", 5000), strings.Repeat("a", 9000),
	} {
		if !strings.HasPrefix(path, "/") && path != "" && path != "*" && !strings.HasPrefix(path, "http") && path != "x" {
			path = asset + path
		}
		all[fmt.Sprintf("path %.40q", path)] = h2Exchange{fields: h2Request + path}
	}
	post := ":method: POST\n:scheme: http\n:authority: x\n:path: /x"
	all["body"] = h2Exchange{fields: post, body: "abc|def"}
	all["body and length"] = h2Exchange{fields: post + "\ncontent-length: 6", body: "abc|def"}
	all["body and trailers"] = h2Exchange{fields: post + "\ntrailer: a", body: "abc", after: "a: b"}
	all["trailers alone"] = h2Exchange{fields: post, after: "a: b"}
	all["empty body"] = h2Exchange{fields: post, body: "|"}
	all["body of an asset"] = h2Exchange{fields: hit, body: "abc"}
	all["large body"] = h2Exchange{fields: post, body: strings.Repeat(strings.Repeat("a", 10_000)+"|", 6)}
	all["split"] = h2Exchange{fields: hit, split: 1}
	all["split in tens"] = h2Exchange{fields: hit + "\ncookie: abcdefghijkl", split: 10}
	for name, block := range map[string]string{
		"index 0": "\x80", "index beyond": "\xff\x7f", "size update at the end": "\x20", "unfinished": "\x40", "bad Huffman": "\x40\x81\xff\x81\xff", "never indexed": "\x10\x01a\x01b", "static": "\x90\x90", "cut": "\x00\x05ab",
	} {
		all["block with "+name] = h2Exchange{fields: hit, block: []byte(block)}
	}
	for name, frames := range map[string]string{
		"PING":                          "\x06\x00\x00\x08abcdefgh",
		"short PING":                    "\x06\x00\x00\x07abcdefg",
		"PING on a stream":              "\x06\x00\x01\x08abcdefgh",
		"SETTINGS":                      "\x04\x00\x00\x06\x00\x05\x00\x00\x40\x00",
		"SETTINGS of frames too small":  "\x04\x00\x00\x06\x00\x05\x00\x00\x00\x01",
		"SETTINGS of push":              "\x04\x00\x00\x06\x00\x02\x00\x00\x00\x02",
		"SETTINGS of a window too wide": "\x04\x00\x00\x06\x00\x04\xff\xff\xff\xff",
		"SETTINGS unknown":              "\x04\x00\x00\x06\x0f\xff\x00\x00\x00\x02",
		"short SETTINGS":                "\x04\x00\x00\x05abcde",
		"SETTINGS on a stream":          "\x04\x00\x01\x00",
		"table of nothing":              "\x04\x00\x00\x06\x00\x01\x00\x00\x00\x00",
		"PRIORITY":                      "\x02\x00\x03\x05\x00\x00\x00\x00\x10",
		"short PRIORITY":                "\x02\x00\x03\x04\x00\x00\x00\x00",
		"PRIORITY on nothing":           "\x02\x00\x00\x05\x00\x00\x00\x00\x10",
		"PRIORITY_UPDATE":               "\x10\x00\x00\x07\x00\x00\x00\x01u=1",
		"unknown frame":                 "\xfa\xff\x07\x03abc",
		"WINDOW_UPDATE":                 "\x08\x00\x00\x04\x00\x00\x00\x01",
		"WINDOW_UPDATE of 0":            "\x08\x00\x00\x04\x00\x00\x00\x00",
		"WINDOW_UPDATE too wide":        "\x08\x00\x00\x04\x7f\xff\xff\xff",
		"WINDOW_UPDATE of an idle one":  "\x08\x00\x07\x04\x00\x00\x00\x01",
		"short WINDOW_UPDATE":           "\x08\x00\x00\x03\x00\x00\x00",
		"RST_STREAM of an idle one":     "\x03\x00\x07\x04\x00\x00\x00\x08",
		"RST_STREAM on nothing":         "\x03\x00\x00\x04\x00\x00\x00\x08",
		"DATA on nothing":               "\x00\x00\x00\x01a",
		"DATA of an idle one":           "\x00\x00\x07\x01a",
		"PUSH_PROMISE":                  "\x05\x04\x01\x04\x00\x00\x00\x02",
	} {
		all["frame: "+name] = h2Exchange{fields: hit, frames: []byte(frames)}
	}
	return all
}

// h2Sent sends an exchange over one connection and returns what came of it, in a form that does
// not depend on what may differ from one time to the next: each stream's status, fields in
// order and bytes, or with what code it was reset, and how the connection ended.
func h2Sent(tb testing.TB, address string, config *tls.Config, x h2Exchange) string {
	c := dialFramed(tb, address, "", config, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	defer c.Close()
	c.WriteWindowUpdate(0, 1<<30)
	c.SetDeadline(time.Now().Add(h2Patience))
	r := &h2Record{framed: c}
	r.synchronize()
	r.send(x.frames)
	r.request(1, x)
	r.send(x.frames)
	r.request(3, h2Exchange{fields: h2Request + "/ajax/libs/demo/1.0.0/tiny.txt"})
	return r.said.String()
}

type h2Record struct {
	*framed
	said  strings.Builder
	ended bool // of the connection
	pings byte
}

func (r *h2Record) send(frames []byte) {
	for len(frames) >= 4 && !r.ended {
		kind, flags, stream, n := http2.FrameType(frames[0]), http2.Flags(frames[1]), uint32(frames[2]), min(int(frames[3]), len(frames)-4)
		r.WriteRawFrame(kind, flags, stream, frames[4:4+n])
		frames = frames[4+n:]
		r.synchronize()
	}
}

func pairs(lines string) (fields []hpack.HeaderField) {
	for line := range strings.SplitSeq(lines, "\n") {
		if line == "" {
			continue
		}
		at := strings.IndexByte(line[1:], ':') + 1 // after the colon of a pseudo-field
		if at == 0 {
			fields = append(fields, hpack.HeaderField{Name: line})
			continue
		}
		fields = append(fields, hpack.HeaderField{Name: line[:at], Value: strings.TrimPrefix(line[at+1:], " ")})
	}
	return fields
}

func (r *h2Record) encode(lines string, more []byte) []byte {
	r.fields.Reset()
	for _, f := range pairs(lines) {
		r.hpack.WriteField(f)
	}
	return append(bytes.Clone(r.fields.Bytes()), more...)
}

func (r *h2Record) headers(stream uint32, block []byte, split int, end bool) {
	if split <= 0 || split > 16<<10 {
		split = 16 << 10
	}
	first := block[:min(split, len(block))]
	rest := block[len(first):]
	r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(rest) == 0})
	for len(rest) > 0 {
		n := min(split, len(rest))
		r.WriteContinuation(stream, n == len(rest), rest[:n])
		rest = rest[n:]
	}
}

// request sends one and reads until it is answered.
func (r *h2Record) request(stream uint32, x h2Exchange) {
	if r.ended {
		return
	}
	r.headers(stream, r.encode(x.fields, x.block), x.split, x.body == "" && x.after == "")
	if x.body != "" {
		pieces := strings.Split(x.body, "|")
		for i, piece := range pieces {
			r.WriteData(stream, i == len(pieces)-1 && x.after == "", []byte(piece))
		}
	}
	if x.after != "" {
		r.headers(stream, r.encode(x.after, nil), 0, true)
	}
	r.read(func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			return f.StreamID == stream
		case *http2.HeadersFrame:
			return f.StreamID == stream && f.StreamEnded()
		case *http2.DataFrame:
			return f.StreamID == stream && f.StreamEnded()
		}
		return false
	})
	r.synchronize()
	a := r.answers[stream]
	if a == nil {
		return
	}
	slices.Sort(a.fields)
	fmt.Fprintf(&r.said, "stream %d: %s\n", stream, strings.Join(a.fields, "\n"))
	if a.reset != 0 {
		fmt.Fprintf(&r.said, "reset: %v\n", a.reset)
	}
	r.said.WriteString(boundaries.ReplaceAllString(string(a.body), "boundary") + "\n")
}

// synchronize reads until all that was sent is done with.
func (r *h2Record) synchronize() {
	if r.ended {
		return
	}
	r.pings++
	data := [8]byte{'s', 'y', 'n', 'c', r.pings}
	r.WritePing(false, data)
	r.read(func(f http2.Frame) bool {
		p, ok := f.(*http2.PingFrame)
		return ok && p.IsAck() && p.Data == data
	})
}

func (r *h2Record) read(until func(http2.Frame) bool) {
	r.out.Flush() // a server that has ended the connection has said why
	for !r.ended {
		f, err := r.ReadFrame()
		var wrong http2.StreamError
		if err != nil {
			r.ended = true
			switch {
			case os.IsTimeout(err):
				r.said.WriteString("the connection hangs\n")
			case errors.As(err, &wrong), errors.As(err, new(http2.ConnectionError)):
				fmt.Fprintf(&r.said, "the server breaks the rules: %v\n", err)
			default:
				r.said.WriteString("the connection ends\n")
			}
			return
		}
		id := f.Header().StreamID
		if id != 0 && r.answers[id] == nil {
			r.answers[id] = new(h2Answer)
		}
		a := r.answers[id]
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields, err := r.decoder.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				fmt.Fprintf(&r.said, "the server's fields: %v\n", err)
			}
			for _, field := range fields {
				if field.Name == "date" {
					if _, err := http.ParseTime(field.Value); err == nil {
						field.Value = "one"
					}
				}
				a.fields = append(a.fields, field.Name+": "+boundaries.ReplaceAllString(field.Value, "boundary"))
			}
			a.done = a.done || f.StreamEnded()
		case *http2.DataFrame:
			a.body = append(a.body, f.Data()...)
			a.done = a.done || f.StreamEnded()
		case *http2.RSTStreamFrame:
			// After an answer NO_ERROR says only that the rest of a body is not wanted, and STREAM_CLOSED that
			// it came nevertheless, which depends on how soon the answer was there.
			if !a.done || f.ErrCode != http2.ErrCodeNo && f.ErrCode != http2.ErrCodeStreamClosed {
				a.reset = f.ErrCode
			}
			a.done = true
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				fmt.Fprintf(&r.said, "the connection ends: %v\n", f.ErrCode)
				r.ended = true
				return
			}
		}
		if until(f) {
			return
		}
	}
}

// h2Deviations are what is wanted of the lane where net/http does otherwise. Of what was sent, fields
// must have a line like sent, unless that is nil.
var h2Deviations = []struct {
	why         string
	sent        *regexp.Regexp
	lane, alone string // parts of what came of it
}{
	{"RFC 9113 §8.2.2: a field of HTTP/1.1's connections makes a request malformed; net/http answers 400",
		regexp.MustCompile(`(?m)^(connection|keep-alive|proxy-connection|transfer-encoding|upgrade|te):`), "reset: PROTOCOL_ERROR", ":status: 400"},
	{"RFC 9113 §8.1.1: so does a length that is none or not the body's", regexp.MustCompile(`(?m)^content-length:`), "reset: PROTOCOL_ERROR", ":status: "},
	{"RFC 9113 §8.3.1: so does a Host that names another host than :authority", regexp.MustCompile(`(?m)^host:`), "reset: PROTOCOL_ERROR", ":status: "},
	{"RFC 9113 §8.2.1: so does white space around a value", regexp.MustCompile(`(?m)^[^:\n]+: ([ \t]|.*[ \t]$)`), "reset: PROTOCOL_ERROR", ":status: "},
	{"RFC 9113 §8.3.1: so does a :path without a slash at first", regexp.MustCompile(`(?m)^:path: [^/]`), "reset: PROTOCOL_ERROR", ":status: "},
	{"RFC 9110 §9.1: so does a method that is no token", regexp.MustCompile("(?m)^:method: .*[^!#$%&'*+.^_`|~0-9A-Za-z-]"), "reset: PROTOCOL_ERROR", ":status: "},
	{"a host that HTTP/1.1 refuses is refused over HTTP/2, too", nil, "The request is malformed: malformed Host header", ":status: "},
	{"and so is none", nil, "The request is malformed: missing required Host header", ":status: "},
	{"and an Expect that is not known", regexp.MustCompile(`(?m)^expect:`), ":status: 417", ":status: "},
	{"too many or too long fields are answered in the shape of other failures; net/http ends the connection where one field is too long",
		nil, ":status: 431", "COMPRESSION_ERROR"},
	{"and in HTML where all are", nil, ":status: 431", ":status: 431"},
	{"RFC 9113 §6.3: a short PRIORITY is an error of its stream", nil, "reset: FRAME_SIZE_ERROR", "the connection ends: FRAME_SIZE_ERROR"},
	{"and one of a stream that is over, or not there yet, of none", nil, ":status: 200", "the connection ends: FRAME_SIZE_ERROR"},
}

func h2Same(t *testing.T, sent h2Exchange, lane, alone string) {
	t.Helper()
	if lane == alone {
		return
	}
	for _, d := range h2Deviations {
		if d.sent != nil && !d.sent.MatchString(sent.fields) {
			continue
		}
		if strings.Contains(lane, d.lane) && strings.Contains(alone, d.alone) {
			return
		}
	}
	t.Errorf("to %.2000q\nthe lane answers   %.3000q\nnet/http answers   %.3000q", fmt.Sprint(sent), lane, alone)
}

// h2TwoWays returns two functions that tell what comes of an exchange: with the lane, and
// with net/http's own HTTP/2 around the same handler.
func h2TwoWays(tb testing.TB, secure *tls.Config, client *tls.Config) (lane, alone func(testing.TB, h2Exchange) string) {
	assets := newAssets(tb, server.Options{Store: fixture(tb)})
	proxies, err := requests.NewProxies([]string{"127.0.0.1"}, "")
	if err != nil {
		tb.Fatal(err)
	}
	handler := proxies.Handler(apart.Handler(server.Route(assets, echo)))
	ours := serveOn(tb, handler, server.HTTPOptions{Lane: apart.Lane(assets), H2C: true, TLS: secure})

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: handler, MaxHeaderBytes: 32 << 10, TLSConfig: secure.Clone(), Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		if secure != nil {
			s.ServeTLS(listener, "", "")
		} else {
			s.Serve(listener)
		}
	}()
	tb.Cleanup(func() { s.Close() })
	theirs := listener.Addr().String()
	way := func(address string) func(testing.TB, h2Exchange) string {
		return func(tb testing.TB, x h2Exchange) string { return h2Sent(tb, address, client, x) }
	}
	return way(ours), way(theirs)
}

// Whatever is sent over HTTP/2, simple or hostile, is answered the same with the lane and
// without it.
func TestHTTP2LaneAnswersAsNetHTTP(t *testing.T) {
	config, roots := selfSigned(t)
	for name, secure := range map[string]*tls.Config{"h2c": nil, "TLS": config} {
		t.Run(name, func(t *testing.T) {
			var client *tls.Config
			if secure != nil {
				client = &tls.Config{RootCAs: roots}
			}
			lane, alone := h2TwoWays(t, secure, client)
			for name, x := range h2Oddities() {
				t.Run(name, func(t *testing.T) { h2Same(t, x, lane(t, x), alone(t, x)) })
			}
		})
	}
}

func FuzzHTTP2LaneAnswersAsNetHTTP(f *testing.F) {
	lane, alone := h2TwoWays(f, nil, nil)
	for _, x := range h2Oddities() {
		if len(x.fields) < 1000 && len(x.body) < 1000 {
			f.Add(x.fields, x.block, x.body, x.after, x.split, x.frames)
		}
	}
	f.Fuzz(func(t *testing.T, fields string, block []byte, body, after string, split int, frames []byte) {
		if len(fields)+len(block)+len(body)+len(after)+len(frames) > 8<<10 {
			t.Skip("long enough")
		}
		for i := 0; i+4 <= len(frames); i += 4 + int(frames[i+3]) {
			switch http2.FrameType(frames[i]) {
			case http2.FrameHeaders, http2.FrameContinuation, http2.FrameGoAway, http2.FramePushPromise:
				t.Skip("what comes of it depends on when it comes")
			}
		}
		x := h2Exchange{fields, block, body, after, split, frames}
		h2Same(t, x, lane(t, x), alone(t, x))
	})
}
