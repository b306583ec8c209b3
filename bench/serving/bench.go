package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// A bench is one run.
type bench struct {
	options
	tmp    string
	tls    certificate
	corpus *corpus
	files  []file
	common peer // of nginx and Caddy
	report report
}

// The sizes of Brotli-coded bodies that are measured, in bytes.
var bodySizes = []struct {
	name  string
	bytes int
}{{"1 KB", 1e3}, {"10 KB", 10e3}, {"18 KB", 18e3}, {"30 KB", 30e3}, {"100 KB", 100e3}, {"1 MB", 1e6}}

const quickSize = 18e3 // the only one of -quick

// A protocol is how a scenario's requests are sent.
type protocol struct {
	name   string
	secure bool
	close  bool
	// HTTP/2, over TLS or h2c, on so many connections with so many streams each; 0 for HTTP/1.1.
	connections, streams int
	// handshakes has each request come over a new connection with TLS, of which the client does
	// the handshake in full or resumes a session.
	handshakes string
	// byCPU has processor time decide whether the budget is met, and the rate and the tail only
	// where the servers were busy: the load generator takes longer than they do.
	byCPU  bool
	budget func(body int) float64 // least ratio to the best nginx; nil for none, 0 for none at that size
}

func (p protocol) http2() bool { return p.streams > 0 }

// inQuick reports whether -quick runs it.
func (p protocol) inQuick() bool { return !p.http2() || p.connections == connections/streams }

var protocols = []protocol{
	{name: keepAlive, byCPU: true, budget: func(body int) float64 {
		switch {
		case body == 18e3:
			return 1.5
		case body <= 100e3:
			return 1.25
		}
		return 1.2
	}},
	{name: "new connections", close: true, byCPU: true, budget: forSmallest(1)},
	{name: "TLS", secure: true, budget: func(body int) float64 {
		if body <= 30e3 {
			return 1.15
		}
		return 0
	}},
	{name: "handshakes in full", secure: true, handshakes: inFull, byCPU: true, budget: forSmallest(1 / 1.4)},
	{name: "handshakes resumed", secure: true, handshakes: resumed, byCPU: true, budget: forSmallest(1 / 1.4)},
	overHTTP2("HTTP/2 1x100", true, 1, 100),
	overHTTP2("HTTP/2 8x8", true, connections/streams, streams),
	overHTTP2("HTTP/2 64x8", true, connections, streams),
	overHTTP2("h2c 1x100", false, 1, 100),
	overHTTP2("h2c 8x8", false, connections/streams, streams),
	overHTTP2("h2c 64x8", false, connections, streams),
}

// keepAlive is the name of HTTP/1.1 without TLS.
const keepAlive = "keep-alive"

func overHTTP2(name string, secure bool, connections, streams int) protocol {
	return protocol{name: name, secure: secure, connections: connections, streams: streams, byCPU: true, budget: func(body int) float64 {
		if body <= 30e3 {
			return 1.2
		}
		return 1
	}}
}

// forSmallest is a budget where connections are most of the work.
func forSmallest(budget float64) func(int) float64 {
	return func(body int) float64 {
		if body <= 1e3 {
			return budget
		}
		return 0
	}
}

// A scenario is what all servers are asked in turn.
type scenario struct {
	name     string
	protocol protocol
	body     int
	length   int // of the one body there is, in bytes
	requests []request
	order    []int32
	what     string
	mixed    bool // wrk cannot send HEAD
}

// prepare fills the corpus and gives the peers their files.
func prepare(ctx context.Context, o options, tmp string) (*bench, error) {
	b := &bench{options: o, tmp: tmp}
	var err error
	if b.tls, err = newCertificate(tmp); err != nil {
		return nil, err
	}
	if b.corpus, err = fillCorpus(ctx, o); err != nil {
		return nil, err
	}
	if b.files, err = b.corpus.exportFiles(ctx); err != nil {
		return nil, err
	}
	b.report.describe(o)
	return b, nil
}

// measureAll runs the scenarios: the plain ones, the secure ones and the mix, each
// kind with servers of its own.
func (b *bench) measureAll(ctx context.Context) error {
	var plain, secure, clear, mixed []scenario
	for _, p := range protocols {
		for _, size := range bodySizes {
			f, err := nearest(b.files, size.bytes)
			if err != nil {
				return err
			}
			s := scenario{
				name: p.name + " " + size.name, protocol: p, body: size.bytes, length: f.Length, order: []int32{0},
				requests: []request{{Method: http.MethodGet, Path: f.Path}},
				what:     fmt.Sprintf("%s, %d bytes", f.Path, f.Length),
			}
			switch {
			case !b.wanted(s.name) || b.quick && (size.bytes != quickSize || !p.inQuick()):
			case p.handshakes != "" && !b.quick && size.bytes > 1e3:
			case p.http2() && !p.secure:
				clear = append(clear, s)
			case p.secure:
				secure = append(secure, s)
			default:
				plain = append(plain, s)
			}
		}
	}
	if b.wanted("mix") {
		m, err := newMix(b.files, b.options.files)
		if err != nil {
			return err
		}
		b.report.Mix = m
		mixed = []scenario{{name: "mix", protocol: protocol{name: keepAlive}, requests: m.requests, order: m.order, mixed: true,
			what: fmt.Sprintf("Zipf over %d files, %.0f MB; the list asks for %d of them, %.0f MB; Larder's cache is %s", m.Files, megabytes(m.Bytes), m.Distinct, megabytes(m.Working), b.memory)}}
	}
	for _, part := range []struct {
		scenarios []scenario
		tls       certificate
		cache     string
		h2c       bool // nginx then speaks nothing else
	}{{plain, certificate{}, "", false}, {secure, b.tls, "", false}, {clear, certificate{}, "", true}, {mixed, certificate{}, b.memory, false}} {
		if len(part.scenarios) == 0 {
			continue
		}
		if err := b.measurePart(ctx, part.scenarios, part.tls, part.cache, part.h2c); err != nil {
			return err
		}
	}
	if len(b.report.Scenarios) == 0 && b.only != "" {
		return fmt.Errorf("-only %q names no scenario", b.only)
	}
	return nil
}

// start starts all servers. The first one is Larder, with which the others are
// compared.
func (b *bench) start(ctx context.Context, tls certificate, cache string, h2c bool) (servers []*server, err error) {
	defer func() {
		if err != nil {
			stopAll(servers)
		}
	}()
	for i, noLane := range []bool{false, true} {
		data := filepath.Join(b.tmp, "larder-"+strconv.Itoa(i), "data")
		if err := os.RemoveAll(filepath.Dir(data)); err != nil {
			return servers, err
		}
		if err := clone(b.corpus.data(), data); err != nil {
			return servers, err
		}
		s, err := startLarder(ctx, larderOptions{program: b.larder, data: data, core: serverCore, cache: cache, noLane: noLane, tls: tls, h2c: h2c})
		if err != nil {
			return servers, err
		}
		servers = append(servers, s)
	}
	if b.common.Types == nil {
		conn, err := dial(ctx, servers[0].address, tls.Cert != "")
		if err != nil {
			return servers, err
		}
		defer conn.close()
		if b.common, err = describe(conn, b.files); err != nil {
			return servers, err
		}
	}
	common := b.common
	common.Work, common.Folder, common.TLS, common.H2C = b.tmp, b.corpus.peers(), tls, h2c
	for _, one := range nginxes {
		s, err := startNginx(ctx, common, one)
		if err != nil {
			return servers, err
		}
		servers = append(servers, s)
	}
	s, err := startCaddy(ctx, common)
	if err != nil {
		return servers, err
	}
	return append(servers, s), nil
}

func stopAll(servers []*server) {
	for _, s := range servers {
		s.stop()
	}
}

func (b *bench) measurePart(ctx context.Context, scenarios []scenario, tls certificate, cache string, h2c bool) error {
	all, err := b.start(ctx, tls, cache, h2c)
	if err != nil {
		return err
	}
	defer func() { stopAll(all) }()
	for _, s := range scenarios {
		servers := all
		if s.protocol.name == keepAlive && !s.mixed {
			bare, err := startBare(ctx, all[0], s.requests)
			if err != nil {
				return err
			}
			defer bare.stop()
			servers = append(slices.Clip(all), bare)
		}
		known, err := b.compare(ctx, servers, s)
		if err != nil {
			return err
		}
		result, err := b.measure(ctx, servers, s, known)
		if err != nil {
			return err
		}
		b.report.Scenarios = append(b.report.Scenarios, result)
	}
	return nil
}

// tailTurn is how long a turn takes in which enough answers end to tell a tail.
func tailTurn(length int) time.Duration {
	if length > 500e3 {
		return 5 * time.Second
	}
	return time.Second
}

const (
	busyEnough  = 0.95 // of one core, for a turn to count
	mostRepeats = 4    // turns for one that counts
	connections = 64
	streams     = 8 // of each of the connections over HTTP/2
)

// A sample is a turn with what the server's process used meanwhile.
type sample struct {
	turn
	Busy float64       // share of one core that the server used
	Load float64       // and the load generator
	CPU  time.Duration // of the server, for a request
}

func (s sample) rate() float64 { return float64(s.Requests) / s.Took.Seconds() }

// measure gives every server its turns, with the next load generator where one is too slow.
func (b *bench) measure(ctx context.Context, servers []*server, s scenario, k []known) (result, error) {
	generators := []string{"wrk", "lean"}
	switch {
	case s.protocol.handshakes != "":
		generators = []string{"handshakes"}
	case s.protocol.http2():
		generators = []string{"h2load"}
	case s.protocol.secure:
		generators = []string{"wrk"}
	case s.mixed, b.quick && s.protocol.close:
		generators = []string{"lean"}
	}
	var r result
	for i, generator := range generators {
		more := i+1 < len(generators)
		var slow bool
		var err error
		if r, slow, err = b.measureWith(ctx, servers, s, k, generator, more); err != nil {
			return r, err
		}
		if !slow || !more {
			break
		}
		progress("%s: %s keeps no server busy, once more with %s", s.name, generator, generators[i+1])
	}
	r.compare(s.protocol)
	progress("%s", r.line())
	return r, nil
}

// measureWith gives every server its turns with one load generator, a round of all after the other. It reports whether
// the generator was busier than a server, and stops there where there is another one.
func (b *bench) measureWith(ctx context.Context, servers []*server, s scenario, k []known, generator string, more bool) (r result, slow bool, err error) {
	r = result{Name: s.name, What: s.what, Generator: generator, Protocol: s.protocol.name, Body: s.body}
	samples := make([][]sample, len(servers))
	thrown := make([]int, len(servers))
	for _, server := range servers {
		server.process.resetPeak()
	}
	if s.mixed && !b.quick { // other caches are warm from comparing, but that of the mix forgets
		for i, server := range servers {
			if _, err := b.turn(ctx, server, s, k[i], generator, b.duration); err != nil {
				return r, false, err
			}
		}
	}
	for round := range b.rounds {
		for i := range servers {
			i = (i + round) % len(servers)
			got, repeats, err := b.busyTurn(ctx, servers[i], s, k[i], generator)
			if err != nil {
				return r, false, err
			}
			samples[i] = append(samples[i], got)
			thrown[i] += repeats
			slow = slow || got.Load >= busyEnough && got.Load > got.Busy
			if slow && more {
				return r, true, nil
			}
		}
	}
	for i, server := range servers {
		e := summarize(server, samples[i], thrown[i])
		if generator == "h2load" && !b.quick {
			if e.P50, e.P99, err = b.latencies(ctx, server, s, k[i]); err != nil {
				return r, false, err
			}
		}
		r.Servers = append(r.Servers, e)
	}
	return r, slow, nil
}

// latencies measures those of h2load, in microseconds, in a turn of their own: the log that tells them takes of the time.
func (b *bench) latencies(ctx context.Context, server *server, s scenario, k known) (p50, p99 float64, err error) {
	var t sample
	err = errLoad
	for try := 0; try < mostRepeats && errors.Is(err, errLoad); try++ {
		t, err = b.turn(ctx, server, s, k, "h2load with log", max(b.duration, tailTurn(s.length)))
	}
	return t.P50.Seconds() * 1e6, t.P99.Seconds() * 1e6, err
}

// busyTurn repeats a turn in which the server's core was not busy, or that failed:
// something else was measured then. The busiest one counts if none was.
func (b *bench) busyTurn(ctx context.Context, server *server, s scenario, k known, generator string) (best sample, thrown int, err error) {
	var failed error
	for try := range mostRepeats {
		got, err := b.turn(ctx, server, s, k, generator, b.duration)
		if errors.Is(err, errLoad) {
			progress("%v", err)
			failed = err
			continue
		}
		if err != nil {
			return got, try, err
		}
		if best.Requests == 0 || got.Busy > best.Busy {
			best = got
		}
		if best.Busy >= busyEnough || best.Load >= busyEnough || b.quick || s.protocol.byCPU {
			return best, try, nil
		}
	}
	if best.Requests == 0 {
		return best, mostRepeats, failed
	}
	return best, mostRepeats - 1, nil
}

// summarize takes medians over the rounds.
func summarize(server *server, samples []sample, thrown int) entry {
	of := func(f func(sample) float64) float64 {
		var values []float64
		for _, s := range samples {
			values = append(values, f(s))
		}
		return median(values)
	}
	e := entry{
		Server: server.name, Thrown: thrown, PeakRSS: server.process.peak(),
		Rate:  of(sample.rate),
		Bytes: of(func(s sample) float64 { return float64(s.Bytes) / s.Took.Seconds() }),
		P50:   of(func(s sample) float64 { return s.P50.Seconds() * 1e6 }),
		P99:   of(func(s sample) float64 { return s.P99.Seconds() * 1e6 }),
		CPU:   of(func(s sample) float64 { return s.CPU.Seconds() * 1e6 }),
		Busy:  of(func(s sample) float64 { return s.Busy }),
		Load:  of(func(s sample) float64 { return s.Load }),
	}
	slowest := slices.MinFunc(samples, func(a, b sample) int { return cmp.Compare(a.rate(), b.rate()) })
	fastest := slices.MaxFunc(samples, func(a, b sample) int { return cmp.Compare(a.rate(), b.rate()) })
	if e.Rate > 0 {
		e.Spread = (fastest.rate() - slowest.rate()) / e.Rate
	}
	return e
}
