package kvstore

import "sync/atomic"

// users counts what is under way in a store, so that Close can wait for it
// and Pebble, which panics once it is closed, is not asked any more.
//
// A lock for readers would do, but for a scan whose loop reads: while Close
// waits for the scan, the read would wait for Close.
type users struct {
	count  atomic.Int64
	closed atomic.Bool
	idle   chan struct{} // holds one when count may have come to zero after closing
}

// enter says whether the store is still open. If so, leave has to follow.
func (u *users) enter() bool {
	u.count.Add(1)
	if u.closed.Load() {
		u.leave()
		return false
	}
	return true
}

func (u *users) leave() {
	if u.count.Add(-1) == 0 && u.closed.Load() {
		select {
		case u.idle <- struct{}{}:
		default:
		}
	}
}

// close lets nobody in any more. It says whether it is the first to.
func (u *users) close() bool { return !u.closed.Swap(true) }

// wait returns when all have left, after close.
func (u *users) wait() {
	for u.count.Load() > 0 {
		<-u.idle
	}
}
