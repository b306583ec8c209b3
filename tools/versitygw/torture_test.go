package versitygw

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/views"
)

// Of a candidate's process.
const (
	memberVariable   = "LARDER_TEST_MEMBER" // its folder: then the test's binary is a candidate
	endpointVariable = "LARDER_TEST_MEMBER_ENDPOINT"
)

// released is a time that is the same in every process.
var released = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

// A member is a node of the test with its store.
type member struct {
	*cluster.Node
	store *kvstore.Store
	log   *logs.Log
}

func join(ctx context.Context, dir, endpoint string) (*member, error) {
	b, err := bucket.OpenS3(bucket.S3Options{Endpoint: endpoint, Name: bucketName, Prefix: "cdn"})
	if err != nil {
		return nil, err
	}
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		return nil, err
	}
	log, err := logs.Open(store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	n, err := cluster.Open(ctx, cluster.Options{
		Bucket: b, Store: store, Log: log, Origin: "torture.test/log", Bootstraps: true, URL: "https://" + filepath.Base(dir),
		CommitTimeout: 2 * time.Second, Rest: 20 * time.Millisecond, Beat: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &member{n, store, log}, nil
}

// write has the member write whenever no other does.
func (m *member) write(ctx context.Context) {
	leader := new(cluster.HeartbeatMonitor)
	for ctx.Err() == nil {
		if after, vacant := m.Follow(ctx, leader, nil); vacant && m.Lead(ctx, after) == nil {
			m.SendHeartbeats(ctx)
		}
	}
}

// publish publishes a release of one file.
func (m *member) publish(version string) error {
	data := []byte("file of " + version)
	manifest := &logs.Manifest{Package: "torture", Version: version, Released: released, Source: logs.Source{Type: "import", Name: "torture"}}
	manifest.Files = []logs.File{{Path: "a.js", Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream}}
	encoded, err := manifest.Encode()
	if err != nil {
		return err
	}
	for _, content := range [][]byte{data, encoded} {
		if err := m.store.PutContent(kvstore.Sum(content), int64(len(content)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: content}}); err != nil {
			return err
		}
	}
	return m.log.Update(func(tx *logs.Tx) error {
		return views.Record(tx, views.Change{Manifest: manifest, Entry: logs.Entry{
			Kind: logs.Published, Time: released, Actor: "operator", Package: "torture", Version: version, Released: released, Manifest: kvstore.Sum(encoded),
		}})
	})
}

// work is a candidate's process: it publishes whenever it leads, and tells what was acknowledged.
func work(dir string) error {
	ctx := context.Background()
	var m *member
	for m == nil {
		var err error
		if m, err = join(ctx, dir, os.Getenv(endpointVariable)); err != nil {
			fmt.Fprintln(os.Stderr, filepath.Base(dir), err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	go m.write(ctx)
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(time.Now().UnixNano())))
	for {
		if !m.Leads() {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		version := fmt.Sprintf("1.%d.%d", os.Getpid(), r.Uint32())
		if err := m.publish(version); err == nil {
			fmt.Println(version)
		} else {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// A candidate is a process that may write.
type candidate struct {
	t     *testing.T
	dir   string
	front string
	cmd   *exec.Cmd
	heard func(version string)
	done  chan struct{}
}

func (c *candidate) start() {
	c.t.Helper()
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), memberVariable+"="+c.dir, endpointVariable+"="+c.front)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.heard(lines.Text())
		}
	}()
}

func (c *candidate) kill() {
	c.cmd.Process.Kill()
	<-c.done
	c.cmd.Wait()
}

// meddling has a store that fails as stores do: it answers 500, answers 500 after it has stored, or
// closes the connection after it has stored.
func meddling(often *atomic.Int64) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fault := rand.Int64N(max(often.Load(), 1))
			if often.Load() == 0 || fault > 2 {
				next.ServeHTTP(w, r)
				return
			}
			if fault > 0 {
				next.ServeHTTP(discard{http.Header{}}, r)
			}
			if fault == 2 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusInternalServerError)
		})
	}
}

// discard is a client that has gone.
type discard struct{ header http.Header }

func (d discard) Header() http.Header            { return d.header }
func (d discard) Write(data []byte) (int, error) { return len(data), nil }
func (d discard) WriteHeader(int)                {}

// Three candidates publish while writers are killed and stopped for longer than every time limit, the
// gateway is killed and stopped, and its answers are lost. In the end there is one commit for each
// number, and every node that follows them has each publication that was acknowledged.
//
// LARDER_TEST_COMMITS=10000 is the whole test; without, it is a few commits and one of each fault.
func TestTorture(t *testing.T) {
	t.Parallel()
	commits, whole := 60, false
	if n, err := strconv.Atoi(os.Getenv("LARDER_TEST_COMMITS")); err == nil {
		commits, whole = n, true
	}
	var often atomic.Int64
	g := newGateway(t, folder(t), false)
	endpoint := front(t, meddling(&often), g).URL
	var mu sync.Mutex
	acked := map[string]string{} // and by whom
	changed := make(chan struct{}, 1)
	var last string
	var candidates []*candidate
	for i := range 3 {
		c := &candidate{t: t, dir: filepath.Join(t.TempDir(), fmt.Sprint("node-", i)), front: endpoint}
		c.heard = func(version string) {
			mu.Lock()
			defer mu.Unlock()
			acked[version], last = c.dir, c.dir
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		candidates = append(candidates, c)
		c.start()
	}
	t.Cleanup(func() {
		for _, c := range candidates {
			c.cmd.Process.Signal(syscall.SIGCONT)
			c.kill()
		}
	})
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	// until waits for so many acknowledged publications.
	until := func(n int) {
		t.Helper()
		for count() < n {
			select {
			case <-changed:
			case <-t.Context().Done():
				t.Fatal("the cluster does not publish any more")
			}
		}
	}
	writer := func() *candidate {
		mu.Lock()
		defer mu.Unlock()
		return candidates[slices.IndexFunc(candidates, func(c *candidate) bool { return c.dir == last })]
	}
	faults := []func(){
		func() { often.Store(30) }, // from here on
		func() { c := writer(); c.kill(); c.start() },
		func() { g.kill(); g.start() },
		func() { // stopped until another writes
			c := writer()
			c.cmd.Process.Signal(syscall.SIGSTOP)
			for writer() == c && t.Context().Err() == nil {
				<-changed
			}
			c.cmd.Process.Signal(syscall.SIGCONT)
		},
		func() { // the gateway, for longer than a request may take
			g.cmd.Process.Signal(syscall.SIGSTOP)
			if whole {
				time.Sleep(12 * time.Second)
			}
			g.cmd.Process.Signal(syscall.SIGCONT)
		},
	}
	until(5)
	step := max(commits/(2*len(faults)), 5)
	if whole {
		step = 100
	}
	for n := 0; count() < commits || n < len(faults); n++ {
		faults[n%len(faults)]()
		until(count() + step)
	}
	for _, c := range candidates {
		c.kill()
	}
	often.Store(0)
	compareNodes(t, endpoint, candidates, acked)
}

// compareNodes has every node catch up, and an empty one, and compares their logs and stores.
func compareNodes(t *testing.T, endpoint string, candidates []*candidate, acked map[string]string) {
	t.Helper()
	var first logs.Checkpoint
	dirs := []string{filepath.Join(t.TempDir(), "empty")}
	for _, c := range candidates {
		dirs = append(dirs, c.dir)
	}
	for i, dir := range dirs {
		m, err := join(t.Context(), dir, endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.CatchUp(t.Context()); err != nil {
			t.Fatal(dir, err)
		}
		if i == 0 {
			first = m.log.Checkpoint()
			number, _ := m.NextCommit()
			t.Logf("%d commits, %d entries, %d acknowledged", number, first.Size, len(acked))
		}
		if got := m.log.Checkpoint(); got != first {
			t.Errorf("%s has %v, and an empty node comes to %v", dir, got, first)
		}
		for version, by := range acked {
			if _, err := views.LookupVersion(m.store, "torture", version); err != nil {
				t.Errorf("%s lacks %s, which %s acknowledged: %v", dir, version, by, err)
			}
		}
		if _, err := check.Run(t.Context(), m.store, check.Options{Deep: true, Temp: t.TempDir()}, func(f check.Finding) { t.Errorf("%s: %+v", dir, f) }); err != nil {
			t.Error(err)
		}
		if err := m.store.Close(); err != nil {
			t.Error(err)
		}
	}
	b := open(t, endpoint)
	next := 0
	for o, err := range b.List(t.Context(), "commit/", "") {
		if err != nil {
			t.Fatal(err)
		}
		if number, err := strconv.Atoi(strings.TrimPrefix(o.Key, "commit/")); err != nil || number != next {
			t.Fatalf("%s follows commit %d", o.Key, next-1)
		}
		next++
	}
}
