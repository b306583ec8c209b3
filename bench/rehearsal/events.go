package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bench/internal/assault"
	"github.com/larder-cdn/larder/bench/internal/stage"
)

const attacker = "127.0.0.2"

// allowEnd says what clients notice of a process that ends at once and begins again.
func (p *play) allowEnd(e *event, a *actor) {
	for _, name := range p.entrancesOf(a) {
		e.allow(name, refused, cut, unavailable) // 503 while it has yet to catch up
	}
	e.allow("proxy", cut) // of which a part was sent
	switch a {
	case p.nodes[2]:
		e.allow("room", refused, cut, unavailable)
	case p.mirror:
		e.allow("room", badGateway, unavailable, cut)
		e.allow("fallback", unavailable) // a release that was to come from there
	}
}

func (p *play) killOne(ctx context.Context, e *event) error {
	a := p.any(p.actors())
	p.allowEnd(e, a)
	e.What = a.name + " is killed"
	published := a == p.writer(ctx)
	if err := a.end(syscall.SIGKILL); err != nil {
		return err
	}
	if published {
		begun := time.Now()
		next, err := p.successor(ctx, a)
		if err != nil {
			return err
		}
		e.What += fmt.Sprintf(", which published; %s does %.1f s later", next.name, time.Since(begun).Seconds())
	}
	if err := sleep(ctx, time.Duration(1+p.random.IntN(5))*time.Second); err != nil {
		return err
	}
	return a.start(ctx)
}

// stopped is longer than every time limit that the nodes have of each other.
const stopped = 15 * time.Second

func (p *play) stopWriter(ctx context.Context, e *event) error {
	a := p.writer(ctx)
	if a == nil {
		return errors.New("no node publishes")
	}
	for _, name := range p.entrancesOf(a) {
		e.allow(name, timedOut, cut)
	}
	e.allow("proxy", cut, badGateway, timedOut) // of which a part was sent
	e.What = fmt.Sprintf("%s, which publishes, is stopped for %v", a.name, stopped)
	if err := a.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := sleep(ctx, stopped)
	if err := a.signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	next, err := p.successor(ctx, a)
	if err != nil {
		return err
	}
	e.What += "; " + next.name + " publishes"
	return nil
}

// successor waits for the node that publishes in the place of another one.
func (p *play) successor(ctx context.Context, of *actor) (next *actor, err error) {
	err = eventually(ctx, "another node publishes", func() bool {
		next = p.writer(ctx)
		return next != nil && next != of
	})
	return next, err
}

// leaves is how much the full disk has left: less than Larder needs to write.
const leaves = 64 << 20

func (p *play) fillDisk(ctx context.Context, e *event) error {
	if p.disk == "" {
		e.Skipped, e.What = true, "skipped: "+p.noDisk
		return nil
	}
	var free syscall.Statfs_t
	if err := syscall.Statfs(p.disk, &free); err != nil {
		return err
	}
	filler := filepath.Join(p.disk, "filler")
	f, err := os.Create(filler)
	if err != nil {
		return err
	}
	defer os.Remove(filler)
	defer f.Close()
	size := int64(free.Bavail)*free.Bsize - leaves
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return err
	}
	three := p.nodes[2]
	e.What = fmt.Sprintf("the disk of %s has %d MB left", three.name, leaves>>20)
	isFull := func(full bool) bool { // /readyz stays 200, because the node serves what it has
		_, said, err := three.askPrivate(ctx, "/readyz?publish")
		return err == nil && full == (strings.Contains(said, "are needed to write") || strings.Contains(said, "read-only"))
	}
	if err := eventually(ctx, three.name+" says that its disk is full", func() bool { return isFull(true) }); err != nil {
		return err
	}
	if err := sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	freed := time.Now()
	if err := os.Remove(filler); err != nil {
		return err
	}
	f.Close()
	if err := eventually(ctx, three.name+" goes on", func() bool { return three.ready(ctx) == nil && isFull(false) }); err != nil {
		return err
	}
	e.What += fmt.Sprintf("; ready %.0f s after it was freed", time.Since(freed).Seconds())
	return nil
}

// flipped is in how many tables a bit is flipped, the largest first.
const flipped = 3

// flipBits flips bits in the largest tables of a node's store, and heals the node as the documents say.
func (p *play) flipBits(ctx context.Context, e *event) error {
	a := p.any(p.nodes[1:])
	p.allowEnd(e, a)
	tables, err := flip(filepath.Join(a.data(), "store"), p.random.Float64())
	if err != nil {
		return err
	}
	e.What = fmt.Sprintf("a bit is flipped in %s of %s", strings.Join(tables, ", "), a.name)
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	// Beside the process fsck sees what that has in memory, and this is about the disk.
	if err := a.end(syscall.SIGTERM); err != nil {
		return err
	}
	if _, err := a.larder(ctx, "fsck", "--all", "--keys", a.keys()); err == nil {
		e.What += "; fsck finds nothing wrong, as none of it is in use any more"
		return a.start(ctx)
	}
	_, err = a.larder(ctx, append([]string{"repair", "--keys", a.keys(), "--from", "bucket", "--from", "upstream"}, p.bucketArgs...)...)
	if e.What += "; fsck finds it, and repair mends it from the bucket"; err != nil {
		// Such as a content that was withdrawn, which neither the bucket nor upstream has. To a node its store is nothing that it needs.
		lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
		e.What += ", but not all of it, so the node follows the bucket from nothing: " + lines[len(lines)-1]
		if err := os.RemoveAll(filepath.Join(a.data(), "store")); err != nil {
			return err
		}
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return removeAsides(a)
}

// flip flips a bit of the largest tables in a store's folder, at that part of each, and returns their names.
func flip(store string, at float64) (names []string, err error) {
	sizes := map[string]int64{}
	err = filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".sst" {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err == nil {
			sizes[path] = info.Size()
		}
		return ignoreGone(err)
	})
	tables := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	if err == nil && len(tables) == 0 {
		err = errors.New("the store has no table yet")
	}
	for _, table := range tables[:min(flipped, len(tables))] {
		err = errors.Join(err, ignoreGone(flipBit(table, int64(at*float64(sizes[table])))))
		names = append(names, filepath.Base(table))
	}
	return names, err
}

func flipBit(file string, offset int64) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, offset)
	b[0] ^= 0x10
	if err == nil {
		_, err = f.WriteAt(b, offset)
	}
	return errors.Join(err, f.Close())
}

// ignoreGone has a file that was deleted meanwhile be none.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (p *play) upgradeOne(ctx context.Context, e *event) error {
	a := p.any(p.actors())
	next := p.next
	if next == "" {
		next = p.larder
	}
	if err := copyFile(next, a.program); err != nil {
		return err
	}
	said, err := a.larder(ctx, "upgrade", "--json")
	if err != nil {
		return err
	}
	var to struct {
		PID     int    `json:"pid"`
		Version string `json:"version"`
	}
	if err := json.Unmarshal([]byte(said), &to); err != nil {
		return fmt.Errorf("larder upgrade --json: %w: %s", err, said)
	}
	e.What = fmt.Sprintf("%s is upgraded to %s", a.name, to.Version)
	if to.PID == a.getPID() {
		return errors.New("no other process has taken over")
	}
	a.setPID(to.PID)
	return nil
}

func (p *play) reloadOne(ctx context.Context, e *event) error {
	a := p.any(p.actors())
	e.What = a.name + " refuses a broken configuration, and takes up a mended one"
	pid := a.getPID()
	if err := os.WriteFile(a.config(), []byte(soundConfig+"sending: many\n"), 0o644); err != nil {
		return err
	}
	if _, err := a.larder(ctx, "reload"); err == nil {
		return errors.New("the broken configuration was taken up")
	} else if !strings.Contains(err.Error(), "larder.yaml:") {
		return fmt.Errorf("the message does not name the line: %w", err)
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	mended := strings.Replace(soundConfig, "48MiB", fmt.Sprintf("%dMiB", 40+p.random.IntN(16)), 1)
	if _, err := a.reload(ctx, mended); err != nil {
		return err
	}
	if a.getPID() != pid || gone(pid) {
		return errors.New("the process has ended")
	}
	return nil
}

// withdrawOne withdraws a release through any node, and measures how long it is still served where.
func (p *play) withdrawOne(ctx context.Context, e *event) error {
	live := p.library.live(0, "one", "two", "three", "mirror")
	if len(live) < 2*packages {
		e.What = "nothing: too few releases are there"
		return nil
	}
	return p.withdrawThrough(ctx, e, live[p.random.IntN(len(live))], p.any(p.nodes))
}

// withdrawThrough withdraws a release through a node, and returns when it is 410 at every entrance but the fallback's.
func (p *play) withdrawThrough(ctx context.Context, e *event, r *release, a *actor) error {
	p.library.withdraw(r, time.Now().Add(time.Hour)) // from now on it may be gone
	_, err := a.larder(ctx, "withdraw", r.pkg, r.version, "--reason", "a rehearsal")
	done := time.Now()
	if err != nil {
		return err
	}
	p.library.withdraw(r, done)
	e.What = fmt.Sprintf("%v is withdrawn through %s", r, a.name)
	var mu sync.Mutex
	var latest, bound time.Duration
	var at, late string
	var all sync.WaitGroup
	for _, x := range p.entrances {
		if x.fallback {
			continue
		}
		all.Go(func() {
			took, request, err2 := p.until410(ctx, x, r, done)
			mu.Lock()
			defer mu.Unlock()
			if err = errors.Join(err, err2); took > latest {
				latest, at, bound = took, x.name, withdrawalBound+requestsOfLook*request
			}
			if took > withdrawalBound+requestsOfLook*request {
				late = x.name
			}
		})
	}
	all.Wait()
	if err != nil {
		return err
	}
	p.library.recall(r)
	e.What += fmt.Sprintf("; 410 everywhere %d ms later", latest.Milliseconds())
	if latest > withdrawalBound {
		e.What += fmt.Sprintf(", where %s may take %d ms on so busy a machine", at, bound.Milliseconds())
	}
	if late != "" {
		return fmt.Errorf("%v is served at %s for longer than %v and %d requests after its withdrawal", r, late, withdrawalBound, requestsOfLook)
	}
	return nil
}

// requestsOfLook is about how many requests a mirror makes, one after the other, from its look for news to the end of a withdrawal. What they take on
// this machine, with all that runs on it, counts beside the bound: a millisecond each where nothing else runs.
const requestsOfLook = 10

// until410 is how long a file of a withdrawn release is served at an entrance, and how long a request takes there on average.
func (p *play) until410(ctx context.Context, x *entrance, r *release, since time.Time) (took, request time.Duration, err error) {
	t := p.transport(x)
	defer t.CloseIdleConnections()
	var last error
	var all, n time.Duration
	for deadline := since.Add(time.Minute); time.Now().Before(deadline); {
		asked := time.Now()
		q := &question{path: r.path(files[0]), want: content(r.pkg, r.version, files[0])}
		last = q.ask(ctx, t, x.url)
		all, n = all+time.Since(asked), n+1
		var status errStatus
		if errors.As(last, &status) && status == http.StatusGone {
			return max(0, asked.Sub(since)), all / n, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, fmt.Errorf("%v is not 410 at %s within a minute, but: %v", r, x.name, last)
}

func (p *play) loseBucket(ctx context.Context, e *event) error {
	lost := min(time.Minute, p.length/10)
	hang := p.random.IntN(2) == 0
	how := "does not answer"
	var lose, back func() error
	switch {
	case p.gateway == nil:
		lose, back = p.blockBucket, p.unblockBucket
	case hang:
		lose = func() error { return p.gateway.cmd.Process.Signal(syscall.SIGSTOP) }
		back = func() error { return p.gateway.cmd.Process.Signal(syscall.SIGCONT) }
	default:
		how = "refuses connections"
		lose = func() error { p.gateway.kill(); return nil }
		back = func() error { return p.gateway.start(ctx) }
	}
	e.What = fmt.Sprintf("the bucket %s for %v", how, lost.Round(time.Second))
	if err := lose(); err != nil {
		return err
	}
	err := sleep(ctx, lost)
	return errors.Join(back(), err)
}

// blockBucket puts a file in the way of each folder of the bucket that nodes write.
func (p *play) blockBucket() (err error) {
	for _, kind := range []string{"commit", "pack"} {
		at := filepath.Join(p.bucketFolder(), kind)
		err = errors.Join(err, os.Rename(at, at+".away"), os.WriteFile(at, nil, 0o600))
	}
	return err
}

func (p *play) unblockBucket() (err error) {
	for _, kind := range []string{"commit", "pack"} {
		at := filepath.Join(p.bucketFolder(), kind)
		err = errors.Join(err, os.Remove(at), os.Rename(at+".away", at))
	}
	return err
}

func (p *play) renewCertificate(ctx context.Context, e *event) error {
	a := p.any(p.nodes)
	host, _, _ := strings.Cut(a.address, ":")
	e.What = "the certificate of " + a.name + " is renewed"
	// The new one is known before it may be shown.
	folder, err := os.MkdirTemp(p.folder, "certificate-")
	if err != nil {
		return err
	}
	c, err := stage.Certificate(folder, host)
	if err != nil {
		return err
	}
	p.certificates.add(c)
	for _, name := range []string{"cert.pem", "key.pem"} {
		err = errors.Join(err, os.Rename(filepath.Join(folder, name), filepath.Join(a.folder, name)))
	}
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := eventually(ctx, "the new certificate is shown", func() bool {
		conn, err := tls.Dial("tcp", a.address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // compared
		if err != nil {
			return false
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Equal(c)
	}); err != nil {
		return err
	}
	e.What += fmt.Sprintf("; shown %.0f s later", time.Since(begun).Seconds())
	return nil
}

// attackOne has an attacker at one entrance, in one of the ways of `make attack`.
func (p *play) attackOne(ctx context.Context, e *event) error {
	big := (&release{pkg: packageName(0), version: "1.0.0"}).path(bigFile)
	attacks := []assault.Attack{
		{Do: assault.Slowly, Path: big, At: 200}, {Do: assault.Silent, At: 200}, {Do: assault.HalfHead, At: 200}, {Do: assault.Idle, Path: big, At: 200},
		{Do: assault.NoWindow, Path: big, At: 8}, {Do: assault.Again, Path: "/libraries", At: 16}, {Do: assault.Slowly, Path: "/logs/stream", At: 100},
	}
	a, to := attacks[p.random.IntN(len(attacks))], p.any(p.actors())
	if a.Do == assault.NoWindow || a.Do == assault.HalfHead {
		to = p.any(p.nodes)
	}
	a.From, a.Address, a.Secure, a.H2 = attacker, to.address, to.secure, a.Do == assault.NoWindow
	e.What = fmt.Sprintf("%s is attacked: %s %s, %d at a time", to.name, a.Do, a.Path, a.At)
	stop, err := assault.Launch(ctx, a)
	if err != nil {
		return err
	}
	defer stop()
	return sleep(ctx, 10*time.Second)
}

// moveClock is skipped: Larder takes the time from the machine, and this machine has others to serve.
func (p *play) moveClock(_ context.Context, e *event) error {
	e.Skipped, e.What = true, "skipped: Larder has no clock but the machine's, which is not the rehearsal's to move"
	return nil
}

// operate has an operator import releases through any node, until the context ends.
func (p *play) operate(ctx context.Context) {
	source := filepath.Join(p.folder, "import")
	for n := 0; ctx.Err() == nil; n++ {
		r := &release{pkg: packageName(n % packages), version: fmt.Sprintf("2.%d.0", n)}
		if a := p.nodes[n%len(p.nodes)]; a.getPID() != 0 {
			_ = p.importRelease(ctx, a, r, source) // which may fail while the node does, and then acknowledges nothing
		}
		if sleep(ctx, 8*time.Second) != nil {
			return
		}
	}
}
