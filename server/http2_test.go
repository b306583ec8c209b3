package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/servertest"
)

// A client that allows everything to be sent and then reads nothing: the stream's
// deadline could only queue one frame more.
func TestStalledHTTP2ConnectionIsClosed(t *testing.T) {
	store := fixture(t)
	synctest.Test(t, func(t *testing.T) {
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
	const streams = 90
	data := servertest.Releases()[0].Files["noise.bin"][:50_000]
	small := data[:20_000]
	store := openStore(t, []servertest.Release{{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"large.bin": data, "small.bin": small}}})
	synctest.Test(t, func(t *testing.T) {
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
					r, err := (&http.Client{Transport: transport}).Get(fmt.Sprintf("http://x/ajax/libs/lib/1.0.0/%s?%d", name, i))
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
	data := bytes.Repeat(servertest.Releases()[0].Files["noise.bin"], 20) // 6 MiB
	store := openStore(t, []servertest.Release{release("1.0.0", "noise.bin", data)})
	for _, test := range []struct {
		name      string
		sendBytes int64
		all       bool
	}{
		{"room for many", 256 << 20, true},
		{"room for one", 8 << 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
