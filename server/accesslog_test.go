package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/requests"
)

var loggedEntry = accessLogEntry{
	Time: time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC), Client: netip.MustParseAddr("192.0.2.7"), Method: "GET", Host: "cdn.example.com",
	Target: "/ajax/libs/demo/1.0.0/demo.js?v=1", Protocol: "HTTP/1.1", Referer: "https://example.com/\"x\"", Agent: "Mozilla/5.0 \\ \x01 é", Status: 200, Sent: 1234, Took: 56 * time.Microsecond,
}

func openTestLog(t testing.TB, o AccessLogOptions) (*AccessLog, string) {
	t.Helper()
	o.File = filepath.Join(t.TempDir(), "access.log")
	l, err := OpenAccessLog(o)
	if err != nil {
		t.Fatal(err)
	}
	return l, o.File
}

func closeTestLog(t testing.TB, l *AccessLog, file string) string {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return readTestLog(t, file)
}

func readTestLog(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAccessLogForms(t *testing.T) {
	for _, test := range []struct{ name, format, addresses, want string }{
		{"combined", AccessLogCombined, AccessLogPlain, `192.0.2.7 - - [04/Mar/2026:05:06:07 +0000] "GET /ajax/libs/demo/1.0.0/demo.js?v=1 HTTP/1.1" 200 1234 "https://example.com/\x22x\x22" "Mozilla/5.0 \x5c \x01 \xc3\xa9"` + "\n"},
		{"without addresses", AccessLogCombined, AccessLogNone, `- - - [04/Mar/2026:05:06:07 +0000] "GET /ajax/libs/demo/1.0.0/demo.js?v=1 HTTP/1.1" 200 1234 "https://example.com/\x22x\x22" "Mozilla/5.0 \x5c \x01 \xc3\xa9"` + "\n"},
		{"JSON", AccessLogJSON, AccessLogPlain, `{"time":"2026-03-04T05:06:07.089Z","client":"192.0.2.7","method":"GET","host":"cdn.example.com","target":"/ajax/libs/demo/1.0.0/demo.js?v=1","protocol":"HTTP/1.1","status":200,"bytes":1234,"microseconds":56,"referer":"https://example.com/\"x\"","agent":"Mozilla/5.0 \\ \u0001 é"}` + "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, file := openTestLog(t, AccessLogOptions{Format: test.format, Addresses: test.addresses})
			l.add(&loggedEntry)
			if got := closeTestLog(t, l, file); got != test.want {
				t.Errorf("the line is\n%swant\n%s", got, test.want)
			}
		})
	}
}

func TestEmptyFieldsAreADash(t *testing.T) {
	l, file := openTestLog(t, AccessLogOptions{Format: AccessLogCombined})
	l.add(&accessLogEntry{Time: loggedEntry.Time, Method: "GET", Target: "/", Protocol: "HTTP/2.0", Status: 304})
	if got, want := closeTestLog(t, l, file), `- - - [04/Mar/2026:05:06:07 +0000] "GET / HTTP/2.0" 304 0 "-" "-"`+"\n"; got != want {
		t.Errorf("the line is\n%swant\n%s", got, want)
	}
}

// A client is the same on one day, another on the next, and no line has its address.
func TestPseudonyms(t *testing.T) {
	l, file := openTestLog(t, AccessLogOptions{})
	for _, step := range []struct {
		addr string
		day  int
	}{{"192.0.2.7", 0}, {"192.0.2.7", 0}, {"::ffff:192.0.2.7", 0}, {"192.0.2.8", 0}, {"2001:db8::1", 0}, {"2001:db8::ffff", 0}, {"2001:db8:0:1::1", 0}, {"192.0.2.7", 1}, {"192.0.2.7", 1}} {
		e := loggedEntry
		e.Client, e.Time = netip.MustParseAddr(step.addr), e.Time.AddDate(0, 0, step.day)
		l.add(&e)
	}
	text := closeTestLog(t, l, file)
	var names []string
	for line := range strings.Lines(text) {
		var e struct{ Client string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Client)
	}
	ids, shape := map[string]int{}, ""
	for _, name := range names {
		if len(name) != 16 {
			t.Errorf("%q is no pseudonym", name)
		}
		if _, known := ids[name]; !known {
			ids[name] = len(ids)
		}
		shape += fmt.Sprint(ids[name])
	}
	if shape != "000122344" {
		t.Errorf("the clients are %s, want 000122344", shape)
	}
	for _, addr := range []string{"192.0.2", "2001:db8"} {
		if strings.Contains(text, addr) {
			t.Errorf("the log has the address %s", addr)
		}
	}
	again, file := openTestLog(t, AccessLogOptions{})
	again.add(&loggedEntry)
	if strings.Contains(closeTestLog(t, again, file), names[0]) {
		t.Error("another process gives the same pseudonym")
	}
}

// After a rename, what was logged before is in the old file and what comes then in a new one.
func TestReopenAccessLog(t *testing.T) {
	l, file := openTestLog(t, AccessLogOptions{})
	e := loggedEntry
	e.Target = "/before"
	l.add(&e)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	e.Target = "/after"
	l.add(&e)
	now, old := closeTestLog(t, l, file), readTestLog(t, file+".1")
	if strings.Count(old, "\n") != 1 || !strings.Contains(old, "/before") || strings.Count(now, "\n") != 1 || !strings.Contains(now, "/after") {
		t.Errorf("the old file has\n%sand the new one\n%s", old, now)
	}
}

func TestFileThatCannotBeReopened(t *testing.T) {
	l, file := openTestLog(t, AccessLogOptions{})
	aside := filepath.Dir(file) + ".aside"
	if err := os.Rename(filepath.Dir(file), aside); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("it was reopened where there is no folder: %v", err)
	}
	l.add(&loggedEntry)
	if text := closeTestLog(t, l, filepath.Join(aside, "access.log")); strings.Count(text, "\n") != 1 {
		t.Errorf("the old file has %q, want a line", text)
	}
}

// A full disk fails, after it has taken a part.
type fullDisk struct {
	room int
	bytes.Buffer
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(d.room, len(p))
	d.Buffer.Write(p[:n])
	if d.room -= n; n < len(p) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

func (d *fullDisk) Close() error { return nil }

func TestLostLinesAreTold(t *testing.T) {
	var log strings.Builder
	l := &AccessLog{o: AccessLogOptions{Format: AccessLogJSON, Logger: slog.New(slog.NewTextHandler(&log, nil))}, full: make(chan struct{}, 1)}
	disk := &fullDisk{room: 40}
	l.to = disk
	l.add(&loggedEntry)
	l.add(&loggedEntry)
	l.flush()
	if !strings.Contains(log.String(), "lines=2") || !strings.Contains(log.String(), "no space left") {
		t.Errorf("the log says %q", log.String())
	}
	disk.room = 1 << 20
	l.add(&loggedEntry)
	l.flush()
	lines := strings.Split(disk.String(), "\n")
	if len(lines) != 3 || len(lines[0]) != 40 || !json.Valid([]byte(lines[1])) {
		t.Errorf("after space there is %q", lines)
	}
}

// What the file does not take in time is dropped, in bounded memory.
func TestSlowAccessLogFile(t *testing.T) {
	var log strings.Builder
	l := &AccessLog{o: AccessLogOptions{Format: AccessLogJSON, Logger: slog.New(slog.NewTextHandler(&log, nil))}, full: make(chan struct{}, 1), to: &fullDisk{room: 1 << 30}}
	for range maxAccessLogBuffer / 100 {
		l.add(&loggedEntry)
	}
	if len(l.lines) > maxAccessLogBuffer+1000 || l.dropped == 0 {
		t.Errorf("%d bytes wait, and %d lines were dropped", len(l.lines), l.dropped)
	}
	dropped := l.dropped
	l.flush()
	if !strings.Contains(log.String(), fmt.Sprintf("lines=%d", dropped)) {
		t.Errorf("the log says %q, want %d lines", log.String(), dropped)
	}
}

func TestAccessLogHandler(t *testing.T) {
	proxies, err := requests.NewProxies([]string{"127.0.0.1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	l, file := openTestLog(t, AccessLogOptions{Addresses: AccessLogPlain})
	site := httptest.NewServer(proxies.Handler(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
			fallthrough
		case "/":
			io.WriteString(w, "12345")
			w.(http.Flusher).Flush()
		case "/aborted":
			panic(http.ErrAbortHandler)
		}
	}))))
	for _, path := range []string{"/", "/missing", "/aborted"} {
		r, _ := http.NewRequest("POST", site.URL+path, nil) // which a client does not repeat
		r.Header.Set("X-Forwarded-For", "198.51.100.3")
		r.Header.Set("Referer", "https://example.com/")
		r.Header.Set("User-Agent", "test")
		if resp, err := site.Client().Do(r); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	site.Close()
	var got []string
	for line := range strings.Lines(closeTestLog(t, l, file)) {
		var e struct {
			Client, Target, Referer, Agent string
			Status, Bytes                  int
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(e.Client, e.Target, e.Referer, e.Agent, e.Status, e.Bytes))
	}
	want := fmt.Sprint(
		[]string{"198.51.100.3/https://example.com/test200 5", "198.51.100.3/missinghttps://example.com/test404 5", "198.51.100.3/abortedhttps://example.com/test200 0"})
	if fmt.Sprint(got) != want {
		t.Errorf("the log has\n%v, want\n%v", got, want)
	}
}

func TestKeptTexts(t *testing.T) {
	line := []byte("host/target" + strings.Repeat("x", 3*maxLoggedText))
	text := string(line)
	e := accessLogEntry{Host: text[:4], Target: text[4:], Agent: ""}
	buf := e.copyTexts(nil)
	if e.Host != "host" || e.Target != text[4:4+maxLoggedText] || e.Agent != "" {
		t.Errorf("the texts are %q, %.20q (%d)", e.Host, e.Target, len(e.Target))
	}
	copy(buf, "HOST")
	if e.Host != "HOST" {
		t.Error("the text is not in the buffer")
	}
}

func TestAddingAllocatesNothing(t *testing.T) {
	for _, format := range []string{AccessLogJSON, AccessLogCombined} {
		l := &AccessLog{o: AccessLogOptions{Format: format, Addresses: AccessLogHashed}, full: make(chan struct{}, 1), lines: make([]byte, 0, maxAccessLogBuffer)}
		e := loggedEntry
		if n := testing.AllocsPerRun(1000, func() {
			e.Time = e.Time.Add(time.Millisecond)
			l.add(&e)
		}); n > 0 {
			t.Errorf("%s: %v allocations", format, n)
		}
	}
}

// TestPseudonymsAtMidnight tests that a request from before midnight that is logged after it changes no client's pseudonym of the new day.
func TestPseudonymsAtMidnight(t *testing.T) {
	l := &AccessLog{o: AccessLogOptions{Addresses: AccessLogHashed}}
	addr, midnight := netip.MustParseAddr("203.0.113.9"), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	before := string(l.appendClient(nil, midnight.Add(-time.Hour), addr))
	after := string(l.appendClient(nil, midnight, addr))
	l.appendClient(nil, midnight.Add(-time.Second), addr)
	if again := string(l.appendClient(nil, midnight.Add(time.Second), addr)); before == after || again != after {
		t.Errorf("the client is %s before midnight, then %s, and then %s", before, after, again)
	}
}

func TestAddingTogether(t *testing.T) {
	l, file := openTestLog(t, AccessLogOptions{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				l.add(&loggedEntry)
				if i%500 == 0 {
					if err := l.Reopen(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := strings.Count(closeTestLog(t, l, file), "\n"); n != 8000 {
		t.Errorf("%d lines of 8000", n)
	}
}

func FuzzAccessLogForms(f *testing.F) {
	f.Add("/a\"b\\", "\x00\x7f\x80", "é\u2028")
	f.Add("", strings.Repeat("é", maxLoggedText), "\xff\xfe")
	f.Fuzz(func(t *testing.T, target, referer, agent string) {
		l := &AccessLog{o: AccessLogOptions{Addresses: AccessLogHashed}}
		e := accessLogEntry{Time: loggedEntry.Time, Client: loggedEntry.Client, Method: "GET", Target: target, Referer: referer, Agent: agent, Status: 200}
		line := l.appendJSON(nil, &e)
		if !json.Valid(line) || !utf8.Valid(line) || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q is no line of JSON", line)
		}
		line = l.appendCombined(nil, &e)
		if quotes := bytes.Count(line, []byte(`"`)); quotes != 6 || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q has %d quotes", line, quotes)
		}
		for _, c := range line[:len(line)-1] {
			if c < 0x20 || c >= 0x7f {
				t.Fatalf("%q has a byte that no terminal should get", line)
			}
		}
	})
}

func BenchmarkAccessLogAdd(b *testing.B) {
	for _, format := range []string{AccessLogJSON, AccessLogCombined} {
		for _, addresses := range []string{AccessLogHashed, AccessLogNone} {
			b.Run(format+"/"+addresses, func(b *testing.B) {
				l := &AccessLog{o: AccessLogOptions{Format: format, Addresses: addresses}, full: make(chan struct{}, 1)}
				b.ReportAllocs()
				for b.Loop() {
					l.add(&loggedEntry)
					if len(l.lines) > 1<<20 {
						l.lines = l.lines[:0]
					}
				}
			})
		}
	}
}
