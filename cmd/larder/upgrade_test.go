package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
)

// TestUpgradeUnderLoad has the program take over from itself, and be stopped and started on one socket, while 64 clients ask
// it: none is refused, and no answer is cut off. LARDER_TEST_UPGRADES is how often; `make upgrade` sets it, and then the
// longest wait counts too.
func TestUpgradeUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	times, whole := testCount(t, "UPGRADES", 2)
	data := t.TempDir()
	files := stockNoise(t, data, 20, 30_000)
	for _, protocol := range []string{"HTTP/1.1", "TLS", "HTTP/2"} {
		t.Run("upgrade over "+protocol, func(t *testing.T) {
			s := startOnSocket(t, data, protocol)
			load := startLoad(t, s.url, protocol, files)
			for range times {
				s.upgrade(data)
				load.waitForMore()
			}
			load.end(whole)
		})
		t.Run("restart over "+protocol, func(t *testing.T) {
			socket := openSocket(t, publicSocket)
			s := startOnSocket(t, data, protocol, socket)
			load := startLoad(t, s.url, protocol, files)
			for range times {
				s.stop()
				s = startOnSocket(t, data, protocol, socket)
				load.waitForMore()
			}
			load.end(false) // a client waits as long as both take
		})
	}
}

// onSocket is a larder whose place another one may have taken.
type onSocket struct {
	t   *testing.T
	pid int
	url string
}

// startOnSocket starts one on sockets that are given to it, as systemd does, or on one of its own.
func startOnSocket(t *testing.T, data, protocol string, sockets ...given) *onSocket {
	t.Helper()
	args := []string{"--private-listen", "off"}
	if protocol != "HTTP/1.1" {
		cert, key := filepath.Join(data, "cert.pem"), filepath.Join(data, "key.pem")
		if _, err := os.Stat(cert); err != nil {
			if err := makeCertificate(cert, key); err != nil {
				t.Fatal(err)
			}
		}
		args = append(args, "--tls-cert", cert, "--tls-key", key)
	}
	return startOn(t, data, sockets, args...)
}

// startOn starts one with more arguments.
func startOn(t *testing.T, data string, sockets []given, more ...string) *onSocket {
	t.Helper()
	args := append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--log-level", "warn"}, more...)
	cmd := exec.Command("larder", args...)
	if len(sockets) > 0 {
		cmd = larderOn(sockets, args...)
	}
	url, _ := awaitLine(t, cmd, "Larder serves ")
	s := &onSocket{t: t, pid: cmd.Process.Pid, url: url}
	t.Cleanup(s.stop)
	return s
}

// upgrade has the program take over from itself.
func (s *onSocket) upgrade(data string) {
	s.t.Helper()
	if err := s.tryUpgrade(data); err != nil {
		s.t.Fatal(err)
	}
}

func (s *onSocket) tryUpgrade(data string) error {
	var to app.Process
	out, err := exec.Command("larder", "upgrade", "--json", "--data", data).Output()
	if err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			out = ended.Stderr
		}
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := json.Unmarshal(out, &to); err != nil || to.PID == s.pid {
		return fmt.Errorf("process %d took over, %w", to.PID, err)
	}
	s.pid = to.PID
	return nil
}

// stop ends the process that has taken over last, and returns when it has ended.
func (s *onSocket) stop() {
	if s.pid == 0 {
		return
	}
	process, err := os.FindProcess(s.pid)
	if err == nil {
		err = process.Signal(os.Interrupt)
	}
	if err != nil {
		s.t.Errorf("process %d: %v", s.pid, err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ended(s.pid) {
			s.pid = 0
			return
		}
	}
	s.t.Errorf("process %d does not end", s.pid)
}

// A load is clients that ask without a pause.
type load struct {
	t       *testing.T
	asked   atomic.Int64
	longest atomic.Int64
	failed  atomic.Int64
	first   atomic.Pointer[string]
	done    chan struct{}
	clients sync.WaitGroup
}

const loadClients = 64

func startLoad(t *testing.T, url, protocol string, files map[string][]byte) *load {
	l := &load{t: t, done: make(chan struct{})}
	var paths []string
	for path := range files {
		paths = append(paths, path)
	}
	for n := range loadClients {
		transport := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: protocol == "HTTP/2", MaxIdleConnsPerHost: 1,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // a certificate of the test's own
		l.clients.Go(func() {
			defer transport.CloseIdleConnections()
			for i := n; ; i++ {
				select {
				case <-l.done:
					return
				default:
				}
				path := paths[i%len(paths)]
				begun := time.Now()
				if err := askOnce(transport, url+path, files[path]); err != nil {
					l.failed.Add(1)
					text := err.Error()
					l.first.CompareAndSwap(nil, &text)
				}
				if took := int64(time.Since(begun)); took > l.longest.Load() {
					l.longest.Store(took)
				}
				l.asked.Add(1)
			}
		})
	}
	l.waitForMore()
	return l
}

func askOnce(transport *http.Transport, url string, want []byte) error {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !bytes.Equal(body, want)) {
		err = fmt.Errorf("%s with %d bytes", answer.Status, len(body))
	}
	return err
}

// waitForMore returns when each client, on average, has asked five times more.
func (l *load) waitForMore() {
	for until := l.asked.Load() + 5*loadClients; l.asked.Load() < until; {
		time.Sleep(5 * time.Millisecond)
	}
}

func (l *load) end(whole bool) {
	l.t.Helper()
	close(l.done)
	l.clients.Wait()
	longest := time.Duration(l.longest.Load())
	l.t.Logf("%d requests, %d failed, the longest took %v", l.asked.Load(), l.failed.Load(), longest)
	if n := l.failed.Load(); n > 0 {
		l.t.Errorf("%d of %d requests failed, the first: %s", n, l.asked.Load(), *l.first.Load())
	}
	if whole && longest > 2*time.Second {
		l.t.Errorf("a client waited %v", longest)
	}
}
