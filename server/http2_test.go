package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/usage"
)

// A client that allows everything to be sent and then reads nothing: the stream's
// deadline could only queue one frame more.
func TestStalledHTTP2ConnectionIsClosed(t *testing.T) {
	store := fixture(t)
	bubble.Test(t, func(t *testing.T) {
		onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
			const huge = 1<<31 - 1
			go func() {
				io.WriteString(conn, http2.ClientPreface)
				f := http2.NewFramer(conn, nil)
				f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: huge})
				f.WriteWindowUpdate(0, huge-65535)
				var fields bytes.Buffer
				encoder := hpack.NewEncoder(&fields)
				for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/ajax/libs/demo/1.0.0/noise.bin"}} {
					encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
				}
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndStream: true, EndHeaders: true})
			}()
			frames := http2.NewFramer(nil, conn)
			for {
				f, err := frames.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if f.Header().Type == http2.FrameData {
					break
				}
			}
			time.Sleep(31 * time.Second)
			if n, err := io.Copy(io.Discard, conn); err != nil || n > 128<<10 {
				t.Errorf("%d bytes and %v after 31 seconds without reading, want few and the end", n, err)
			}
		})
	})
}

// A throttled connection gives what it read a little at a time.
type throttled struct{ net.Conn }

func (c throttled) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 4<<10)])
	time.Sleep(time.Second)
	return n, err
}

// All the streams of a slow client are slower than one would be.
func TestSlowHTTP2ClientGetsAllOfManyStreams(t *testing.T) {
	t.Run("from the lane", func(t *testing.T) { slowStreams(t, "") })
	t.Run("from net/http's handler", func(t *testing.T) { slowStreams(t, "bytes=0-49999") })
}

func slowStreams(t *testing.T, span string) {
	const streams = 90
	data := testkit.Releases()[0].Files["noise.bin"][:50_000]
	small := data[:20_000]
	store := openStore(t, []testkit.Release{{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"large.bin": data, "small.bin": small}}})
	bubble.Test(t, func(t *testing.T) {
		onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
			h2c := new(http.Protocols)
			h2c.SetUnencryptedHTTP2(true)
			dialled := make(chan net.Conn, 1)
			dialled <- throttled{conn}
			transport := &http.Transport{Protocols: h2c, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				select {
				case c := <-dialled:
					return c, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}}
			defer transport.CloseIdleConnections()
			start := time.Now()
			var wg sync.WaitGroup
			for i := range streams {
				name, want := "large.bin", data
				if i%2 == 0 {
					name, want = "small.bin", small
				}
				wg.Go(func() {
					ask, err := http.NewRequest("GET", fmt.Sprintf("http://x/ajax/libs/lib/1.0.0/%s?%d", name, i), nil)
					if err != nil {
						t.Error(err)
						return
					}
					if span != "" {
						ask.Header.Set("Range", span)
					}
					r, err := (&http.Client{Transport: transport}).Do(ask)
					if err != nil {
						t.Error(err)
						return
					}
					defer r.Body.Close()
					if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d of %d bytes of %s, then %v after %v", len(got), len(want), name, err, time.Since(start))
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took < 5*time.Minute {
				t.Errorf("it took %v; the client is not slow", took)
			}
		})
		time.Sleep(2 * time.Second) // until the transport has seen that the connection is closed
	})
}

// Who holds what others need must take it at a reasonable rate.
func TestSlowClientIsClosedWhereRoomIsScarce(t *testing.T) {
	data := bytes.Repeat(testkit.Releases()[0].Files["noise.bin"], 20) // 6 MiB
	store := openStore(t, []testkit.Release{release("1.0.0", "noise.bin", data)})
	for _, test := range []struct {
		name      string
		sendBytes int64
		all       bool
	}{
		{"room for many", 256 << 20, true},
		{"room for one", 8 << 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				onPipe(newAssets(t, server.Options{Store: store, CacheBytes: 1 << 20, SendBytes: test.sendBytes}), func(conn net.Conn) {
					go fmt.Fprint(conn, ask("GET", "/ajax/libs/lib/1.0.0/noise.bin")+"Connection: close\r\n\r\n")
					n, _ := io.Copy(io.Discard, throttled{conn})
					if all := n > int64(len(data)); all != test.all {
						t.Errorf("%d of %d bytes arrived at 4 KiB a second", n, len(data))
					}
				})
			})
		})
	}
}

// Where connections are scarce, a client that keeps the deadlines of each part has to keep the average too, whatever
// writes its answer.
func TestSlowClientIsClosedWhereConnectionsAreScarce(t *testing.T) {
	data := testkit.Releases()[0].Files["noise.bin"] // 300 KiB
	store := openStore(t, []testkit.Release{release("1.0.0", "noise.bin", data), release("2.0.0", "text.js", []byte(strings.Repeat("a line of much text\n", 60_000)))})
	for name, request := range map[string]string{
		"a file":   ask("GET", "/ajax/libs/lib/1.0.0/noise.bin"),
		"a range":  ask("GET", "/ajax/libs/lib/1.0.0/noise.bin") + "Range: bytes=1-\r\n",
		"inflated": ask("GET", "/ajax/libs/lib/2.0.0/text.js"),
	} {
		for _, scarce := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, scarce %v", name, scarce), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					assets := newAssets(t, server.Options{Store: store})
					onPipe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						assets.ServeHTTP(w, r.WithContext(answers.WithScarcity(r.Context(), func() bool { return scarce })))
					}), func(conn net.Conn) {
						go fmt.Fprint(conn, request+"Connection: close\r\n\r\n")
						r, err := http.ReadResponse(bufio.NewReaderSize(throttled{conn}, 4<<10), nil)
						if err != nil {
							t.Error(err)
							return
						}
						n, err := io.Copy(io.Discard, r.Body)
						if n < 200<<10 && !scarce || (err != nil) != scarce {
							t.Errorf("%d of %d bytes arrived at 4 KiB a second, then %v; want all of them: %v", n, r.ContentLength, err, !scarce)
						}
					})
				})
			})
		}
	}
}

// A hit on an open connection takes no memory over HTTP/2 either.
func TestHTTP2AllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector a sync.Pool forgets at random")
	}
	t.Run("as it is", func(t *testing.T) { http2AllocatesNothing(t, nil) })
	t.Run("with an access log", func(t *testing.T) { http2AllocatesNothing(t, accessLog(t)) })
}

func http2AllocatesNothing(t *testing.T, log *server.AccessLog) {
	store := fixture(t)
	assets := newAssets(t, server.Options{Store: store, Usage: usage.Open(usage.Options{Store: store}), AccessLog: log})
	deltas := openDeltas(t)
	withDeltas := newAssets(t, server.Options{Store: deltas, Usage: usage.Open(usage.Options{Store: deltas}), AccessLog: log, Dictionaries: true})
	secure, roots := selfSigned(t)
	for _, test := range []struct{ name, method, path, field string }{
		{"hit", "GET", "demo.js", ""},
		{"identity", "GET", "font.woff2", ""},
		{"HEAD", "HEAD", "demo.js", ""},
		{"304", "GET", "demo.js", "*"},
		{"document", "GET", "active/page.html", ""},
		{"delta", "GET", "", ""},
	} {
		handler, path, encodings, dictionary := assets, asset+test.path, "gzip, br", ""
		if test.name == "delta" {
			handler, path, encodings, dictionary = withDeltas, "/ajax/libs/lib/1.0.1/a+b.js", "gzip, br, dcb, dcz", available(olderText)
		}
		for _, config := range []*tls.Config{nil, secure} {
			t.Run(fmt.Sprintf("%s, TLS %v", test.name, config != nil), func(t *testing.T) {
				address := serveOn(t, server.Route(handler, http.NotFoundHandler()), server.HTTPOptions{Lane: handler, H2C: true, TLS: config})
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				if config != nil {
					conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
				}
				defer conn.Close()
				const huge = 1<<31 - 1
				var sent, block bytes.Buffer
				frames, fields := http2.NewFramer(&sent, conn), hpack.NewEncoder(&block)
				ask := func(stream uint32) []byte {
					sent.Reset()
					block.Reset()
					for _, f := range [][2]string{{":method", test.method}, {":scheme", "http"}, {":authority", "x"}, {":path", path}, {"user-agent", "x"}, {"accept-encoding", encodings}, {"available-dictionary", dictionary}, {"if-none-match", test.field}} {
						if f[1] != "" {
							fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: f[0] == ":path"})
						}
					}
					frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
					return sent.Bytes()
				}
				io.WriteString(conn, http2.ClientPreface)
				frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: huge})
				frames.WriteWindowUpdate(0, huge-65535)
				conn.Write(sent.Bytes())
				conn.Write(ask(1))
				for over := false; !over; {
					f, err := frames.ReadFrame()
					if err != nil {
						t.Fatal(err)
					}
					over = f.Header().StreamID == 1 && f.Header().Flags.Has(http2.FlagDataEndStream)
				}
				later := ask(3)
				buffer := make([]byte, 16<<10)
				stream := uint32(1)
				allocated := testing.AllocsPerRun(1000, func() {
					stream += 2
					binary.BigEndian.PutUint32(later[5:], stream)
					if _, err := conn.Write(later); err != nil {
						t.Fatal(err)
					}
					for over := false; !over; { // frame by frame: one that was not in memory has another head
						if _, err := io.ReadFull(conn, buffer[:9]); err != nil {
							t.Fatal(err)
						}
						over = buffer[4]&byte(http2.FlagDataEndStream) != 0 && binary.BigEndian.Uint32(buffer[5:]) == stream
						if _, err := io.ReadFull(conn, buffer[:int(buffer[1])<<8|int(buffer[2])]); err != nil {
							t.Fatal(err)
						}
					}
				})
				most := 0.0
				if config != nil {
					most = 3 // crypto/tls allocates whenever it looks for a record: the client once, the server twice
				}
				if allocated > most {
					t.Errorf("a request allocates %v times, want at most %v", allocated, most)
				}
			})
		}
	}
}

// Clients that ask for much and take nothing, or a byte, hold little of what there is to send
// with: others are served meanwhile.
func TestBodiesOnTheirWayHaveAShare(t *testing.T) {
	store := fixture(t)
	for _, window := range []uint32{0, 1} {
		for _, name := range []string{"noise.bin", "big.js"} { // which is not kept, and which is inflated
			t.Run(fmt.Sprintf("%s in a window of %d", name, window), func(t *testing.T) {
				registry := prometheus.NewRegistry()
				const limit = 128 << 20
				_, url := startLane(t, server.Options{Store: store, CacheBytes: 1 << 20, SendBytes: limit, Registerer: registry}, server.HTTPOptions{H2C: true})
				for range 12 {
					conn, err := net.Dial("tcp", url[len("http://"):])
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					frames := http2.NewFramer(conn, conn)
					io.WriteString(conn, http2.ClientPreface)
					frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
					var block bytes.Buffer
					fields := hpack.NewEncoder(&block)
					for i := range uint32(100) {
						block.Reset()
						for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x"}, {":path", asset + name}} {
							fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
						}
						frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
					}
					frames.WritePing(false, [8]byte{})
					for answered := false; !answered; { // so that all of it was read
						f, err := frames.ReadFrame()
						if err != nil {
							t.Fatal(err)
						}
						answered = f.Header().Type == http2.FramePing
					}
				}
				for range 64 {
					r, err := http.Get(url + asset + name)
					if err != nil {
						t.Fatal(err)
					}
					if n, err := io.Copy(io.Discard, r.Body); r.StatusCode != 200 || n != r.ContentLength && r.ContentLength >= 0 || err != nil {
						t.Errorf("another client gets %s, %d bytes, %v", r.Status, n, err)
					}
					r.Body.Close()
				}
				if n := counter(t, registry, "larder_assets_sending_bytes", "", ""); n > limit/2 {
					t.Errorf("%v bytes are held", n)
				}
			})
		}
	}
}
