package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestUsageSurvivesAKill kills the real process: what was counted before the last time that counts were written is there, what
// came since may be lost, and nothing is counted that was not. LARDER_TEST_WHOLE has it wait for the minute in which they
// are written by themselves.
func TestUsageSurvivesAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	whole := testVariable("WHOLE") != ""
	data := filepath.Join(t.TempDir(), "data")
	files, sources := map[string][]byte{}, map[string][]byte{}
	for i := range 20 {
		name := fmt.Sprintf("%d.txt", i)
		sources[name] = bytes.Repeat([]byte{byte('a' + i)}, 10_000)
		files["/ajax/libs/demo/1.0.0/"+name] = sources[name]
	}
	catalogue, source := byHand(t, sources)
	if code, out := larder(t, filepath.Dir(data), "import", "demo", "1.0.0", source, "--catalogue", catalogue); code != exitDone {
		t.Fatal(out)
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	s := startOn(t, data, nil, "--private-listen", "off")
	kill := func() {
		t.Helper()
		if err := syscall.Kill(s.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the end of the process", func() bool { return ended(s.pid) })
		s.pid = 0
		s = startOn(t, data, nil, "--private-listen", "off")
	}
	ask := func(times int) {
		t.Helper()
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for range times {
					for path, want := range files {
						if err := askOnce(transport, s.url+path, want); err != nil {
							t.Errorf("%s: %v", path, err)
						}
					}
				}
			})
		}
		clients.Wait()
	}
	each := 8 * len(files)
	counted := func() int {
		t.Helper()
		answer, err := http.Get(s.url + "/packages/demo/usage?days=3") // midnight may pass
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var usage struct{ Requests, Bytes int }
		if err := json.NewDecoder(answer.Body).Decode(&usage); err != nil {
			t.Fatalf("%s: %v", answer.Status, err)
		}
		if usage.Bytes != 10_000*usage.Requests {
			t.Errorf("%d requests for files of 10,000 bytes, and %d bytes", usage.Requests, usage.Bytes)
		}
		return usage.Requests
	}

	ask(5)
	if n := counted(); n != 5*each {
		t.Errorf("%d requests are counted, of %d", n, 5*each)
	}
	s.upgrade(data) // the end of a process writes what it has counted
	ask(2)
	kill()
	kept := counted()
	if kept < 5*each || kept > 7*each {
		t.Errorf("%d requests are left, of %d that were written and %d that were not yet", kept, 5*each, 2*each)
	}
	ask(3)
	s.stop()
	s = startOn(t, data, nil, "--private-listen", "off")
	if n := counted(); n != kept+3*each {
		t.Errorf("%d requests after a stop, want %d", n, kept+3*each)
	}
	if whole {
		ask(1)
		time.Sleep(62 * time.Second)
		kill()
		if n := counted(); n != kept+4*each {
			t.Errorf("%d requests a minute later, want %d", n, kept+4*each)
		}
	}
}

// ended tells whether a process has ended, which may not have been waited for.
func ended(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(state, []byte(") Z "))
}
