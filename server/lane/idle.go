package lane

import (
	"cmp"
	"slices"
	"time"
)

// An idler is a connection that has been waiting for its next request since then, in
// nanoseconds, if its state is still that.
type idler struct {
	c     *conn
	since int64
}

// idlersKept bounds how many are remembered from one look at all connections.
const idlersKept = 256

// CloseIdle closes the connection that has been waiting longest for its next request, if
// it has since before that time, and reports whether there was one.
//
// A connection tells when it begins to wait in a word of its own and nowhere else, so that
// answering takes no lock. So all have to be looked at; but who waited longest then and
// still does waits longest now, so one look is good for many calls.
func (l *Listener) CloseIdle(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closeKept(before.UnixNano()) {
		return true
	}
	for c := range l.open {
		if since := c.state.Load(); since > 0 {
			l.idlers = append(l.idlers, idler{c, since})
		}
	}
	slices.SortFunc(l.idlers, func(a, b idler) int { return cmp.Compare(a.since, b.since) })
	clear(l.idlers[min(len(l.idlers), idlersKept):])
	l.idlers = l.idlers[:min(len(l.idlers), idlersKept)]
	return l.closeKept(before.UnixNano())
}

func (l *Listener) closeKept(before int64) bool {
	for len(l.idlers) > 0 {
		longest := l.idlers[0]
		if longest.since >= before && longest.c.state.Load() == longest.since {
			return false
		}
		l.idlers[0] = idler{}
		l.idlers = l.idlers[1:]
		if longest.c.state.CompareAndSwap(longest.since, ending) {
			l.remove(longest.c)
			go longest.c.Close() // TLS says goodbye first, and may wait for that
			return true
		}
	}
	l.idlers = nil
	return false
}
