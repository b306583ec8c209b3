package notify

import (
	"sync"
	"time"
)

const (
	// maxConcurrent is how many requests are sent at once, and maxPerReceiver how many of them to one receiver. A receiver
	// whose last attempt failed gets a single one.
	maxConcurrent  = 256
	maxPerReceiver = 4
	// maxDelay bounds the delay of a request to a receiver at its limit, because the receiver may recover meanwhile.
	maxDelay = 10 * time.Minute
	// initialDuration is assumed for an attempt to an unknown receiver, and minDuration for one that responds at once.
	initialDuration, minDuration = 100 * time.Millisecond, time.Millisecond
	// maxReceivers bounds the receivers that are remembered although no request to them is under way.
	maxReceivers = 1000
)

// A limiter limits the concurrent requests to each receiver, so that a slow receiver with many requests does not delay the
// others. It spreads the retries of refused requests at the rate at which the receiver responds.
type limiter struct {
	mu        sync.Mutex
	receivers map[string]*receiverState
}

// A receiverState is what the limiter knows of a receiver.
type receiverState struct {
	running  int
	failing  bool          // the last attempt failed
	duration time.Duration // moving average of the attempts
	next     time.Time     // the latest retry of a refused request
}

// acquire reserves one of the few requests that a receiver gets at once, for which the caller calls release afterwards. It does
// not wait. If the receiver is at its limit, ok is false, nothing is reserved, and the caller tries again at retryAt.
func (l *limiter) acquire(receiver string, now time.Time) (ok bool, retryAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.receivers[receiver]
	if r == nil {
		if l.receivers == nil {
			l.receivers = make(map[string]*receiverState)
		}
		r = &receiverState{duration: initialDuration}
		l.receivers[receiver] = r
	}
	limit := maxPerReceiver
	if r.failing {
		limit = 1
	}
	if r.running < limit {
		r.running++
		return true, time.Time{}
	}
	if r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(max(minDuration, r.duration/time.Duration(limit)))
	if latest := now.Add(maxDelay); r.next.After(latest) {
		r.next = latest
	}
	return false, r.next
}

// release ends a request that acquire reserved, and records how long the attempt took and whether it failed. After a failure, the
// receiver gets one request at a time until one succeeds. With over maxReceivers receivers it forgets those without a request.
func (l *limiter) release(receiver string, duration time.Duration, failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.receivers[receiver]
	r.running--
	r.failing = failed
	r.duration = (3*r.duration + duration) / 4
	if len(l.receivers) <= maxReceivers {
		return
	}
	for name, r := range l.receivers {
		if r.running == 0 {
			delete(l.receivers, name)
		}
	}
}
