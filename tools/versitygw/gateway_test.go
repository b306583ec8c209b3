// Package versitygw tests what needs an object store against one: versitygw, each a process, on a
// socket; a proxy on loopback is in front of it, so that it can be lost, and fail as stores do.
package versitygw

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// Of the gateway's process.
const (
	folderVariable = "LARDER_TEST_GATEWAY" // its folder: then the test's binary is a gateway
	socketVariable = "LARDER_TEST_GATEWAY_SOCKET"
	noLockVariable = "LARDER_TEST_GATEWAY_NO_LOCK"
)

const (
	accessKey  = "larder"
	secretKey  = "larder-secret"
	bucketName = "releases"
)

func TestMain(m *testing.M) {
	if folder := os.Getenv(folderVariable); folder != "" {
		fmt.Fprintln(os.Stderr, serve(folder))
		os.Exit(1)
	}
	if dir := os.Getenv(memberVariable); dir != "" {
		fmt.Fprintln(os.Stderr, work(dir))
		os.Exit(1)
	}
	os.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	if !slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "test.parallel") }) {
		flag.Set("test.parallel", "8") //nolint:errcheck // the flag is there; most of the time the tests wait for processes
	}
	code := m.Run()
	os.RemoveAll(built.dir) // "" for nothing
	os.Exit(code)
}

// serve is the gateway's process.
func serve(folder string) error {
	sidecar := filepath.Join(filepath.Dir(folder), "metadata")
	if err := os.MkdirAll(sidecar, 0o700); err != nil {
		return err
	}
	metadata, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	backend, err := posix.New(folder, metadata, posix.PosixOpts{ForceNoObjLockFile: os.Getenv(noLockVariable) != "", Concurrency: 100, SideCarDir: sidecar})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(context.Background(), backend, &embedgw.Config{
		RootUserAccess: accessKey, RootUserSecret: secretKey, Ports: []string{os.Getenv(socketVariable)},
		MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10000, KeepAlive: true, Quiet: true,
	})
}

// needChance skips a test in which two writers have to meet, which they do by chance only; make cluster has it.
func needChance(t *testing.T) {
	t.Helper()
	if os.Getenv("LARDER_TEST_COMMITS") == "" {
		t.Skip("whether two writers meet is a matter of chance: make cluster has it")
	}
}

// A gateway is a process that keeps a folder's objects.
type gateway struct {
	t      *testing.T
	folder string
	socket string
	noLock bool
	cmd    *exec.Cmd
}

// newGateway starts a gateway on a folder that has the bucket.
func newGateway(t *testing.T, folder string, noLock bool) *gateway {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(folder, bucketName), 0o700); err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, folder: folder, socket: filepath.Join(dir, "s"), noLock: noLock}
	g.start()
	t.Cleanup(g.kill)
	return g
}

func (g *gateway) start() {
	g.t.Helper()
	os.Remove(g.socket)
	g.cmd = exec.Command(os.Args[0])
	g.cmd.Env = append(os.Environ(), folderVariable+"="+g.folder, socketVariable+"="+g.socket)
	if g.noLock {
		g.cmd.Env = append(g.cmd.Env, noLockVariable+"=1")
	}
	g.cmd.Stderr = os.Stderr
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	for range 1000 {
		conn, err := net.Dial("unix", g.socket)
		if err == nil {
			conn.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	g.kill()
	g.t.Fatal("the gateway does not listen")
}

// kill ends the process at once.
func (g *gateway) kill() {
	g.cmd.Process.Kill()
	g.cmd.Wait()
}

// front returns a proxy before gateways, which it asks in turn. meddle, which may be nil, may answer
// in their place.
func front(t *testing.T, meddle func(http.Handler) http.Handler, gateways ...*gateway) *httptest.Server {
	t.Helper()
	var turn atomic.Uint64
	var backends []http.Handler
	for _, g := range gateways {
		backends = append(backends, &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "gateway", r.In.Host
			},
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", g.socket)
				},
				MaxIdleConnsPerHost: 64,
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		})
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		backends[turn.Add(1)%uint64(len(backends))].ServeHTTP(w, r)
	})
	if meddle != nil {
		h = meddle(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// folder returns one for a gateway.
func folder(t *testing.T) string {
	return filepath.Join(t.TempDir(), "store")
}
