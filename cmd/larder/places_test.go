package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const oneRoom = "- {name: shop, path: /libraries, total_active_users: 2, new_users_per_minute: 2, json_response_enabled: true}\n"

// TestUpgradeKeepsPlaces has the program take over from itself twice, while users are in a waiting room and in front of it, and
// a client reads the live stream of the log.
func TestUpgradeKeepsPlaces(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel() // it waits for the most part
	data, dir := t.TempDir(), t.TempDir()
	stockNoise(t, data, 1, 1000)
	rooms := filepath.Join(dir, "rooms.yaml")
	if err := os.WriteFile(rooms, []byte(oneRoom), 0o600); err != nil {
		t.Fatal(err)
	}
	catalogue, source := byHand(t, map[string][]byte{"a.txt": []byte("a")})
	s := startOn(t, data, nil, "--private-listen", "off", "--catalogue", catalogue, "--rooms", rooms)
	say := func(args ...string) {
		t.Helper()
		if said, err := exec.Command("larder", append(args, "--data", data)...).CombinedOutput(); err != nil {
			t.Fatalf("larder %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}

	in := []*visitor{{t: t, url: s.url}, {t: t, url: s.url}}
	for _, v := range in {
		v.ask()
	}
	// Visitors who come at almost the same time have the same place.
	var waiting []*visitor
	var at []int
	waitFor(t, "three places in the line", func() bool {
		v := &visitor{t: t, url: s.url}
		if place := v.ask(); len(at) == 0 || place > at[len(at)-1] {
			waiting, at = append(waiting, v), append(at, place)
		} else {
			time.Sleep(100 * time.Millisecond)
		}
		return len(at) == 3
	})
	stream := follow(t, s.url)
	for i := range 2 {
		say("import", "demo", fmt.Sprintf("1.%d.0", 2*i), source)
		stream.grows()
		s.upgrade(data)
		for _, v := range in {
			if got := v.ask(); got != 0 {
				t.Errorf("after %d upgrades: a user who is in gets place %d", i+1, got)
			}
		}
		say("import", "demo", fmt.Sprintf("1.%d.0", 2*i+1), source)
		stream.grows()
	}
	stream.end()
	// A process knows of the users who wait when they come back, at the time that they were told. The last comes first: a user
	// who had lost the place would be behind that one now.
	waitFor(t, "the time when all come back", func() bool {
		return !slices.ContainsFunc(waiting, func(v *visitor) bool { return time.Now().Before(v.again) })
	})
	var places []int
	for range 2 {
		places = nil
		for _, v := range slices.Backward(waiting) {
			places = append(places, v.ask())
		}
	}
	if slices.Reverse(places); places[0] != 1 || places[1] <= places[0] || places[2] <= places[1] {
		t.Errorf("the places in the line are %d, and were %d", places, at)
	}
}

// byHand makes a catalogue with the package demo, and a release of that to import.
func byHand(t *testing.T, files map[string][]byte) (catalogue, source string) {
	t.Helper()
	catalogue, source = t.TempDir(), t.TempDir()
	err := os.WriteFile(filepath.Join(catalogue, "demo.json"), []byte(faultPackage), 0o600)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(source, name), text, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return catalogue, source
}

// A visitor keeps the cookie that the waiting room gives.
type visitor struct {
	t      *testing.T
	url    string
	cookie string
	again  time.Time // when to come back
}

// ask returns the visitor's place in the line, 0 where the visitor is in.
func (v *visitor) ask() (place int) {
	v.t.Helper()
	r, err := http.NewRequest("GET", v.url+"/libraries", nil)
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header = http.Header{"Accept": {"application/json"}, "Cookie": {v.cookie}}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	for _, c := range answer.Cookies() {
		v.cookie = c.Name + "=" + c.Value
	}
	if seconds, err := strconv.Atoi(answer.Header.Get("Refresh")); err == nil {
		v.again = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	var told struct {
		Room struct{ QueuePosition int } `json:"cfWaitingRoom"`
	}
	if err := json.Unmarshal(body, &told); err != nil {
		v.t.Fatalf("%s: %v\n%s", answer.Status, err, body)
	}
	return told.Room.QueuePosition
}

// A stream is a client of /logs/stream that comes again when its connection ends, as browsers do.
type stream struct {
	t     *testing.T
	url   string
	mu    sync.Mutex
	seen  []string
	comes atomic.Int64 // connections
	done  chan struct{}
	body  io.Closer
	ended chan struct{}
}

// follow reads the log from its second entry on.
func follow(t *testing.T, url string) *stream {
	s := &stream{t: t, url: url, seen: []string{"0"}, done: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for s.read() {
		}
	}()
	t.Cleanup(s.end)
	return s
}

// read reads until the connection ends, and tells whether to come again.
func (s *stream) read() bool {
	r, err := http.NewRequest("GET", s.url+"/logs/stream", nil)
	if err != nil {
		s.t.Error(err)
		return false
	}
	s.mu.Lock()
	r.Header.Set("Last-Event-ID", s.seen[len(s.seen)-1])
	s.mu.Unlock()
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Errorf("the stream: %v, %v", answer, err)
		return false
	}
	defer answer.Body.Close()
	s.mu.Lock()
	s.body = answer.Body
	s.mu.Unlock()
	s.comes.Add(1)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			s.mu.Lock()
			s.seen = append(s.seen, id)
			s.mu.Unlock()
		}
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// grows returns when an entry has come that was not there before the last call.
func (s *stream) grows() {
	s.t.Helper()
	size := func() string {
		answer, err := http.Get(s.url + "/log/checkpoint")
		if err != nil {
			s.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			s.t.Fatal(err)
		}
		return strings.Split(string(text)+"\n\n", "\n")[1]
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		seen := fmt.Sprint(len(s.seen))
		s.mu.Unlock()
		if seen == size() && seen != "1" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the stream had %s of %s entries", seen, size())
		}
	}
}

// end holds what came against what the log has: each entry once, in order.
func (s *stream) end() {
	select {
	case <-s.done:
		return
	default:
	}
	close(s.done)
	s.mu.Lock()
	body := s.body
	s.mu.Unlock()
	if body != nil {
		body.Close()
	}
	<-s.ended
	for i, id := range s.seen {
		if id != fmt.Sprint(i) {
			s.t.Errorf("the stream has %s where entry %d should be: %q", id, i, s.seen)
			return
		}
	}
	if comes := s.comes.Load(); comes < 3 {
		s.t.Errorf("two upgrades, and the client came %d times", comes)
	}
}

// TestUpgradeFinishesArchives has the program take over from itself while a client takes an archive slowly: that is finished
// first, and no other is begun, while everything else is served.
func TestUpgradeFinishesArchives(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data := t.TempDir()
	files := stockNoise(t, data, 100, 300_000) // more than what lies between a server and a client
	s := startOn(t, data, nil, "--private-listen", "off", "--drain", "10m")
	const archive = "/download/noise/1.0.0.zip"
	ask := func(path string) *http.Response {
		t.Helper()
		r, err := http.NewRequest("GET", s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	slow := ask(archive)
	defer slow.Body.Close()
	upgraded := make(chan struct{})
	go func() {
		defer close(upgraded)
		if err := s.tryUpgrade(data); err != nil {
			t.Error(err)
		}
	}()
	for {
		answer := ask(archive)
		answer.Body.Close()
		if answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") != "" {
			break
		}
		select {
		case <-upgraded:
			t.Fatal("another process took over before the archive was finished")
		default:
		}
	}
	for path, want := range files {
		answer := ask(path)
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !bytes.Equal(body, want) || err != nil {
			t.Errorf("%s meanwhile: %s, %d bytes, %v", path, answer.Status, len(body), err)
		}
		break
	}
	if n, err := io.Copy(io.Discard, slow.Body); err != nil || n < 100*300_000 {
		t.Errorf("the archive broke off: %d bytes, %v", n, err)
	}
	<-upgraded
	answer := ask(archive)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %s", answer.Status)
	}
}

// TestUpgradeKeepsTheFormat has a program take over that opens the store and then does not become ready: the store is as the
// older one left it. Once one is ready, the store has the newest format.
func TestUpgradeKeepsTheFormat(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data, dir := t.TempDir(), t.TempDir()
	store := filepath.Join(data, "store")
	const older = pebble.FormatWALSyncChunks
	has := func(when string, want pebble.FormatMajorVersion) {
		t.Helper()
		markers, err := filepath.Glob(filepath.Join(store, "marker.format-version.*"))
		if err != nil || len(markers) != 1 || !strings.HasSuffix(markers[0], fmt.Sprintf(".%03d", want)) {
			t.Errorf("%s: %q, want %03d (%v)", when, markers, want, err)
		}
	}
	db, err := pebble.Open(store, &pebble.Options{FormatMajorVersion: older})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set([]byte("mformat"), []byte{1}, pebble.Sync), db.Close()); err != nil { // so that it is not a new one
		t.Fatal(err)
	}
	files := stockNoise(t, data, 3, 30_000)
	has("published to", older)

	config := filepath.Join(dir, "larder.yaml")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The file is written when everything else is open, and this one cannot be.
	configure("ready-file: " + filepath.Join(dir, "missing", "ready") + "\n")
	failing := exec.Command("larder", "serve", "--data", data, "--config", config, "--listen", "127.0.0.1:0", "--private-listen", "off")
	if said, err := failing.CombinedOutput(); err == nil || !strings.Contains(string(said), "couldn't write --ready-file") {
		t.Errorf("it started: %v\n%s", err, said)
	}
	has("after a start that failed", older)

	configure("ready-file: " + filepath.Join(dir, "ready") + "\n")
	s := startOn(t, data, nil, "--private-listen", "off", "--config", config)
	waitFor(t, "the newest format", func() bool {
		markers, _ := filepath.Glob(filepath.Join(store, "marker.format-version.*"))
		return slices.ContainsFunc(markers, func(m string) bool { return strings.HasSuffix(m, fmt.Sprintf(".%03d", pebble.FormatNewest)) })
	})
	for path, want := range files {
		answer, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !bytes.Equal(body, want) || err != nil {
			t.Errorf("%s: %s, %d bytes, %v", path, answer.Status, len(body), err)
		}
	}
}

// waitFor returns when something is so, and fails the test where it is not within two minutes.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	waitAtIntervals(t, what, func(time.Duration) time.Duration { return 10 * time.Millisecond }, is)
}

// waitForProcess is waitFor for what only another process can tell, which costs more than waiting.
func waitForProcess(t *testing.T, what string, is func() bool) {
	t.Helper()
	waitAtIntervals(t, what, processInterval, is)
}

// processInterval returns how long a test waits before it starts another process to look, after it has waited this long.
func processInterval(waited time.Duration) time.Duration {
	return min(max(waited/4, 10*time.Millisecond), 300*time.Millisecond)
}

// waitAtIntervals is waitFor with an interval between two looks that depends on how long the test has waited.
func waitAtIntervals(t *testing.T, what string, interval func(waited time.Duration) time.Duration, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); time.Sleep(interval(time.Since(start))) {
		if time.Since(start) > 2*time.Minute {
			t.Fatalf("%s: not within two minutes", what)
		}
	}
}
