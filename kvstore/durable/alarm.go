package durable

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// An Alarm describes the alarm for which a handler is called.
type Alarm struct {
	Scheduled time.Time // what it was set to
	Retry     int       // how many times it was handled before and failed
}

// SetAlarm sets the object's alarm to a time, in place of the one it has, as one of its writes. A time in the past fires at once. A time after 2261
// is an error. The handler is called at that time or later, at least once, also after a crash or a restart.
//
// If the handler fails, it is called again after two seconds, then after twice as long each time up to [Limits].LongestRetry, and up to a quarter
// longer, until it succeeds. An alarm that is set or deleted meanwhile, by the handler or another event, ends that.
func (s *State) SetAlarm(ctx context.Context, at time.Time) error {
	t, err := toNanoseconds(at)
	if err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.object.mu.Unlock()
	s.setAlarm(&alarm{scheduled: t, next: t})
	return nil
}

// DeleteAlarm removes the object's alarm, if it has one, as one of its writes. It also ends the retries of a handler that fails, but does not stop
// one that runs.
func (s *State) DeleteAlarm(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.object.mu.Unlock()
	s.setAlarm(nil)
	return nil
}

// GetAlarm returns when the object's alarm fires next, which after a failure is later than the time it was set to; the bool is false if it has none.
// While an alarm is handled it has none, unless one was set since.
func (s *State) GetAlarm(ctx context.Context) (time.Time, bool, error) {
	if err := s.lock(ctx); err != nil {
		return time.Time{}, false, err
	}
	defer s.object.mu.Unlock()
	a := s.object.alarm
	if s.tx != nil && s.tx.alarmed {
		a = s.tx.alarm
	}
	if a == nil {
		return time.Time{}, false, nil
	}
	return time.Unix(0, a.next), true, nil
}

// setAlarm sets the object's alarm, or removes it for nil, within the transaction if there is one. The caller holds the object's mu.
func (s *State) setAlarm(a *alarm) {
	if s.tx != nil {
		s.tx.alarmed, s.tx.alarm = true, a
		return
	}
	s.object.setAlarm(a)
}

// alarms fires a class's alarms. The times are in the store, in order, so that what
// sleeps takes no memory.
type alarms struct {
	mu      sync.Mutex
	low     []byte // no row's key, without duePrefix, is less; so no scan crosses what was removed
	changes uint64 // counts what may make low wrong
	until   int64  // when the loop looks again
	wake    chan struct{}
	running map[string]struct{} // the objects whose alarm is being handled
	held    map[string]hold     // those whose failure couldn't be written down
}

// A hold keeps an alarm from firing again at once.
type hold struct {
	until int64
	retry uint32
}

// init creates the channels and maps of an empty set of alarms.
func (a *alarms) init() {
	a.wake = make(chan struct{}, 1)
	a.running = make(map[string]struct{})
	a.held = make(map[string]hold)
}

// alarmChanged is called when it is durable that an object's alarm was replaced by to, or removed for nil. It no longer holds the alarm back after a
// failure, and wakes the loop that fires alarms if necessary.
func (a *alarms) alarmChanged(name string, to *alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.held, name)
	if to == nil {
		return
	}
	a.changes++
	if key := dueKey("", name, to.next)[len(duePrefix("")):]; bytes.Compare(key, a.low) < 0 {
		a.low = key
	}
	if to.next < a.until {
		retry.Wake(a.wake)
	}
}

const (
	// longestSleep is how long the loop sleeps at most, in case that the clock is set.
	longestSleep = time.Minute
	// pauseAfterError is how long it sleeps where the store can't be read.
	pauseAfterError = time.Second
)

// fireAlarms fires the alarms of a class when they are due, each in a goroutine, until the runtime closes. It is a loop in a goroutine of its own.
func (c *class) fireAlarms() {
	a := &c.alarms
	for sleep := time.Duration(0); retry.SleepUnless(c.runtime.ctx, sleep, a.wake) == nil; {
		names, next, err := c.dueAlarms()
		if err != nil {
			c.runtime.logger.Error("alarms couldn't be read", "class", c.name, "err", err)
			sleep = pauseAfterError
			continue
		}
		for _, name := range names {
			c.runtime.users.Go(func() { c.fireAlarm(name) })
		}
		sleep = min(time.Duration(next-c.runtime.now().UnixNano()), longestSleep)
	}
}

// dueAlarms returns the names of the objects whose alarm fires now, as many as the limit allows, and marks them as running. It skips those that are
// running already or held back after a failure. It logs and skips malformed rows. next is the time in nanoseconds at which the loop reads the alarms
// again, unless it is woken before; it is the highest number if no alarm waits. With an error, no alarm is marked.
func (c *class) dueAlarms() (names []string, next int64, err error) {
	a := &c.alarms
	a.mu.Lock()
	low, changes, room := a.low, a.changes, c.limits.Alarms-len(a.running)
	a.until = math.MinInt64 // alarms that are set or end from here on are seen below
	a.mu.Unlock()
	now := c.runtime.now().UnixNano()
	next = math.MaxInt64
	first := bytes.Repeat([]byte{0xff}, 8) // after all
	prefix := duePrefix(c.name)
	from := append(duePrefix(c.name), low...)
	found := false
	for item, err := range c.runtime.store.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix, From: from}) {
		if err != nil {
			return nil, 0, err
		}
		name, at, err := parseDue(item.Key[len(prefix):])
		if err != nil {
			c.runtime.logger.Error("an alarm was skipped", "class", c.name, "err", err)
			continue
		}
		if !found {
			found, first = true, bytes.Clone(item.Key[len(prefix):])
		}
		if at > now {
			next = min(next, at)
			break
		}
		a.mu.Lock()
		_, running := a.running[name]
		held, isHeld := a.held[name]
		a.mu.Unlock()
		switch {
		case running:
		case isHeld && held.until > now:
			next = min(next, held.until)
		case len(names) < room:
			names = append(names, name)
		}
		if len(names) >= room {
			break // an alarm that ends wakes the loop
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		a.running[name] = struct{}{}
	}
	if a.changes == changes {
		a.low = first
	} else {
		retry.Wake(a.wake)
	}
	a.until = next
	return names, next, nil
}

// fireAlarm has the object with this name handle its alarm, and waits for that. If that fails, it logs the error, and the alarm is stored to be tried
// again, or if that is impossible, held back in memory; if the runtime is closed, the store keeps the alarm as it was. Then fireAlarm marks the alarm
// as not running, and wakes the loop.
func (c *class) fireAlarm(name string) {
	a := &c.alarms
	a.mu.Lock()
	held := a.held[name]
	a.mu.Unlock()
	c.counts.alarms.Add(1)
	var failed alarm
	err := c.deliverEvent(c.runtime.ctx, name, func(ctx context.Context, s *State, instance any) error {
		var err error
		failed, err = s.object.handleAlarm(ctx, s, instance, held.retry)
		return err
	}, false)
	if err != nil && !c.runtime.isClosed() {
		c.counts.failures.Add(1)
		c.runtime.logger.Warn("an alarm failed and is tried again", "class", c.name, "object", name, "retry", failed.retry, "err", err)
		err = c.recordAlarmFailure(name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, name)
	if err != nil {
		retry := max(failed.retry, held.retry)
		a.held[name] = hold{until: c.retryAt(retry), retry: retry + 1}
	}
	retry.Wake(a.wake)
}

// handleAlarm calls the class's handler if the object's alarm is still due, and then deletes the alarm, or sets it to a later time if the handler
// failed. An alarm that was set or deleted meanwhile stays as it is. If the runtime is closed, a failure leaves the alarm as it was. retry is how
// often it failed at least. It returns the alarm that was handled, the zero value if none was due, and the error of the handler and its tasks.
func (o *object) handleAlarm(ctx context.Context, s *State, instance any, retry uint32) (alarm, error) {
	o.mu.Lock()
	if o.alarm == nil || o.alarm.next > s.Now().UnixNano() {
		o.mu.Unlock()
		return alarm{}, nil
	}
	was := *o.alarm
	o.alarm, o.replaced = nil, false
	o.mu.Unlock()
	alarm := Alarm{Scheduled: time.Unix(0, was.scheduled), Retry: int(max(was.retry, retry))}
	err := errors.Join(o.class.alarm(ctx, s, instance, alarm), s.Wait(ctx))
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.failed != nil || o.replaced:
	case err == nil:
		o.setAlarm(nil)
	case o.class.runtime.isClosed():
		o.alarm = &was // and so has the store
	default:
		o.setAlarm(o.class.retryAlarm(was))
	}
	return was, err
}

// retryAlarm returns the alarm a, which has just failed, set to the time of the next attempt.
func (c *class) retryAlarm(a alarm) *alarm {
	return &alarm{scheduled: a.scheduled, next: c.retryAt(a.retry), retry: a.retry + 1}
}

// firstRetry is the wait after the first failure.
const firstRetry = 2 * time.Second

// retryAt returns the time in nanoseconds of the next attempt of an alarm that has just failed and had failed before times before. The wait from now
// is two seconds, doubled for each failure before, up to the class's limit, and a random part longer.
func (c *class) retryAt(before uint32) int64 {
	wait := retry.Doubled(int(before)+1, firstRetry, c.limits.LongestRetry)
	return c.runtime.now().Add(wait + c.runtime.jitter(wait)).UnixNano()
}

// recordAlarmFailure counts a failure in the alarm of the object with this name, sets the alarm to its next attempt, and returns when that is
// durable. It does so only if the alarm is still due, because the instance was stopped before it could do so; otherwise it changes nothing. An error
// says that the alarm could not be read or set.
func (c *class) recordAlarmFailure(name string) error {
	ctx := c.runtime.ctx
	return c.withInstance(name, func(o *object) error {
		st := &strand{object: o}
		if err := o.enter(ctx, st, true); err != nil {
			return err
		}
		err := o.loadAlarm()
		o.mu.Lock()
		if err == nil && o.failed == nil && o.alarm != nil && o.alarm.next <= c.runtime.now().UnixNano() {
			o.setAlarm(c.retryAlarm(*o.alarm))
		}
		o.mu.Unlock()
		return o.finishEvent(ctx, st, err)
	})
}
