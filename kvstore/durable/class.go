package durable

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// A Class says how the objects of one kind behave: they handle events of type Q and return responses of type A.
// Both may be pointers, but other code must not hold what an object keeps.
type Class[Q, A any] struct {
	// Name is what the rows in the store go by: lower-case letters, digits and
	// hyphens.
	Name string
	// New makes the Handler of an object that comes into memory. It may use the object's
	// storage by the State, and no event is delivered before it has returned (see
	// [State.BlockConcurrencyWhile]). If it fails, so does the event, with [ErrReset]; the next
	// event calls it again. What a Handler keeps in its fields lasts until the object leaves memory.
	New func(context.Context, *State) (Handler[Q, A], error)
	// Limits bounds them. The zero value has the defaults.
	Limits Limits
	// Client makes the requests of [State.Client]. Without one these are refused.
	Client *http.Client
}

// A Handler is one object in memory. Its methods are never called while another
// event has the turn, so its fields need no lock.
type Handler[Q, A any] interface {
	// Handle handles an event and returns its response.
	Handle(ctx context.Context, s *State, request Q) (A, error)
	// Alarm is called when the object's alarm has fired. Handlers whose objects set none embed [NoAlarm].
	Alarm(ctx context.Context, s *State, a Alarm) error
}

// Limits bounds the objects of a class.
type Limits struct {
	// Events is how many events an object may have at once, from their arrival to
	// their response; default 1,000. Another one gets [ErrOverloaded].
	Events int
	// Idle is how long an object without events stays in memory; default 10 s.
	Idle time.Duration
	// Live is how many objects without events stay in memory; default 10,000.
	Live int
	// CacheBytes bounds the values of all objects that are kept in memory because
	// they were used lately; default 32 MiB. What is not yet durable is not counted.
	CacheBytes int64
	// Alarms is how many alarms may be handled at once; default 64.
	Alarms int
	// Turn is how long a handler may have the turn without a pause, such as a call; default
	// one minute. The object of one that takes longer is stopped and starts again from its
	// storage, and the caller gets [ErrReset].
	Turn time.Duration
	// LongestRetry bounds the wait before an alarm that failed is tried again;
	// default one hour.
	LongestRetry time.Duration
}

// setDefaults sets the limits that are zero to their defaults.
func (l *Limits) setDefaults() {
	l.Events = cmp.Or(l.Events, 1000)
	l.Idle = cmp.Or(l.Idle, 10*time.Second)
	l.Live = cmp.Or(l.Live, 10_000)
	l.CacheBytes = cmp.Or(l.CacheBytes, 32<<20)
	l.Alarms = cmp.Or(l.Alarms, 64)
	l.Turn = cmp.Or(l.Turn, time.Minute)
	l.LongestRetry = cmp.Or(l.LongestRetry, time.Hour)
}

// NoAlarm is embedded by handlers whose objects never set an alarm.
type NoAlarm struct{}

// Alarm implements [Handler]. It returns an error.
func (NoAlarm) Alarm(context.Context, *State, Alarm) error {
	return errors.New("objects of this class handle no alarms")
}

// A Namespace is the objects of a class.
type Namespace[Q, A any] struct{ class *class }

// Open registers a class with the runtime, and starts to deliver alarms that are due to its objects, unless [Options].Quiet is set. Limits that are
// zero have their defaults. A runtime opens a class once: the error says if it has it open already, if the name is not valid, or if the runtime is
// closed ([ErrClosed]).
func Open[Q, A any](r *Runtime, c Class[Q, A]) (*Namespace[Q, A], error) {
	if !className.MatchString(c.Name) {
		return nil, fmt.Errorf("durable: %q can't be the name of a class: use lower-case letters, digits and hyphens", c.Name)
	}
	core := &class{
		runtime: r,
		name:    c.Name,
		limits:  c.Limits,
		client:  c.Client,
		objects: make(map[string]*object),
		make:    func(ctx context.Context, s *State) (any, error) { return c.New(ctx, s) },
		alarm: func(ctx context.Context, s *State, instance any, a Alarm) error {
			return instance.(Handler[Q, A]).Alarm(ctx, s, a)
		},
	}
	core.limits.setDefaults()
	core.alarms.init()
	if err := r.addClass(core); err != nil {
		return nil, fmt.Errorf("durable: class %s: %w", c.Name, err)
	}
	return &Namespace[Q, A]{core}, nil
}

// Object returns the object with a name, of 1 to 512 bytes without a zero byte, whether it exists or not. The same name is the same object. Object
// reads nothing, and does not check the name: with an invalid one, [Object.Send] returns an error.
func (n *Namespace[Q, A]) Object(name string) Object[Q, A] { return Object[Q, A]{n.class, name} }

// NewUniqueID returns a random name for a new object: 26 letters and digits that cannot be guessed.
func (n *Namespace[Q, A]) NewUniqueID() string { return rand.Text() }

// Names returns the names of up to limit objects that have a stored value, in the order of their bytes, from the first one after the name after, or
// from the first of all if that is "". It returns an empty slice if no object follows. Writes that are not yet durable do not count, nor do alarms.
func (n *Namespace[Q, A]) Names(after string, limit int) ([]string, error) {
	class := kvstore.Prefix("o", n.class.name)
	names := []string{}
	for found := true; found && len(names) < limit; {
		from := class
		if after != "" {
			from = slices.Concat(class, []byte(after), []byte{1}) // past all keys of the last one, which follow a zero
		}
		found = false
		for item, err := range n.class.runtime.store.Scan(kvstore.Durable, kvstore.Range{Prefix: class, From: from}) {
			if err != nil {
				return nil, err
			}
			name, _, _ := bytes.Cut(item.Key[len(class):], []byte{0})
			after, found = string(name), true
			names = append(names, after)
			break
		}
	}
	return names, nil
}

// NamesDueAfter returns the names of the objects whose alarm fires later than a time, in the order of the times; nil if none does. Alarms that are
// not yet durable do not count. A malformed row is [kvstore.ErrCorrupt], and a time after 2261 an error.
func (n *Namespace[Q, A]) NamesDueAfter(at time.Time) (names []string, err error) {
	from, err := toNanoseconds(at)
	if err != nil {
		return nil, err
	}
	prefix := duePrefix(n.class.name)
	for item, err := range n.class.runtime.store.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix, From: dueKey(n.class.name, "", from+1)}) {
		if err != nil {
			return nil, err
		}
		name, _, err := parseDue(item.Key[len(prefix):])
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// An Object is one object of a namespace. It is a value and costs nothing.
type Object[Q, A any] struct {
	class *class
	name  string
}

// Name returns the object's name.
func (o Object[Q, A]) Name() string { return o.name }

// Send delivers an event to the object and returns its response, once everything that the object wrote before is durable, except writes with
// [AllowUnconfirmed]. With the context of another object's event it is a call of that object's: see [State.Call]. With an error, the response is the
// zero value.
//
// An error of the handler is returned as it is; another one is wrapped with the object's name. The handler runs with ctx, and Send returns when it
// does. If ctx ends before the event is delivered, or while the object's writes are not yet durable, Send returns its cause at once; in the second
// case the writes go on. If the object is stopped meanwhile, the error is [ErrReset], at the latest a second later. Other errors are [ErrOverloaded],
// [ErrClosed], and [ErrOutside] if the event that ctx belongs to has ended.
func (o Object[Q, A]) Send(ctx context.Context, request Q) (A, error) {
	var answer, none A
	var own error
	err := o.class.send(ctx, o.name, func(ctx context.Context, s *State, instance any) error {
		answer, own = instance.(Handler[Q, A]).Handle(ctx, s, request)
		return own
	})
	switch {
	case err == nil:
	case err == own: //nolint:errorlint // it asks which function returned it
		return none, err
	default:
		return none, fmt.Errorf("durable: %s %q: %w", o.class.name, o.name, err)
	}
	return answer, nil
}

// A class is what Namespace does whatever the types are.
type class struct {
	runtime *Runtime
	name    string
	limits  Limits
	client  *http.Client
	make    func(context.Context, *State) (any, error)
	alarm   func(context.Context, *State, any, Alarm) error
	alarms  alarms
	cached  atomic.Int64 // bytes in the caches of all objects
	counts  counts

	mu      sync.Mutex
	objects map[string]*object // in memory
	idle    list.List          // of those, *object without events, longest first
	sweeper *time.Timer        // set while idle is not empty
}

// send delivers an event, which is f, to the object with this name, and returns when its response may leave. If ctx is that of an event that has its
// object's turn, it is a call of that object's. If that event is in a call, send is a part of it. If it has ended, the error is [ErrOutside]. Events
// beyond the limit are refused with [ErrOverloaded].
func (c *class) send(ctx context.Context, name string, f handle) error {
	if s, ok := ctx.Value(stateKey{}).(*State); ok {
		switch s.turnState() {
		case ended:
			return ErrOutside
		case inside:
			return s.Call(ctx, func(ctx context.Context) error { return c.deliverEvent(ctx, name, f, true) })
		}
	}
	return c.deliverEvent(ctx, name, f, true)
}

// acquire returns the object with this name, which it creates in memory if it is not there, and counts one more user of it. The caller calls
// class.release at the end. It returns an error for an invalid name, and [ErrClosed] if the runtime is closed.
func (c *class) acquire(name string) (*object, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runtime.isClosed() {
		return nil, ErrClosed
	}
	o := c.objects[name]
	if o == nil {
		o = newObject(c, name)
		c.objects[name] = o
	}
	if o.users == 0 {
		c.removeIdle(o)
	}
	o.users++
	c.runtime.users.Add(1)
	return o, nil
}

// addUser counts one more user of an object that has one already. The caller calls class.release at the end.
func (c *class) addUser(o *object) {
	c.mu.Lock()
	o.users++
	c.runtime.users.Add(1)
	c.mu.Unlock()
}

// release counts one user of an object fewer. An object without users is idle, and is evicted from memory after a while; at once if the runtime is
// closed. If too many are idle, or the objects' caches are three quarters full and more than one is idle, the longest idle one is evicted at once.
func (c *class) release(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.runtime.users.Done()
	o.users--
	if o.users > 0 || c.objects[o.name] != o {
		return
	}
	if c.runtime.isClosed() {
		c.evict(o)
		return
	}
	o.since = time.Now()
	o.idle = c.idle.PushBack(o)
	if c.idle.Len() > c.limits.Live || c.idle.Len() > 1 && c.cached.Load() > c.limits.CacheBytes/4*3 {
		c.evict(c.idle.Front().Value.(*object))
	}
	if c.idle.Len() > 0 && c.sweeper == nil {
		c.sweeper = time.AfterFunc(c.limits.Idle, c.evictIdle)
	}
}

// evictIdle evicts the objects that have been idle for as long as the limits allow, or all idle ones if the runtime is closed. It is called by a
// timer, which it starts again while objects are idle.
func (c *class) evictIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeper = nil
	now := time.Now()
	for e := c.idle.Front(); e != nil; e = c.idle.Front() {
		o := e.Value.(*object)
		if wait := c.limits.Idle - now.Sub(o.since); wait > 0 && !c.runtime.isClosed() {
			c.sweeper = time.AfterFunc(wait, c.evictIdle)
			return
		}
		c.evict(o)
	}
}

// evict removes an object without users from memory; what it has stored stays. The caller holds c.mu.
func (c *class) evict(o *object) {
	c.removeIdle(o)
	delete(c.objects, o.name)
	o.cache.clear()
}

// replaceInstance removes the stopped object o from the class, so that later events get a new one. If o still has writes under way, it creates the
// new one, which waits for them. The caller holds o.mu.
func (c *class) replaceInstance(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects[o.name] != o {
		return
	}
	delete(c.objects, o.name)
	if o.writing == 0 {
		return
	}
	o.next = newObject(c, o.name)
	o.next.previous = o.settled
	o.next.users = 1 // o, until its writes are settled
	c.runtime.users.Add(1)
	c.objects[o.name] = o.next
}

// removeIdle removes an object from the list of idle objects, if it is there. The caller holds c.mu.
func (c *class) removeIdle(o *object) {
	if o.idle != nil {
		c.idle.Remove(o.idle)
		o.idle = nil
	}
}
