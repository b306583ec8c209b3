// Package config is what an operator says of waiting rooms: the rooms in YAML, which
// requests each of them covers, what goes past it, and what changes during its events.
//
// Parse checks everything that can be wrong with a room when it is read, and says of each
// mistake where it stands and what to do. What it returns is never changed, so that
// requests look at it without a lock. The package must not know tickets, queues, or how
// an answer looks.
package config

import (
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/text/language"
)

// Limits of what a file of rooms may hold.
const (
	MaxRooms     = 1000
	MaxTemplate  = 1 << 20 // bytes of a page's template
	maxFile      = 32 << 20
	maxRoutes    = 100 // of a room
	maxRules     = 100 // of a room
	maxEvents    = 5   // of a room
	maxValues    = 100 // of one condition
	maxUsers     = 1_000_000_000
	leastApart   = time.Minute     // from the start of an event to its end
	leastAhead   = 5 * time.Minute // from the start of a pre-queue to that of its event
	maxPath      = 2048            // bytes
	maxNameBytes = 64
)

// A Method says how new users and those who wait are treated.
type Method string

// The methods.
const (
	FIFO        Method = "fifo"        // who came first goes in first
	Random      Method = "random"      // everybody has the same chance
	Passthrough Method = "passthrough" // all go in
	Reject      Method = "reject"      // nobody new goes in, and the page does not refresh itself
)

// An Allocator says how a data centre's slots are divided among its workers.
type Allocator string

// The allocators. Counter is the default: it alone keeps the limits whatever the traffic.
const (
	Even     Allocator = "even"
	Adaptive Allocator = "adaptive"
	Counter  Allocator = "counter"
)

// A Traffic is what may change while an event is on.
type Traffic struct {
	TotalActiveUsers  int           // users at once
	NewUsersPerMinute int           // at most TotalActiveUsers
	SessionDuration   time.Duration // a user is active until this long after the last request
	FixedSessions     bool          // a session ends that long after the admission, whatever the user does
	Method            Method
	Template          string // of the page, in Mustache; "" for the page that is built in
}

// A Room is one waiting room.
type Room struct {
	Name string
	// Routes are what it covers, the first its host and path, the others additional.
	Routes []Route
	// Traffic holds outside events.
	Traffic
	QueueAll       bool // everybody new waits
	Suspended      bool // the room does nothing
	QueueingStatus int  // of a page or of JSON for who waits: 200, 202 or 429
	JSON           bool // who accepts JSON and not a page gets it
	Language       language.Tag
	Cookie         Cookie
	OriginRevokes  bool // the origin may end a session by a header of its answer
	Rules          []Rule
	Events         []Event // by their time
	// Upstream is where admitted requests go. Nil: to what Larder itself serves there.
	Upstream *url.URL
	// UpstreamTimeout is how long the upstream may take until its answer begins.
	UpstreamTimeout time.Duration
	// SubresourcesPerMinute bounds requests for parts of a page, which carry no ticket:
	// 0 lets none pass, a negative number all.
	SubresourcesPerMinute int
	// RefreshInterval is how long who waits waits between two chances, on average.
	RefreshInterval time.Duration
	Allocator       Allocator
	CurveFactor     float64 // of Adaptive
	// TrafficMinutesBack says which minute's traffic shares are taken from: 1, the one
	// before, or 2.
	TrafficMinutesBack int
}

// A Route is a host and the beginning of paths on it.
type Route struct {
	Host string // in lower case, with a port only where only that one is meant; "" for every host
	Path string // case-sensitive; what begins so is covered
}

// Cookie says how a room's ticket is kept.
type Cookie struct {
	SameSite    SameSite
	Secure      Secure
	Partitioned bool // where the cookie may be sent in frames of other sites
	Suffix      string
}

// SameSite is the attribute of that name (RFC 6265bis §4.1.2.7).
type SameSite string

// Its values; SameSiteAuto is None on HTTPS, else Lax.
const (
	SameSiteAuto   SameSite = "auto"
	SameSiteLax    SameSite = "lax"
	SameSiteNone   SameSite = "none"
	SameSiteStrict SameSite = "strict"
)

// Secure says when the cookie is for HTTPS alone.
type Secure string

// Its values; SecureAuto is for cookies that are set over HTTPS.
const (
	SecureAuto   Secure = "auto"
	SecureAlways Secure = "always"
	SecureNever  Secure = "never"
)

// A Rule lets requests go past a room that all its conditions hold for. Conditions
// without values hold for every request.
type Rule struct {
	Description string
	Disabled    bool
	Paths       []string // beginnings; one of them
	Methods     []string // one of them
	Headers     []Header // all of them
	Addresses   []netip.Prefix
}

// A Header is a condition on a field of a request.
type Header struct {
	Name  string // canonical
	Value string // "*" for any
}

// An Event changes a room for a while.
type Event struct {
	Name     string
	Start    time.Time
	End      time.Time
	Prequeue time.Time // from when on everybody new waits for the start; zero for no pre-queue
	Shuffle  bool      // who waited before the start is let in by chance
	Traffic            // while it is on, the room's own where the event says nothing
}

// From is when the event begins to matter.
func (e *Event) From() time.Time {
	if e.Prequeue.IsZero() {
		return e.Start
	}
	return e.Prequeue
}

// Phase says where a room stands with regard to its events.
type Phase uint8

// The phases.
const (
	NoEvent Phase = iota
	Prequeueing
	EventOn
)

// At returns the traffic that a room allows at a time, and the event of that time, nil
// where there is none. In a pre-queue the room's own traffic still holds for those who
// are in; its event's page is shown.
func (r *Room) At(t time.Time) (Traffic, *Event, Phase) {
	for i := range r.Events {
		e := &r.Events[i]
		if t.Before(e.From()) || !t.Before(e.End) {
			continue
		}
		if !t.Before(e.Start) {
			return e.Traffic, e, EventOn
		}
		traffic := r.Traffic
		traffic.Template = e.Template
		return traffic, e, Prequeueing
	}
	return r.Traffic, nil, NoEvent
}

// CookiePath is the Path of the room's cookie: "/" for a room with routes of several
// paths. A browser sends a cookie to what its path is a folder of (RFC 6265 §5.1.4), so
// that of a room is the last folder in its path.
func (r *Room) CookiePath() string {
	path := r.Routes[0].Path
	for _, route := range r.Routes[1:] {
		if route.Path != path {
			return "/"
		}
	}
	path = path[:strings.LastIndexByte(path, '/')+1]
	if strings.IndexFunc(path, func(r rune) bool { return r <= ' ' || r == ';' || r == ',' || r == '"' || r > '~' }) >= 0 {
		return "/" // browsers compare it with the path as they encode it
	}
	return path
}

// LongestSession is the longest that a session may last in this room, whatever event is on.
func (r *Room) LongestSession() time.Duration {
	longest := r.SessionDuration
	for i := range r.Events {
		longest = max(longest, r.Events[i].SessionDuration)
	}
	return longest
}
