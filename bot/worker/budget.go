package worker

import (
	"context"
	"slices"
	"sync"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Budget decides when a file of a release, or an encoder, may start. All of them share one budget of memory: what this process needs for it,
// and the limit of its child. One that needs more than the whole budget runs alone. Idle children of the pools get what memory is left, and end
// if a turn needs it.
//
// Files of releases go first, because clients wait for them, and those of fresh releases before all others; an eighth of the memory, up to
// maxReserved, is for fresh releases alone. Contents of ordinary size have slots and start in the order in which they came.
//
// Huge contents take minutes and much memory, so one of them needs no slot and others have half of the slots at most. They start if slotMemory
// is left for each slot, or for a quarter of them while most are idle; one also starts if there is no content of ordinary size.
type Budget struct {
	mu       sync.Mutex
	slots    int   // that are free
	of       int   // slots in all
	memory   int64 // bytes that no turn has; below 0 while one runs that needs more than there is
	most     int64 // bytes in all
	reserved int64 // of them for fresh releases
	taken    bool  // the slot of huge contents
	// huge contents in other slots, and the memory of all huge ones
	extra      int
	hugeMemory int64

	// The pools in which turns have children: those for files of releases, and of fresh ones, and the encoders. Nil for none.
	Minifiers, Fresh, Squeezers childPool

	freshFiles, files, ordinary, huge []*turn
}

// A childPool has the methods of a [Pool] that a budget calls.
type childPool interface {
	// idleOwners returns the owners (releases) of the children that have no job.
	idleOwners() []string
	// endIdleChildren ends up to most children that have no job, but none of the owners in except. It waits for their end, and returns how
	// many it ended.
	endIdleChildren(most int, except []string) int
}

// HugeSize is the size in bytes above which a content is huge.
const HugeSize = 2 << 20

// slotMemory is the bytes that contents of the usual sizes need, on average, where they fill
// all slots.
const slotMemory = 32 << 20

// maxReserved bounds the memory that only fresh releases may have.
const maxReserved = 48 << 20

// idleMemory is the bytes that a child keeps while it has nothing to do.
const idleMemory = 16 << 20

// A turn is that of a file or an encoder: it waits, runs and ends.
type turn struct {
	memory int64
	owner  string        // of the child
	pool   childPool     // of the child; nil without one
	begin  chan struct{} // closed when it may start
	queue  *[]*turn      // in which it waits
	apart  bool          // it has the slot of huge contents
}

// NewBudget returns a budget. slots is how many contents are compressed at once, besides one huge one, over HugeSize, which needs
// no slot. memory is the bytes for all turns and child processes; an eighth of it, up to maxReserved, is for files of fresh (new)
// releases alone. The caller may set the pools of child processes before the first turn.
func NewBudget(slots int, memory int64) *Budget {
	return &Budget{slots: slots, of: slots, memory: memory, most: memory, reserved: min(memory/8, maxReserved)}
}

// EncoderMemory returns the bytes of memory that compressing a content of size bytes with the best settings takes: those of a
// child, and of the content here on its way there and back. The limit of the child's own memory is higher, because it counts all
// that is mapped.
func EncoderMemory(size int64) int64 {
	return coding.Memory(coding.Brotli, coding.Best, size) + 3*size
}

// AcquireEncoder waits until the owner's child may compress a content of size bytes with the best settings, and reserves the
// memory and a slot for it; one huge content at a time, over HugeSize, needs no slot, and further huge ones take half of the
// slots at most. It may end idle children of the pools. The caller calls leave once afterwards, which returns memory and slot.
// The only error is that of ctx, after which nothing is reserved and leave is nil.
func (l *Budget) AcquireEncoder(ctx context.Context, owner string, size int64) (leave func(), err error) {
	t := &turn{memory: EncoderMemory(size), owner: owner, pool: l.Squeezers, queue: &l.ordinary}
	if size > HugeSize {
		t.queue = &l.huge
	}
	return l.wait(ctx, t)
}

// AcquireDelta waits until the owner's child may encode a content of size bytes as a delta against a dictionary of so many bytes,
// and reserves the memory and a slot for it, also if the content is huge. The caller calls leave once afterwards, which returns
// them. The only error is that of ctx, after which nothing is reserved and leave is nil.
func (l *Budget) AcquireDelta(ctx context.Context, owner string, dictionary, size int64) (leave func(), err error) {
	return l.wait(ctx, &turn{memory: coding.DeltaMemory(dictionary+size) + 2*(dictionary+size), owner: owner, pool: l.Squeezers, queue: &l.ordinary})
}

// AcquireFile waits until a file of a release may take here bytes of memory in this process and child bytes in the release's
// child process, and reserves this memory, but no slot. child is 0 for a file that needs no child. fresh says that the release is
// new: its files go first and may use the reserved memory. A file that needs more memory than there is starts when no other file
// or encoder runs. The caller calls leave once afterwards, which returns the memory. The only error is that of ctx, after which
// nothing is reserved and leave is nil.
func (l *Budget) AcquireFile(ctx context.Context, release string, fresh bool, here, child int64) (leave func(), err error) {
	t, minifiers := &turn{memory: here + child, owner: release, queue: &l.files}, l.Minifiers
	if fresh {
		t.queue, minifiers = &l.freshFiles, l.Fresh
	}
	if child > 0 {
		t.pool = minifiers
	}
	return l.wait(ctx, t)
}

// wait adds a turn (the request of a file for memory, or of an encoder for memory and a slot) to t.queue, and waits until it may
// start. It cuts t.memory to what the budget has, without the bytes reserved for fresh releases unless it is a file of one. The
// caller does not hold the lock, and calls leave once at the end of the turn, which returns memory and slot and starts waiting
// turns. If ctx ends first, wait removes the turn, reserves nothing, and returns the error of ctx and a nil leave.
func (l *Budget) wait(ctx context.Context, t *turn) (leave func(), err error) {
	t.begin = make(chan struct{})
	t.memory = min(t.memory, l.most-l.reservedFrom(t)) // one that needs more runs alone
	l.update(func() { *t.queue = append(*t.queue, t) })
	select {
	case <-t.begin:
		return func() { l.update(func() { l.releaseTurn(t) }) }, nil
	case <-ctx.Done():
	}
	l.update(func() {
		if i := slices.Index(*t.queue, t); i >= 0 {
			*t.queue = slices.Delete(*t.queue, i, i+1)
		} else {
			l.releaseTurn(t)
		}
	})
	return nil, ctx.Err()
}

// reservedFrom returns how many bytes of memory must stay free, for files of fresh releases, when the turn t (of a file or an
// encoder) starts. It returns 0 if the turn is of such a file itself. It needs no lock.
func (l *Budget) reservedFrom(t *turn) int64 {
	if t.queue == &l.freshFiles {
		return 0
	}
	return l.reserved
}

// update calls do, which changes the queues or the free memory, under the lock, which the caller does not hold. Then it starts
// the waiting turns (files and encoders) that fit now. If it started any, it ends idle child processes that their memory leaves
// no room for, and waits for the end of these.
func (l *Budget) update(do func()) {
	l.mu.Lock()
	do()
	var started []*turn
	l.startNext(func(t *turn) { started = append(started, t) })
	free := l.memory
	l.mu.Unlock()
	if len(started) > 0 {
		l.endIdleChildren(started, free)
	}
}

// endIdleChildren ends idle child processes of all pools until the rest of them, at idleMemory each, fit into free, the bytes
// that no turn has; if a turn in started is not of a fresh release, without the bytes reserved for these. The budget calls it
// after the turns in started have got their memory. It keeps children of the owners of these turns, which are about to be reused,
// and does not count them. The caller does not hold the lock.
func (l *Budget) endIdleChildren(started []*turn, free int64) {
	var owners []string
	leave := int64(0)
	for _, t := range started {
		leave = max(leave, l.reservedFrom(t))
		if t.pool != nil {
			owners = append(owners, t.owner)
		}
	}
	pools := slices.DeleteFunc([]childPool{l.Minifiers, l.Fresh, l.Squeezers}, func(p childPool) bool { return p == nil })
	excess := -int(max(0, free-leave) / idleMemory)
	for _, p := range pools {
		excess += len(slices.DeleteFunc(p.idleOwners(), func(owner string) bool { return slices.Contains(owners, owner) }))
	}
	for _, p := range pools {
		if excess > 0 {
			excess -= p.endIdleChildren(excess, owners)
		}
	}
}

// releaseTurn returns the memory and, if it has one, the slot of a turn (of a file or an encoder) that has started to the budget.
// It starts no other turn. The caller holds the lock, and calls it once for a turn.
func (l *Budget) releaseTurn(t *turn) {
	l.memory += t.memory
	if t.queue == &l.huge {
		l.hugeMemory -= t.memory
	}
	switch {
	case t.queue == &l.files, t.queue == &l.freshFiles:
	case t.apart:
		l.taken = false
	case t.queue == &l.huge:
		l.extra--
		fallthrough
	default:
		l.slots++
	}
}

// startNext starts the waiting turns (files of releases, and contents to encode) that fit now, in the order of each queue, takes
// their memory and slots, and calls started with each. Files of fresh releases come first, then other files, huge contents, and
// contents of ordinary size. If a file does not fit, no turn behind it and none of the following queues starts. A content that
// does not fit delays only its own queue. The caller holds the lock.
func (l *Budget) startNext(started func(*turn)) {
	for _, files := range []*[]*turn{&l.freshFiles, &l.files} {
		for len(*files) > 0 {
			if !l.tryStart((*files)[0], started) {
				return // a turn of another queue would delay it
			}
		}
	}
	for len(l.huge) > 0 && (!l.taken || l.slots > 0 && l.extra < l.of/2) {
		t := l.huge[0]
		t.apart = !l.taken
		if !l.leavesEnough(t) || !l.tryStart(t, started) {
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
	for len(l.ordinary) > 0 && l.slots > 0 && l.tryStart(l.ordinary[0], started) {
		l.slots--
	}
}

// leavesEnough reports whether enough of the budget stays for contents of ordinary size if the turn t, which encodes a huge
// content (over HugeSize), starts; it does not look at how much memory is free. t.apart says whether t gets the slot of huge
// contents. The result is always true if no content of ordinary size waits or is encoded, and no other huge one is encoded. The
// caller holds the lock.
func (l *Budget) leavesEnough(t *turn) bool {
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

// tryStart starts the turn t (of a file or an encoder), which is the first of its queue, if there is memory for it, and reports
// whether it did. Then it has removed the turn from the queue, taken its memory from the budget, but no slot, let the goroutine
// in wait continue, and called started. The caller holds the lock.
func (l *Budget) tryStart(t *turn, started func(*turn)) bool {
	if t.memory+l.reservedFrom(t) > l.memory {
		return false
	}
	l.memory -= t.memory
	*t.queue = (*t.queue)[1:]
	close(t.begin)
	started(t)
	return true
}
