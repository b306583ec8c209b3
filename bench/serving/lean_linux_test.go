package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestLean(t *testing.T) {
	var asked, extra atomic.Int64
	made := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, strings.Repeat(r.URL.Path[1:2], 100_000+int(extra.Load())))
	}))
	defer made.Close()
	address := made.Listener.Addr().String()
	for _, closing := range []bool{false, true} {
		job := leanJob{Address: address, Order: []int32{0, 1, 1}, Connections: 4, Duration: 200 * time.Millisecond, Closing: closing}
		for _, path := range []string{"/a", "/b"} {
			c, err := dial(t.Context(), address, false)
			if err != nil {
				t.Fatal(err)
			}
			var k = known{make([][]byte, 1), make([]int, 1)}
			if _, err := askTwice(c, request{Method: "GET", Path: path}, closing, &k, 0); err != nil {
				t.Fatal(err)
			}
			c.close()
			job.Requests, job.Lengths = append(job.Requests, k.requests[0]), append(job.Lengths, k.lengths[0])
		}
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
		asked.Store(0)
		got, err := run()
		for try := 0; try < 20 && errors.Is(err, errLoad); try++ {
			asked.Store(0)
			got, err = run()
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := asked.Load(); got.Requests == 0 || got.Requests > n || got.Requests < n-int64(job.Connections) {
			t.Errorf("closing %v: %d requests, the server saw %d", closing, got.Requests, n)
		}
		if got.Bytes < got.Requests*100_000 || got.P99 < got.P50 || got.Took < job.Duration {
			t.Errorf("closing %v: %+v", closing, got)
		}
		for change, says := range map[int64]string{1: "longer", -1: ""} {
			extra.Store(change)
			if _, err := run(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("closing %v: error %v where an answer has %d bytes more", closing, err, change)
			}
		}
		extra.Store(0)
	}
}
