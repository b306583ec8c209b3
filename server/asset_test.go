package server

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// A date that HTTP has no way to write (RFC 9110 §5.6.7) is left out.
func TestLastModified(t *testing.T) {
	for _, test := range []struct {
		released time.Time
		want     string
	}{
		{time.Time{}, ""},
		{time.Date(2024, 2, 29, 12, 30, 45, 6, time.UTC), "Thu, 29 Feb 2024 12:30:45 GMT"},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), "Fri, 31 Dec 9999 23:59:59 GMT"},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)), ""},
		{time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)), ""},
		{time.Unix(1<<40, 0), ""},
	} {
		f := newAsset(target{path: "a.js"}, views.File{Released: test.released},
			kvstore.Content{Size: 1, Representations: []kvstore.Representation{{Coding: coding.Identity, Length: 1}}}, false)
		head := f.representations[0].okHead(plain)
		if bytes.IndexByte(*head, 0) >= 0 {
			t.Errorf("%v: there is a NUL in %q", test.released, *head)
		}
		fields := http.Header{}
		setHeader(fields, head)
		if got := fields.Get("Last-Modified"); got != test.want {
			t.Errorf("%v is %q, want %q", test.released, got, test.want)
		}
	}
}
