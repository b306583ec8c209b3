package signing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// The power fails at a random moment, while releases are published, squeezed and signed, and
// any part of what was not synced is lost. Then every release that was answered as published
// is there, every checkpoint that was handed out is the log's, and the log goes on.
// LARDER_TEST_SWEEP is the number of rounds.
func TestPowerFailures(t *testing.T) {
	rounds := 12
	if n, err := strconv.Atoi(os.Getenv("LARDER_TEST_SWEEP")); err == nil {
		rounds = n
	}
	var releases, squeezed, checkpoints int
	for round := range uint64(rounds) {
		p := &power{T: t, rng: rand.New(rand.NewPCG(round, 15)), published: make(map[int]int64)}
		p.disk = vfs.NewCrashableMem()
		if err := errors.Join(p.disk.MkdirAll("/d/keys", 0o700), disk.SyncFolder(p.disk, "/"), disk.SyncFolder(p.disk, "/d")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			p.live()
			if t.Failed() {
				t.Fatalf("round %d", round)
			}
		}
		p.open()
		p.close()
		releases, squeezed, checkpoints = releases+len(p.published), squeezed+p.squeezed, checkpoints+p.handed
	}
	t.Logf("%d rounds with 3 power failures each: %d releases, %d contents squeezed and %d checkpoints handed out before them, and all there after them",
		rounds, releases, squeezed, checkpoints)
}

// power is a data folder and a key folder on one disk, and what clients know of them.
type power struct {
	*testing.T
	rng  *rand.Rand
	disk *vfs.MemFS

	store  *kvstore.Store
	log    *logs.Log
	signer *signing.Signer
	key    string // that signed first

	mu        sync.Mutex
	published map[int]int64 // entries of the releases that were answered as published
	seen      signing.Signed
	next      int // release
	squeezed  int
	handed    int
}

// live opens everything, looks whether it is all there, and works until the power fails.
func (p *power) live() {
	p.open()
	if p.Failed() {
		return
	}
	ctx, end := context.WithCancel(p.Context())
	var work sync.WaitGroup
	work.Go(func() { p.signer.Run(ctx) })
	for worker := range uint64(2) {
		work.Go(func() { p.publishUntil(ctx) })
		rng := rand.New(rand.NewPCG(p.rng.Uint64(), worker))
		work.Go(func() { p.squeezeUntil(ctx, rng) })
	}
	work.Go(func() { p.readUntil(ctx) })
	time.Sleep(time.Duration(p.rng.IntN(20_000)) * time.Microsecond)

	// What clients know by now has to last.
	p.mu.Lock()
	published := make(map[int]int64, len(p.published))
	for n, entry := range p.published {
		published[n] = entry
	}
	seen, next := p.seen, p.next
	p.mu.Unlock()
	after := p.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 80, 100}[p.rng.IntN(5)], RNG: p.rng})

	end()
	work.Wait()
	p.close()
	p.disk, p.published, p.seen, p.next = after, published, seen, next+100 // beyond what may have been published meanwhile
}

// open opens what is on the disk, which has to be all that clients know of.
func (p *power) open() {
	o := kvstore.Options{FS: p.disk, CacheBytes: 1 << 20, MemTableBytes: int64(64+p.rng.IntN(512)) << 10, MinFreeBytes: -1, Mark: "/d/keys/mark"}
	var err error
	if p.store, err = kvstore.Open("/d/store", o); err != nil {
		p.Fatal(err)
	}
	if p.log, err = logs.Open(p.store); err != nil {
		p.Fatal(err)
	}
	p.signer, err = signing.Open(signing.Options{Dir: "/d/keys", FS: p.disk, Store: p.store, Log: p.log, Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.Fatal(err)
	}
	p.wantSeen()
	for n, entry := range p.published {
		p.wantRelease(n, entry)
	}
	if c, err := logs.Verify(p.store); err != nil || c != p.log.Checkpoint() {
		p.Errorf("the log: %v, %v", c, err)
	}
	// The log goes on, with the signature of the key that there was.
	p.publish(p.next)
	p.next++
	if err := p.signer.Sign(); err != nil {
		p.Error(err)
	}
	if held, now := p.signer.SignedInStore(), p.log.Checkpoint(); held != now {
		p.Errorf("%v is signed, and the log is at %v", held, now)
	}
	if p.key == "" {
		p.key = p.signer.Key()
	} else if p.signer.Key() != p.key {
		p.Errorf("the key is %s, and was %s", p.signer.Key(), p.key)
	}
}

func (p *power) close() {
	if err := errors.Join(p.signer.Close(), p.store.Close()); err != nil {
		p.Error(err)
	}
}

// wantSeen fails unless the last checkpoint that was handed out is one of the log, of which
// the key folder knows.
func (p *power) wantSeen() {
	signed, err := p.signer.Checkpoint()
	if err != nil || signed.Size < p.seen.Size {
		p.Errorf("a checkpoint of %d entries was handed out, now it is %d, %v", p.seen.Size, signed.Size, err)
	}
	if p.seen.Size == 0 {
		return
	}
	if size := p.log.Checkpoint().Size; size < p.seen.Size {
		p.Errorf("the log has %d entries, and %d were signed", size, p.seen.Size)
		return
	}
	if root, err := tlog.TreeHash(p.seen.Size, logs.Hashes(p.store)); err != nil || root != p.seen.Root {
		p.Errorf("the log of %d entries is another one than was handed out: %v", p.seen.Size, err)
	}
	verifier, err := note.NewVerifier(p.key)
	if err != nil {
		p.Fatal(err)
	}
	for _, signed := range []signing.Signed{p.seen, signed} {
		if _, err := note.Open(signed.Note, note.VerifierList(verifier)); err != nil {
			p.Error(err)
		}
	}
}

// filesOfRelease returns the files of release n.
func filesOfRelease(n int) map[string][]byte {
	files := make(map[string][]byte)
	for i := range 1 + n%3 {
		files[fmt.Sprintf("%d.js", i)] = bytes.Repeat(fmt.Appendf(nil, "the %d. line of release %d;\n", i, n), 50+(n*37+i*101)%500)
	}
	return files
}

// wantRelease fails unless a release is there with its bytes, as its entry says.
func (p *power) wantRelease(n int, index int64) {
	version := fmt.Sprint(n)
	v, err := views.LookupVersion(p.store, "lib", version)
	if err != nil || v.Entry != index {
		p.Errorf("release %d was published in entry %d: %+v, %v", n, index, v, err)
		return
	}
	entry, err := logs.ReadEntry(p.store, index)
	if err == nil {
		_, err = views.Load(p.store, entry)
	}
	if err != nil || entry.Version != version || entry.Kind != logs.Published {
		p.Errorf("release %d: entry %d is %+v, %v", n, index, entry, err)
	}
	for path, want := range filesOfRelease(n) {
		f, err := views.LookupFile(p.store, "lib", version, path)
		if err != nil {
			p.Errorf("release %d: %s: %v", n, path, err)
			continue
		}
		content, err := p.store.Content(f.Hash)
		if err != nil {
			p.Errorf("release %d: %s: %v", n, path, err)
			continue
		}
		for _, r := range content.Representations {
			_, coded, err := p.store.Coded(f.Hash, r.Coding)
			if err == nil {
				coded, err = coding.Decode(r.Coding, coded, content.Size)
			}
			if err != nil || !bytes.Equal(coded, want) {
				p.Errorf("release %d: %s in %s: %v", n, path, r.Coding, err)
			}
		}
	}
}

func (p *power) publishUntil(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		n := p.next
		p.next++
		p.mu.Unlock()
		p.publish(n)
	}
}

// publish publishes release n and tells the client.
func (p *power) publish(n int) {
	version := fmt.Sprint(n)
	m := &logs.Manifest{Package: "lib", Version: version, Released: noon, Source: logs.Source{Type: "import", Name: "lib"}}
	put := func(data []byte, c coding.Coding) {
		coded, err := coding.Encode(c, coding.Quick, data)
		if err == nil {
			err = p.store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: c, Bytes: coded}})
		}
		if err != nil {
			p.Error(err)
		}
	}
	for path, data := range filesOfRelease(n) {
		put(data, coding.Identity)
		m.Files = append(m.Files, logs.File{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream})
	}
	encoded, err := m.Encode()
	if err != nil {
		p.Error(err)
		return
	}
	put(encoded, coding.Gzip)
	entry := logs.Entry{Kind: logs.Published, Manifest: kvstore.Sum(encoded), Package: "lib", Version: version, Released: noon, Time: noon, Actor: "operator"}
	err = p.log.Update(func(tx *logs.Tx) error { return views.Record(tx, views.Change{Entry: entry, Manifest: m}) })
	if err != nil {
		p.Errorf("release %d: %v", n, err)
		return
	}
	v, err := views.LookupVersion(p.store, "lib", version)
	if err != nil {
		p.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published[n] = v.Entry
}

// squeezeUntil gives contents that were published smaller codings.
func (p *power) squeezeUntil(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(50 * time.Microsecond)
		p.mu.Lock()
		n := rng.IntN(p.next)
		_, published := p.published[n]
		p.mu.Unlock()
		if !published {
			continue
		}
		for _, data := range filesOfRelease(n) {
			coded, err := coding.Encode(coding.Gzip, coding.Quick, data)
			if err == nil {
				err = p.store.ImproveContent(kvstore.Sum(data), int64(len(data)), true, []kvstore.Coded{{Coding: coding.Gzip, Bytes: coded}})
			}
			if err != nil {
				p.Error(err)
			}
			p.mu.Lock()
			p.squeezed++
			p.mu.Unlock()
		}
	}
}

// readUntil is a client that reads checkpoints.
func (p *power) readUntil(ctx context.Context) {
	for ctx.Err() == nil {
		signed, err := p.signer.Checkpoint()
		if err != nil {
			p.Error(err)
		}
		p.mu.Lock()
		if signed.Size < p.seen.Size {
			p.Errorf("a checkpoint of %d entries after one of %d", signed.Size, p.seen.Size)
		}
		if signed.Size > p.seen.Size {
			p.seen = signed
			p.handed++
		}
		p.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
	}
}
