package verify_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
)

// maxPeak is what a hostile server may take a client to, in bytes.
const maxPeak = 256 << 20

const (
	hostileFile  = "/ajax/libs/vue/3.0.0/vue.js"
	partialTile  = "/log/tile/0/000.p/5"
	entriesTile  = "/log/tile/entries/000.p/5"
	liveVue      = "/log/live/vue/3.0.0"
	childRequest = "LARDER_TEST_HOSTILE_CLIENT"
)

// A clientRun is what the child is to do, and what came of it.
type clientRun struct {
	Server, Key string
	Address     string // of the file
	Timeout     time.Duration
	All         bool

	Outcome verify.Outcome
	Problem string
	Peak    int64 // resident memory, in bytes; 0 where the system does not tell
}

// TestHostileClient verifies a file in a process of its own, whose memory is the measure.
func TestHostileClient(t *testing.T) {
	path := os.Getenv(childRequest)
	if path == "" {
		t.Skip("it is a part of TestHostile")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var run clientRun
	if err := json.Unmarshal(data, &run); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), run.Timeout)
	defer cancel()
	_, name, err := verify.ParseURL(run.Address)
	if err != nil {
		t.Fatal(err)
	}
	o := verify.Options{Server: run.Server, Trust: verify.Trust{Key: run.Key}, All: run.All}
	if o.Trust.Key == "" {
		o.Trust.Key, err = verify.FetchKey(ctx, o)
	}
	var l *verify.Log
	if err == nil {
		l, err = verify.Open(ctx, o)
	}
	if err != nil {
		run.Outcome, run.Problem = verify.OutcomeOf(err), err.Error()
	} else {
		r := l.VerifyURL(ctx, run.Address, name)
		run.Outcome, run.Problem = r.Outcome, r.Problem
	}
	run.Peak = peak()
	if data, err = json.Marshal(run); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// peak is the most memory that this process has had. The kernel counts it from the
// program's start on, other than what getrusage says.
func peak() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")
	n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return n << 10
}

// client runs a verification in a child process.
func (r *rig) client(run clientRun) clientRun {
	r.Helper()
	path := filepath.Join(r.TempDir(), "run")
	data, err := json.Marshal(run)
	if err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		r.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostileClient$")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") || strings.HasPrefix(v, "GOGC=") }), childRequest+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("the client failed: %v\n%s", err, out)
	}
	if data, err = os.ReadFile(path); err == nil {
		err = json.Unmarshal(data, &run)
	}
	if err != nil {
		r.Fatal(err)
	}
	return run
}

// endless sends a piece until the client leaves.
func endless(piece string, headers ...string) http.HandlerFunc {
	block := []byte(strings.Repeat(piece, 1+(64<<10)/len(piece)))
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
}

// drip sends a byte now and then.
func drip(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		w.Write([]byte("a"))
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// silent never answers.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// body sends a body, with headers.
func body(data []byte, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.Write(data)
	}
}

// wire takes over the connection: it writes the first text once, and then the second one
// for ever, or closes where that is "".
func wire(once, forever string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, once)
		for err == nil && forever != "" {
			_, err = io.WriteString(conn, forever)
		}
	}
}

// changed tells a lie in a proof of what is live.
func changed(change func(*tiles.LiveProof)) lie {
	return func(status int, _ http.Header, body []byte) (int, []byte) {
		var p tiles.LiveProof
		if err := json.Unmarshal(body, &p); err != nil {
			return http.StatusTeapot, nil
		}
		change(&p)
		data, err := json.Marshal(p)
		if err != nil {
			return http.StatusTeapot, nil
		}
		return status, data
	}
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	}
}

// gzipped is n zeros.
func gzipped(n int) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	zeros := make([]byte, 1<<20)
	for range n >> 20 {
		w.Write(zeros)
	}
	w.Close()
	return b.Bytes()
}

// brotliBomb is 256 MiB of zeros.
const brotliBomb = "z///fwAkAOKxQHLv//n//w+ABEAcFoDu/T////8BkACIwwLQvf/n//8/ABIAcVgAuvf//P//B0ACIA4LQPf+n////w" +
	"BIAMRhAeje//P//x8ACYA4LADd+3/+//8DIAEQhwWge//P//9/ACQA4rAAdO//+f//D4AEQBwWgO79P////wGQAIjD" +
	"AtC9/+f//z8AEgBxWAC69//8//8HQAIgDgtA9/6f////AEgAxGEB6N7/8///HwAJgDgsAN37f/7//wMgARCHBaB7/z" +
	"8="

// signManifest has the log publish a manifest of any bytes, as a hostile operator can.
func (r *rig) signManifest(data []byte) {
	r.Helper()
	h := kvstore.Sum(data)
	e := logs.Entry{Kind: logs.Published, Actor: "bot", Package: "evil", Version: "1.0.0", Manifest: h}
	if m, err := logs.DecodeManifest(data); err == nil {
		e.Files = m.Root()
	}
	r.append(1, e)
	r.sign()
	r.raw[tiles.ContentPath(r.Log.Checkpoint().Size-1, h)] = body(data)
}

// files is the text of a manifest of evil 1.0.0 around what is in its lists.
func manifestOf(list, inside string) []byte {
	return []byte(`{"format":1,"package":"evil","version":"1.0.0","` + list + `":` + inside + `}`)
}

func listOf(element string, size int) string {
	return "[" + strings.Repeat(element+",", size/(len(element)+1)) + element + "]"
}

// TestHostile has servers that lie to exhaust the client. Nothing of it is ever proven, and
// the client's memory stays within its bound. A client that never ends fails the test.
func TestHostile(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("the memory is measured on Linux only")
	}
	bomb, err := base64.StdEncoding.DecodeString(brotliBomb)
	if err != nil {
		t.Fatal(err)
	}
	zip := bytes.Repeat(gzipped(1<<26), 16) // gzip reads members that follow one another as one
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(func() {
		other.Close()
		if n := elsewhere.Load(); n > 0 {
			t.Errorf("another host got %d requests", n)
		}
	})
	at := func(path string, h http.HandlerFunc) func(*rig) { return func(r *rig) { r.raw[path] = h } }
	signed := func(data []byte) func(*rig) { return func(r *rig) { r.signManifest(data) } }
	big := func(r *rig) { // a file as large as no disk
		r.signManifest(manifestOf("files", fmt.Sprintf(`[{"path":"vue.js","size":%d,"sha256":"%s","sri":"%s"}]`, int64(1)<<60, kvstore.Sum(nil), logs.SumSRI(nil))))
	}
	sized := func(size int64) func(*rig) {
		return func(r *rig) {
			r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, logs.Checkpoint{Size: size, Root: tlog.Hash{1}}, r.key()))
		}
	}
	manySignatures := func(n int) func(*rig) {
		return func(r *rig) {
			note := r.open(r.options()).Note()
			r.raw["/log/checkpoint"] = body(append(note, strings.Repeat("— x AAAAAAAA\n", n)...))
		}
	}
	large := func(r *rig) { // over what is read in any case, so that the server is asked
		r.append(5000, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
		r.sign()
	}
	const evil, vue = "/ajax/libs/evil/1.0.0/vue.js", hostileFile
	const (
		refused = iota // before the time is over
		late           // only the time ends it
		useless        // the client does without it
		noKey          // as refused, and the client has to ask for the key
	)
	type hostileCase struct {
		name  string
		setUp func(*rig)
		file  string
		end   int
	}
	cases := []hostileCase{
		{"a manifest of 60 MB of {}", signed(manifestOf("files", listOf("{}", 60<<20))), evil, refused},
		{"a manifest of 31 MB of {}", signed(manifestOf("files", listOf("{}", 31<<20))), evil, refused},
		{"a manifest of 31 MB of nothing left out", signed(manifestOf("leftOut", listOf("0", 31<<20))), evil, refused},
		{"a manifest of 31 MB of empty notes", signed(manifestOf("notes", listOf(`""`, 31<<20))), evil, refused},
		{"a manifest of one long note", signed(manifestOf("notes", `["`+strings.Repeat("a", 31<<20)+`"]`)), evil, refused},
		{"a manifest of long paths", signed(manifestOf("files", listOf(`{"path":"`+strings.Repeat("a", 240)+`"}`, 31<<20))), evil, refused},
		{"a manifest of escapes", signed(manifestOf("notes", `["`+strings.Repeat(`\u2028`, 5<<20)+`"]`)), evil, refused},
		{"a manifest that nests deeply", signed(manifestOf("files", strings.Repeat("[", 31<<20))), evil, refused},
		{"a manifest that nests deeply in what nobody reads", signed(manifestOf("x", strings.Repeat(`{"x":`, 6<<20))), evil, refused},
		{"a huge file that ends", big, evil, refused},
		{"a huge file that does not end", func(r *rig) { big(r); r.raw[evil] = endless("a") }, evil, late},
		{"a huge file in a gzip bomb", func(r *rig) { big(r); r.raw[evil] = endless(string(zip), "Content-Encoding", "gzip") }, evil, late},
		{"entries as large as they can be", func(r *rig) {
			r.append(2048, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: strings.Repeat("1", 16000)})
			r.sign()
			r.raw[vue] = endless("a")
		}, vue, refused},
		{"sizes near the largest integer", sized(1<<63 - 1), vue, refused},
		{"a size that would take for ever", sized(1 << 40), vue, refused},
		{"signatures, 100,000 of them", manySignatures(100_000), vue, refused},
		{"signatures, 4,000 of them", manySignatures(4000), vue, refused},
		{"the key without end", at("/log/key", endless("a")), vue, noKey},
		{"changes of the key, many", at("/log/keys", body([]byte(`{"changes":`+listOf("{}", 1000_000)+`}`))), vue, useless},
		{"changes of the key, nested", at("/log/keys", body([]byte(strings.Repeat(`{"changes":[`, 80_000)))), vue, refused},
		{"the proof of what is live without end", func(r *rig) { large(r); r.raw[liveVue] = endless("[") }, vue, refused},
		{"the proof of what is live, a byte now and then", func(r *rig) { large(r); r.raw[liveVue] = drip }, vue, late},
		{"the proof of what is live in a gzip bomb", func(r *rig) { large(r); r.raw[liveVue] = body(zip, "Content-Encoding", "gzip") }, vue, refused},
		{"the proof of what is live, nested", func(r *rig) { large(r); r.raw[liveVue] = body([]byte(strings.Repeat(`{"map":`, 30_000))) }, vue, refused},
		{"the proof of what is live with many entries", func(r *rig) {
			large(r)
			r.raw[liveVue] = body(fmt.Appendf(nil, `{"size":5005,"last":{"index":5004},"about":%s}`, listOf("{}", 250<<10)))
		}, vue, refused},
		{"the proof of what is live with a long path", func(r *rig) {
			large(r)
			r.lies[liveVue] = changed(func(p *tiles.LiveProof) { p.Map.Path = make([]kvstore.Hash, 3000) })
		}, vue, refused},
		{"the proof of what is live with long proofs", func(r *rig) {
			large(r)
			r.lies[liveVue] = changed(func(p *tiles.LiveProof) { p.Last.Proof = make(tlog.RecordProof, 4000) })
		}, vue, refused},
		{"the proof of what is live is one of integers", func(r *rig) {
			large(r)
			r.raw[liveVue] = body([]byte(`{"size":5005,"last":{"index":-9223372036854775808},"map":{"live":{"manifest":"","entry":99999999999999999999}}}`))
		}, vue, refused},
		{"a gzip bomb as a file", at(vue, body(zip, "Content-Encoding", "gzip")), vue, refused},
		{"a Brotli bomb as a file", at(vue, body(bomb, "Content-Encoding", "br")), vue, refused},
		{"a gzip bomb as the checkpoint", at("/log/checkpoint", body(zip, "Content-Encoding", "gzip")), vue, refused},
		{"a gzip bomb as a tile", at(partialTile, body(zip, "Content-Encoding", "gzip")), vue, refused},
		{"gzip that never says anything", at("/log/checkpoint", endless(string(gzipped(0)), "Content-Encoding", "gzip")), vue, late},
		{"a long error", at(vue, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusBadGateway)
			endless("a")(w, r)
		}), vue, refused},
		{"redirects in a circle", at(vue, redirect(vue)), vue, refused},
		{"redirects without end", at(vue, func(w http.ResponseWriter, r *http.Request) { redirect(vue+"?"+r.URL.RawQuery+"x")(w, r) }), vue, refused},
		{"a redirect to another host", at(vue, redirect(other.URL)), vue, refused},
		{"a redirect of the log to another host", at("/log/checkpoint", redirect(other.URL)), vue, refused},
		{"a redirect to a file", at(vue, redirect("file:///etc/hostname")), vue, refused},
		{"a redirect to the loopback", at(vue, redirect(strings.Replace(other.URL, "127.0.0.1", "localhost", 1))), vue, refused},
		{"a body that is shorter than it says", at(vue, wire("HTTP/1.1 200 OK\r\nContent-Length: 1520\r\n\r\nalert", "")), vue, refused},
		{"a body that is longer than it says", at(vue, wire("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "alert")), vue, refused},
		{"a length that is none", at(vue, wire("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "alert")), vue, refused},
		{"a length of exabytes", at("/log/checkpoint", wire("HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\n", strings.Repeat("a", 4096))), vue, refused},
		{"headers without end", at("/log/checkpoint", wire("HTTP/1.1 200 OK\r\n", "X-A: "+strings.Repeat("a", 4096)+"\r\n")), vue, refused},
		{"a header without end", at("/log/checkpoint", wire("HTTP/1.1 200 OK\r\nX-A: ", strings.Repeat("a", 4096))), vue, refused},
		{"103 without end", at("/log/checkpoint", wire("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")), vue, refused},
		{"chunks with long extensions", at("/log/checkpoint", wire("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("a", 1000)+"\r\na\r\n")), vue, refused},
		{"trailers without end", at("/log/checkpoint", wire("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: "+strings.Repeat("a", 4096)+"\r\n")), vue, refused},
		{"a status line without end", at("/log/checkpoint", wire("HTTP/1.1 404 ", strings.Repeat("a", 4096))), vue, refused},
		{"silence", at("/log/checkpoint", silent), vue, late},
	}
	for what, path := range map[string]string{"checkpoint": "/log/checkpoint", "keys": "/log/keys", "tile": partialTile, "entries": entriesTile, "file": vue} {
		cases = append(cases, hostileCase{what + " without end", at(path, endless("a")), vue, refused}, hostileCase{what + ", a byte now and then", at(path, drip), vue, late})
	}
	slices.SortFunc(cases, func(a, b hostileCase) int { return strings.Compare(a.name, b.name) })
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := stocked(t)
			tt.setUp(r)
			run := clientRun{Server: r.server.URL, Key: r.signer.Key(), Address: r.server.URL + tt.file, Timeout: time.Minute}
			switch tt.end {
			case late:
				run.Timeout = time.Second
			case noKey:
				run.Key = ""
			}
			got := r.client(run)
			r.server.CloseClientConnections()
			t.Logf("%d MB, %s: %s", got.Peak>>20, got.Outcome, got.Problem)
			switch {
			case tt.end == useless && got.Outcome == verify.Proven:
			case got.Outcome != verify.Unproven && got.Outcome != verify.Differs || got.Problem == "" || len(got.Problem) > 2000:
				t.Errorf("%s: %s", got.Outcome, got.Problem)
			case tt.end != late && strings.Contains(got.Problem, "deadline"):
				t.Errorf("nothing but the time ends it: %s", got.Problem)
			}
			if got.Peak > maxPeak && !raceDetector { // whose shadow memory counts
				t.Errorf("the client took %d MB, the limit is %d", got.Peak>>20, maxPeak>>20)
			}
		})
	}
}

// TestLargeManifest is as large as that of an archive with the most files that are let in.
func TestLargeManifest(t *testing.T) {
	m := logs.Manifest{Package: "evil", Version: "1.0.0", Released: now}
	for i := range 75_000 {
		m.Files = append(m.Files, logs.File{Path: fmt.Sprintf("dist/esm/icons/a-rather-long-name-of-an-icon-%d.js", i), Size: int64(len(alert)), SHA256: kvstore.Sum([]byte(alert)), SRI: logs.SumSRI([]byte(alert)), Origin: logs.Upstream})
	}
	m.Files[0].Path = "vue.js"
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r := stocked(t)
	r.signManifest(data)
	const path = "/ajax/libs/evil/1.0.0/vue.js"
	r.raw[path] = body([]byte(alert))
	got := r.client(clientRun{Server: r.server.URL, Key: r.signer.Key(), Address: r.server.URL + path, Timeout: time.Minute})
	t.Logf("%d bytes, %d MB", len(data), got.Peak>>20)
	if got.Outcome != verify.Proven || got.Peak > maxPeak && !raceDetector {
		t.Errorf("%+v", got)
	}
}

// TestChangingTile has a server that does not answer twice the same.
func TestChangingTile(t *testing.T) {
	r := stocked(t)
	for _, path := range []string{partialTile, entriesTile} {
		var n atomic.Int64
		r.lies[path] = func(status int, header http.Header, body []byte) (int, []byte) {
			if n.Add(1)%2 == 0 {
				return flip(status, header, body)
			}
			return status, body
		}
		for range 4 {
			if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Proven && got.Outcome != verify.Differs {
				t.Errorf("%s: %+v", path, got)
			}
		}
		delete(r.lies, path)
	}
}

// TestRedirectOnTheSameHost is followed, as browsers do.
func TestRedirectOnTheSameHost(t *testing.T) {
	r := stocked(t)
	r.raw[hostileFile] = func(w http.ResponseWriter, request *http.Request) {
		if request.URL.RawQuery == "" {
			redirect(hostileFile+"?again")(w, request)
			return
		}
		w.Write([]byte(alert))
	}
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Errorf("%+v", got)
	}
}
