package main

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestLeanHTTP2(t *testing.T) {
	var asked, odd, extra atomic.Int64
	made := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/missing.js") { // the first of a connection
			http.NotFound(w, r)
			return
		}
		asked.Add(1)
		if r.ProtoMajor != 2 || r.Header.Get("Sec-Fetch-Dest") != "script" || r.URL.Path == "/b" && r.Header.Get("If-None-Match") != `"x"` {
			odd.Add(1)
		}
		if r.Method != http.MethodHead {
			fmt.Fprint(w, strings.Repeat(r.URL.Path[1:2], 40_000+int(extra.Load())))
		}
	}))
	made.EnableHTTP2 = true
	made.StartTLS()
	defer made.Close()
	address := made.Listener.Addr().String()
	b := newBlocks(address)
	job := leanJob{Address: address, Order: []int32{0, 1, 2, 1}, Connections: 3, Streams: 4, Duration: 500 * time.Millisecond, First: b.first,
		Requests: [][]byte{
			b.of(request{Method: "GET", Path: "/a"}, validators{}), b.of(request{Method: "GET", Path: "/b", Conditional: true}, validators{etag: `"x"`}), b.of(request{Method: "HEAD", Path: "/c"}, validators{}),
		},
		Lengths: []int{40_000, 40_000, 0}}
	run := func() (turn, error) {
		var in, out bytes.Buffer
		if err := gob.NewEncoder(&in).Encode(job); err != nil {
			t.Fatal(err)
		}
		if err := runLean(&in, &out); err != nil {
			return turn{}, err
		}
		return decodeTurn(out.String())
	}
	// As many turns as it takes until one has time for a request.
	var got turn
	var err error
	for got.Requests == 0 && (err == nil || strings.Contains(err.Error(), "no request")) {
		asked.Store(0)
		got, err = run()
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); got.Requests > n || got.Requests < n-int64(job.Connections*job.Streams) || got.P99 < got.P50 || odd.Load() > 0 {
		t.Errorf("%+v, the server saw %d, %d of them odd", got, n, odd.Load())
	}
	extra.Store(1)
	for err = error(nil); err == nil || strings.Contains(err.Error(), "no request"); {
		_, err = run()
	}
	if !strings.Contains(err.Error(), "longer") {
		t.Errorf("error %v where answers have a byte more", err)
	}
}
