package server

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A file that is kept in Brotli alone, as a mirror takes it over, has a gzip form from the first request on.
func TestGzipIsMadeWhenAskedFor(t *testing.T) {
	text := func(n int) []byte {
		var b bytes.Buffer
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, "let it%d = %d;\n", i%7, i)
		}
		return b.Bytes()
	}
	for _, test := range []struct {
		name     string
		data     []byte
		off      bool
		squeezed bool
		first    string // coding of the first answer to a client that takes gzip
		later    bool   // whether it is there in the end
	}{
		{"a script", text(10_000), false, false, "gzip", true},
		{"without the option", text(10_000), true, false, "", false},
		{"squeezed", text(10_000), false, true, "", false},
		{"not worthwhile", []byte("a few bytes only"), false, false, "", false},
		{"a large file", text(completedAtOnce + 1), false, false, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			shelf := testkit.NewShelf(t)
			brotli, err := coding.Encode(coding.Brotli, coding.Quick, test.data)
			if err != nil {
				t.Fatal(err)
			}
			h := kvstore.Sum(test.data)
			if err := shelf.Store.PutContent(h, int64(len(test.data)), test.squeezed, []kvstore.Coded{{Coding: coding.Brotli, Bytes: brotli}}); err != nil {
				t.Fatal(err)
			}
			b := shelf.Store.NewBatch()
			defer b.Close()
			err = views.Apply(b, views.Change{
				Entry: logs.Entry{Kind: logs.Published, Package: "lib", Version: "1.0.0", Manifest: h},
				Manifest: &logs.Manifest{Package: "lib", Version: "1.0.0", Files: []logs.File{
					{Path: "a.js", Size: int64(len(test.data)), SHA256: h, SRI: logs.SumSRI(test.data), Origin: logs.Upstream},
				}},
			})
			if err == nil {
				err = b.Commit()
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := New(Options{Store: shelf.Store, Complete: !test.off, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			response := testkit.Ask(a, http.MethodGet, Prefix+"lib/1.0.0/a.js", "Accept-Encoding", "gzip")
			if got := response.Header.Get("Content-Encoding"); got != test.first || response.StatusCode != http.StatusOK {
				t.Errorf("%d in %q, want %q", response.StatusCode, got, test.first)
			}
			body, err := io.ReadAll(response.Body)
			if err == nil && test.first == "gzip" {
				body, err = coding.Decode(coding.Gzip, body, int64(len(test.data)))
			}
			if err != nil || !bytes.Equal(body, test.data) {
				t.Errorf("%d other bytes, %v", len(body), err)
			}
			if c := a.rows.completer; c != nil {
				c.slot <- struct{}{} // what is made in the background is done
				<-c.slot
			}
			content, err := shelf.Store.Content(h)
			if err != nil {
				t.Fatal(err)
			}
			if _, there := content.Find(coding.Gzip); there != test.later {
				t.Errorf("gzip is there: %v", there)
			}
		})
	}
}

// A request does not wait while another one's gzip form is made.
func TestGzipOneAtATime(t *testing.T) {
	shelf := testkit.NewShelf(t)
	c := &completer{shelf.Store, make(chan struct{}, 1), slog.New(slog.DiscardHandler)}
	have := kvstore.Content{Size: 1000, Representations: []kvstore.Representation{{Coding: coding.Brotli, Length: 100}}}
	c.slot <- struct{}{}
	if got := c.addGzip(kvstore.Hash{}, have); len(got.Representations) != 1 || len(c.slot) != 1 {
		t.Errorf("%+v", got)
	}
	<-c.slot
	if got := c.addGzip(kvstore.Hash{}, have); len(got.Representations) != 1 || len(c.slot) != 0 { // it is not there any more
		t.Errorf("%+v", got)
	}
}
