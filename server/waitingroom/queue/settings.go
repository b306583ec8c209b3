package queue

import (
	"errors"
	"fmt"
	"time"
)

// Method is how slots find their visitors.
type Method uint8

const (
	FIFO        Method = iota // the oldest buckets first
	Random                    // whoever checks in when a slot is free
	Passthrough               // everybody in; visitors are counted but nothing is enforced
	Reject                    // nobody new in, and nobody waits
)

var methodNames = [...]string{"fifo", "random", "passthrough", "reject"}

func (m Method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("Method(%d)", m)
}

// ParseMethod reads one of fifo, random, passthrough and reject.
func ParseMethod(s string) (Method, error) {
	for i, name := range methodNames {
		if s == name {
			return Method(i), nil
		}
	}
	return 0, fmt.Errorf("queueing method %q: it is fifo, random, passthrough or reject", s)
}

// Allocator is how the slots of a data centre come to its workers. See the package
// documentation for what each of them can promise.
type Allocator uint8

const (
	Counter  Allocator = iota // one counter a data centre, fed by grants: no limit is ever exceeded
	Even                      // each worker an equal part: queueing starts early
	Adaptive                  // each worker more while the room is empty: bursts exceed the limits
)

var allocatorNames = [...]string{"counter", "even", "adaptive"}

func (a Allocator) String() string {
	if int(a) < len(allocatorNames) {
		return allocatorNames[a]
	}
	return fmt.Sprintf("Allocator(%d)", a)
}

// ParseAllocator reads one of counter, even and adaptive.
func ParseAllocator(s string) (Allocator, error) {
	for i, name := range allocatorNames {
		if s == name {
			return Allocator(i), nil
		}
	}
	return 0, fmt.Errorf("allocator %q: it is counter, even or adaptive", s)
}

// Settings are a room's limits and rules at one moment. An event's overrides are other
// Settings, which the caller configures on every level when the event starts.
type Settings struct {
	// TotalActiveUsers is how many sessions there may be at once. Required.
	TotalActiveUsers int
	// NewUsersPerMinute is how many visitors may be admitted in one calendar minute,
	// at most TotalActiveUsers. Required.
	NewUsersPerMinute int
	// SessionDuration is how long after its last request a visitor counts as active,
	// whole minutes from 1 to 30. Default 5 minutes.
	SessionDuration time.Duration
	// FixedSessions ends a session SessionDuration after the admission, whatever
	// requests follow.
	FixedSessions bool

	Method    Method    // default FIFO
	Allocator Allocator // default Counter
	// QueueAll lets nobody new in: everybody without a session waits.
	QueueAll bool
	// Suspended makes the room do nothing: everybody passes, uncounted.
	Suspended bool

	// CurveFactor is the exponent of Adaptive. Default 1.
	CurveFactor float64
	// HistoryMinutes is which minute's traffic decides the shares of the data centres:
	// 1, the minute before, where what the limit leaves over that traffic belongs to
	// whoever asks first; or 2, two minutes back, where all is shared out. Default 1.
	HistoryMinutes int

	// RefreshInterval is the mean time between a waiting visitor's check-ins. Each
	// one varies by up to 15 %. At most 30 s. Default 20 s.
	RefreshInterval time.Duration
	// PlaceKept is how long after the last check-in a waiting ticket is worth its
	// place. Default 5 minutes.
	PlaceKept time.Duration

	// Skew is the most that the clocks of any two nodes may differ; the limits hold as
	// long as they do not differ by more. Default 0, which is right for one node only;
	// at most 5 s.
	Skew time.Duration
	// Lease is how long a data centre goes on renewing sessions after the last answer
	// of the global object. Default: SessionDuration.
	Lease time.Duration

	// Shuffle gives those who came before an event a random order.
	Shuffle Shuffle
}

// Shuffle spreads the tickets whose bucket is in [From, Until) at random over those
// buckets: a ticket's place is a function of its id and Salt, so nothing needs to be
// stored or sent. The zero Shuffle changes nothing.
type Shuffle struct {
	From, Until Minute
	// Salt is drawn at random for each event, once it has started, so that nobody can
	// choose a ticket by its place.
	Salt uint64
}

// Place is the bucket in which a ticket queues.
func (s Shuffle) Place(id TicketID, bucket Minute) Minute {
	if bucket < s.From || bucket >= s.Until {
		return bucket
	}
	return s.From + Minute(mix(id, s.Salt)%uint64(s.Until-s.From))
}

// WithDefaults fills in what is zero, and reports what no room can work with.
func (s Settings) WithDefaults() (Settings, error) {
	if s.SessionDuration == 0 {
		s.SessionDuration = 5 * time.Minute
	}
	if s.CurveFactor == 0 {
		s.CurveFactor = 1
	}
	if s.HistoryMinutes == 0 {
		s.HistoryMinutes = 1
	}
	if s.RefreshInterval == 0 {
		s.RefreshInterval = 20 * time.Second
	}
	if s.PlaceKept == 0 {
		s.PlaceKept = 5 * time.Minute
	}
	if s.Lease == 0 {
		s.Lease = s.SessionDuration
	}
	switch {
	case s.TotalActiveUsers < 1 || s.TotalActiveUsers > maxUsers:
		return s, fmt.Errorf("total active users %d: it has to be from 1 to %d", s.TotalActiveUsers, maxUsers)
	case s.NewUsersPerMinute < 1 || s.NewUsersPerMinute > s.TotalActiveUsers:
		return s, fmt.Errorf("new users per minute %d: it has to be from 1 to the total active users, %d", s.NewUsersPerMinute, s.TotalActiveUsers)
	case s.SessionDuration < time.Minute || s.SessionDuration > 30*time.Minute || s.SessionDuration%time.Minute != 0:
		return s, fmt.Errorf("session duration %v: it has to be whole minutes, from 1 to 30", s.SessionDuration)
	case int(s.Method) >= len(methodNames):
		return s, fmt.Errorf("queueing method %d is unknown", s.Method)
	case int(s.Allocator) >= len(allocatorNames):
		return s, fmt.Errorf("allocator %d is unknown", s.Allocator)
	case s.CurveFactor < 0 || s.CurveFactor > 100:
		return s, fmt.Errorf("curve factor %v: it has to be from 0 to 100", s.CurveFactor)
	case s.HistoryMinutes != 1 && s.HistoryMinutes != 2:
		return s, fmt.Errorf("history of %d minutes: it has to be 1 or 2", s.HistoryMinutes)
	case s.RefreshInterval < 5*time.Second || s.RefreshInterval > 30*time.Second:
		return s, fmt.Errorf("refresh interval %v: it has to be from 5 s to 30 s", s.RefreshInterval)
	case s.PlaceKept < time.Minute || s.PlaceKept > 24*time.Hour:
		return s, fmt.Errorf("place kept %v: it has to be from a minute to a day", s.PlaceKept)
	case s.Skew < 0 || s.Skew > 5*time.Second:
		return s, fmt.Errorf("skew %v: it has to be from 0 to 5 s", s.Skew)
	case s.Lease < time.Minute || s.Lease > 30*time.Minute:
		return s, fmt.Errorf("lease %v: it has to be from 1 to 30 minutes", s.Lease)
	case s.Shuffle.Until < s.Shuffle.From:
		return s, errors.New("shuffle: it ends before it begins")
	}
	return s, nil
}

// maxUsers keeps every product of counts within an int64.
const maxUsers = 1 << 30

// unlimited reports whether visitors are admitted without grants.
func (s *Settings) unlimited() bool { return s.Suspended || s.Method == Passthrough }
