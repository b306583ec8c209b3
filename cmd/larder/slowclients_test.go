package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
)

// TestSlowClients stops, reloads and upgrades the program while clients pause between the steps of their connections (connect,
// TLS handshake, request): all are served, each with a file that no other has asked for, so that the store has to be read.
// `make upgrade` sets LARDER_TEST_UPGRADES, and then clients pause for half a second to five.
func TestSlowClients(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	pauses := []time.Duration{1500 * time.Millisecond}
	if _, all := testCount(t, "UPGRADES", 0); all {
		pauses = []time.Duration{500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 3 * time.Second, 5 * time.Second}
	}
	for name, event := range map[string]func(p *slowServer){
		"stop": func(p *slowServer) {
			p.stop()
			p.onSocket = startOn(p.t, p.data, []given{p.socket}, p.args...)
		},
		"reload": func(p *slowServer) {
			p.configure("name: Another") // restarts the role
			if out, err := exec.Command("larder", "reload", "--data", p.data).CombinedOutput(); err != nil {
				p.t.Errorf("%v: %s", err, out)
			}
		},
		"upgrade": func(p *slowServer) { p.upgrade(p.data) },
	} {
		for _, protocols := range [][]string{{"HTTP/1.1"}, {"TLS", "HTTP/2"}} {
			t.Run(name+" over "+protocols[len(protocols)-1], func(t *testing.T) {
				t.Parallel()
				p := startSlowServer(t, protocols[0] != "HTTP/1.1")
				var atPause, clients sync.WaitGroup
				proceed := make(chan struct{})
				for _, protocol := range protocols {
					for _, pause := range pauses {
						for steps := range slowSteps[protocol] {
							path, want := p.nextFile()
							atPause.Add(1)
							clients.Go(func() {
								reached := sync.OnceFunc(atPause.Done)
								defer reached()
								step := 0
								got, err := getInSteps(p.socket.at, path, protocol, func(within bool) {
									step++
									if step == steps+1 {
										reached()
										<-proceed
									}
									if step == steps+1 || step > steps && !within {
										time.Sleep(pause)
									}
								})
								if err != nil || !bytes.Equal(got, want) {
									t.Errorf("a client over %s that pauses %v after %d steps has %d bytes, %v", protocol, pause, steps, len(got), err)
								}
							})
						}
					}
				}
				atPause.Wait()
				close(proceed)
				event(p)
				clients.Wait()
			})
		}
	}
}

// slowSteps is how many steps a client takes over a protocol.
var slowSteps = map[string]int{"HTTP/1.1": 3, "TLS": 5, "HTTP/2": 5}

// getInSteps gets a file from an address, and calls step before each step: before it connects, before the TLS handshake where
// there is one, and before the request; and within the handshake and the request, of which one byte goes first. The preface of
// HTTP/2 comes with the handshake.
func getInSteps(address, path, protocol string, step func(within bool)) ([]byte, error) {
	step(false)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn = &inTwo{conn, step}
	if protocol != "HTTP/1.1" {
		config := &tls.Config{InsecureSkipVerify: true} // a certificate of the test's own
		if protocol == "HTTP/2" {
			config.NextProtos = []string{"h2"}
		}
		step(false)
		secure := tls.Client(conn, config)
		if err := secure.Handshake(); err != nil {
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		conn = &inTwo{secure, step}
	}
	request := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: address, Path: path}, Header: http.Header{"Accept-Encoding": {"identity"}}}
	var response *http.Response
	if protocol == "HTTP/2" {
		multiplexed, err := testkit.SpeakHTTP2(conn)
		if err != nil {
			return nil, err
		}
		step(false)
		response, err = multiplexed.RoundTrip(request)
		if err != nil {
			return nil, err
		}
	} else {
		step(false)
		err := request.Write(conn)
		if err == nil {
			response, err = http.ReadResponse(bufio.NewReader(conn), request)
		}
		if err != nil {
			return nil, err
		}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(response.Status))
	}
	return body, err
}

// An inTwo connection sends the first bytes in two steps.
type inTwo struct {
	net.Conn
	step func(within bool) // nil once they are sent
}

func (c *inTwo) Write(p []byte) (int, error) {
	step := c.step
	if c.step = nil; step == nil || len(p) < 2 {
		return c.Conn.Write(p)
	}
	if n, err := c.Conn.Write(p[:1]); err != nil {
		return n, err
	}
	step(true)
	n, err := c.Conn.Write(p[1:])
	return n + 1, err
}

// A slowServer is larder on a socket that stays open while it is stopped.
type slowServer struct {
	*onSocket
	data, config string
	args         []string
	socket       given
	files        map[string][]byte
	paths        []string // of files that were not requested before
}

func startSlowServer(t *testing.T, secure bool) *slowServer {
	p := &slowServer{data: t.TempDir(), config: filepath.Join(t.TempDir(), "config.yaml"), socket: openSocket(t, publicSocket)}
	p.onSocket = &onSocket{t: t}
	p.files = stockNoise(t, p.data, 80, 30_000)
	p.paths = slices.Sorted(maps.Keys(p.files))
	p.configure("name: One")
	p.args = []string{"--private-listen", "off", "--config", p.config}
	if secure {
		cert, key := filepath.Join(p.data, "cert.pem"), filepath.Join(p.data, "key.pem")
		if err := makeCertificate(cert, key); err != nil {
			t.Fatal(err)
		}
		p.args = append(p.args, "--tls-cert", cert, "--tls-key", key)
	}
	p.onSocket = startOn(t, p.data, []given{p.socket}, p.args...)
	return p
}

func (p *slowServer) configure(text string) {
	if err := os.WriteFile(p.config, []byte(text+"\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *slowServer) nextFile() (path string, want []byte) {
	if len(p.paths) == 0 {
		p.t.Fatal("there are too few files, " + strconv.Itoa(len(p.files)))
	}
	path, p.paths = p.paths[0], p.paths[1:]
	return path, p.files[path]
}
