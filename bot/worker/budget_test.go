package worker

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// Sixteen processors are kept busy by contents of the sizes that files of packages have: half of
// them below 5 kB, one in 2,500 between 5 and 25 MiB. With the default memory they are until only
// huge ones are left, with 2 GiB to the end. Time is virtual, and an encoder's is what its size takes.
func TestEncodersKeepProcessorsBusy(t *testing.T) {
	for _, tt := range []struct {
		memory   int64
		ordinary float64 // busy, until the last content of ordinary size has begun
		whole    float64
	}{{512 << 20, 0.9, 0}, {2 << 30, 0.9, 0.9}} {
		t.Run(fmt.Sprintf("%d MiB", tt.memory>>20), func(t *testing.T) { keepBusy(t, tt.memory, tt.ordinary, tt.whole) })
	}
}

func keepBusy(t *testing.T, memory int64, wantOrdinary, wantWhole float64) {
	const processors, contents = 16, 25_000
	bubble.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(15, 6))
		var mu sync.Mutex
		running, used, peak := 0, int64(0), int64(0)
		var busy time.Duration // of all processors
		last := time.Now()
		change := func(n int, memory int64) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			passed := time.Since(last)
			last = time.Now()
			busy += time.Duration(min(running, processors)) * passed
			running += n
			used += int64(n) * memory
			peak = max(peak, used)
			return busy
		}
		l := NewBudget(processors, memory)
		begin := time.Now()
		var all sync.WaitGroup
		for i := range contents {
			size := int64(5000 * math.Exp(1.8*r.NormFloat64()))
			size = max(64, min(size, 5<<20))
			if i%2500 == 1000 {
				size = 5<<20 + r.Int64N(20<<20)
			}
			weight := EncoderMemory(size)
			encode := func(leave func(), err error) {
				defer all.Done()
				if err != nil {
					t.Error(err)
					return
				}
				change(+1, weight)
				time.Sleep(time.Duration(float64(size) / 0.35e6 * float64(time.Second)))
				change(-1, weight)
				leave()
			}
			all.Add(1)
			if size > HugeSize {
				go func() { encode(l.AcquireEncoder(context.Background(), "owner", size)) }()
				continue
			}
			leave, err := l.AcquireEncoder(context.Background(), "owner", size)
			go encode(leave, err)
		}
		fed := time.Since(begin)
		share := change(0, 0).Seconds() / (processors * fed.Seconds())
		all.Wait()
		whole := change(0, 0).Seconds() / (processors * time.Since(begin).Seconds())
		t.Logf("%.1f %% of %d processors busy over %v, until the last content of ordinary size has begun; %.1f %% over the %v that the huge ones take; %d MiB at the peak",
			100*share, processors, fed.Round(time.Second), 100*whole, time.Since(begin).Round(time.Second), peak>>20)
		if share < wantOrdinary || whole < wantWhole {
			t.Errorf("want %.0f %% busy, and %.0f %% to the end", 100*wantOrdinary, 100*wantWhole)
		}
		if peak > memory {
			t.Errorf("encoders took %d bytes, want %d at most", peak, memory)
		}
	})
}

func TestHugeContentHasALane(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := NewBudget(2, 800<<20)
		enter := func(ctx context.Context, size int64) chan func() {
			entered := make(chan func(), 1)
			go func() {
				if leave, err := l.AcquireEncoder(ctx, "owner", size); err == nil {
					entered <- leave
				}
				close(entered)
			}()
			synctest.Wait()
			return entered
		}
		background := context.Background()
		huge := enter(background, 25<<20)
		if len(huge) != 1 {
			t.Fatal("a huge content waits for an empty lane")
		}
		ctx, cancel := context.WithCancel(background)
		second := enter(ctx, 25<<20)
		third := enter(background, 25<<20)
		if len(second)+len(third) != 0 {
			t.Error("two huge contents at a time, without the memory for it")
		}
		small := []chan func(){enter(background, 1000), enter(background, 1000)}
		for i, s := range small {
			if len(s) != 1 {
				t.Errorf("small content %d waits beside a huge one", i)
			}
		}
		waits := enter(background, 1000)
		if len(waits) != 0 {
			t.Error("three contents have two slots")
		}
		cancel()
		synctest.Wait()
		(<-huge)()
		synctest.Wait()
		if len(third) != 1 {
			t.Fatal("the lane is free, but the next huge content waits")
		}
		for _, entered := range append(small, waits, third) {
			(<-entered)()
		}
		if l.slots != 2 || l.memory != l.most || l.taken {
			t.Errorf("at the end there are %d slots and %d bytes", l.slots, l.memory)
		}
	})
}

// With enough memory several huge contents run at once, and half of the slots stay free of them.
func TestHugeContentsShareWhatIsLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := NewBudget(4, 2<<30)
		var huge atomic.Int64
		for range 10 {
			go func() {
				if leave, err := l.AcquireEncoder(context.Background(), "owner", 25<<20); err == nil {
					huge.Add(1)
					time.Sleep(time.Hour)
					leave()
				}
			}()
			synctest.Wait()
		}
		if huge.Load() != 3 {
			t.Errorf("%d huge contents at a time, want one in the lane and two besides", huge.Load())
		}
		for range 2 {
			leave, err := l.AcquireEncoder(context.Background(), "owner", 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer leave()
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if huge.Load() != 10 || l.extra != 0 || l.hugeMemory != 0 {
			t.Errorf("%d of 10 ran; %d of them still", huge.Load(), l.extra)
		}
	})
}

// One content that needs more memory than there is runs, without others of ordinary size.
func TestEncoderThatNeedsTooMuchRunsAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := NewBudget(4, 1<<20)
		leave, err := l.AcquireEncoder(context.Background(), "owner", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := l.AcquireEncoder(ctx, "owner", 1000); err == nil {
			t.Error("a second one ran beside it")
		}
		leave()
		if leave, err = l.AcquireEncoder(context.Background(), "owner", 1000); err != nil {
			t.Fatal(err)
		}
		leave()
	})
}

// Files of releases, encoders and idle children share one budget: an idle child is taken over, or ends where its memory
// is needed, and encoders wait for files.
func TestFilesAndEncodersShareOneBudget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		l := NewBudget(2, 100*mib)
		l.reserved = 0
		minifiers, squeezers := &idleChildren{}, &idleChildren{}
		l.Minifiers, l.Squeezers = minifiers, squeezers
		begin := func(enter func() (func(), error)) chan func() {
			begun := make(chan func(), 1)
			go func() {
				if leave, err := enter(); err == nil {
					begun <- leave
				}
			}()
			synctest.Wait()
			return begun
		}
		file := func(here, child int64) chan func() {
			return begin(func() (func(), error) { return l.AcquireFile(t.Context(), "owner", false, here*mib, child*mib) })
		}
		encoder := func() chan func() {
			return begin(func() (func(), error) { return l.AcquireEncoder(t.Context(), "owner", 1000) })
		}
		first, small := file(8, 52), encoder()
		if len(first)+len(small) != 2 {
			t.Fatal("60 and 19 of 100 MiB are taken, and one waits")
		}
		second := file(8, 60)
		if len(second) != 0 {
			t.Fatal("a file begins without the memory for it")
		}
		behind := encoder()
		if len(behind) != 0 {
			t.Error("an encoder goes before a file")
		}
		minifiers.owners = []string{"other", "owner"}
		(<-first)()
		synctest.Wait()
		if len(second) != 1 || !slices.Equal(minifiers.owners, []string{"owner"}) {
			t.Fatalf("the file waits with %d MiB free, and children of %q are idle; it reuses that of its owner", l.memory/mib, minifiers.owners)
		}
		(<-second)()
		synctest.Wait()
		(<-small)()
		(<-behind)()
		squeezers.owners = []string{"a", "b"}
		fits := file(52, 0)
		if len(fits) != 1 || len(minifiers.owners)+len(squeezers.owners) != 3 {
			t.Errorf("%d MiB are free, and children of %q and %q are idle", l.memory/mib, minifiers.owners, squeezers.owners)
		}
		(<-fits)()
		tight := file(60, 0)
		if len(tight) != 1 || len(minifiers.owners)+len(squeezers.owners) != 2 {
			t.Errorf("%d MiB are free, and children of %q and %q are idle", l.memory/mib, minifiers.owners, squeezers.owners)
		}
		(<-tight)()
		all := file(90, 0)
		if len(all) != 1 || len(minifiers.owners)+len(squeezers.owners) != 0 {
			t.Errorf("%d MiB are free, and children of %q and %q are idle", l.memory/mib, minifiers.owners, squeezers.owners)
		}
		(<-all)()
		if l.memory != l.most {
			t.Errorf("at the end %d bytes are left", l.memory)
		}
	})
}

// idleChildren are the idle children of a pool, by owner.
type idleChildren struct{ owners []string }

func (c *idleChildren) idleOwners() []string { return slices.Clone(c.owners) }

func (c *idleChildren) endIdleChildren(most int, except []string) (ended int) {
	c.owners = slices.DeleteFunc(c.owners, func(owner string) bool {
		if ended == most || slices.Contains(except, owner) {
			return false
		}
		ended++
		return true
	})
	return ended
}

// A file of a fresh release begins beside encoders and files that have all that they may have, and before files that came
// earlier.
func TestFreshFilesGoFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		l := NewBudget(2, 160*mib) // 20 of them are reserved
		file := func(fresh bool, memory int64) chan func() {
			begun := make(chan func(), 1)
			go func() {
				if leave, err := l.AcquireFile(t.Context(), "owner", fresh, memory*mib, 0); err == nil {
					begun <- leave
				}
			}()
			synctest.Wait()
			return begun
		}
		largest := file(false, 500)
		if len(largest) != 1 {
			t.Fatal("a file that needs more than all does not run alone")
		}
		fresh := file(true, 20)
		if len(fresh) != 1 {
			t.Fatal("a fresh file waits for others")
		}
		older, newer := file(false, 10), file(true, 30)
		if len(older)+len(newer) != 0 {
			t.Fatal("there is no memory left")
		}
		(<-fresh)()
		synctest.Wait()
		if len(older)+len(newer) != 0 {
			t.Error("the fresh file that waits is passed by")
		}
		(<-largest)()
		synctest.Wait()
		if len(newer) != 1 || len(older) != 1 {
			t.Errorf("%d and %d run", len(newer), len(older))
		}
		(<-newer)()
		(<-older)()
		if l.memory != l.most {
			t.Errorf("at the end %d bytes are left", l.memory)
		}
	})
}
