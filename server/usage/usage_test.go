package usage

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
)

// A clock is moved by the test.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// next has the next day begin, as Run does.
func (c *clock) next(t *testing.T, u *Usage) {
	t.Helper()
	save(t, u)
	c.at = c.at.AddDate(0, 0, 1)
	save(t, u)
}

// noon of a day on which nothing turns.
func noon() *clock { return &clock{time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)} }

func openStore(t testing.TB, fs vfs.FS, readOnly bool) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open("data", kvstore.Options{FS: fs, MinFreeBytes: -1, ReadOnly: readOnly})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

func ask(u *Usage, pkg, version, path string, times int, bytes int64) {
	c := u.File(pkg, version, pkg+"/"+version+"/"+path)
	for range times {
		c.CountRequest()
		c.CountSent(bytes)
	}
}

func save(t *testing.T, u *Usage) {
	t.Helper()
	if err := u.Save(); err != nil {
		t.Fatal(err)
	}
}

func of(t *testing.T, u *Usage, pkg, version string, days int) *Report {
	t.Helper()
	r, err := u.ReportOn(pkg, version, days)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Days) != min(days, MostDays) {
		t.Fatalf("%d days were asked for, and %d are there", days, len(r.Days))
	}
	return r
}

func wantTotal(t *testing.T, u *Usage, pkg, version string, days int, want Amount) {
	t.Helper()
	if got := of(t, u, pkg, version, days).Total; got != want {
		t.Errorf("%s %s in %d days: %v, want %v", pkg, version, days, got, want)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-3*math.Max(math.Abs(a), math.Abs(b)) }

func TestCounts(t *testing.T) {
	c, fs := noon(), vfs.NewMem()
	store := openStore(t, fs, false)
	u := Open(Options{Store: store, Now: c.now})
	ask(u, "vue", "3.0.0", "vue.js", 3, 100)
	ask(u, "vue", "2.0.0", "vue.js", 2, 10)
	ask(u, "vue-router", "2.0.0", "x.js", 7, 1)
	wantTotal(t, u, "vue", "", 1, Amount{5, 320}) // before they are written
	save(t, u)
	wantTotal(t, u, "vue", "", 1, Amount{5, 320})
	ask(u, "vue", "3.0.0", "vue.css", 1, 0)
	wantTotal(t, u, "vue", "3.0.0", 1, Amount{4, 300}) // written and not
	c.next(t, u)
	ask(u, "vue", "3.0.0", "vue.js", 10, 1)
	save(t, u)
	for range 2 {
		if got := of(t, u, "vue", "3.0.0", 3).Days; !slices.Equal(got, []Amount{{}, {4, 300}, {10, 10}}) {
			t.Errorf("the days are %v", got)
		}
		wantTotal(t, u, "vue", "", 1, Amount{10, 10})
		wantTotal(t, u, "nothing", "", MostDays, Amount{})
		versions, err := u.Versions("vue", 2)
		if err != nil || !slices.Equal(versions, []Version{{"3.0.0", Amount{14, 310}}, {"2.0.0", Amount{2, 20}}}) {
			t.Errorf("the versions are %v (%v)", versions, err)
		}
		if files := u.Files("vue"); len(files) != 3 || files[0].Path != "vue.js" || files[0].Version != "3.0.0" || files[0].Requests < 12.9 {
			t.Errorf("the files are %+v", files)
		}
		if got, want := u.Popularity("vue"), 6*decay(1)+10; !near(got, want) {
			t.Errorf("the popularity is %v, want %v", got, want)
		}
		// And all that survives a restart.
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = openStore(t, fs, false)
		u = Open(Options{Store: store, Now: c.now})
	}
}

// What was counted before midnight belongs to the day before, wherever the months end.
func TestDaysTurn(t *testing.T) {
	c := &clock{time.Date(2026, 2, 28, 23, 59, 59, 0, time.UTC)}
	u := Open(Options{Store: openStore(t, vfs.NewMem(), false), Now: c.now})
	ask(u, "vue", "3.0.0", "vue.js", 3, 1)
	c.at = c.at.Add(2 * time.Second)
	save(t, u)
	ask(u, "vue", "3.0.0", "vue.js", 4, 1)
	if got := of(t, u, "vue", "", 2); !slices.Equal(got.Days, []Amount{{3, 3}, {4, 4}}) || got.From.Format(time.DateOnly) != "2026-02-28" || got.To.Format(time.DateOnly) != "2026-03-01" {
		t.Errorf("from %v to %v there are %v", got.From, got.To, got.Days)
	}
}

// All days of two years are there, and no more than 25 months; a clock that was wrong for a moment costs one of them at most.
func TestTwoYears(t *testing.T) {
	c, store := noon(), openStore(t, vfs.NewMem(), false)
	u := Open(Options{Store: store, Now: c.now})
	for day := range 900 {
		ask(u, "vue", fmt.Sprintf("3.%d.0", day%3), "vue.js", day%7+1, 2)
		ask(u, "old", "1.0.0", "old.js", 1, 1)
		c.next(t, u)
	}
	r := of(t, u, "vue", "", MostDays)
	for i, got := range r.Days[:len(r.Days)-1] {
		day := 900 - (len(r.Days) - 1) + i
		if want := uint64(day%7 + 1); got != (Amount{want, 2 * want}) {
			t.Fatalf("on day %d there is %v, want %d", day, got, want)
		}
	}
	months := map[string]bool{}
	size := 0
	for item, err := range store.Scan(kvstore.Usage, kvstore.Range{Prefix: []byte{kindVersion}}) {
		if err != nil {
			t.Fatal(err)
		}
		months[string(item.Key[:3])] = true
		size += len(item.Key) + len(item.Value)
	}
	if len(months) != mostMonths {
		t.Errorf("%d months are kept, want %d", len(months), mostMonths)
	}
	if perDay := size / (2 * mostMonths * 30); perDay > 8 {
		t.Errorf("a release takes %d bytes a day", perDay)
	}
	before := of(t, u, "old", "", MostDays).Total.Requests
	right := c.at
	c.at = right.AddDate(60, 0, 0)
	save(t, u)
	ask(u, "vue", "3.0.0", "vue.js", 1, 1)
	save(t, u)
	c.at = right
	save(t, u)
	ask(u, "vue", "3.0.0", "vue.js", 1, 1)
	save(t, u)
	if after := of(t, u, "old", "", MostDays).Total.Requests; before-after > 31 {
		t.Errorf("a clock that was wrong once took %d days of %d", before-after, before)
	}
}

func TestPopularityFades(t *testing.T) {
	c, fs := noon(), vfs.NewMem()
	store := openStore(t, fs, false)
	u := Open(Options{Store: store, Now: c.now})
	ask(u, "vue", "3.0.0", "vue.js", 8, 1)
	save(t, u)
	c.at = c.at.AddDate(0, 0, 30)
	save(t, u)
	if got := u.Popularity("vue"); !near(got, 4) {
		t.Errorf("after 30 days the popularity is %v, want 4", got)
	}
	c.at = c.at.AddDate(0, 0, -1) // the clock is set back
	save(t, u)
	if got := u.Popularity("vue"); !near(got, 4) {
		t.Errorf("with the clock set back it is %v, want 4", got)
	}
	if got := Open(Options{Store: store, Now: c.now}).Popularity("vue"); !near(got, 8*decay(29)) {
		t.Errorf("after a restart it is %v, want %v", got, 8*decay(29))
	}
}

// Between two writes nothing is written without a request, and what could not be written is not lost.
func TestFailedSaveIsTriedAgain(t *testing.T) {
	fs := vfs.NewMem()
	openStore(t, fs, false).Close()
	store := openStore(t, fs, true)
	c := noon()
	u := Open(Options{Store: store, Now: c.now})
	ask(u, "vue", "3.0.0", "vue.js", 3, 1)
	for range 2 {
		if u.Save() == nil {
			t.Fatal("a store that can only be read was written")
		}
		wantTotal(t, u, "vue", "", 1, Amount{3, 3})
		c.at = c.at.AddDate(0, 0, 1)
		wantTotal(t, u, "vue", "", 2, Amount{3, 3})
		c.at = c.at.AddDate(0, 0, -1)
	}
}

func TestNothingIsWrittenWithoutRequests(t *testing.T) {
	store := openStore(t, vfs.NewMem(), false)
	u := Open(Options{Store: store, Now: noon().now})
	u.File("vue", "3.0.0", "vue/3.0.0/vue.js")
	save(t, u)
	for range store.Scan(kvstore.Usage, kvstore.Range{}) {
		t.Fatal("a row was written without a request")
	}
}

// Memory is bounded where nothing can be written, whatever is asked for.
func TestMemoryIsBounded(t *testing.T) {
	u := Open(Options{Store: openStore(t, vfs.NewMem(), false), Now: noon().now})
	for i := range mostFresh + 3*mostPending {
		u.File("p", fmt.Sprint(i), fmt.Sprintf("p/%d/x.js", i)).CountRequest()
		if len(u.pending) > mostPending {
			t.Fatalf("%d counters wait", len(u.pending))
		}
	}
	if len(u.fresh) != mostFresh || u.lost == 0 || len(u.topFiles.heap) != maxTopFiles {
		t.Errorf("%d counts, %d files, and %d lost", len(u.fresh), len(u.topFiles.heap), u.lost)
	}
}

func TestDamagedRows(t *testing.T) {
	c, store := noon(), openStore(t, vfs.NewMem(), false)
	batch := store.NewBatch()
	month := monthOf(dayOf(c.at))
	batch.Set(kvstore.Usage, packageKey(month, "vue"), []byte{rowFormat, 40, 1, 1})
	batch.Set(kvstore.Usage, versionKey(month, release{"vue", "3.0.0"}), []byte{9})
	batch.Set(kvstore.Usage, []byte{kindTopFiles}, []byte{rowFormat, 1, 200})
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	u := Open(Options{Store: store, Now: c.now, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "damaged") {
		t.Errorf("the log says %q", log.String())
	}
	ask(u, "vue", "3.0.0", "vue.js", 2, 1)
	save(t, u)
	wantTotal(t, u, "vue", "", 1, Amount{2, 2})
	wantTotal(t, u, "vue", "3.0.0", 1, Amount{2, 2})
}

// Counting, writing and looking at once loses nothing and counts nothing twice.
func TestCountingTogether(t *testing.T) {
	u := Open(Options{Store: openStore(t, vfs.NewMem(), false)})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { u.Run(ctx) })
	files := make([]*Counter, 5)
	for i := range files {
		files[i] = u.File("p", fmt.Sprint(i), fmt.Sprintf("p/%d/x.js", i))
	}
	var counting sync.WaitGroup
	for range 4 {
		counting.Go(func() {
			last := uint64(0)
			for i := range 5000 {
				files[i%5].CountRequest()
				files[i%5].CountSent(3)
				if i%500 == 0 {
					if err := u.Save(); err != nil {
						t.Error(err)
					}
				}
				if i%100 == 0 {
					r, err := u.ReportOn("p", "", 2)
					if err != nil || r.Total.Requests < last || r.Total.Requests > 20000 {
						t.Errorf("%v requests after %d (%v)", r.Total, last, err)
						return
					}
					last = r.Total.Requests
				}
			}
		})
	}
	counting.Wait()
	cancel()
	wg.Wait()
	wantTotal(t, u, "p", "", 2, Amount{20000, 60000})
}

// slowDisk is a file system whose syncs wait while slow is locked.
type slowDisk struct {
	vfs.FS
	slow sync.RWMutex
}

func (d *slowDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return slowFile{f, d}, err
}

type slowFile struct {
	vfs.File
	disk *slowDisk
}

func (f slowFile) wait() {
	f.disk.slow.RLock()
	defer f.disk.slow.RUnlock()
}

func (f slowFile) Sync() error     { f.wait(); return f.File.Sync() }
func (f slowFile) SyncData() error { f.wait(); return f.File.SyncData() }

// logFunc is called with each line of a log.
type logFunc func()

func (f logFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

// A report neither waits for a save nor counts wrongly what that writes: before its rows are in the store, and when they are, while they
// are not on the disk yet.
func TestReportWhileSaving(t *testing.T) {
	disk := &slowDisk{FS: vfs.NewMem()}
	store := openStore(t, disk, false)
	c := noon()
	var u *Usage
	wantNow := func(when string, want Amount) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if r, err := u.ReportOn("vue", "", 1); err != nil || r.Total != want {
				t.Errorf("%s: %v (%v), want %v", when, r, err, want)
			}
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the report waits", when)
		}
	}
	damaged := 0
	u = Open(Options{Store: store, Now: c.now, Logger: slog.New(slog.NewTextHandler(logFunc(func() {
		damaged++
		wantNow("before the rows are written", Amount{2, 2})
	}), nil))})
	batch := store.NewBatch()
	batch.Set(kvstore.Usage, packageKey(monthOf(dayOf(c.at)), "vue"), []byte("damaged")) // which is logged while rows are made
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	batch.Close()
	ask(u, "vue", "3.0.0", "vue.js", 2, 1)
	save(t, u)
	if damaged != 1 {
		t.Fatalf("%d lines are logged", damaged)
	}

	ask(u, "vue", "3.0.0", "vue.js", 3, 1)
	disk.slow.Lock()
	saved := make(chan error)
	go func() { saved <- u.Save() }()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if row, err := u.readDaily(packageKey(monthOf(dayOf(c.at)), "vue")); err == nil && row[c.at.Day()-1].Requests == 5 {
			break
		}
	}
	wantNow("before the rows are on the disk", Amount{5, 5})
	disk.slow.Unlock()
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	wantTotal(t, u, "vue", "", 1, Amount{5, 5})
}

func TestCountingAllocatesNothing(t *testing.T) {
	u := Open(Options{Store: openStore(t, vfs.NewMem(), false)})
	c := u.File("p", "1", "p/1/x.js")
	c.CountRequest()
	if n := testing.AllocsPerRun(100, func() { c.CountRequest(); c.CountSent(9) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// With many more files than are counted, the most requested ones are found, and how much is known to a bound.
func TestTopFiles(t *testing.T) {
	w := newTopFiles(1000)
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 100_000)
	exact := map[string]float64{}
	total := 0.0
	for range 300_000 {
		name := fmt.Sprint("p/1/", zipf.Uint64())
		exact[name]++
		total++
		w.add(name, 1)
	}
	top := slices.SortedFunc(maps.Keys(exact), func(a, b string) int { return int(exact[b] - exact[a]) })[:100]
	found := 0
	for _, f := range w.all()[:100] {
		if slices.Contains(top, f.name) {
			found++
		}
		if real := exact[f.name]; real > f.count || real < f.count-f.over || f.over > total/1000 {
			t.Errorf("%s was asked for %v times; known are %v, too high by at most %v", f.name, real, f.count, f.over)
		}
	}
	if found < 95 {
		t.Errorf("%d of the 100 most requested files are found", found)
	}
}

func FuzzRow(f *testing.F) {
	d := daily{0: {1, 2}, 30: {1 << 40, 1 << 60}}
	f.Add(d.encode())
	w := newTopFiles(4)
	w.add("p/1/x.js", 3)
	w.add("p/1/y.js", 1)
	f.Add(w.encode(20000))
	f.Add([]byte{rowFormat, 32, 1, 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		if d, err := decodeDaily(value); err == nil {
			if again, err := decodeDaily(d.encode()); err != nil || again != d {
				t.Fatalf("%v became %v (%v)", d, again, err)
			}
		}
		w := newTopFiles(8)
		if err := w.decode(value, 20000); err != nil {
			return
		}
		for _, f := range w.all() {
			if !(0 <= f.count) || f.over > f.count || math.IsInf(f.count, 0) {
				t.Fatalf("%+v", f)
			}
		}
	})
}

// BenchmarkSave is for as many packages and versions as the public service has, all asked for within a minute.
func BenchmarkSave(b *testing.B) {
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	u := Open(Options{Store: store})
	var counters []*Counter
	for i := range 4118 {
		for k := range 20 {
			pkg, version := fmt.Sprintf("package-%d", i), fmt.Sprintf("1.%d.0", k)
			counters = append(counters, u.File(pkg, version, pkg+"/"+version+"/dist/index.min.js"))
		}
	}
	for b.Loop() {
		for _, c := range counters {
			c.CountRequest()
			c.CountSent(1000)
		}
		if err := u.save(false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	u := Open(Options{Store: openStore(b, vfs.NewMem(), false)})
	c := u.File("p", "1", "p/1/x.js")
	for b.Loop() {
		c.CountRequest()
		c.CountSent(1000)
	}
}
