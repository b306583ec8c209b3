package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs/verify"
)

// frozenWell returns the notes of a freeze in which the mirror kept every promise.
func frozenWell() *freeze {
	f := newFreeze()
	f.complete, f.responses = true, 1
	for where := range noticedWithin {
		f.noticed[where] = time.Second
	}
	for _, cause := range recoveries {
		f.caughtUp[cause] = time.Second
	}
	return f
}

func TestFreezeCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*freeze)
		want   string
	}{
		"well":                 {func(*freeze) {}, ""},
		"not noticed":          {func(f *freeze) { delete(f.noticed, byProbe) }, "not noticed by /readyz"},
		"noticed late":         {func(f *freeze) { f.noticed[byLog] = 2 * time.Minute }, "noticed by the log only after 2m0s"},
		"noticed early":        {func(f *freeze) { f.report("early") }, "early"},
		"not caught up":        {func(f *freeze) { delete(f.caughtUp, fromStopped) }, "not caught up after a stopped process"},
		"caught up late":       {func(f *freeze) { f.caughtUp[fromOlder] = time.Hour }, "caught up 1h0m0s after an older checkpoint"},
		"no client":            {func(f *freeze) { f.responses = 0 }, "no response"},
		"wrong, and cut short": {func(f *freeze) { f.complete = false; f.report("wrong bytes") }, "wrong bytes"},
	} {
		f := frozenWell()
		test.change(f)
		c := (&play{freezes: []*freeze{f}}).judgeFreezes()
		if c.OK != (test.want == "") || !strings.Contains(c.Said, test.want) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestFrozenResponses(t *testing.T) {
	good, poisoned := &release{pkg: "p", version: "1.1.0"}, &release{pkg: "p", version: "1.2.0", poisoned: true}
	gone, missing, late := errStatus(http.StatusGone), errStatus(http.StatusNotFound), context.DeadlineExceeded
	for _, test := range []struct {
		name      string
		r         *release
		withdrawn bool
		stopped   bool
		errs      []error
		want      string
	}{
		{"served", good, false, false, []error{nil, nil}, ""},
		{"not there yet", good, false, false, []error{missing, nil}, ""},
		{"withdrawn, which the mirror learns later", good, true, false, []error{nil, nil, gone, gone}, ""},
		{"stopped", good, false, true, []error{late}, ""},
		{"another byte", good, false, false, []error{errClaim{wrongBytes, "x"}}, "wrong bytes"},
		{"lost", good, false, false, []error{nil, missing}, "is 404 and was served before"},
		{"withdrawn by the mirror alone", good, false, false, []error{gone}, "was not withdrawn"},
		{"back again", good, true, false, []error{gone, nil}, "served again"},
		{"a wrong integrity", poisoned, false, false, []error{nil}, "integrity is wrong"},
		{"no response, and not stopped", good, false, false, []error{late}, "deadline"},
		{"an error", good, false, true, []error{errStatus(http.StatusInternalServerError)}, "Internal Server Error"},
	} {
		f := newFreeze()
		for _, err := range test.errs {
			f.observe(test.r, test.withdrawn, test.stopped, err)
		}
		got := strings.Join(f.wrong, "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) || f.responses != len(test.errs) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestAgeCheckpoint: verifiers accept an aged checkpoint, and take it for as old as it was made.
func TestAgeCheckpoint(t *testing.T) {
	secret, public, err := note.GenerateKey(rand.Reader, "log.example/rehearsal")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: "log.example/rehearsal\n7\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"}, signer)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-23 * time.Hour).Truncate(time.Second)
	signed = append(signed, "— log.example/rehearsal AAAAAAAA\n"...) // the cosignature of now
	aged, err := ageCheckpoint(signed, []byte(secret+"\n"), at)
	if err != nil {
		t.Fatal(err)
	}
	head, err := parseHead(string(aged))
	if got := (verify.Trust{Key: public}).CosignedAt(aged); !got.Equal(at) || err != nil || head.Size != 7 {
		t.Errorf("cosigned at %v, want %v:\n%s", got, at, aged)
	}
	for _, bad := range [][2][]byte{{[]byte("text"), []byte(secret)}, {signed, []byte("PRIVATE+KEY+log")}, {signed, []byte("PRIVATE+KEY+log+00000000+AAAA")}} {
		if _, err := ageCheckpoint(bad[0], bad[1], at); err == nil {
			t.Errorf("%.20q is aged with %.20q", bad[0], bad[1])
		}
	}
}

// TestReplayProxy: it passes everything on but the checkpoint that it replays.
func TestReplayProxy(t *testing.T) {
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "source", r.URL.Path) }))
	defer source.Close()
	x, err := newReplayProxy(source.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer x.server.Close()
	get := func(path string) string {
		t.Helper()
		response, err := http.Get(x.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	if got := get("/log/checkpoint"); got != "source/log/checkpoint" {
		t.Error(got)
	}
	old := []byte("log\n7\nroot\n")
	x.replay(old)
	if got := get("/log/checkpoint"); !bytes.Equal([]byte(got), old) {
		t.Error(got)
	}
	if got := get("/log/tile/0/000.p/7"); got != "source/log/tile/0/000.p/7" {
		t.Error(got)
	}
}
