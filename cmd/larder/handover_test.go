package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
)

// startSaying starts a command that has to say this line, and returns the word behind it, and what ends the command.
func startSaying(t *testing.T, cmd *exec.Cmd, line string) (word string, stop func()) {
	t.Helper()
	word, ended := awaitLine(t, cmd, line)
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("it does not end")
		}
	})
	t.Cleanup(stop)
	return word, stop
}

// awaitLine starts a command that has to say this line, and returns the word behind it. Once the command has ended, ended is
// closed; the end of the test kills it.
func awaitLine(t *testing.T, cmd *exec.Cmd, line string) (word string, ended <-chan struct{}) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		out.Close()
	})
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if rest, ok := strings.CutPrefix(lines.Text(), line); ok {
			go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the process, and with one that takes over
			word, _, _ = strings.Cut(rest, " ")
			return word, done
		}
	}
	t.Fatalf("it did not say %q: %s", line, strings.Join(said, "\n"))
	return "", nil
}

// writeProgram writes a file that is executed afterwards. Its content may not be written while another test starts a process: between
// fork and exec, that process would have the file open for writing too, and executing it would fail with "text file busy".
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o700) //nolint:gosec // a program
}

// A given socket is opened by the test, and larder gets it as the service manager's.
type given struct {
	name string // by which larder knows what it is for
	at   string // its address
	file *os.File
}

// The names of sockets. Any other than the last two is for the public.
const (
	publicSocket  = "larder.socket"
	plainSocket   = "http"
	privateSocket = "private"
)

// openSocket opens one, on TCP unless it is private.
func openSocket(t *testing.T, name string) given {
	t.Helper()
	network, address := "tcp", "127.0.0.1:0"
	if name == privateSocket {
		network, address = "unix", filepath.Join(t.TempDir(), name)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return given{name, l.Addr().String(), f}
}

// larderOn is larder, to be started with these sockets.
func larderOn(sockets []given, args ...string) *exec.Cmd {
	var names []string
	var files []*os.File
	for _, s := range sockets {
		names, files = append(names, s.name), append(files, s.file)
	}
	script := fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s exec larder "$@"`, len(sockets), strings.Join(names, ":"))
	cmd := exec.Command("sh", append([]string{"-c", script, "larder"}, args...)...)
	cmd.ExtraFiles = files
	return cmd
}

// over asks over a connection to that address, whatever the URL says.
func over(t *testing.T, address, url string) (*http.Response, string) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // a certificate of the test's own
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			network := "tcp"
			if strings.HasPrefix(address, "/") {
				network = "unix"
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.RoundTrip(t, transport, request)
}

// TestSocketsOfTheServiceManager has larder be given its sockets by name, as systemd gives them.
func TestSocketsOfTheServiceManager(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data := t.TempDir()
	files := stockNoise(t, data, 1, 1000)
	cert, key := filepath.Join(data, "cert.pem"), filepath.Join(data, "key.pem")
	if err := makeCertificate(cert, key); err != nil {
		t.Fatal(err)
	}
	public, plain, private := openSocket(t, publicSocket), openSocket(t, plainSocket), openSocket(t, privateSocket)
	cmd := larderOn([]given{public, plain, private}, "serve", "--data", data, "--tls-cert", cert, "--tls-key", key, "--log-level", "warn")
	url, _ := startSaying(t, cmd, "Larder serves ")
	if !strings.HasPrefix(url, "https://") {
		t.Errorf("it serves %s", url)
	}
	for path, want := range files {
		if answer, body := over(t, public.at, "https://larder.example"+path); answer.StatusCode != 200 || body != string(want) {
			t.Errorf("the public socket: %s, %d bytes", answer.Status, len(body))
		}
		if answer, _ := over(t, plain.at, "http://larder.example"+path); answer.StatusCode/100 != 3 || !strings.HasPrefix(answer.Header.Get("Location"), "https://larder.example") {
			t.Errorf("the socket named http: %s, %q", answer.Status, answer.Header.Get("Location"))
		}
	}
	if answer, body := over(t, private.at, "http://localhost/metrics"); answer.StatusCode != 200 || !strings.Contains(body, "larder_") {
		t.Errorf("the socket named private: %s", answer.Status)
	}
}

// TestFailedUpgrade has a program take the place of larder that does not start, and then a setting that larder refuses.
func TestFailedUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data, place := t.TempDir(), t.TempDir()
	files := stockNoise(t, data, 1, 1000)
	sound, err := exec.LookPath("larder")
	if err != nil {
		t.Fatal(err)
	}
	program, config := filepath.Join(place, "larder"), filepath.Join(place, "config.yaml")
	if err := os.Symlink(sound, program); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("log-level: warn\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", "--data", data, "--config", config, "--listen", "127.0.0.1:0", "--private-listen", "off")
	url, _ := startSaying(t, cmd, "Larder serves ")
	upgrade := func(what, want string) {
		t.Helper()
		out, err := exec.Command("larder", "upgrade", "--data", data).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", what, err, out)
		}
		for path, want := range files {
			answer, err := http.Get(url + path)
			if err != nil {
				t.Fatalf("%s: the old process does not serve any more: %v", what, err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != 200 || !bytes.Equal(body, want) || err != nil {
				t.Errorf("%s: %s, %v", what, answer.Status, err)
			}
		}
	}
	if err := os.WriteFile(config, []byte("log-level: warn\nno-such-setting: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	upgrade("a setting that is none", "cannot take over")
	if err := os.WriteFile(config, []byte("log-level: warn\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(place, "broken")
	if err := writeProgram(broken, "#!/bin/sh\necho this machine has no such library >&2\nexit 127\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(broken, program); err != nil {
		t.Fatal(err)
	}
	upgrade("a program that does not start", "127")
}

// TestLameDuck has larder say that it ends for a while before it does.
func TestLameDuck(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data := t.TempDir()
	files := stockNoise(t, data, 1, 1000)
	private := openSocket(t, privateSocket)
	cmd := larderOn([]given{private}, "serve", "--data", data, "--listen", "127.0.0.1:0", "--lame-duck", "5m", "--log-level", "warn")
	url, _ := startSaying(t, cmd, "Larder serves ")
	is := func(status int) {
		for answer, _ := over(t, private.at, "http://localhost/readyz"); answer.StatusCode != status; answer, _ = over(t, private.at, "http://localhost/readyz") {
			time.Sleep(5 * time.Millisecond)
		}
	}
	is(http.StatusOK)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	is(http.StatusServiceUnavailable)
	for path := range files {
		if answer, err := http.Get(url + path); err != nil || answer.StatusCode != 200 {
			t.Errorf("it does not serve any more: %v", err)
		} else {
			answer.Body.Close()
		}
	}
	if err := cmd.Process.Kill(); err != nil { // rather than wait
		t.Error(err)
	}
}

// TestRoomsAreForTheOperator has the private address show the waiting rooms, and the public one not.
func TestRoomsAreForTheOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	data := t.TempDir()
	stockNoise(t, data, 1, 1000)
	private := openSocket(t, privateSocket)
	url, _ := startSaying(t, larderOn([]given{private}, "serve", "--data", data, "--listen", "127.0.0.1:0", "--log-level", "warn"), "Larder serves ")
	public := strings.TrimPrefix(url, "http://")
	for _, path := range []string{"/rooms", "/rooms/", "/rooms/downloads", "/rooms/downloads/status", "/rooms/downloads/analytics", "/rooms.stream", "/rooms.stream?room=downloads", "/rooms.history"} {
		if answer, body := over(t, public, url+path); answer.StatusCode != http.StatusNotFound || !strings.Contains(body, "private address") {
			t.Errorf("%s in public: %s, %s", path, answer.Status, body)
		}
	}
	for path, want := range map[string]string{
		"/rooms": "Waiting rooms", "/rooms/downloads": "Waiting room downloads", "/rooms/downloads/status": `"status":"not_queueing"`,
		"/rooms.history": `"version":1,`,
		"/rooms/downloads/analytics?minutes=43200&format=csv": "time,minutes,active_users", "/search": "<title>", "/livez": "ok",
	} {
		if answer, body := over(t, private.at, "http://localhost"+path); answer.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s in private: %s, %s", path, answer.Status, body)
		}
	}
	if answer, _ := over(t, private.at, "http://localhost/nothing"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("nothing in private: %s", answer.Status)
	}
}
