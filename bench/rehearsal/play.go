package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

const proxyIP = "127.0.0.1"

// A play is everything that runs.
type play struct {
	options
	folder string
	notes  *notes
	random *rand.Rand // of the scenario

	library      *library
	registry     *registry
	certificates known
	gateway      *gateway // nil where the bucket is a folder
	bucketArgs   []string // by which larder finds the bucket
	nodes        []*actor // of the cluster: two that may publish, and one that follows
	mirror       *actor
	fallback     *actor
	proxy        string     // the address in front of the nodes
	nginx        bool       // whether nginx is there
	doorman      *doorman   // between the room and what is behind it
	sites        []*doorman // behind the rooms that the botnet joins
	contests     []*contest // of the botnet with visitors
	freezes      []*freeze  // of mirrors
	entrances    []*entrance
	followers    []*follower // clients of the event stream
	dictionaries dictionaryNotes
	pages        atomic.Int64 // that readers got
	modules      moduleNotes
	stops        []func() // what to end, last first
	disk         string   // the file system that may be filled; "" where none could be mounted
	noDisk       string   // why not
	salvages     int      // events that damaged a store for a salvage
}

func (p *play) actors() []*actor { return append(append([]*actor{}, p.nodes...), p.mirror, p.fallback) }

// build puts everything in its place and starts it.
func (p *play) build(ctx context.Context) error {
	catalogue := filepath.Join(p.folder, "catalogue")
	if err := writeCatalogue(catalogue); err != nil {
		return err
	}
	program := filepath.Join(p.folder, "larder")
	if err := copyFile(p.larder, program); err != nil {
		return err
	}
	p.registry = newRegistry(p.library, p.seed, p.every)
	p.stops = append(p.stops, p.registry.Close)
	environment := append(p.registry.Env(p.folder), "AWS_ACCESS_KEY_ID="+gatewayAccess, "AWS_SECRET_ACCESS_KEY="+gatewaySecret, "AWS_REGION=us-east-1")
	var err error
	if p.bucketArgs, err = p.buildBucket(ctx); err != nil {
		return err
	}
	actor := func(name, command, ip string, args ...string) *actor {
		a := &actor{name: name, folder: filepath.Join(p.folder, name), program: program, command: command, args: args, env: environment}
		for _, address := range []*string{&a.address, &a.private} {
			var addressErr error
			*address, addressErr = freeAddress(ip)
			err = errors.Join(err, addressErr)
		}
		p.stops = append(p.stops, a.kill)
		return a
	}
	upArgs := []string{"--catalogue", catalogue, "--feed", p.registry.URL, "--interval", "10s", "--releases", "3"}
	addresses := []string{"127.0.1.1", "127.0.1.2", "127.0.1.3"}
	for i, name := range []string{"one", "two", "three"} {
		args := append([]string{}, upArgs...)
		args = append(args, p.bucketArgs...)
		args = append(args, "--node-url", "https://"+addresses[i]+":0", "--trusted-proxies", proxyIP)
		a := actor(name, "up", addresses[i], args...)
		a.secure = true
		certificate, certErr := p.certify(a)
		if certErr != nil {
			return certErr
		}
		a.args = append(a.args, certificate...)
		p.nodes = append(p.nodes, a)
	}
	p.mirror = actor("mirror", "mirror", "127.0.1.4", "--rooms", "off") // it is the site behind the room
	// The fallback's registry has nothing, so that all of its releases are from the mirror.
	nothing := npmtest.Start()
	p.stops = append(p.stops, nothing.Close)
	p.fallback = actor("fallback", "up", "127.0.1.5", "--catalogue", catalogue, "--interval", "1h", "--releases", "1", "--fallback", "larder:http://"+p.mirror.address)
	p.fallback.env = nothing.Env(p.folder)
	if err != nil {
		return err
	}
	if p.doorman, err = newDoorman("http://"+p.mirror.address, p.users, p.perMinute(), p.queue); err != nil {
		return err
	}
	p.stops = append(p.stops, p.doorman.close)
	rooms := filepath.Join(p.folder, "rooms.yaml")
	botnetRooms, err := p.addBotnetRooms()
	if err != nil {
		return err
	}
	if err := os.WriteFile(rooms, []byte(p.doorman.rooms()+botnetRooms), 0o644); err != nil {
		return err
	}
	for _, node := range p.nodes { // any of them may come to decide for all
		node.args = append(node.args, "--rooms", rooms)
	}
	p.mountDisk(p.nodes[2])
	if err := p.start(ctx); err != nil {
		return err
	}
	p.awaitFirstDeltas(ctx)
	return ctx.Err()
}

// start starts the processes, and waits until each has what there is.
func (p *play) start(ctx context.Context) error {
	one, two, three := p.nodes[0], p.nodes[1], p.nodes[2]
	if err := one.start(ctx); err != nil {
		return err
	}
	if err := eventually(ctx, "node one publishes", func() bool { return one.publishes(ctx) }); err != nil {
		return err
	}
	for a, files := range map[*actor][]string{two: {"log.key", "log.pub", "checkpoint", "cluster.key"}, three: {"log.pub", "checkpoint", "cluster.key"}} {
		for _, file := range files {
			if err := copyFile(filepath.Join(one.keys(), file), filepath.Join(a.keys(), file)); err != nil {
				return err
			}
		}
		if err := a.start(ctx); err != nil {
			return err
		}
	}
	// The mirror reaches the log where it needs no certificate: through the proxy, or, where there is none, through a relay of this process.
	if err := p.buildProxy(ctx); err != nil {
		return err
	}
	p.mirror.args = append([]string{"http://" + p.proxy, "--key", filepath.Join(one.keys(), "log.pub")}, p.mirror.args...)
	for _, a := range []*actor{p.mirror, p.fallback} {
		if err := a.start(ctx); err != nil {
			return err
		}
	}
	for _, a := range p.actors() {
		if err := eventually(ctx, a.name+" is ready", func() bool { return a.ready(ctx) == nil }); err != nil {
			return errors.Join(err, a.ready(ctx))
		}
	}
	for _, a := range p.nodes {
		p.entrances = append(p.entrances, &entrance{name: a.name + ", TLS", url: "https://" + a.address, behind: []string{a.name}, probes: a},
			&entrance{name: a.name + ", HTTP/2", url: "https://" + a.address, h2: true, behind: []string{a.name}})
	}
	p.entrances = append(p.entrances, &entrance{name: "mirror", url: "http://" + p.mirror.address, behind: []string{"mirror"}, lateDeltas: true, probes: p.mirror},
		&entrance{name: "fallback", url: "http://" + p.fallback.address, behind: []string{"mirror"}, fallback: true})
	if p.nginx {
		proxy := p.proxyEntrance()
		proxy.behind = []string{"one", "two", "three"}
		p.entrances = append(p.entrances, proxy)
	}
	return p.filled(ctx)
}

// filled waits until all that the registry began with is served everywhere.
func (p *play) filled(ctx context.Context) error {
	for _, e := range p.entrances {
		if e.probes == nil {
			continue
		}
		t := p.transport(e)
		err := eventually(ctx, e.probes.name+" serves the first releases", func() bool { return p.look(ctx, t, e) == 0 })
		t.CloseIdleConnections()
		if err != nil {
			return err
		}
	}
	return nil
}

// entrancesOf are the names of the entrances that lead to a process alone.
func (p *play) entrancesOf(a *actor) (names []string) {
	for _, e := range p.entrances {
		if e.name == a.name || strings.HasPrefix(e.name, a.name+",") {
			names = append(names, e.name)
		}
	}
	return names
}

// certify makes a certificate for a node.
func (p *play) certify(a *actor) (args []string, err error) {
	if err := os.MkdirAll(a.folder, 0o755); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(a.address)
	if err != nil {
		return nil, err
	}
	c, err := stage.Certificate(a.folder, host)
	if err != nil {
		return nil, err
	}
	p.certificates.add(c)
	return []string{"--tls-cert", filepath.Join(a.folder, "cert.pem"), "--tls-key", filepath.Join(a.folder, "key.pem")}, nil
}

// buildBucket starts the object store, or makes a folder in its place, and returns the flags for it.
func (p *play) buildBucket(ctx context.Context) ([]string, error) {
	if p.gatewayProgram == "" {
		p.tell("The bucket is a folder, because no -gateway was named.")
		return []string{"--bucket", "file://" + p.bucketFolder()}, nil
	}
	program, err := filepath.Abs(p.gatewayProgram)
	if err != nil {
		return nil, err
	}
	address, err := freeAddress("127.0.1.9")
	if err != nil {
		return nil, err
	}
	p.gateway = &gateway{program: program, folder: filepath.Join(p.folder, "gateway"), address: address}
	if err := p.gateway.start(ctx); err != nil {
		return nil, err
	}
	p.stops = append(p.stops, p.gateway.kill)
	return []string{"--bucket", "s3://" + gatewayBucket, "--bucket-endpoint", "http://" + address}, nil
}

func (p *play) bucketFolder() string { return filepath.Join(p.folder, "bucket") }

const diskBytes = 1 << 30

// mountDisk has a node's data folder be a file system of its own, where that is allowed.
func (p *play) mountDisk(a *actor) {
	if err := errors.Join(os.MkdirAll(a.data(), 0o755), mountMemory(a.data(), diskBytes)); err != nil {
		p.noDisk = "no file system could be mounted: " + err.Error()
		return
	}
	p.disk = a.data()
	p.stops = append([]func(){func() { _ = unmount(a.data()) }}, p.stops...) // after all processes have ended
}

const proxyConf = `daemon off; pid %[1]s/nginx.pid; error_log %[1]s/nginx.log warn; worker_processes 1; worker_rlimit_nofile 16000;
events { worker_connections 4000; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream larder { %[2]s keepalive 32; }
  upstream log { hash $remote_addr consistent; %[2]s keepalive 8; }
  server {
    listen %[3]s;
    proxy_ssl_verify off; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_connect_timeout 1s; proxy_read_timeout 3s; proxy_next_upstream error timeout http_502 http_503 http_504; proxy_next_upstream_timeout 9s;
    location / { proxy_pass https://larder; }
    location /library/ { proxy_pass https://larder; proxy_read_timeout 8s; } # a page waits four seconds for its README
    location ~ ^/(log|logs|content)/ { proxy_pass https://log; }
  }
}
`

// buildProxy starts nginx in front of the nodes. Where it is missing, the mirror gets to node one through this process.
func (p *play) buildProxy(ctx context.Context) (err error) {
	if p.proxy, err = freeAddress(proxyIP); err != nil {
		return err
	}
	program, err := findNginx()
	if err != nil {
		p.tell("There is no proxy in front, because nginx is not installed (apt-get install nginx-light).")
		return p.relay()
	}
	p.nginx = true
	folder := filepath.Join(p.folder, "nginx")
	var servers strings.Builder
	for _, a := range p.nodes {
		fmt.Fprintf(&servers, "server %s max_fails=3 fail_timeout=2s; ", a.address)
	}
	conf := filepath.Join(folder, "nginx.conf")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(conf, fmt.Appendf(nil, proxyConf, folder, &servers, p.proxy), 0o644)); err != nil {
		return err
	}
	c := exec.Command(program, "-c", conf, "-p", folder, "-e", "stderr")
	c.Stderr = os.Stderr
	stop, err := stage.Start(c)
	if err != nil {
		return err
	}
	p.stops = append(p.stops, stop)
	return listens(ctx, p.proxy)
}

// serveHTTP serves an address, whose port may be 0, and returns the server with its actual address. The caller closes it.
func serveHTTP(address string, handler http.Handler) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Addr: l.Addr().String(), ReadHeaderTimeout: requestTimeout, Handler: handler}
	go func() { _ = server.Serve(l) }()
	return server, nil
}

// newReverseProxy returns a proxy to a server that logs no errors: clients count what fails.
func newReverseProxy(target *url.URL) *httputil.ReverseProxy {
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.ErrorLog = log.New(io.Discard, "", 0)
	return pass
}

// relay leads from the proxy's address to node one, in the place of nginx.
func (p *play) relay() error {
	pass := newReverseProxy(&url.URL{Scheme: "https", Host: p.nodes[0].address})
	pass.Transport = p.transport(&entrance{})
	server, err := serveHTTP(p.proxy, pass)
	if err != nil {
		return err
	}
	p.stops = append(p.stops, func() { _ = server.Close() })
	return nil
}

func findNginx() (string, error) {
	if path, err := exec.LookPath("nginx"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/nginx")
}

// perform has everybody act for as long as the play is, and the scenario happen.
func (p *play) perform(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, p.length)
	defer end()
	var all sync.WaitGroup
	seed := uint64(100)
	for _, e := range p.entrances {
		if e.probes != nil {
			all.Go(func() { p.probe(ctx, e) })
		}
		for range p.clients {
			seed++
			all.Go(func() { p.client(ctx, e, seed) })
		}
	}
	all.Go(func() {
		published, poisoned, faulty := p.registry.run(ctx)
		p.tell(fmt.Sprintf("The registry released %d times, %d times with a wrong integrity besides, and misbehaved %d times.", published, poisoned, faulty))
	})
	all.Go(func() { p.follow(ctx) })
	all.Go(func() { p.dictionaryClients(ctx) })
	all.Go(func() { p.readers(ctx) })
	all.Go(func() { p.moduleClients(ctx) })
	all.Go(func() { p.measure(ctx) })
	all.Go(func() { p.doorman.crowd(ctx, p) })
	all.Go(func() { p.operate(ctx) })
	err := p.scenario(ctx)
	<-ctx.Done()
	all.Wait()
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return ctx.Err()
	}
	return err
}

// measure notes what each process uses, every two seconds.
func (p *play) measure(ctx context.Context) {
	for {
		for _, a := range p.actors() {
			if pid := a.getPID(); pid != 0 {
				p.notes.sample(a.name, sample{stage.UsageOf(pid), pid, a.inUse(ctx)})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
	}
}

// end ends all processes.
func (p *play) end() {
	for i := len(p.stops) - 1; i >= 0; i-- {
		p.stops[i]()
	}
}

func (p *play) tell(what string) {
	p.notes.mu.Lock()
	defer p.notes.mu.Unlock()
	p.notes.told = append(p.notes.told, what)
	fmt.Println(what)
}

// eventually waits far longer than anything takes.
func eventually(ctx context.Context, what string, is func() bool) error {
	return within(ctx, startSoon, what, is)
}

// within waits until a condition holds, and returns an error after a time limit.
func within(ctx context.Context, limit time.Duration, what string, is func() bool) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if is() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("it is not so within %v that %s", limit, what)
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Rename(to+".new", to))
}

// mountMemory mounts a file system in memory.
func mountMemory(folder string, bytes int64) error {
	return syscall.Mount("rehearsal", folder, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
}

func unmount(folder string) error { return syscall.Unmount(folder, syscall.MNT_DETACH) }
