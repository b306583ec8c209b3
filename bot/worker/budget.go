package worker

import (
	"context"
	"slices"
	"sync"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Budget decides when a file of a release, or an encoder, may begin. All of them share one
// budget of memory: what this process needs for it, and what its child may have. One that
// needs more than the whole budget runs alone.
//
// Files of releases go first, because clients wait for them, and those of fresh releases before
// all; an eighth of the memory, up to mostKept, is for these alone. Contents of ordinary size have so many slots and begin in the order in which they came.
//
// Huge contents take minutes and much memory, so the first of them needs no slot and others
// have half of the slots at most. They begin where slotMemory is left for each slot, or for a
// quarter of them while most are idle; one does also where there is no content of ordinary size.
type Budget struct {
	mu     sync.Mutex
	slots  int   // that are free
	of     int   // slots in all
	memory int64 // bytes that are free; below 0 where one runs that needs more than there is
	most   int64 // bytes in all
	kept   int64 // of them for fresh releases
	taken  bool  // the lane of huge contents
	// huge contents beside the lane, and what all huge ones take
	extra      int
	hugeMemory int64

	Minifiers, Fresh, Squeezers *idleWorkers // fresh: the minifiers of fresh releases

	freshFiles, files, ordinary, huge []*turn
}

// idleWorkers counts a pool's children without a job, by owner, in the order in which the pool ends them: the longest idle
// first. Each has idleMemory bytes. A child serves one owner only, so a turn reuses the child of its own owner or starts one.
type idleWorkers struct {
	owners  []string
	running int    // children with a job
	most    int    // children of the pool in all
	Drop    func() // ends the child that is idle longest
}

// start counts a child that gets a job, and reports whether it was idle before.
func (w *idleWorkers) start(owner string) (reused bool) {
	w.running++
	if i := slices.Index(w.owners, owner); i >= 0 {
		w.owners = slices.Delete(w.owners, i, i+1)
		return true
	}
	return false
}

// trim forgets the children that the pool has ended to start others, and returns how many those are.
func (w *idleWorkers) trim() int {
	n := min(len(w.owners), max(0, len(w.owners)+w.running-w.most))
	w.owners = w.owners[n:]
	return n
}

// finish counts a child that has no job any more.
func (w *idleWorkers) finish(owner string) {
	w.running--
	w.owners = append(w.owners, owner)
}

// HugeSize is the size in bytes above which a content is huge.
const HugeSize = 2 << 20

// slotMemory is the bytes that contents of the usual sizes need, on average, where they fill
// all slots.
const slotMemory = 32 << 20

// mostKept bounds the memory that only fresh releases may have.
const mostKept = 48 << 20

// idleMemory is the bytes that a child keeps while it has nothing to do.
const idleMemory = 16 << 20

// A turn is one file's or one encoder's: it waits, runs and ends.
type turn struct {
	memory int64
	owner  string        // for whom the child works
	child  *idleWorkers  // of the pool in which it has a child; nil where it has none
	begin  chan struct{} // closed when it may
	lane   *[]*turn      // in which it waits
	apart  bool          // it has the lane of huge contents
}

// NewBudget returns lanes over pools with at most so many children that process files of releases and of fresh ones.
func NewBudget(slots int, memory int64, minifiers, fresh int) *Budget {
	pool := func(most int) *idleWorkers { return &idleWorkers{most: most, Drop: func() {}} }
	return &Budget{
		slots: slots, of: slots, memory: memory, most: memory, kept: min(memory/8, mostKept),
		Minifiers: pool(minifiers), Fresh: pool(fresh), Squeezers: pool(slots + 1),
	}
}

// EncoderMemory is what squeezing a content takes: a child, and its bytes here, on their way
// there and back. The child's limit is above that, because it counts what is mapped, too.
func EncoderMemory(size int64) int64 {
	return coding.Memory(coding.Brotli, coding.Best, size) + 3*size
}

// AcquireEncoder waits until a content of that size may be encoded by the owner's child. The caller leaves afterwards.
func (l *Budget) AcquireEncoder(ctx context.Context, owner string, size int64) (leave func(), err error) {
	t := &turn{memory: EncoderMemory(size), owner: owner, child: l.Squeezers, lane: &l.ordinary}
	if size > HugeSize {
		t.lane = &l.huge
	}
	return l.wait(ctx, t)
}

// AcquireDelta waits until a content of that size may be encoded by the owner's child as a delta against a dictionary. The caller leaves afterwards.
func (l *Budget) AcquireDelta(ctx context.Context, owner string, dictionary, size int64) (leave func(), err error) {
	return l.wait(ctx, &turn{memory: coding.DeltaMemory(dictionary+size) + 2*(dictionary+size), owner: owner, child: l.Squeezers, lane: &l.ordinary})
}

// AcquireFile waits until a file of a release may take so much memory here, and the release's child so much if
// that is not 0. The caller leaves afterwards.
func (l *Budget) AcquireFile(ctx context.Context, release string, fresh bool, here, child int64) (leave func(), err error) {
	t, minifiers := &turn{memory: here + child, owner: release, lane: &l.files}, l.Minifiers
	if fresh {
		t.lane, minifiers = &l.freshFiles, l.Fresh
	}
	if child > 0 {
		t.child = minifiers
	}
	return l.wait(ctx, t)
}

func (l *Budget) wait(ctx context.Context, t *turn) (leave func(), err error) {
	t.begin = make(chan struct{})
	t.memory = min(t.memory, l.most-l.keptFrom(t)) // one that needs more runs alone
	l.change(func() { *t.lane = append(*t.lane, t) })
	select {
	case <-t.begin:
		return func() { l.change(func() { l.free(t) }) }, nil
	case <-ctx.Done():
	}
	l.change(func() {
		if i := slices.Index(*t.lane, t); i >= 0 {
			*t.lane = slices.Delete(*t.lane, i, i+1)
		} else {
			l.free(t)
		}
	})
	return nil, ctx.Err()
}

// keptFrom is the memory that a turn must leave to fresh releases.
func (l *Budget) keptFrom(t *turn) int64 {
	if t.lane == &l.freshFiles {
		return 0
	}
	return l.kept
}

// change does one thing, begins what may begin after it, and ends the idle children that have
// to make room.
func (l *Budget) change(do func()) {
	l.mu.Lock()
	do()
	var drop []func()
	l.next(func(of *idleWorkers) { drop = append(drop, of.Drop) })
	l.mu.Unlock()
	for _, end := range drop {
		end()
	}
}

// free takes back what a turn had. Its child stays, idle.
func (l *Budget) free(t *turn) {
	l.memory += t.memory
	if t.child != nil {
		t.child.finish(t.owner)
		l.memory -= idleMemory
	}
	if t.lane == &l.huge {
		l.hugeMemory -= t.memory
	}
	switch {
	case t.lane == &l.files, t.lane == &l.freshFiles:
	case t.apart:
		l.taken = false
	case t.lane == &l.huge:
		l.extra--
		fallthrough
	default:
		l.slots++
	}
}

// next begins whatever may begin.
func (l *Budget) next(drop func(*idleWorkers)) {
	for _, files := range []*[]*turn{&l.freshFiles, &l.files} {
		for len(*files) > 0 {
			if !l.take((*files)[0], drop) {
				return // what begins now would keep it waiting
			}
		}
	}
	for len(l.huge) > 0 && (!l.taken || l.slots > 0 && l.extra < l.of/2) {
		t := l.huge[0]
		t.apart = !l.taken
		if !l.spare(t) || !l.take(t, drop) {
			break
		}
		l.hugeMemory += t.memory
		if t.apart {
			l.taken = true
			continue
		}
		l.extra++
		l.slots--
	}
	for len(l.ordinary) > 0 && l.slots > 0 && l.take(l.ordinary[0], drop) {
		l.slots--
	}
}

// spare reports whether a huge content leaves enough memory to those of ordinary size.
func (l *Budget) spare(t *turn) bool {
	if l.slots == l.of && len(l.ordinary) == 0 && l.hugeMemory == 0 {
		return true // there are none
	}
	extra := l.extra
	if !t.apart {
		extra++
	}
	keep := slotMemory * int64(l.of-extra)
	if 2*l.slots > l.of {
		keep /= 4
	}
	return l.hugeMemory+t.memory+keep <= l.most
}

// take begins the first turn of a lane if there is the memory for it.
func (l *Budget) take(t *turn, drop func(*idleWorkers)) bool {
	need := t.memory + l.keptFrom(t)
	available := l.memory
	for _, pool := range []*idleWorkers{l.Minifiers, l.Fresh, l.Squeezers} {
		available += int64(len(pool.owners)) * idleMemory
	}
	if need > available {
		return false
	}
	if t.child != nil {
		if t.child.start(t.owner) {
			l.memory += idleMemory
		}
		l.memory += int64(t.child.trim()) * idleMemory
	}
	for _, pool := range []*idleWorkers{l.Minifiers, l.Fresh, l.Squeezers} {
		for ; need > l.memory && len(pool.owners) > 0; l.memory += idleMemory {
			pool.owners = pool.owners[1:]
			drop(pool)
		}
	}
	l.memory -= t.memory
	*t.lane = (*t.lane)[1:]
	close(t.begin)
	return true
}
