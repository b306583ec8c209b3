package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// This file has clients of the log's event stream, /logs/stream. Each reconnects with the id of its last entry, after failures
// and after cutting its own connection in the middle of an event. At the end the entries of each must have the root that the
// log has signed, so none is missing, repeated, reordered or changed.

const (
	// silence is how long a stream may send nothing: heartbeats are 15 seconds apart.
	silence = 15*time.Second + requestTimeout
	// ownCutBytes and ownCutTime bound after how many bytes and how long a client cuts its own connection.
	ownCutBytes = 16 << 10
	ownCutTime  = 30 * time.Second
	// streamPause is the time between two connections of a client. The stream asks for five seconds, which leaves too few failures.
	streamPause = 250 * time.Millisecond
	// proxyName is the name of the proxy's entrance.
	proxyName = "proxy"
	// logSizeField makes a node of a cluster wait until it has that many entries.
	logSizeField = "Larder-Log-Size"
)

var (
	errSilent = errors.New("the stream is silent")
	errOwnCut = errors.New("the client cut its connection")
)

// A follower is a client of the event stream. With several entrances it moves to the next one for each connection.
type follower struct {
	name      string
	entrances []*entrance
	pkg       string        // follows only this package's entries, if not ""
	silence   time.Duration // after which a stream without a byte has failed
	random    *rand.Rand

	mu      sync.Mutex
	last    int64       // id of the last entry; 0 before the first
	leaves  []tlog.Hash // of the entries from index 1, without gaps if pkg is ""
	indexes []int64     // of the received entries
	owners  []string    // packages of the entries
	faults  []string
	counts  struct{ connected, cut, ended, waited int }
}

// newFollowers returns the clients of the event stream: one for each entrance, one that moves between the nodes, and one that
// follows a package.
func (p *play) newFollowers() (all []*follower) {
	var nodes []*entrance
	add := func(f *follower) {
		f.silence, f.random = silence, rand.New(rand.NewPCG(p.seed, uint64(1000+len(all))))
		all = append(all, f)
	}
	for _, e := range p.entrances {
		add(&follower{name: e.name, entrances: []*entrance{e}})
		if slices.Contains(p.nodes, e.probes) {
			nodes = append(nodes, e)
		}
	}
	add(&follower{name: "from node to node", entrances: nodes})
	add(&follower{name: "of a package", entrances: nodes[:1], pkg: packageName(0)})
	return all
}

// run receives entries until ctx ends or done returns true.
func (f *follower) run(ctx context.Context, p *play, done func() bool) {
	for n := 0; ctx.Err() == nil && !done(); n++ {
		e := f.entrances[n%len(f.entrances)]
		t := p.transport(e)
		err := f.connect(ctx, t, e, func(begun time.Time, err error) {
			if err != nil {
				err = fmt.Errorf("/logs/stream, the client %q: %w", f.name, err)
			}
			if ctx.Err() == nil {
				p.notes.request(e.name, begun, err)
			}
		}, done)
		t.CloseIdleConnections()
		_ = sleep(ctx, max(streamPause, min(retryAfterOf(err), 5*time.Second)))
	}
}

// errWait is the error of a response that names a time after which to retry.
type errWait struct {
	errStatus
	wait time.Duration
}

func (e errWait) Unwrap() error { return e.errStatus }

func retryAfterOf(err error) time.Duration {
	var wait errWait
	if errors.As(err, &wait) {
		return wait.wait
	}
	return 0
}

// connect opens one stream and receives its entries until it ends, and returns why it ended. It calls note with the outcome of
// the request, except for a 503 that the client's own condition on the log's size explains, and with the failure of a stream
// that breaks off or is silent.
func (f *follower) connect(ctx context.Context, t http.RoundTripper, e *entrance, note func(time.Time, error), done func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latest := time.Now() // when the client received something
	timer := time.AfterFunc(requestTimeout, func() { cancel(errSilent) })
	defer timer.Stop()
	r, err := f.newRequest(ctx, e)
	if err != nil {
		return err
	}
	response, err := t.RoundTrip(r)
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = fmt.Errorf("no header: %w", context.DeadlineExceeded)
		}
		note(latest, err)
		return err
	}
	defer response.Body.Close()
	if err := checkStreamHeader(response); err != nil {
		if r.Header.Get(logSizeField) != "" && retryAfterOf(err) > 0 {
			f.count(&f.counts.waited)
		} else {
			note(latest, err)
		}
		return err
	}
	note(latest, nil)
	f.count(&f.counts.connected)
	body := &cutReader{r: response.Body, left: 1 + f.random.IntN(ownCutBytes), received: func() { latest = time.Now(); timer.Reset(f.silence) }}
	stop := time.AfterFunc(time.Duration(f.random.Int64N(int64(ownCutTime))), func() { cancel(errOwnCut) })
	defer stop.Stop()
	err = readEvents(body, func(v streamEvent) bool { f.receive(e.name, v); return !done() })
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errOwnCut) || errors.Is(cause, errOwnCut):
		f.count(&f.counts.cut)
		return errOwnCut
	case errors.Is(cause, errSilent):
		err = fmt.Errorf("%w for %v: %w", errSilent, f.silence, context.DeadlineExceeded)
		note(latest, err)
		return err
	case err != nil && !errors.Is(err, io.EOF) && e.name != proxyName: // the proxy cuts streams that are silent for three seconds
		note(latest, err)
	}
	f.count(&f.counts.ended)
	return err
}

func (f *follower) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

// newRequest returns the request that resumes after the last entry. Between nodes it names the log's size, as cluster.md says.
func (f *follower) newRequest(ctx context.Context, e *entrance) (*http.Request, error) {
	query := "?after=0"
	if f.pkg != "" {
		query += "&package=" + f.pkg
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/logs/stream"+query, nil)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last > 0 {
		r.Header.Set("Last-Event-ID", strconv.FormatInt(f.last, 10))
	}
	if len(f.entrances) > 1 {
		r.Header.Set(logSizeField, strconv.FormatInt(f.last+1, 10))
	}
	return r, nil
}

// checkStreamHeader returns an error unless a response is a stream of events that no cache stores.
func checkStreamHeader(response *http.Response) error {
	if response.StatusCode != http.StatusOK {
		status := errStatus(response.StatusCode)
		if seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")); seconds > 0 {
			return errWait{status, time.Duration(seconds) * time.Second}
		}
		return status
	}
	kind, caching := response.Header.Get("Content-Type"), response.Header.Get("Cache-Control")
	if kind != "text/event-stream" || !strings.Contains(caching, "no-") {
		return errClaim{otherwise, fmt.Sprintf("/logs/stream is %q with the caching %q", kind, caching)}
	}
	return nil
}

// A cutReader fails with errOwnCut after some bytes.
type cutReader struct {
	r        io.Reader
	left     int
	received func()
}

func (c *cutReader) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, errOwnCut
	}
	n, err := c.r.Read(b[:min(len(b), c.left)])
	c.left -= n
	if n > 0 {
		c.received()
	}
	return n, err
}

// A streamEvent is a complete event. fault says what is malformed in it.
type streamEvent struct {
	id, data, fault string
}

// readEvents calls receive with each complete event, until it returns false or r fails. As the standard says, an event that is
// not complete at the end is dropped.
func readEvents(r io.Reader, receive func(streamEvent) bool) error {
	var v streamEvent
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if v != (streamEvent{}) && !receive(v) {
				return nil
			}
			v = streamEvent{}
		case field == "id" && v.id == "":
			v.id = value
		case field == "data" && v.data == "":
			v.data = value
		case field != "" && field != "retry":
			v.fault = fmt.Sprintf("the line %.100q", line)
		}
	}
}

// receive stores an entry, and notes what is wrong with it.
func (f *follower) receive(at string, v streamEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault := func(format string, args ...any) {
		f.faults = append(f.faults, f.name+", at "+at+": "+fmt.Sprintf(format, args...))
	}
	index, err := strconv.ParseInt(v.id, 10, 64)
	raw, ok := strings.CutPrefix(v.data, `{"index":`+v.id+",")
	var entry struct {
		Package string `json:"package"`
	}
	if v.fault != "" || err != nil || !ok || json.Unmarshal([]byte(v.data), &entry) != nil {
		fault("a malformed event after entry %d: %.200q %s", f.last, v.id+" "+v.data, v.fault)
		return
	}
	switch {
	case index <= f.last:
		fault("entry %d comes again after %d", index, f.last)
		return
	case f.pkg != "" && entry.Package != f.pkg:
		fault("entry %d is of %q", index, entry.Package)
	case f.pkg == "" && index != f.last+1:
		fault("entry %d comes after %d", index, f.last)
	}
	f.last = index
	f.indexes = append(f.indexes, index)
	f.owners = append(f.owners, entry.Package)
	f.leaves = append(f.leaves, tlog.RecordHash([]byte("{"+raw)))
}

// received reports whether the client has all entries of a log of that size.
func (f *follower) received(size int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last >= size-1
}

// root returns the root of the tree with the first entry's hash and those that the client received, up to size.
func (f *follower) root(first tlog.Hash, size int64) tlog.Hash {
	f.mu.Lock()
	defer f.mu.Unlock()
	return rootOf(append([]tlog.Hash{first}, f.leaves[:min(int64(len(f.leaves)), size-1)]...))
}

// rootOf returns the root of a tree with those leaves (RFC 6962 §2.1), of which there is at least one.
func rootOf(leaves []tlog.Hash) tlog.Hash {
	if len(leaves) == 1 {
		return leaves[0]
	}
	left := 1
	for 2*left < len(leaves) {
		left *= 2
	}
	return tlog.NodeHash(rootOf(leaves[:left]), rootOf(leaves[left:]))
}

// follow runs the clients of the event stream until ctx ends.
func (p *play) follow(ctx context.Context) {
	p.followers = p.newFollowers()
	var all sync.WaitGroup
	for _, f := range p.followers {
		all.Go(func() { f.run(ctx, p, func() bool { return false }) })
	}
	all.Wait()
}

// judgeStreams lets each client of the event stream receive the rest, and compares its entries with the signed log.
func (p *play) judgeStreams(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, comesWithin)
	defer cancel()
	var mu sync.Mutex
	var wrong []string
	var all sync.WaitGroup
	for _, f := range p.followers {
		all.Go(func() {
			err := p.finish(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v", f.name, err))
			}
		})
	}
	all.Wait()
	if len(p.followers) == 0 {
		wrong = append(wrong, "no client followed the log")
	}
	var said []string
	for _, f := range p.followers {
		wrong = append(wrong, f.faults...)
		said = append(said, fmt.Sprintf("%s %d (%d connections, %d cut by the client, %d ended)", f.name, len(f.indexes), f.counts.connected, f.counts.cut, f.counts.ended))
	}
	return verdict("event streams: each log entry once, in order, none missing", "entries: "+strings.Join(said, ", "), wrong)
}

// finish has a client receive all that the log has, and returns an error if its entries are not those of the signed log.
func (p *play) finish(ctx context.Context, f *follower) error {
	e := f.entrances[0]
	signed, err := p.headOf(ctx, e)
	if err != nil {
		return err
	}
	size := signed.Size
	if size < 2 {
		return fmt.Errorf("the log has %v", signed)
	}
	if f.pkg != "" {
		return p.finishPackage(ctx, f, size)
	}
	f.run(ctx, p, func() bool { return f.received(size) })
	if !f.received(size) {
		return fmt.Errorf("received %d of %d entries", f.last+1, size)
	}
	first, err := p.firstEntry(ctx, e)
	if err != nil {
		return err
	}
	if root := f.root(first, size).String(); root != signed.Root {
		return fmt.Errorf("the %d entries have the root %s, and the log has signed %s", size, root, signed.Root)
	}
	return nil
}

// finishPackage compares the entries of the client that follows a package with those that the first client received.
func (p *play) finishPackage(ctx context.Context, f *follower, size int64) error {
	complete := p.followers[0]
	if err := eventually(ctx, complete.name+" has received all", func() bool { return complete.received(size) }); err != nil {
		return err
	}
	want := complete.indexesOf(f.pkg)
	f.run(ctx, p, func() bool { return len(f.indexesOf(f.pkg)) >= len(want) })
	if got := f.indexesOf(f.pkg); !slices.Equal(got[:min(len(got), len(want))], want) {
		return fmt.Errorf("received the entries %v of %v", got, want)
	}
	return nil
}

// indexesOf returns the indexes of the received entries of a package.
func (f *follower) indexesOf(pkg string) (indexes []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, owner := range f.owners {
		if owner == pkg {
			indexes = append(indexes, f.indexes[i])
		}
	}
	return indexes
}

// firstEntry returns the hash of the log's entry 0, after which all clients start.
func (p *play) firstEntry(ctx context.Context, e *entrance) (tlog.Hash, error) {
	t := p.transport(e)
	defer t.CloseIdleConnections()
	_, body, err := get(ctx, t, e.url+"/logs?before=1", nil)
	if err != nil {
		return tlog.Hash{}, err
	}
	raw, found := strings.CutPrefix(strings.TrimSpace(string(body)), `[{"index":0,`)
	raw, closed := strings.CutSuffix(raw, "]")
	if !found || !closed {
		return tlog.Hash{}, fmt.Errorf("/logs?before=1 is %.200q", body)
	}
	return tlog.RecordHash([]byte("{" + raw)), nil
}
