package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

const (
	libs       = "/ajax/libs/attacked/1.0.0/"
	bigFile    = libs + "big.bin"
	bigBytes   = 5 << 20
	smallFiles = 1500
	// largestPage lists all files of the release.
	largestPage = "/libraries/attacked"
	archive     = "/download/attacked/1.0.0.zip"
	streamPath  = "/logs/stream"
	draftPage   = "/new?npm=drafted"
	draftFiles  = 500
)

// fill makes a store with one release: a large file, which no encoder makes smaller, and many small ones.
func fill(ctx context.Context, larder, folder string) error {
	release, catalogue := filepath.Join(folder, "release"), filepath.Join(folder, "catalogue", "packages", "a")
	big := make([]byte, bigBytes)
	_, _ = rand.Read(big)
	manifest, err := json.Marshal(map[string]any{
		"name": "attacked", "filename": "f1.js", "description": "Files to attack.", "keywords": []string{"attack"}, "license": "MIT",
		"repository":   map[string]string{"type": "git", "url": "https://example.com/attacked.git"},
		"autoupdate":   map[string]any{"source": "npm", "target": "attacked", "fileMap": []any{map[string]any{"basePath": "", "files": []string{"**/*"}}}},
		"optimization": map[string]bool{"js": false, "css": false},
	})
	err = errors.Join(err, os.MkdirAll(release, 0o755), os.MkdirAll(catalogue, 0o755),
		os.WriteFile(filepath.Join(catalogue, "attacked.json"), manifest, 0o644), os.WriteFile(filepath.Join(release, "big.bin"), big, 0o644))
	for i := range smallFiles {
		part := big[i*512:]
		text := fmt.Sprintf("export const v%d = %q;\n", i+1, base64.StdEncoding.EncodeToString(part[:512]))
		err = errors.Join(err, os.WriteFile(filepath.Join(release, fmt.Sprintf("f%d.js", i+1)), []byte(text), 0o644))
	}
	if err != nil {
		return err
	}
	said, err := exec.CommandContext(ctx, larder, "import", "attacked", "1.0.0", release, "--data", filepath.Join(folder, "data"),
		"--catalogue", filepath.Join(folder, "catalogue"), "--log-level", "error").CombinedOutput()
	if err != nil {
		return fmt.Errorf("couldn't fill a store: %w: %s", err, said)
	}
	_, err = stage.Certificate(folder, relaying)
	return err
}

// registry is npm's, with a package to write the package JSON of.
func registry() *npmtest.Registry {
	files := map[string]string{"package.json": `{"name":"drafted","version":"1.0.0","description":"Files to attack.","license":"MIT","main":"dist/f0.js",
		"repository":{"type":"git","url":"https://example.com/drafted.git"}}`}
	for i := range draftFiles {
		files[fmt.Sprintf("dist/f%d.js", i)] = strings.Repeat(fmt.Sprintf("export const v%d = %d;\n", i, i), 50)
	}
	r := npmtest.Start()
	r.Add("drafted", "1.0.0", time.Now().Add(-time.Hour), files)
	return r
}

// The ways in which a client reaches Larder.
const (
	plain     = "HTTP/1.1"
	secure    = "TLS"
	h2        = "HTTP/2"
	nginx     = "nginx"
	proxied   = "PROXY"
	proxiedV2 = "PROXY v2, TLS"
)

// missing says why a way cannot be gone here, "" if it can.
func missing(way string) string {
	if way == nginx {
		if _, err := exec.LookPath("nginx"); err != nil {
			return "nginx is not installed"
		}
	}
	return ""
}

// A target is a Larder that runs, with what is in front of it.
type target struct {
	address    string // what clients connect to
	secure, h2 bool
	larder     *exec.Cmd
	said       bytes.Buffer
	stops      []func()
}

func (t *target) url() string {
	if t.secure {
		return "https://" + t.address
	}
	return "http://" + t.address
}

func (t *target) stop() {
	for i := len(t.stops) - 1; i >= 0; i-- {
		t.stops[i]()
	}
}

// start starts what a client of that way meets.
func start(ctx context.Context, larder, folder string, a attack, way string) (t *target, err error) {
	t = &target{secure: way == secure || way == h2 || way == proxiedV2, h2: way == h2}
	defer func() {
		if err != nil {
			t.stop()
		}
	}()
	file := filepath.Join(folder, "ready")
	_ = os.Remove(file)
	command := []string{"serve"}
	if a.npm {
		command = []string{"up", "--catalogue", filepath.Join(folder, "catalogue")}
	}
	args := append(command, "--data", filepath.Join(folder, "data"), "--listen", relaying+":0", "--private-listen", "off", "--log-level", "error", "--ready-file", file)
	if t.secure {
		args = append(args, "--tls-cert", filepath.Join(folder, "cert.pem"), "--tls-key", filepath.Join(folder, "key.pem"))
	}
	switch way {
	case nginx:
		args = append(args, "--trusted-proxies", relaying)
	case proxied, proxiedV2:
		args = append(args, "--trusted-proxies", relaying, "--proxy-protocol")
	}
	t.larder = exec.Command(larder, append(args, a.args...)...)
	if slices.Contains(a.args, "--cache") {
		t.larder.Env = append(os.Environ(), "LARDER_SENDING=32MiB")
	}
	if a.npm {
		registry := registry()
		t.stops = append(t.stops, registry.Close)
		t.larder.Env = append(os.Environ(), registry.Env(folder)...)
	}
	t.larder.Stdout, t.larder.Stderr = &t.said, &t.said
	stop, err := stage.Start(t.larder)
	if err != nil {
		return t, err
	}
	t.stops = append(t.stops, stop)
	url, err := stage.AwaitURL(ctx, t.larder.Process, file)
	if err != nil {
		return t, fmt.Errorf("%w: %s", err, &t.said)
	}
	_, port, err := net.SplitHostPort(url[strings.Index(url, "//")+2:])
	if err != nil {
		return t, err
	}
	t.address = net.JoinHostPort(relaying, port)
	switch way {
	case nginx:
		return t, t.behindNginx(ctx, folder)
	case proxied, proxiedV2:
		return t, t.behindRelay(way == proxiedV2)
	}
	return t, nil
}

const nginxConf = `daemon off; pid %[1]s/nginx.pid; error_log /dev/null crit; worker_processes 1; worker_rlimit_nofile 16000;
events { worker_connections 8000; }
http {
  access_log off; proxy_buffering on;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream larder { server %[2]s; keepalive 64; }
  server {
    listen %[3]s;
    location / { proxy_pass http://larder; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }
  }
}
`

// behindNginx puts nginx in front, which tells Larder the client in X-Forwarded-For.
func (t *target) behindNginx(ctx context.Context, folder string) error {
	l, err := net.Listen("tcp", relaying+":0")
	if err != nil {
		return err
	}
	front := l.Addr().String()
	l.Close()
	conf := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, folder, t.address, front), 0o644); err != nil {
		return err
	}
	c := exec.Command("nginx", "-c", conf, "-p", folder, "-e", "stderr")
	c.Stdout, c.Stderr = &t.said, &t.said
	stop, err := stage.Start(c)
	if err != nil {
		return err
	}
	t.stops = append(t.stops, stop)
	t.address = front
	for {
		if c, err := net.Dial("tcp", front); err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if c.ProcessState != nil {
			return fmt.Errorf("nginx does not run: %s", &t.said)
		}
	}
}

// behindRelay puts a relay in front, which tells Larder the client with the PROXY protocol, as nginx's stream module and
// HAProxy do.
func (t *target) behindRelay(second bool) error {
	l, err := net.Listen("tcp", relaying+":0")
	if err != nil {
		return err
	}
	t.stops = append(t.stops, func() { l.Close() })
	larder := t.address
	t.address = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go relay(c.(*net.TCPConn), larder, second)
		}
	}()
	return nil
}

func relay(c *net.TCPConn, larder string, second bool) {
	defer c.Close()
	up, err := net.Dial("tcp", larder)
	if err != nil {
		return
	}
	defer up.Close()
	from, to := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	header := fmt.Appendf(nil, "PROXY TCP4 %s %s %d %d\r\n", from.IP, to.IP, from.Port, to.Port)
	if second {
		header = append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), from.IP.To4()...)
		header = append(append(header, to.IP.To4()...), byte(from.Port>>8), byte(from.Port), byte(to.Port>>8), byte(to.Port))
	}
	if _, err := up.Write(header); err != nil {
		return
	}
	_ = c.SetReadBuffer(4 << 10)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.(*net.TCPConn).CloseWrite()
		close(ended)
	}()
	if _, err := io.Copy(c, up); err == nil {
		_ = c.CloseWrite()
	}
	c.Close()
	<-ended
}

func (t *target) usage() stage.Usage { return stage.UsageOf(t.larder.Process.Pid) }
