package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// TestSimilarContent tests that deltas between releases are worthwhile, and that some releases have the same file.
func TestSimilarContent(t *testing.T) {
	one, two, three, other := similarContent("p", "1.0.0"), similarContent("p", "1.1.0"), similarContent("p", "1.2.0"), similarContent("p", "2.1.0")
	if bytes.Equal(one, two) || !bytes.Equal(two, three) || bytes.Equal(two, other) || bytes.Equal(two, similarContent("q", "1.1.0")) {
		t.Error("the files differ in the wrong releases")
	}
	delta, err := coding.EncodeDelta(one, two)
	if err != nil || len(delta) > len(two)/10 {
		t.Errorf("a delta of %d bytes has %d (%v)", len(two), len(delta), err)
	}
}

// dictionaryCase returns a request of a client with 1.0.0 as a dictionary for 1.1.0, and the delta.
func dictionaryCase(t *testing.T) (q *dictionaryRequest, delta []byte) {
	t.Helper()
	r := &release{pkg: "p", version: "1.1.0"}
	q = &dictionaryRequest{path: r.path(similarFile), want: similarContent("p", "1.1.0"), accept: browserCodings, dictionary: similarContent("p", "1.0.0")}
	q.available = availableDictionary(sha256.Sum256(q.dictionary))
	delta, err := coding.EncodeDelta(q.dictionary, q.want)
	if err != nil {
		t.Fatal(err)
	}
	return q, delta
}

// TestJudgeDelta tests that a client with a dictionary notices each way in which a response may be wrong.
func TestJudgeDelta(t *testing.T) {
	_, right := dictionaryCase(t)
	flipped := bytes.Clone(right)
	flipped[len(flipped)-9] ^= 1
	foreign, err := coding.EncodeDelta([]byte("another dictionary"), similarContent("p", "1.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := coding.EncodeDelta(similarContent("p", "1.0.0"), similarContent("p", "1.3.0"))
	if err != nil {
		t.Fatal(err)
	}
	const use = `match="/ajax/libs/p/:version/dist/similar.js", id="1.1.0"`
	for _, tt := range []struct {
		name   string
		change func(*dictionaryRequest, *http.Response)
		body   []byte
		cause  cause
	}{
		{"right", nil, right, ""},
		{"flipped", nil, flipped, wrongBytes},
		{"short", nil, right[:len(right)-4], wrongBytes},
		{"of another dictionary", nil, foreign, wrongBytes},
		{"of another file", nil, other, wrongBytes},
		{"for a client without it", func(q *dictionaryRequest, _ *http.Response) { q.dictionary = nil }, right, wrongBytes},
		{"of a range", func(q *dictionaryRequest, _ *http.Response) { q.ranged = true }, right, wrongBytes},
		{"public", func(_ *dictionaryRequest, r *http.Response) { r.Header.Set("Cache-Control", "public") }, right, wrongBytes},
		{"the same for all", func(_ *dictionaryRequest, r *http.Response) { r.Header.Set("Vary", "Accept-Encoding") }, right, wrongBytes},
		{"a dictionary for others", func(_ *dictionaryRequest, r *http.Response) {
			r.Header.Set("Use-As-Dictionary", `match="/*", id="1.1.0"`)
		}, right, wrongBytes},
		{"plain", func(_ *dictionaryRequest, r *http.Response) { r.Header.Del("Content-Encoding") }, similarContent("p", "1.1.0"), ""},
		{"plain, of another release", func(_ *dictionaryRequest, r *http.Response) { r.Header.Del("Content-Encoding") }, similarContent("p", "1.3.0"), wrongBytes},
		{"unavailable", func(_ *dictionaryRequest, r *http.Response) { r.StatusCode = 503 }, nil, unavailable},
		{"not modified", func(_ *dictionaryRequest, r *http.Response) { r.StatusCode = 304 }, nil, otherwise},
	} {
		q, _ := dictionaryCase(t)
		response := &http.Response{StatusCode: 200, Header: http.Header{}}
		for name, value := range map[string]string{"Content-Encoding": "dcz", "Cache-Control": "private", "Vary": "Accept-Encoding, Available-Dictionary", "Use-As-Dictionary": use} {
			response.Header.Set(name, value)
		}
		if tt.change != nil {
			tt.change(q, response)
		}
		err := q.judge(response, tt.body)
		if err == nil && tt.cause != "" || err != nil && causeOf(err) != tt.cause {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestDeltaTag tests that an entity tag may not stand for two encodings.
func TestDeltaTag(t *testing.T) {
	var n dictionaryNotes
	q := &dictionaryRequest{path: "/p", delta: true, tag: `"t"`}
	for body, cause := range map[string]cause{"one": "", "two": wrongBytes} {
		if body == "two" {
			q.tag = `"u"`
			_ = n.add("one", q, []byte("one"))
		}
		if err := n.add("one", q, []byte(body)); err == nil && cause != "" || err != nil && causeOf(err) != cause {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestJudgeDictionaries tests that the check fails if an entrance has another delta than the others, or a wrong one.
func TestJudgeDictionaries(t *testing.T) {
	dictionary, want := similarContent(packageName(0), "1.0.0"), similarContent(packageName(0), "1.1.0")
	right, err := coding.EncodeDelta(dictionary, want)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(body []byte) *entrance {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "dcz")
			w.Header().Set("Cache-Control", "private")
			w.Header().Set("Vary", "Available-Dictionary")
			_, _ = w.Write(body)
		}))
		t.Cleanup(s.Close)
		return &entrance{name: s.URL, url: s.URL}
	}
	// An empty block at the end changes the bytes, and not what they decode to.
	again := bytes.Clone(right)
	again = append(again, "\x50\x2a\x4d\x18\x00\x00\x00\x00"...) // a frame to skip
	for name, tt := range map[string]struct {
		bodies [][]byte
		fault  string
	}{
		"right":   {[][]byte{right, right}, ""},
		"another": {[][]byte{right, again}, "has another delta"},
		"wrong":   {[][]byte{right, right[:90]}, string(wrongBytes)},
	} {
		p := &play{library: newLibrary()}
		for _, body := range tt.bodies {
			p.entrances = append(p.entrances, serve(body))
		}
		for _, version := range []string{"1.0.0", "1.1.0"} {
			p.library.add(&release{pkg: packageName(0), version: version, acknowledged: time.Now()})
		}
		p.nodes = []*actor{leader(t, 0)}
		if c := p.judgeDictionaries(t.Context()); c.OK != (tt.fault == "") || !strings.Contains(c.Said, tt.fault) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := (&play{library: newLibrary(), nodes: []*actor{leader(t, 0)}}).judgeDictionaries(t.Context()); c.OK {
		t.Error("the check holds without a release")
	}
}

// leader returns a process that says that it leads, and how many contents wait for recompression.
func leader(t *testing.T, backlog int) *actor {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "#\nlarder_cluster_leader 1\nlarder_bot_squeeze_backlog %d\n", backlog)
	}))
	t.Cleanup(s.Close)
	return &actor{name: "one", private: strings.TrimPrefix(s.URL, "http://"), pid: 1}
}

// TestBacklog tests that the check waits for as long as fewer and fewer contents wait, and no longer.
func TestBacklog(t *testing.T) {
	p := &play{nodes: []*actor{leader(t, 41)}}
	read := func() (int, error) { return p.backlog(t.Context()) }
	if got, err := read(); got != 41 || err != nil {
		t.Fatal(got, err)
	}
	if err := awaitFalling(t.Context(), 10*time.Millisecond, read); err == nil || !strings.Contains(err.Error(), "41, and not fewer") {
		t.Error(err)
	}
	left := 3
	if err := awaitFalling(t.Context(), time.Minute, func() (int, error) { left--; return left, nil }); err != nil || left != 0 {
		t.Error(left, err)
	}
}

// TestNewestPair tests that the deltas that are awaited are of published releases that follow one another.
func TestNewestPair(t *testing.T) {
	p := &play{library: newLibrary()}
	at := time.Now()
	for _, r := range []*release{
		{version: "1.0.0", acknowledged: at}, {version: "1.1.0", acknowledged: at}, {version: "1.2.0", poisoned: true}, {version: "1.3.0", acknowledged: at}, {version: "1.4.0", acknowledged: at, withdrawn: at},
		{version: "1.5.0", acknowledged: at}, {version: "1.6.0"}, {version: "2.0.0", acknowledged: at},
	} {
		r.pkg = "p"
		p.library.add(r)
	}
	if from, to := p.newestPair("p"); from == nil || from.version != "1.0.0" || to.version != "1.1.0" {
		t.Error(from, to)
	}
	if from, to := p.newestPair("q"); from != nil || to != nil {
		t.Error(from, to)
	}
}
