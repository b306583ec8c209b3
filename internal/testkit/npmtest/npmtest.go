// Package npmtest runs an npm registry on loopback for tests: real packuments with times, tags, ETags and
// integrity, real tarballs, scopes, credentials, and every fault that a real registry has on bad days.
//
// It is for tests only and knows nothing of the code it tests.
package npmtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Registry is a running registry. It is safe for concurrent use.
type Registry struct {
	// URL is the registry's address, without a slash at its end.
	URL string

	server *httptest.Server
	done   chan struct{}

	mu       sync.Mutex
	packages map[string]*pkg
	tarballs map[string][]byte // by path
	attested map[string][]byte // what is answered for attestations, by NAME@VERSION
	keys     []byte            // what is answered where keys are published; nil for nothing
	token    string
	faults   []*Fault
	requests []Request
	changes  []string      // names of packages, in the order in which they changed
	quiet    bool          // no more changes count
	changed  chan struct{} // closed, and replaced, when there are more
}

type pkg struct {
	versions map[string]map[string]any
	times    map[string]string
	tags     map[string]string
	raw      []byte // served instead of all that
}

// Request is one request that came.
type Request struct {
	// Path is as it came, escapes included.
	Path   string
	Query  string
	Header http.Header
	// Status is what was answered, 0 where the connection was cut.
	Status int
}

// Fault is something that goes wrong.
type Fault struct {
	// Path says for which requests: those whose escaped path has it as a prefix.
	Path string
	// Times is how often it happens; 0 means always.
	Times int
	// Status is answered instead, with RetryAfter as the header of that name.
	Status     int
	RetryAfter string
	// Redirect is where the client is sent instead.
	Redirect string
	// Truncate cuts the connection in the middle of the body.
	Truncate bool
	// Body is answered instead, as if all was well.
	Body string
	// Garble changes a byte in the middle of the body.
	Garble bool
	// Hang answers with half of the body and then nothing until the client or the registry closes.
	Hang bool
	// Silent answers with nothing at all until the client or the registry closes.
	Silent bool
	// Drip answers a byte at a time, and never to the end.
	Drip bool
	// Reset breaks the connection off in place of an answer.
	Reset bool

	happened int
}

// Start starts a registry; Close ends it. Tests in Go have New.
func Start() *Registry {
	r := &Registry{packages: make(map[string]*pkg), tarballs: make(map[string][]byte), attested: make(map[string][]byte), done: make(chan struct{}), changed: make(chan struct{})}
	r.server = httptest.NewServer(r)
	r.URL = r.server.URL
	return r
}

// New starts a registry that ends with the test.
func New(t testing.TB) *Registry {
	t.Helper()
	r := Start()
	t.Cleanup(r.Close)
	return r
}

// Close ends the registry.
func (r *Registry) Close() {
	close(r.done)
	r.server.Close()
}

// Env gives the environment ("NAME=value") in which npm's configuration is this registry and nothing
// else, whatever the user's .npmrc says. dir is an empty folder to use.
func (r *Registry) Env(dir string) []string {
	return []string{
		"npm_config_registry=" + r.URL + "/",
		"npm_config_userconfig=" + filepath.Join(dir, "userconfig"),
		"npm_config_globalconfig=" + filepath.Join(dir, "globalconfig"),
	}
}

// Environ returns the environment of this process with that of [Registry.Env] in place of its npm configuration, for
// processes of a test that runs in parallel and may not call [Registry.Setenv].
func (r *Registry) Environ(dir string) []string {
	environ := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(strings.ToLower(variable), "npm_config_")
	})
	return append(environ, r.Env(dir)...)
}

// Setenv makes the registry npm's configured one for the test, and for processes that it starts.
func (r *Registry) Setenv(t testing.TB) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(strings.ToLower(name), "npm_config_") {
			t.Setenv(name, value) // so that it is restored
			os.Unsetenv(name)
		}
	}
	for _, variable := range r.Env(t.TempDir()) {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}

// Option changes what Add publishes.
type Option func(*release)

type release struct {
	tarball    []byte
	dist       map[string]any
	deprecated any
	keys       []*Key
	bundle     []byte
	publish    []byte
}

// Tarball publishes these bytes instead of a tarball of the files.
func Tarball(data []byte) Option { return func(r *release) { r.tarball = data } }

// Dist sets a property of the version's "dist" ("integrity", "tarball"…), or removes it where the value
// is nil.
func Dist(name string, value any) Option { return func(r *release) { r.dist[name] = value } }

// Deprecated deprecates the version.
func Deprecated(message string) Option { return func(r *release) { r.deprecated = message } }

// Add publishes a version of a package, at that time, with files by their path in the package. A
// package.json is made where none is given. The tag "latest" moves to it.
func (r *Registry) Add(name, version string, published time.Time, files map[string]string, options ...Option) {
	p := &release{dist: make(map[string]any)}
	for _, option := range options {
		option(p)
	}
	if p.tarball == nil {
		p.tarball = Pack(name, version, files)
	}
	at := "/" + name + "/-/" + path.Base(name) + "-" + version + ".tgz"
	weak, strong := sha1.Sum(p.tarball), sha512.Sum512(p.tarball)
	dist := map[string]any{
		"tarball":   r.URL + at,
		"shasum":    hex.EncodeToString(weak[:]),
		"integrity": "sha512-" + base64.StdEncoding.EncodeToString(strong[:]),
		"fileCount": len(files),
	}
	for name, value := range p.dist {
		if value == nil {
			delete(dist, name)
		} else {
			dist[name] = value
		}
	}
	if len(p.keys) > 0 {
		dist["signatures"] = sign(p.keys, name, version, dist)
	}
	if p.bundle != nil {
		dist["attestations"] = map[string]any{
			"url":        r.URL + attestationsPath + name + "@" + version,
			"provenance": map[string]any{"predicateType": provenanceType},
		}
	}
	manifest := map[string]any{"name": name, "version": version, "dist": dist}
	if p.deprecated != nil {
		manifest["deprecated"] = p.deprecated
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	entry := r.pkg(name)
	entry.versions[version] = manifest
	entry.times[version] = published.UTC().Format("2006-01-02T15:04:05.000Z")
	entry.tags["latest"] = version
	r.tarballs[at] = p.tarball
	if p.bundle != nil {
		r.attested[name+"@"+version] = attestations(p.bundle, p.publish)
	}
	r.change(name)
}

func (r *Registry) pkg(name string) *pkg {
	entry, ok := r.packages[name]
	if !ok {
		entry = &pkg{versions: make(map[string]map[string]any), times: make(map[string]string), tags: make(map[string]string)}
		r.packages[name] = entry
	}
	return entry
}

// Tag sets a dist-tag.
func (r *Registry) Tag(name, tag, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pkg(name).tags[tag] = version
}

// SetPackument serves these bytes as a package's packument, whatever they are.
func (r *Registry) SetPackument(name string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pkg(name).raw = data
}

// Remove takes a version back; its tarball stays.
func (r *Registry) Remove(name, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pkg(name).versions, version)
}

// RemovePackage takes a whole package back, so that there is no packument.
func (r *Registry) RemovePackage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.packages, name)
}

// RequireToken answers 401 from now on where this bearer token is missing.
func (r *Registry) RequireToken(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token = token
}

// Fail makes a fault happen. Of several that apply to a request, the first one added does.
func (r *Registry) Fail(fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &fault)
}

// ClearFaults removes all faults.
func (r *Registry) ClearFaults() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

// Requests gives the requests so far, in order.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.requests...)
}

// Count is how many requests came for paths that begin with prefix.
func (r *Registry) Count(prefix string) int {
	n := 0
	for _, request := range r.Requests() {
		if strings.HasPrefix(request.Path, prefix) {
			n++
		}
	}
	return n
}

// ServeHTTP answers as a registry does.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.awaitChange(request)
	answer := r.answer(request)
	r.mu.Lock()
	r.requests = append(r.requests, Request{Path: request.URL.EscapedPath(), Query: request.URL.RawQuery, Header: request.Header.Clone(), Status: answer.status})
	r.mu.Unlock()
	for name, value := range answer.header {
		w.Header().Set(name, value)
	}
	switch {
	case answer.reset:
		reset(w)
		return
	case answer.silent:
		r.hang(request)
	case answer.drip:
		r.drip(w, request, answer.body)
	}
	if answer.status == 0 || answer.hang { // half of the body, then the end, or nothing
		w.Header().Set("Content-Length", strconv.Itoa(len(answer.body)))
		w.Write(answer.body[:len(answer.body)/2])
		w.(http.Flusher).Flush()
		if answer.hang {
			r.hang(request)
		}
		panic(http.ErrAbortHandler)
	}
	if answer.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer.body)))
	}
	w.WriteHeader(answer.status)
	w.Write(answer.body)
}

// hang waits for the client or the registry to close, and cuts the connection.
func (r *Registry) hang(request *http.Request) {
	select {
	case <-r.done:
	case <-request.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// drip answers a byte at a time, all but the last.
func (r *Registry) drip(w http.ResponseWriter, request *http.Request, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	for _, b := range body[:len(body)-1] {
		w.Write([]byte{b})
		w.(http.Flusher).Flush()
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.done:
			panic(http.ErrAbortHandler)
		case <-request.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	r.hang(request)
}

// reset breaks the connection off.
func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(fmt.Sprintf("npmtest: %v", err))
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

type answer struct {
	status int // 0: cut off
	hang   bool
	silent bool
	drip   bool
	reset  bool
	header map[string]string
	body   []byte
}

func (r *Registry) answer(request *http.Request) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	fault := r.fault(request.URL.EscapedPath())
	switch {
	case fault.Silent || fault.Reset:
		return answer{silent: fault.Silent, reset: fault.Reset}
	case fault.Redirect != "":
		return answer{status: http.StatusFound, header: map[string]string{"Location": fault.Redirect}}
	case fault.Status != 0:
		return answer{status: fault.Status, header: map[string]string{"Retry-After": fault.RetryAfter}, body: []byte("a fault\n")}
	case r.token != "" && request.Header.Get("Authorization") != "Bearer "+r.token:
		return answer{status: http.StatusUnauthorized, header: map[string]string{"WWW-Authenticate": "Bearer"}}
	case request.Method != http.MethodGet && request.Method != http.MethodHead:
		return answer{status: http.StatusMethodNotAllowed}
	}
	if request.URL.Path == changesPath && fault.Body == "" {
		return answer{status: http.StatusOK, header: map[string]string{"Content-Type": "application/json"}, body: r.feed(request)}
	}
	body, kind, ok := r.content(request.URL.Path)
	if !ok {
		return answer{status: http.StatusNotFound, header: map[string]string{"Content-Type": "application/json"}, body: []byte(`{"error":"not found"}`)}
	}
	sum := sha256.Sum256(body)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	header := map[string]string{"ETag": etag, "Content-Type": kind}
	if request.Header.Get("If-None-Match") == etag {
		return answer{status: http.StatusNotModified, header: header}
	}
	if fault.Body != "" {
		body = []byte(fault.Body)
	}
	if fault.Garble {
		body = bytes.Clone(body)
		body[len(body)/2] ^= 0x20
	}
	status := http.StatusOK
	if fault.Truncate {
		status = 0
	}
	return answer{status: status, hang: fault.Hang, drip: fault.Drip, header: header, body: body}
}

// fault finds the fault for a request, and counts it.
func (r *Registry) fault(path string) Fault {
	for _, fault := range r.faults {
		if strings.HasPrefix(path, fault.Path) && (fault.Times == 0 || fault.happened < fault.Times) {
			fault.happened++
			return *fault
		}
	}
	return Fault{}
}

func (r *Registry) content(path string) (body []byte, kind string, ok bool) {
	if tarball, ok := r.tarballs[path]; ok {
		return tarball, "application/octet-stream", true
	}
	if path == keysPath {
		return r.keys, "application/json", r.keys != nil
	}
	if of, ok := strings.CutPrefix(path, attestationsPath); ok {
		return r.attested[of], "application/json", r.attested[of] != nil
	}
	name := strings.TrimPrefix(path, "/")
	entry, ok := r.packages[name]
	if !ok {
		return nil, "", false
	}
	if entry.raw != nil {
		return entry.raw, "application/json", true
	}
	body, err := json.Marshal(map[string]any{
		"_id": name, "name": name, "dist-tags": entry.tags, "versions": entry.versions, "time": entry.times,
		"readme": "# " + name,
	})
	if err != nil {
		panic(fmt.Sprintf("npmtest: %s: %v", name, err))
	}
	return body, "application/json", true
}
