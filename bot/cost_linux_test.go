package bot_test

import (
	"bufio"
	"compress/gzip"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A life is how a package of the simulated catalogue lives: the time between its releases, and how many it has.
type life struct {
	share    float64 // of all packages
	gap      time.Duration
	versions int
}

// lives are about those of a public CDN's catalogue. Packuments come to some 40 KB for the dormant ones, and to 1 MB and
// more for the busy ones.
var lives = []life{
	{0.60, 3 * 365 * 24 * time.Hour, 15},
	{0.25, 60 * 24 * time.Hour, 50},
	{0.10, 14 * 24 * time.Hour, 120},
	{0.04, 3 * 24 * time.Hour, 400},
	{0.01, 12 * time.Hour, 1500},
}

func lifeOf(i, of int) life {
	at, sum := (float64(i)+0.5)/float64(of), 0.0
	for _, l := range lives {
		if sum += l.share; at < sum {
			return l
		}
	}
	return lives[0]
}

// costRegistryArgument makes the test's program a registry of its own, so that its processor time is not the bot's.
const costRegistryArgument = "registry-of-many"

// costRegistry answers for packages p0, p1…, with entity tags, compressed.
type costRegistry struct {
	packages int
	now      time.Time
	sent     *atomic.Int64
	mu       sync.Mutex
	requests int64
	whole    int64
	moved    map[string][]time.Time // releases since the start
}

func costRegistryMain(packages int, now time.Time) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	r := &costRegistry{packages: packages, now: now, sent: new(atomic.Int64), moved: make(map[string][]time.Time)}
	fmt.Printf("http://%s\n", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
		os.Exit(0)
	}()
	panic(http.Serve(countingListener{l, r.sent}, r))
}

// countingListener counts what goes over its connections, in both directions.
type countingListener struct {
	net.Listener
	sent *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.sent}, err
}

type countingConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.sent.Add(int64(n))
	return n, err
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

type costCounts struct{ Requests, Whole, Bytes int64 }

func (r *costRegistry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := strings.TrimPrefix(request.URL.Path, "/")
	switch name {
	case "-/counts":
		_ = json.NewEncoder(w).Encode(costCounts{r.requests, r.whole, r.sent.Load()})
		return
	case "-/release":
		at, _ := strconv.ParseInt(request.FormValue("at"), 10, 64)
		r.moved[request.FormValue("name")] = append(r.moved[request.FormValue("name")], time.Unix(at, 0))
		return
	}
	r.requests++
	i, err := strconv.Atoi(strings.TrimPrefix(name, "p"))
	if err != nil {
		http.NotFound(w, request)
		return
	}
	etag := fmt.Sprintf(`"%d-%d"`, i, len(r.moved[name]))
	w.Header().Set("ETag", etag)
	if request.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	r.whole++
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Encoding", "gzip")
	zip := gzip.NewWriter(w)
	defer zip.Close()
	r.packument(zip, name, i)
}

func (r *costRegistry) packument(w io.Writer, name string, i int) {
	l := lifeOf(i, r.packages)
	random := rand.New(rand.NewPCG(uint64(i), 1))
	at := r.now.Add(-time.Duration(random.Int64N(int64(l.gap))))
	times := map[string]string{}
	for v := range l.versions {
		times[fmt.Sprintf("1.%d.0", l.versions-1-v)] = at.Add(-time.Duration(v) * l.gap).UTC().Format(time.RFC3339)
	}
	for n, at := range r.moved[name] {
		times[fmt.Sprintf("2.%d.0", n)] = at.UTC().Format(time.RFC3339)
	}
	versions := map[string]any{}
	for version := range times {
		dependencies := map[string]string{}
		for range 25 {
			dependencies[fmt.Sprintf("dependency-%d", random.IntN(1000))] = "^1.2.3"
		}
		versions[version] = map[string]any{
			"name": name, "version": version, "description": strings.Repeat("What it does. ", 5), "dependencies": dependencies,
			"dist": map[string]any{
				"tarball": "http://127.0.0.1/" + name + "/-/" + version + ".tgz", "shasum": fmt.Sprintf("%040x", random.Uint64()),
				"integrity":  fmt.Sprintf("sha512-%086x==", random.Uint64()),
				"signatures": []map[string]string{{"keyid": "SHA256:abc", "sig": fmt.Sprintf("%096x", random.Uint64())}},
			},
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client may be gone
		"_id": name, "name": name, "dist-tags": map[string]string{}, "versions": versions, "time": times, "readme": strings.Repeat("Read this. ", 700),
	})
}

// A visitHeap has packages by when they are due.
type visitHeap []dueVisit

type dueVisit struct {
	at   time.Time
	name string
}

func (h visitHeap) Len() int           { return len(h) }
func (h visitHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h visitHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *visitHeap) Push(x any)        { *h = append(*h, x.(dueVisit)) }
func (h *visitHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// TestCostOfLooking plays hours of looks at a catalogue against a registry that answers conditional requests: what is due
// is looked at by the bot as it is, only that the clock jumps from one look to the next. `make fresh` does it with 4,300
// packages.
func TestCostOfLooking(t *testing.T) {
	packages := 60
	if n, err := strconv.Atoi(os.Getenv("LARDER_TEST_PACKAGES")); err == nil {
		packages = n
	}
	r := newSequentialRig(t)
	address := startCostRegistry(t, packages, r.now)
	r.useRegistry(address)
	var due visitHeap
	for i := range packages {
		name := fmt.Sprintf("p%d", i)
		r.register(name, fromNpm(name, "*.js"))
		due = append(due, dueVisit{r.now, name})
	}
	r.open()
	look := r.bot.Polls()
	play := func(until time.Time) (looks int) {
		for due[0].at.Before(until) {
			v := heap.Pop(&due).(dueVisit)
			r.setNow(v.at)
			next, err := look(context.Background(), v.name)
			if err != nil {
				t.Fatal(err)
			}
			heap.Push(&due, dueVisit{next, v.name})
			looks++
		}
		r.setNow(until)
		return looks
	}
	begun := r.now
	play(begun.Add(2 * time.Hour)) // the first looks, until what was new is not

	counts := func() (c costCounts) {
		answer, err := http.Get(address + "/-/counts")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if err := json.NewDecoder(answer.Body).Decode(&c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	measure := func(what string, hour func() int) (looks int, c costCounts) {
		before, cpu := counts(), processorTime(t)
		looks = hour()
		used, after := processorTime(t)-cpu, counts()
		c = costCounts{after.Requests - before.Requests, after.Whole - before.Whole, after.Bytes - before.Bytes}
		t.Logf("%d packages, an hour in which %s: %d looks, %d requests, %d of them answered in whole, %.1f MB, %.1f s of processor time",
			packages, what, looks, c.Requests, c.Whole, float64(c.Bytes)/1e6, used.Seconds())
		return looks, c
	}
	looks, c := measure("nothing moves", func() int { return play(begun.Add(3 * time.Hour)) })
	if c.Whole > 0 || c.Requests != int64(looks) || looks < packages || looks > 3*packages {
		t.Errorf("%d looks, %+v", looks, c)
	}
	random := rand.New(rand.NewPCG(1, 2))
	_, c = measure("packages release as they use to, and change twice as often", func() (looks int) {
		for minute := range 60 {
			at := begun.Add(3*time.Hour + time.Duration(minute)*time.Minute)
			for i := range packages {
				if random.Float64() < 3*float64(time.Minute)/float64(lifeOf(i, packages).gap) {
					answer, err := http.Get(fmt.Sprintf("%s/-/release?name=p%d&at=%d", address, i, at.Unix()))
					if err != nil {
						t.Fatal(err)
					}
					answer.Body.Close()
				}
			}
			looks += play(at.Add(time.Minute))
		}
		return looks
	})
	if packages > 1000 && c.Whole == 0 {
		t.Error("nothing moved")
	}
}

func startCostRegistry(t *testing.T, packages int, now time.Time) (address string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], costRegistryArgument, strconv.Itoa(packages), strconv.FormatInt(now.Unix(), 10))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // however it ended
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func init() {
	if len(os.Args) == 4 && os.Args[1] == costRegistryArgument {
		packages, _ := strconv.Atoi(os.Args[2])
		now, _ := strconv.ParseInt(os.Args[3], 10, 64)
		costRegistryMain(packages, time.Unix(now, 0))
	}
}
