package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// logEntry returns an entry of a test's log as the stream has it, and its hash in the tree.
func logEntry(index int) (event string, leaf tlog.Hash) {
	raw := fmt.Sprintf(`"package":"p%d","n":%d}`, index%2, index)
	return fmt.Sprintf("id: %d\ndata: {\"index\":%d,%s\n\n", index, index, raw), tlog.RecordHash([]byte("{" + raw))
}

// TestEvents tests that an event counts only if it is complete.
func TestEvents(t *testing.T) {
	one, _ := logEntry(1)
	two, _ := logEntry(2)
	for text, want := range map[string][]string{
		"retry: 5000\n\n" + one + ": nothing new\n\n" + two: {"1", "2"},
		one + two[:len(two)-1]:                              {"1"},
		one + two[:9]:                                       {"1"},
		"id: 3\nnews: x\n\n":                                {"3 the line \"news: x\""},
	} {
		var got []string
		err := readEvents(iotest.OneByteReader(strings.NewReader(text)), func(v streamEvent) bool {
			got = append(got, strings.TrimSpace(v.id+" "+v.fault))
			return true
		})
		if !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// TestFollower tests that a client notices each way in which a stream may be wrong.
func TestFollower(t *testing.T) {
	event := func(index int) string { text, _ := logEntry(index); return text }
	for _, tt := range []struct{ name, pkg, text, fault string }{
		{"right", "", event(1) + event(2) + event(3), ""},
		{"right, of a package", "p1", event(1) + event(3), ""},
		{"repeated", "", event(1) + event(2) + event(2), "entry 2 comes again after 2"},
		{"repeated, of a package", "p1", event(1) + event(1), "entry 1 comes again"},
		{"missing", "", event(1) + event(3), "entry 3 comes after 1"},
		{"reordered", "", event(1) + event(3) + event(2), "entry 2 comes again after 3"},
		{"of another package", "p1", event(1) + event(2), `entry 2 is of "p0"`},
		{"another index", "", strings.Replace(event(1), "id: 1", "id: 2", 1), "malformed"},
		{"no JSON", "", "id: 1\ndata: {\"index\":1,\n\n", "malformed"},
	} {
		f := &follower{name: "a client", pkg: tt.pkg}
		_ = readEvents(strings.NewReader(tt.text), func(v streamEvent) bool { f.receive("one", v); return true })
		if got := strings.Join(f.faults, "\n"); tt.fault == "" && got != "" || !strings.Contains(got, tt.fault) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

func TestRootOf(t *testing.T) {
	var stored, leaves []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) (hashes []tlog.Hash, err error) {
		for _, i := range indexes {
			hashes = append(hashes, stored[i])
		}
		return hashes, nil
	})
	for i := range 40 {
		_, leaf := logEntry(i)
		leaves = append(leaves, leaf)
		more, err := tlog.StoredHashesForRecordHash(int64(i), leaf, reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
		want, err := tlog.TreeHash(int64(i+1), reader)
		if got := rootOf(leaves); err != nil || got != want {
			t.Fatalf("the root of %d leaves is %v, want %v (%v)", i+1, got, want, err)
		}
	}
}

// A streamedLog serves a log of 200 entries as Larder does, except for what broken changes.
type streamedLog struct {
	broken func(index int, event string) string
}

const streamedEntries = 200

func (s *streamedLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/log/checkpoint":
		var leaves []tlog.Hash
		for i := range streamedEntries {
			_, leaf := logEntry(i)
			leaves = append(leaves, leaf)
		}
		fmt.Fprintf(w, "log\n%d\n%s\n\n— signature\n", streamedEntries, rootOf(leaves))
	case "/logs":
		event, _ := logEntry(0)
		_, data, _ := strings.Cut(event, "data: ")
		fmt.Fprintf(w, "[%s]", strings.TrimSpace(data))
	case "/logs/stream":
		last := 0
		_, _ = fmt.Sscan(r.Header.Get("Last-Event-ID"), &last)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		for i := last + 1; i < streamedEntries; i++ {
			event, _ := logEntry(i)
			if pkg := r.URL.Query().Get("package"); pkg != "" && pkg != fmt.Sprintf("p%d", i%2) {
				continue
			}
			if s.broken != nil {
				event = s.broken(i, event)
			}
			_, _ = io.WriteString(w, event)
		}
	}
}

// TestJudgeStreams tests that clients that are cut and reconnect receive a log exactly, and that the check fails if an entry is
// missing, repeated or changed.
func TestJudgeStreams(t *testing.T) {
	served := &streamedLog{}
	s := httptest.NewServer(served)
	defer s.Close()
	for name, tt := range map[string]struct {
		broken func(int, string) string
		fault  string
	}{
		"right": {nil, ""},
		"missing": {func(i int, event string) string {
			if i == 33 {
				return ""
			}
			return event
		}, "entry 34 comes after 32"},
		"repeated": {func(i int, event string) string {
			if i == 33 {
				return event + event
			}
			return event
		}, "entry 33 comes again after 33"},
		"changed": {func(i int, event string) string { return strings.Replace(event, `"n":33`, `"n":34`, 1) }, "and the log has signed"},
	} {
		served.broken = tt.broken
		p := &play{library: newLibrary(), notes: newNotes()}
		e := &entrance{name: "one", url: s.URL}
		for i, pkg := range []string{"", "p1"} {
			p.followers = append(p.followers, &follower{name: "a client", entrances: []*entrance{e}, pkg: pkg, silence: requestTimeout, random: rand.New(rand.NewPCG(uint64(i), 1))})
		}
		c := p.judgeStreams(t.Context())
		if c.OK != (tt.fault == "") || !strings.Contains(c.Said, tt.fault) {
			t.Errorf("%s: %+v", name, c)
		}
		if tt.fault == "" && p.followers[0].counts.cut+p.followers[0].counts.ended < 2 {
			t.Errorf("%s: the client was never cut: %+v", name, p.followers[0].counts)
		}
	}
	if c := (&play{}).judgeStreams(t.Context()); c.OK {
		t.Error("the check holds without a client")
	}
}

// TestStreamFailures tests which ends of a stream a client notes as failures.
func TestStreamFailures(t *testing.T) {
	event, _ := logEntry(1)
	for name, tt := range map[string]struct {
		entrance string
		serve    func(http.ResponseWriter, *http.Request)
		cause    cause
	}{
		"complete":             {"one", func(http.ResponseWriter, *http.Request) {}, ""},
		"cut":                  {"one", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, cut},
		"cut behind the proxy": {proxyName, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
		"silent":               {"one", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timedOut},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-store")
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			tt.serve(w, r)
		}))
		p := &play{notes: newNotes()}
		f := &follower{name: "a client", entrances: []*entrance{{name: tt.entrance, url: s.URL}}, silence: 50 * time.Millisecond, random: rand.New(rand.NewPCG(7, 7))}
		asked := 0
		f.run(t.Context(), p, func() bool { asked++; return asked > 2 }) // before the stream, at its entry, and after it
		failures := p.notes.failures
		if len(f.indexes) != 1 || tt.cause == "" && len(failures) > 0 || tt.cause != "" && (len(failures) != 1 || failures[0].cause != tt.cause) {
			t.Errorf("%s: %d entries, %+v", name, len(f.indexes), failures)
		}
		s.Close()
	}
}
