package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

// A server is one of those that are compared, running.
type server struct {
	name    string
	address string // host and port
	secure  bool
	process *process
}

func (s *server) url() string {
	if s.secure {
		return "https://" + s.address
	}
	return "http://" + s.address
}

func (s *server) stop() { s.process.stop() }

// certificate is a pair of PEM files, or two "" for plain HTTP.
type certificate struct{ Cert, Key string }

type larderOptions struct {
	program string
	data    string
	core    int
	cache   string // "" is Larder's default
	noLane  bool
	h2c     bool
	tls     certificate
}

// startLarder starts `larder serve`, which is `larder up` without the bot: nothing
// is fetched or squeezed meanwhile.
func startLarder(ctx context.Context, o larderOptions) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args := []string{"serve", "--data", o.data, "--listen", address, "--private-listen", "off", "--log-level", "error"}
	if o.cache != "" {
		args = append(args, "--cache", o.cache)
	}
	if o.tls.Cert != "" {
		args = append(args, "--tls-cert", o.tls.Cert, "--tls-key", o.tls.Key)
	}
	cmd := exec.Command(o.program, args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("LARDER_FAST_LANE=%t", !o.noLane), fmt.Sprintf("LARDER_H2C=%t", o.h2c))
	if o.core != anyCore {
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	name := "larder"
	if o.noLane {
		name = "larder, lane off"
	}
	return launch(ctx, name, cmd, address, o.core, o.tls.Cert != "")
}

// launch starts a server and waits until it takes connections.
func launch(ctx context.Context, name string, cmd *exec.Cmd, address string, core int, secure bool) (*server, error) {
	said := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = said, said
	p, err := startProcess(cmd, core)
	if err != nil {
		return nil, err
	}
	for {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			conn.Close()
			return &server{name: name, address: address, secure: secure, process: p}, nil
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("%s does not run: %w: %s", name, errors.Join(p.err), said)
		case <-ctx.Done():
			p.stop()
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// freeAddress is one on which no process listens. It is not reserved until it is used, so its port is not one that the system
// gives to connections.
func freeAddress() (address string, err error) {
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(10_000))
		var l net.Listener
		if l, err = net.Listen("tcp", ":"+port); err == nil {
			return net.JoinHostPort("127.0.0.1", port), l.Close()
		}
	}
	return "", err
}

// newCertificate makes a certificate for the loopback, with the kind of key that
// most sites have.
func newCertificate(folder string) (certificate, error) {
	_, err := stage.Certificate(folder, "127.0.0.1", "localhost")
	return certificate{filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")}, err
}
