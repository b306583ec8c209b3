package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

func TestDeck(t *testing.T) {
	draw := func(seed uint64, only string) []string { return drawDeck(rand.New(rand.NewPCG(seed, 1)), only) }
	one := draw(1, "")
	for _, kind := range kinds {
		if !slices.Contains(one, kind) {
			t.Errorf("no deck has %q", kind)
		}
	}
	if !slices.Equal(one, draw(1, "")) {
		t.Error("a seed draws one deck, and then another")
	}
	if slices.Equal(one, draw(2, "")) {
		t.Error("two seeds draw the same deck")
	}
	if got := draw(1, "upgrade,bucket"); len(got) != 2 || slices.Contains(got, killKind) {
		t.Errorf("of two kinds: %v", got)
	}
}

// Whatever is wrong with an answer, the client says so, and nothing else.
func TestJudge(t *testing.T) {
	want := content("p", "1.0.0", "index.js")
	other := bytes.Clone(want)
	other[len(other)/2] ^= 1
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(want)
	_ = z.Close()
	for _, test := range []struct {
		name   string
		q      question
		status int
		coding string
		body   []byte
		cause  cause // "" for a right answer
	}{
		{"whole", question{}, 200, "", want, ""},
		{"a flipped bit", question{}, 200, "", other, wrongBytes},
		{"short", question{}, 200, "", want[1:], wrongBytes},
		{"gzip", question{coding: "gzip"}, 200, "gzip", zipped.Bytes(), ""},
		{"gzip that was not asked for", question{}, 200, "gzip", zipped.Bytes(), wrongBytes},
		{"broken gzip", question{coding: "gzip"}, 200, "gzip", zipped.Bytes()[:20], wrongBytes},
		{"range", question{ranged: true, from: 7}, 206, "", want[7:], ""},
		{"another range", question{ranged: true, from: 7}, 206, "", want[6:], wrongBytes},
		{"a range that was not asked for", question{}, 206, "", want, otherwise},
		{"unchanged", question{tag: `"x"`}, 304, "", nil, ""},
		{"unchanged to one who has nothing", question{}, 304, "", nil, otherwise},
		{"missing", question{}, 404, "", nil, notFound},
		{"unavailable", question{}, 503, "", nil, unavailable},
		{"bad gateway", question{}, 502, "", nil, badGateway},
	} {
		test.q.want = want
		answer := &http.Response{StatusCode: test.status, Header: http.Header{}}
		answer.Header.Set("Content-Encoding", test.coding)
		err := test.q.judge(answer, test.body)
		if err == nil && test.cause != "" || err != nil && causeOf(err) != test.cause {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestCauses(t *testing.T) {
	for want, err := range map[cause]error{
		refused:   fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
		cut:       fmt.Errorf("read: %w", io.ErrUnexpectedEOF),
		timedOut:  fmt.Errorf("read: %w", context.DeadlineExceeded),
		otherwise: errors.New("something new"),
	} {
		if got := causeOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A failure is excused where an event allows it, at that entrance, for that cause, at that time; and wrong bytes never are.
func TestExplained(t *testing.T) {
	n := newNotes()
	e := n.begins(killKind)
	e.allow("one", refused, wrongBytes)
	e.End = e.Begin.Add(10 * time.Second)
	at := func(s int) time.Time { return e.Begin.Add(time.Duration(s) * time.Second) }
	for _, test := range []struct {
		f       failure
		excused bool
	}{
		{failure{at(1), at(2), "one", refused, ""}, true},
		{failure{at(11), at(11), "one", refused, ""}, true}, // within the grace
		{failure{at(1), at(2), "two", refused, ""}, false},
		{failure{at(1), at(2), "one", cut, ""}, false},
		{failure{at(1), at(2), "one", wrongBytes, ""}, false},
		{failure{at(-2), at(-1), "one", refused, ""}, false},
		{failure{at(20), at(20), "one", refused, ""}, false},
	} {
		n.failures = []failure{test.f}
		if _, others := n.explained(); len(others) == 0 != test.excused {
			t.Errorf("%+v: excused is %v", test.f, !test.excused)
		}
	}
	n.failures = []failure{{at(1), at(2), "one", refused, ""}, {at(1), at(2), "two", cut, ""}, {at(1), at(2), "one", wrongBytes, ""}}
	n.request("one", at(0), nil)
	checks := n.judgeRequests()
	if checks[0].OK || checks[1].OK || !strings.Contains(checks[0].Said, string(wrongBytes)) || !strings.Contains(checks[1].Said, string(cut)) {
		t.Errorf("%+v", checks)
	}
}

func TestRoomLimits(t *testing.T) {
	begin := time.Unix(60*1000, 0)
	at := func(seconds float64) visit {
		v := begin.Add(time.Duration(seconds * float64(time.Second)))
		return visit{v, v}
	}
	for _, test := range []struct {
		name   string
		visits map[string][]visit
		want   string
	}{
		{"two at once", map[string][]visit{"a": {at(0)}, "b": {at(59)}}, ""},
		{"three at once", map[string][]visit{"a": {at(0)}, "b": {at(70)}, "c": {at(129), at(131)}, "d": {at(125)}}, "3 visitors are in"},
		{"one after the other", map[string][]visit{"a": {at(0)}, "b": {at(61)}, "c": {at(122)}, "d": {at(183)}}, ""},
		{"three in a minute", map[string][]visit{"a": {at(0)}, "b": {at(1)}, "c": {at(2)}}, "3 visitors"},
	} {
		d := &doorman{limit: 2, perMinute: 2, visits: test.visits}
		if got := d.exceeded(); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q", test.name, got)
		}
	}
	// More come in a minute than may, but no more are in.
	d := &doorman{limit: 9, perMinute: 1, visits: map[string][]visit{"a": {at(0)}, "b": {at(1)}}}
	if got := d.exceeded(); !strings.Contains(got, "come in in the minute") {
		t.Errorf("%q", got)
	}
	// It was let in before the minute was over, and came in after.
	late := at(60)
	late.sent = begin.Add(59 * time.Second)
	d = &doorman{limit: 9, perMinute: 1, visits: map[string][]visit{"a": {at(61)}, "b": {late}}}
	if got := d.exceeded(); got != "" {
		t.Errorf("%q", got)
	}
}

func TestArchive(t *testing.T) {
	r := &release{pkg: "p", version: "1.1.0"}
	build := func(change func(file string, data []byte) []byte) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, file := range r.files() {
			data := change(file, content(r.pkg, r.version, file))
			if data == nil {
				continue
			}
			w, err := z.Create("p-1.1.0/" + file)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write(data)
		}
		_ = z.Close()
		return b.Bytes()
	}
	if err := checkArchive(build(func(_ string, data []byte) []byte { return data }), r); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(string, []byte) []byte{
		"another byte": func(file string, data []byte) []byte {
			if file == "data.json" {
				data[3] ^= 1
			}
			return data
		},
		"a file less": func(file string, data []byte) []byte {
			if file == "dist/one.js" {
				return nil
			}
			return data
		},
	} {
		if err := checkArchive(build(change), r); causeOf(err) != wrongBytes {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A visitor whom the room tells when to come again waits; one whom it tells nothing has failed.
func TestVisitorWaits(t *testing.T) {
	var header, value string
	status := http.StatusServiceUnavailable
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set(header, value)
		}
		w.WriteHeader(status)
	}))
	defer s.Close()
	r := &release{pkg: "p", version: "1.1.0"}
	if _, err := fetchArchive(t.Context(), s.Client(), s.URL, r); causeOf(err) != unavailable {
		t.Error(err)
	}
	header, value = "Retry-After", "7"
	if wait, err := fetchArchive(t.Context(), s.Client(), s.URL, r); err != nil || wait != 7*time.Second {
		t.Error(wait, err)
	}
	status, header, value = http.StatusOK, "Refresh", "20"
	if wait, err := fetchArchive(t.Context(), s.Client(), s.URL, r); err != nil || wait != 20*time.Second {
		t.Error(wait, err)
	}
}

func TestUse(t *testing.T) {
	life := func(pid int, from, n int, memory func(int) int64) (all []sample) {
		for i := range n {
			all = append(all, sample{stage.Usage{At: time.Unix(int64(2*(from+i)), 0)}, pid, memory(i)})
		}
		return all
	}
	flat := life(1, 0, 200, func(i int) int64 { return int64(200+i%7) * 1e6 })
	leaks := append(life(1, 0, 20, func(int) int64 { return 100e6 }), life(2, 20, 400, func(i int) int64 { return int64(100+i) * 1e6 })...)
	n := newNotes()
	n.samples["flat"] = flat
	n.samples["attacked"] = life(1, 0, 200, func(i int) int64 { // at its end
		if i > 185 {
			return 900e6
		}
		return 200e6
	})
	if c := n.judgeUse(uses[0]); !c.OK {
		t.Errorf("%+v", c)
	}
	n.samples["silent"] = life(1, 0, 200, func(int) int64 { return 0 })
	if c := n.judgeUse(uses[0]); c.OK || !strings.Contains(c.Said, "silent never told") {
		t.Errorf("%+v", c)
	}
	delete(n.samples, "silent")
	n.samples["leaks"] = leaks
	if c := n.judgeUse(uses[0]); c.OK || !strings.Contains(c.Said, "leaks grows by") || strings.Contains(c.Said, "flat grows") {
		t.Errorf("%+v", c)
	}
}

func TestFlip(t *testing.T) {
	store := t.TempDir()
	if _, err := flip(store, 0.5); err == nil {
		t.Error("a store without a table has no bit to flip")
	}
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(store, fmt.Sprintf("%d.sst", i)), make([]byte, 100*(i+1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names, err := flip(store, 0.5)
	if err != nil || !slices.Equal(names, []string{"4.sst", "3.sst", "2.sst"}) {
		t.Fatal(names, err)
	}
	for i := range 5 {
		got, err := os.ReadFile(filepath.Join(store, fmt.Sprintf("%d.sst", i)))
		if zeros := bytes.Count(got, []byte{0}); err != nil || (zeros != len(got)) != (i > 1) {
			t.Errorf("table %d: %v, %d of %d bytes are as they were", i, err, zeros, len(got))
		}
	}
}

// A client notices a server that sends another byte, refuses, or serves what it must not.
func TestClient(t *testing.T) {
	good, poisoned, gone := &release{pkg: "p", version: "1.1.0"}, &release{pkg: "p", version: "1.2.0", poisoned: true}, &release{pkg: "p", version: "1.3.0", withdrawn: time.Now().Add(-time.Hour), recalled: time.Now().Add(-time.Hour)}
	wrong := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.Path, "/", 6) // "", ajax, libs, package, version, file
		data := content(parts[3], parts[4], parts[5])
		if wrong {
			data[0] ^= 1
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	}))
	defer s.Close()
	p := &play{library: newLibrary(), notes: newNotes()}
	for _, r := range []*release{good, poisoned, gone} {
		p.library.add(r)
	}
	e := &entrance{name: "one", url: s.URL}
	tr := p.transport(e)
	defer tr.CloseIdleConnections()
	ask := func(r *release) error {
		return p.ask(t.Context(), tr, e, r, rand.New(rand.NewPCG(5, 5)), map[string]string{})
	}
	if err := ask(good); err != nil {
		t.Error(err)
	}
	if err := ask(poisoned); causeOf(err) != poisonous {
		t.Error(err)
	}
	if err := ask(gone); causeOf(err) != recalled {
		t.Error(err)
	}
	wrong = true
	if err := ask(good); causeOf(err) != wrongBytes {
		t.Error(err)
	}
	s.Close()
	if err := ask(good); causeOf(err) != refused && causeOf(err) != cut {
		t.Error(err)
	}
}

func TestPage(t *testing.T) {
	n := newNotes()
	n.begin = time.Now().Add(-time.Minute)
	e := n.begins(killKind)
	e.Begin, e.What = n.begin.Add(10*time.Second), "one <is> killed"
	e.End = e.Begin.Add(5 * time.Second)
	e.allow("one, TLS", refused)
	n.request("one, TLS", time.Now(), nil)
	n.failures = []failure{{e.Begin, e.Begin.Add(time.Second), "one, TLS", refused, ""}, {e.Begin, e.Begin.Add(time.Second), "one, TLS", wrongBytes, ""}}
	for i := range 10 {
		n.sample("one", sample{stage.Usage{At: n.begin.Add(time.Duration(i) * 2 * time.Second), Memory: 100e6, Files: 30}, 1, 50e6})
	}
	page, err := n.page(&options{seed: 77}, n.begin.Add(time.Minute), []check{{"a check", "said <b>", false}, {"another", "", true}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, want := range []string{"seed 77", "Not everything held", "one &lt;is&gt; killed", "said &lt;b&gt;", "one, TLS: connection refused, 1 times", `class="failed bad"`, `class="event"`, "<title>0:10"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, outside := range []string{"<script", "src=", "href=", "@import", "url("} {
		if strings.Contains(text, outside) {
			t.Errorf("the page needs something else: %s", outside)
		}
	}
	for _, svg := range strings.SplitAfter(text, "</svg>") {
		begin := strings.Index(svg, "<svg")
		if begin < 0 {
			continue
		}
		for d := xml.NewDecoder(strings.NewReader(svg[begin:])); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a picture: %v", err)
			}
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-minutes", "3", "-seed", "9"})
	if err != nil || o.length != 3*time.Minute || o.seed != 9 || o.queue != 500 {
		t.Errorf("%+v %v", o, err)
	}
	if o, err = parse(nil); err != nil || o.length != time.Hour || o.queue != 10_000 || o.seed == 0 {
		t.Errorf("%+v %v", o, err)
	}
	if _, err = parse([]string{"-minutes", "0.1"}); err == nil {
		t.Error("six seconds are enough")
	}
}
