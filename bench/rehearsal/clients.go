package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/andybalholm/brotli"
)

const (
	honest = "127.0.0.3"
	// zipfS is by how much files are asked for less that are less popular.
	zipfS = 1.1
	// perConnection is after how many requests a client connects anew.
	perConnection = 8
	// requestTimeout is how long a request may take.
	requestTimeout = 10 * time.Second
	// pause is between the requests of a client.
	pause = 30 * time.Millisecond
	// looks is between two looks for new releases, of one process.
	looks = 250 * time.Millisecond
)

// remembers is how long the fallback may take an answer for granted that its origin does not have a release: that is served a moment before
// the signed log proves it.
const remembers = 15 * time.Second

// withdrawalBound is how long after a withdrawal has been acknowledged a file may still be served.
const withdrawalBound = 2 * time.Second

// An entrance is where clients come in.
type entrance struct {
	name     string
	url      string
	h2       bool
	behind   []string // the processes all of which must have a release before clients ask for it
	fallback bool     // whether releases are fetched when they are asked for
	// lateDeltas is whether the deltas of a release may take longer than the rehearsal: a mirror fetches them an hour after the release.
	lateDeltas bool
	probes     *actor // whose releases are looked for here; nil for none
}

// known are the certificates that may be shown.
type known struct {
	mu  sync.Mutex
	all []*x509.Certificate
}

func (k *known) add(c *x509.Certificate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, c)
}

func (k *known) verify(state tls.ConnectionState) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.all {
		if c.Equal(state.PeerCertificates[0]) {
			return nil
		}
	}
	return errClaim{otherwise, "a certificate that is nobody's here"}
}

// transport returns one connection's worth of HTTP.
func (p *play) transport(e *entrance) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!e.h2)
	protocols.SetHTTP2(e.h2)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(honest)}, Timeout: requestTimeout}
	return &http.Transport{
		DialContext: dialer.DialContext, Protocols: protocols, DisableCompression: true, MaxIdleConnsPerHost: 1,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: p.certificates.verify}, //nolint:gosec // verified against all that were made
	}
}

// client asks at an entrance, a file at a time, until the context ends.
func (p *play) client(ctx context.Context, e *entrance, seed uint64) {
	random := rand.New(rand.NewPCG(p.seed, seed))
	t := p.transport(e)
	defer t.CloseIdleConnections()
	tags := map[string]string{}
	for n := 1; ctx.Err() == nil; n++ {
		if n%perConnection == 0 {
			t.CloseIdleConnections()
		}
		if r := p.draw(random, e); r != nil {
			begun := time.Now()
			err := p.ask(ctx, t, e, r, random, tags)
			if ctx.Err() != nil {
				return
			}
			p.notes.request(e.name, begun, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// draw chooses a release: mostly one that is served, by Zipf's law from the newest, now and then one that must not be.
func (p *play) draw(random *rand.Rand, e *entrance) *release {
	if random.Float64() < 0.03 {
		if never := p.library.choose(func(r *release, _ map[string]time.Time) bool { return r.poisoned }); len(never) > 0 {
			return never[random.IntN(len(never))]
		}
	}
	if random.Float64() < 0.03 && !e.fallback {
		gone := p.library.choose(func(r *release, _ map[string]time.Time) bool { return !r.recalled.IsZero() })
		if len(gone) > 0 {
			return gone[random.IntN(len(gone))]
		}
	}
	since := time.Duration(0)
	if e.fallback {
		since = remembers
	}
	live := p.library.live(since, e.behind...)
	if len(live) == 0 {
		return nil
	}
	return live[rand.NewZipf(random, zipfS, 1, uint64(len(live)-1)).Uint64()]
}

// ask asks for a file of a release in one of the ways that clients have, and holds the answer against what must be there.
func (p *play) ask(ctx context.Context, t http.RoundTripper, e *entrance, r *release, random *rand.Rand, tags map[string]string) error {
	all := r.files()
	file := all[random.IntN(len(all))]
	if file == bigFile && random.Float64() < 0.8 {
		file = all[0]
	}
	q := &question{path: r.path(file), want: content(r.pkg, r.version, file)}
	switch way := random.Float64(); {
	case way < 0.15:
		q.coding = "gzip"
	case way < 0.25:
		q.coding = "br"
	case way < 0.30:
		q.from = random.IntN(len(q.want))
		q.ranged = true
	case way < 0.35:
		q.tag = tags[q.path]
	case way < 0.38:
		q.head = true
	}
	for deadline := time.Now().Add(3 * requestTimeout); ; {
		err := q.ask(ctx, t, e.url)
		withdrawn, recall := p.library.state(r)
		switch status := errStatus(0); {
		case err == nil && r.poisoned:
			return errClaim{poisonous, q.path}
		case err == nil && !recall.IsZero() && !e.fallback && q.begun.After(recall):
			return errClaim{recalled, q.path}
		case err == nil:
			if len(tags) < 1000 {
				tags[q.path] = q.newTag
			}
			return nil
		case !errors.As(err, &status):
			return err
		case r.poisoned && (status == http.StatusNotFound || e.fallback && status == http.StatusServiceUnavailable):
			return nil
		case !withdrawn.IsZero() && status == http.StatusGone:
			return nil
		case e.fallback && status == http.StatusServiceUnavailable && q.retryAfter > 0 && time.Now().Before(deadline):
			p.notes.comesAgain()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(q.retryAfter, 5*time.Second)):
			}
		default:
			return fmt.Errorf("%s: %w", q.path, err)
		}
	}
}

// runClients runs a client at each entrance but the fallback's until ctx ends. newClient returns the function that sends a client's next
// requests, with its transport and its own random numbers; pause is the time between two calls. seed differs from that of other clients.
func (p *play) runClients(ctx context.Context, seed uint64, pause time.Duration, newClient func(t *http.Transport, e *entrance, random *rand.Rand) func()) {
	var all sync.WaitGroup
	for i, e := range p.entrances {
		if e.fallback {
			continue // it has only releases that were asked for
		}
		all.Go(func() {
			t := p.transport(e)
			defer t.CloseIdleConnections()
			request := newClient(t, e, rand.New(rand.NewPCG(p.seed, seed+uint64(i))))
			for ctx.Err() == nil {
				request()
				_ = sleep(ctx, pause)
			}
		})
	}
	all.Wait()
}

// get sends a GET request with header fields, by name and value, and returns the response with its complete body.
func get(ctx context.Context, t http.RoundTripper, url string, fields map[string]string) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	for name, value := range fields {
		r.Header.Set(name, value)
	}
	response, err := t.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// fetch returns the body of a successful response.
func fetch(ctx context.Context, t http.RoundTripper, url string) ([]byte, error) {
	response, body, err := get(ctx, t, url, nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errStatus(response.StatusCode)
	}
	return body, err
}

// A question is a request with what must come.
type question struct {
	path   string
	want   []byte
	coding string // that the client accepts
	ranged bool
	from   int    // of a range
	tag    string // that the client has
	head   bool

	begun      time.Time
	newTag     string
	retryAfter time.Duration
}

// ask asks once, and reads all of the answer.
func (q *question) ask(ctx context.Context, t http.RoundTripper, url string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	method := http.MethodGet
	if q.head {
		method = http.MethodHead
	}
	r, err := http.NewRequestWithContext(ctx, method, url+q.path, nil)
	if err != nil {
		return err
	}
	if q.coding != "" {
		r.Header.Set("Accept-Encoding", q.coding)
	}
	if q.ranged {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", q.from))
	}
	if q.tag != "" {
		r.Header.Set("If-None-Match", q.tag)
	}
	q.begun = time.Now()
	answer, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	q.retryAfter, q.newTag = time.Duration(seconds)*time.Second, answer.Header.Get("ETag")
	return q.judge(answer, body)
}

// judge holds an answer against what must come.
func (q *question) judge(answer *http.Response, body []byte) error {
	want := q.want
	switch {
	case answer.StatusCode == http.StatusNotModified && q.tag != "":
		return nil
	case answer.StatusCode == http.StatusPartialContent && q.ranged:
		want = want[q.from:]
	case answer.StatusCode != http.StatusOK:
		return errStatus(answer.StatusCode)
	case q.head:
		if length := answer.ContentLength; length != int64(len(want)) && length != -1 {
			return errClaim{wrongBytes, fmt.Sprintf("%s is said to have %d bytes, and has %d", q.path, length, len(want))}
		}
		return nil
	}
	var err error
	switch coding := answer.Header.Get("Content-Encoding"); {
	case coding == "":
	case coding != q.coding:
		return errClaim{wrongBytes, fmt.Sprintf("%s comes as %q, and %q was asked for", q.path, coding, q.coding)}
	case coding == "gzip":
		var unzip *gzip.Reader
		if unzip, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(unzip)
		}
	case coding == "br":
		body, err = io.ReadAll(brotli.NewReader(bytes.NewReader(body)))
	}
	if err != nil || !bytes.Equal(body, want) {
		return errClaim{wrongBytes, fmt.Sprintf("%s: %d bytes that are not the %d published (%v)", q.path, len(body), len(want), err)}
	}
	return nil
}

// probe looks for releases that a process has yet to be seen to serve, until the context ends.
func (p *play) probe(ctx context.Context, e *entrance) {
	t := p.transport(e)
	defer t.CloseIdleConnections()
	for ctx.Err() == nil {
		p.look(ctx, t, e)
		_ = sleep(ctx, looks)
	}
}

// look asks once for each release that a process has yet to be seen to serve, and returns how many it does not.
func (p *play) look(ctx context.Context, t http.RoundTripper, e *entrance) (missing int) {
	for _, r := range p.library.pending(e.probes.name) {
		q := &question{path: r.path(files[0]), want: content(r.pkg, r.version, files[0])}
		err := q.ask(ctx, t, e.url)
		if err == nil {
			p.library.confirm(r, e.probes.name)
			continue
		}
		missing++
		if c := causeOf(err); c == wrongBytes {
			p.notes.request(e.name, q.begun, err)
		} else if c != notFound {
			break // it does not answer; later
		}
	}
	return missing
}
