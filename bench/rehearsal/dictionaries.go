package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// This file has clients that use files as compression dictionaries for the same file of other versions (RFC 9842), as browsers
// do. They decode deltas without Larder's code.

const (
	// similarFile differs little from release to release, and not at all in every third one, so that Larder makes deltas of it.
	similarFile  = "dist/similar.js"
	similarLines = 400
	changedLines = 8
	// dczHeader begins every delta; the SHA-256 of its dictionary follows.
	dczHeader = "\x5e\x2a\x4d\x18\x20\x00\x00\x00"
	// browserCodings are those that browsers accept when they have a dictionary.
	browserCodings = "gzip, deflate, br, zstd, dcb, dcz"
	// mostHeld bounds the dictionaries that a client keeps.
	mostHeld = 50
)

// similarContent returns the bytes of similarFile: lines of the package, of which a few are the version's own.
func similarContent(pkg, version string) []byte {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	if minor%3 == 2 {
		minor--
	}
	draw := func(of string) *rand.Rand {
		h := fnv.New64a()
		_, _ = io.WriteString(h, of)
		return rand.New(rand.NewPCG(h.Sum64(), 2))
	}
	common, own := draw(pkg), draw(fmt.Sprintf("%s %d.%d", pkg, major, minor))
	lines := make([]string, similarLines)
	for i := range lines {
		lines[i] = fmt.Sprintf("export function f%d() { return \"%x\"; }\n", i, common.Uint64())
	}
	for range changedLines {
		i := own.IntN(similarLines)
		lines[i] = fmt.Sprintf("export function f%d() { return \"%x %d.%d\"; }\n", i, own.Uint64(), major, minor)
	}
	return []byte(strings.Join(lines, ""))
}

// A dictionaryUse is what the clients with dictionaries got at one entrance.
type dictionaryUse struct {
	requests, deltas int
	bytes, instead   int64 // of the deltas, and of the files
}

// dictionaryNotes are what all clients with dictionaries got.
type dictionaryNotes struct {
	mu   sync.Mutex
	uses map[string]*dictionaryUse // by entrance
	sums map[string][32]byte       // of the encoded bytes, by path and entity tag
}

// add counts a right response, and returns an error if its entity tag stood for other bytes before.
func (n *dictionaryNotes) add(entrance string, q *dictionaryRequest, body []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.uses == nil {
		n.uses, n.sums = map[string]*dictionaryUse{}, map[string][32]byte{}
	}
	use := n.uses[entrance]
	if use == nil {
		use = &dictionaryUse{}
		n.uses[entrance] = use
	}
	use.requests++
	if !q.delta {
		return nil
	}
	use.deltas++
	use.bytes += int64(len(body))
	use.instead += int64(len(q.want))
	sum, key := sha256.Sum256(body), q.path+" "+q.tag
	if before, ok := n.sums[key]; ok && before != sum {
		return errClaim{wrongBytes, fmt.Sprintf("%s with the entity tag %s has other encoded bytes than before", q.path, q.tag)}
	}
	n.sums[key] = sum
	return nil
}

// A dictionaryRequest is a request of a client that may have a dictionary.
type dictionaryRequest struct {
	path       string
	want       []byte
	accept     string
	available  string // the field Available-Dictionary; "" for none
	dictionary []byte // nil if a delta would be wrong
	ranged     bool
	has        string // If-None-Match

	begun time.Time
	delta bool   // whether the response is one
	tag   string // its entity tag
	match string // its pattern of files for which it is a dictionary
}

func availableDictionary(sum [32]byte) string {
	return ":" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// ask sends the request, reads the response, and returns its encoded bytes. It returns an error if the response is wrong.
func (q *dictionaryRequest) ask(ctx context.Context, t http.RoundTripper, url string) ([]byte, error) {
	fields := map[string]string{"Accept-Encoding": q.accept}
	if q.available != "" {
		fields["Available-Dictionary"] = q.available
	}
	if q.ranged {
		fields["Range"] = "bytes=100-"
	}
	if q.has != "" {
		fields["If-None-Match"] = q.has
	}
	q.begun = time.Now()
	response, body, err := get(ctx, t, url+q.path, fields)
	if err != nil {
		return nil, err
	}
	return body, q.judge(response, body)
}

// judge returns an error if a response is not what the client must get.
func (q *dictionaryRequest) judge(response *http.Response, body []byte) error {
	want, h := q.want, response.Header
	switch {
	case response.StatusCode == http.StatusNotModified && q.has != "":
		return nil
	case response.StatusCode == http.StatusPartialContent && q.ranged:
		want = want[100:]
	case response.StatusCode != http.StatusOK:
		return errStatus(response.StatusCode)
	}
	q.tag, q.delta = h.Get("ETag"), h.Get("Content-Encoding") == "dcz"
	wrong := func(format string, args ...any) error {
		return errClaim{wrongBytes, fmt.Sprintf("%s (%s, %s): ", q.path, q.accept, q.available) + fmt.Sprintf(format, args...)}
	}
	if q.delta {
		switch caching := h.Get("Cache-Control"); {
		case q.dictionary == nil || q.ranged:
			return wrong("a delta for a client that cannot decode it")
		case !strings.Contains(caching, "private") || !strings.Contains(strings.ToLower(h.Get("Vary")), "available-dictionary"):
			return wrong("a delta that caches may send to others: %q, Vary: %q", caching, h.Get("Vary"))
		}
	}
	decoded, err := q.decode(h.Get("Content-Encoding"), body)
	if err != nil || !bytes.Equal(decoded, want) {
		return wrong("%d bytes in %q that are not the %d published (%v)", len(decoded), h.Get("Content-Encoding"), len(want), err)
	}
	if use := h.Get("Use-As-Dictionary"); use != "" {
		var ok bool
		if q.match, ok = dictionaryMatch(use, q.path); !ok {
			return wrong("Use-As-Dictionary is %s", use)
		}
	}
	return nil
}

// decode returns the bytes that a body decodes to.
func (q *dictionaryRequest) decode(encoding string, body []byte) ([]byte, error) {
	var r io.Reader = bytes.NewReader(body)
	switch encoding {
	case "":
	case "gzip":
		var err error
		if r, err = gzip.NewReader(r); err != nil {
			return nil, err
		}
	case "br":
		r = brotli.NewReader(r)
	case "dcz":
		return decodeDCZ(q.dictionary, body)
	default:
		return nil, errors.New("an encoding that Larder does not have")
	}
	return io.ReadAll(r)
}

// decodeDCZ decodes Zstandard with a dictionary (RFC 9842 §5).
func decodeDCZ(dictionary, body []byte) ([]byte, error) {
	sum := sha256.Sum256(dictionary)
	frame, ok := bytes.CutPrefix(body, append([]byte(dczHeader), sum[:]...))
	if !ok {
		return nil, errors.New("the delta is of another dictionary")
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderDictRaw(0, dictionary), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(frame, nil)
}

// dictionaryMatch returns the pattern of a field Use-As-Dictionary, in which :version stands for any version. ok is false unless
// it matches the file that has the field, and the field's id is the file's version.
func dictionaryMatch(field, path string) (match string, ok bool) {
	rest, ok := strings.CutPrefix(field, `match="`)
	match, id, found := strings.Cut(rest, `", id="`)
	before, after, named := strings.Cut(match, "/:version/")
	version := strings.TrimSuffix(id, `"`)
	return match, ok && found && named && before+"/"+version+"/"+after == path
}

// A held file is a dictionary that a client has.
type held struct {
	match string
	data  []byte
	r     *release
}

// A dictionaryClient is one client that keeps files as dictionaries.
type dictionaryClient struct {
	e      *entrance
	random *rand.Rand
	held   []held
	tags   map[string]string // entity tags of deltas, by path and dictionary
}

// dictionaryClients runs a client with dictionaries at each entrance until ctx ends. It connects anew after perConnection requests.
func (p *play) dictionaryClients(ctx context.Context) {
	p.runClients(ctx, 2000, pause, func(t *http.Transport, e *entrance, random *rand.Rand) func() {
		c := &dictionaryClient{e: e, random: random, tags: map[string]string{}}
		n := 0
		return func() {
			if n++; n%perConnection == 0 {
				t.CloseIdleConnections()
			}
			c.upgrade(ctx, p, t)
		}
	})
}

// upgrade has the client download similarFile of a release, with one it has as a dictionary. It downloads one first if it has
// none that matches.
func (c *dictionaryClient) upgrade(ctx context.Context, p *play, t http.RoundTripper) {
	live := p.library.live(0, c.e.behind...)
	if len(live) == 0 {
		return
	}
	to := live[rand.NewZipf(c.random, zipfS, 1, uint64(len(live)-1)).Uint64()]
	from := before(to, live)
	if c.random.IntN(4) == 0 {
		from = nil // any that it has
	}
	i := slices.IndexFunc(c.held, func(h held) bool { return h.r.pkg == to.pkg && (from == nil || h.r == from) })
	if i < 0 {
		if from == nil {
			from = to
		}
		q := &dictionaryRequest{path: from.path(similarFile), want: content(from.pkg, from.version, similarFile), accept: browserCodings}
		if p.send(ctx, t, c.e, from, q) == nil && q.match != "" {
			c.held = append(c.held[max(0, len(c.held)+1-mostHeld):], held{q.match, q.want, from})
		}
		return
	}
	q := c.newRequest(to, c.held[i])
	key := q.path + q.available
	if err := p.send(ctx, t, c.e, to, q); err == nil && q.delta && len(c.tags) < 1000 {
		c.tags[key] = q.tag
	}
}

// newRequest returns one of the requests that a client with a dictionary may send.
func (c *dictionaryClient) newRequest(to *release, h held) *dictionaryRequest {
	q := &dictionaryRequest{path: to.path(similarFile), want: content(to.pkg, to.version, similarFile), accept: browserCodings}
	q.available, q.dictionary = availableDictionary(sha256.Sum256(h.data)), h.data
	switch way := c.random.Float64(); {
	case way < 0.05: // a dictionary that no release has
		q.available, q.dictionary = availableDictionary(sha256.Sum256([]byte(strconv.Itoa(c.random.Int())))), nil
	case way < 0.1:
		q.available, q.dictionary = "", nil
	case way < 0.15:
		q.accept, q.dictionary = "gzip, br, dcz;q=0", nil
	case way < 0.2:
		q.accept, q.ranged = "dcz", true // part of another encoding cannot be decoded
	case way < 0.3:
		q.has = c.tags[q.path+q.available]
	}
	return q
}

// before returns the release of the same package and major version before r, nil if there is none.
func before(r *release, live []*release) (best *release) {
	number := func(r *release) (major, minor int) {
		_, _ = fmt.Sscanf(r.version, "%d.%d", &major, &minor)
		return major, minor
	}
	major, minor := number(r)
	most := -1
	for _, o := range live {
		if m, n := number(o); o.pkg == r.pkg && m == major && n < minor && n > most {
			best, most = o, n
		}
	}
	return best
}

// send asks for a file of a release, and notes the outcome.
func (p *play) send(ctx context.Context, t http.RoundTripper, e *entrance, r *release, q *dictionaryRequest) error {
	body, err := q.ask(ctx, t, e.url)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	withdrawn, recall := p.library.state(r)
	var status errStatus
	switch {
	case err == nil && !recall.IsZero() && q.begun.After(recall):
		err = errClaim{recalled, q.path}
	case err == nil:
		err = p.dictionaries.add(e.name, q, body)
	case !withdrawn.IsZero() && errors.As(err, &status) && status == http.StatusGone:
		p.notes.request(e.name, q.begun, nil)
		return err
	default:
		err = fmt.Errorf("%s: %w", q.path, err)
	}
	p.notes.request(e.name, q.begun, err)
	return err
}

// judgeDictionaries asks each entrance for the delta of the newest release of each package, until all have the same one. Larder
// makes deltas when nothing is left to recompress, so it waits for that first, and makes those of the newest releases first.
func (p *play) judgeDictionaries(ctx context.Context) check {
	const name = "each entrance has the same delta for clients with a dictionary"
	var wrong []string
	if err := awaitFalling(ctx, startSoon, func() (int, error) { return p.backlog(ctx) }); err != nil {
		wrong = append(wrong, "contents that wait for recompression at the leader: "+err.Error())
	}
	pairs := 0
	for i := range packages {
		from, to := p.newestPair(packageName(i))
		if to == nil {
			continue
		}
		pairs++
		if len(wrong) == 0 { // else the others would take as long
			wrong = p.awaitDeltas(ctx, from, to)
		}
	}
	if pairs == 0 {
		wrong = append(wrong, "no package has a release and the one before")
	}
	return verdict(name, fmt.Sprintf("%d pairs of releases; deltas: %s", pairs, &p.dictionaries), wrong)
}

// newestPair returns the newest release of a package that the registry released and that is published, and the one before, if
// their minor versions follow one another; else an older pair. Without any, both are nil.
func (p *play) newestPair(pkg string) (from, to *release) {
	live := p.library.choose(func(r *release, _ map[string]time.Time) bool {
		return r.pkg == pkg && strings.HasPrefix(r.version, "1.") && !r.acknowledged.IsZero() && r.withdrawn.IsZero()
	})
	minor := func(r *release) (n int) { _, _ = fmt.Sscanf(r.version, "1.%d", &n); return n }
	for _, to := range live { // the newest first
		if from := before(to, live); from != nil && minor(from)+1 == minor(to) {
			return from, to
		}
	}
	return nil, nil
}

// firstDeltas is how long the rehearsal's start may wait for deltas. While it runs there is always something to recompress.
const firstDeltas = 5 * time.Minute

// awaitFirstDeltas waits until each entrance has deltas of the first releases, so that clients get some while processes are
// killed. It waits for at most a quarter of the rehearsal's length, since a short one can do without.
func (p *play) awaitFirstDeltas(ctx context.Context) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, min(p.length/4, firstDeltas))
	defer cancel()
	err := awaitFalling(ctx, startSoon, func() (int, error) { return p.backlog(ctx) })
	for i := 0; i < packages && err == nil; i++ {
		if from, to := p.newestPair(packageName(i)); to != nil && len(p.awaitDeltas(ctx, from, to)) > 0 {
			err = ctx.Err()
		}
	}
	if err != nil {
		p.tell("Not all first releases had deltas when the events began.")
		return
	}
	p.tell(fmt.Sprintf("The first releases had deltas after %v.", time.Since(begun).Round(time.Second)))
}

// String says how many responses were deltas at each entrance.
func (n *dictionaryNotes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var said []string
	for _, entrance := range slices.Sorted(maps.Keys(n.uses)) {
		use := n.uses[entrance]
		said = append(said, fmt.Sprintf("%s %d of %d, %.1f %% of the files' bytes", entrance, use.deltas, use.requests, 100*float64(use.bytes)/float64(max(1, use.instead))))
	}
	return strings.Join(said, ", ")
}

// backlog returns how many contents wait for recompression at the leader.
func (p *play) backlog(ctx context.Context) (int, error) {
	leader := p.writer(ctx)
	if leader == nil {
		return 0, errors.New("no node leads")
	}
	_, said, err := leader.askPrivate(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	_, value, ok := strings.Cut(said, "\nlarder_bot_squeeze_backlog ")
	if !ok {
		return 0, fmt.Errorf("%s has no metric of them", leader.name)
	}
	value, _, _ = strings.Cut(value, "\n")
	return strconv.Atoi(value)
}

// awaitFalling waits until a value is 0. It returns an error if the value does not become smaller for the time stall.
func awaitFalling(ctx context.Context, stall time.Duration, read func() (int, error)) error {
	least, changed := -1, time.Now()
	for {
		value, err := read()
		switch {
		case err == nil && value == 0:
			return nil
		case err == nil && (least < 0 || value < least):
			least, changed = value, time.Now()
		case time.Since(changed) > stall:
			return fmt.Errorf("%d, and not fewer for %v (%v)", value, stall, err) //nolint:errorlint // it may be nil
		}
		if err := sleep(ctx, looks); err != nil {
			return err
		}
	}
}

// awaitDeltas waits until each entrance sends a delta between two releases, and returns what is wrong. It does not wait for an entrance whose deltas
// may be late: it compares the delta of such an entrance only if that sends one already.
func (p *play) awaitDeltas(ctx context.Context, from, to *release) (wrong []string) {
	dictionary := content(from.pkg, from.version, similarFile)
	var first []byte
	for _, e := range p.entrances {
		if e.fallback {
			continue
		}
		t := p.transport(e)
		var body []byte
		var err error
		absent := false
		waitErr := eventually(ctx, e.name+" has the delta", func() bool {
			q := &dictionaryRequest{path: to.path(similarFile), want: content(to.pkg, to.version, similarFile), accept: browserCodings}
			q.available, q.dictionary = availableDictionary(sha256.Sum256(dictionary)), dictionary
			body, err = q.ask(ctx, t, e.url)
			absent = e.lateDeltas && err == nil && !q.delta
			return absent || err == nil && q.delta || err != nil && causeOf(err) == wrongBytes
		})
		t.CloseIdleConnections()
		if absent {
			continue
		}
		if first == nil {
			first = body
		}
		switch {
		case waitErr != nil || err != nil:
			return append(wrong, fmt.Sprintf("%v from %s at %s: %v", to, from.version, e.name, errors.Join(waitErr, err)))
		case !bytes.Equal(body, first):
			wrong = append(wrong, fmt.Sprintf("%v from %s: %s has another delta than %s", to, from.version, e.name, p.entrances[0].name))
		}
	}
	return wrong
}
