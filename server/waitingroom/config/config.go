// Package config parses what an operator configures of waiting rooms: the rooms in YAML, which
// requests each of them covers, what bypasses it, and what changes during its events.
//
// Parse checks everything that can be wrong with a room when it is read. Each mistake has
// its file and line, and what to do. The rooms are never changed afterwards, so that requests
// look at them without a lock. The package must not know tickets, or how a response
// looks.
package config

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Limits of what a file of rooms may hold.
const (
	MaxRooms     = 1000
	MaxTemplate  = 1 << 20 // bytes of a page's template
	MaxFile      = 32 << 20
	maxRoutes    = 100             // of a room
	maxRules     = 100             // of a room
	maxEvents    = 5               // of a room
	maxValues    = 100             // of one condition
	leastApart   = time.Minute     // from the start of an event to its end
	leastAhead   = 5 * time.Minute // from the start of a pre-queue to that of its event
	maxPath      = 2048            // bytes
	maxNameBytes = 64
	maxUpstreams = 64 // of a room
)

// A Room is one waiting room.
type Room struct {
	Name string
	// Routes are what it covers, the first its host and path, the others additional.
	Routes []Route
	// Settings and Template hold outside events.
	queue.Settings
	// Automatic has the limit of active users follow the origin: from AutomaticMin to Settings.TotalActiveUsers, so that 99 % of its
	// responses start within LatencyObjective.
	Automatic        bool
	AutomaticMin     int
	LatencyObjective time.Duration
	Template         string // of the page, in Mustache; "" for the built-in page
	QueueingStatus   int    // of the waiting page or JSON: 200, 202 or 429
	JSON             bool   // clients that prefer JSON to a page get it
	Language         language.Tag
	Cookie           Cookie
	EachNode         bool // in a cluster, each node has the room by itself, and its limits
	OriginRevokes    bool // the origin may end a session by a header of its response
	Rules            []Rule
	Events           []Event // by their time
	// Upstreams are where admitted requests go, all of one scheme: http, https or h2c. None:
	// to what Larder itself serves there.
	Upstreams []*url.URL
	// UpstreamTimeout is how long an upstream may take until its response begins.
	UpstreamTimeout time.Duration
	UpstreamCA      *x509.CertPool // that signs the certificates of upstreams; nil for the system's
	UpstreamHealth  string         // path that an upstream that works answers with 2xx or 3xx; "" for none
	// Challenge is queried about each new visitor, who gets a ticket only if its response is 2xx;
	// nil for none.
	Challenge *url.URL
	// SubresourcesPerMinute bounds requests for parts of a page, which carry no ticket:
	// with 0 none passes, a negative number is no limit.
	SubresourcesPerMinute int
	SubresourceMethods    []string // by which these pass; requests by others do not
	SubresourcePaths      []string // patterns of paths where they also pass for clients from whose address no user was admitted; nil for none
}

// A Route is a host and a pattern of paths on it.
type Route struct {
	Host string // in lower case, with a port only where only that one is meant; "" for every host
	Path string // case-sensitive, see matchesPath
}

// Cookie says how a room's ticket is kept.
type Cookie struct {
	SameSite    SameSite
	Secure      Secure
	Partitioned bool // a cookie with SameSite=None has the attribute Partitioned
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

// A Rule lets a request bypass a room if all its conditions hold. A condition
// without values holds for every request.
type Rule struct {
	Description string
	Disabled    bool
	Paths       []string // patterns; one of them
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
	Prequeue time.Time // from when on new visitors wait for the start; zero for no pre-queue
	Shuffle  bool      // visitors who waited before the start are let in by chance
	// Settings hold while it is on, the room's own where the event names none.
	Settings queue.Settings
	Template string // of the page, also in the pre-queue
}

// From returns when the event begins to have an effect: when its pre-queue opens, in which visitors wait for the start, if it has
// one.
func (e *Event) From() time.Time {
	if e.Prequeue.IsZero() {
		return e.Start
	}
	return e.Prequeue
}

// EffectiveSettings are the settings in force in a room until its next event begins or ends.
type EffectiveSettings struct {
	Room     string // its name
	Settings queue.Settings
	Template string // of the page; "" for the built-in page
	Event    *Event // that is on or is waited for, nil for none
	Phase    Phase
	Until    time.Time // when the next event, or its pre-queue, begins or ends; in the far future if none will
}

// Phase says whether an event of a room is running, or its pre-queue is open.
type Phase uint8

// The phases.
const (
	NoEvent Phase = iota // neither
	Prequeueing
	EventOn
)

// forever is later than all events.
var forever = time.Unix(1<<40, 0)

// At returns the settings in force in a room at a time, and until when: in the far future, never zero, if no event is ahead or
// running. During the pre-queue of an event the room's own limits apply to the visitors who are in, and all others wait; the page
// is the event's. The caller sets what the file does not have: an automatic limit, Skew, Shuffle.Salt, and the defaults of
// [queue.Settings.WithDefaults].
func (r *Room) At(t time.Time) EffectiveSettings {
	m := EffectiveSettings{Room: r.Name, Settings: r.Settings, Template: r.Template, Until: forever}
	for i := range r.Events {
		e := &r.Events[i]
		for _, turn := range [...]time.Time{e.From(), e.Start, e.End} {
			if t.Before(turn) && turn.Before(m.Until) {
				m.Until = turn
			}
		}
		if t.Before(e.From()) || !t.Before(e.End) {
			continue
		}
		m.Event, m.Template = e, e.Template
		if t.Before(e.Start) {
			m.Phase, m.Settings.QueueAll = Prequeueing, true
			continue
		}
		m.Phase, m.Settings = EventOn, e.Settings
		if e.Shuffle {
			m.Settings.Shuffle = queue.Shuffle{From: queue.MinuteOf(e.Prequeue), Until: queue.MinuteOf(e.Start)}
		}
	}
	return m
}

// CookiePath returns the Path of the room's cookie: the room's path up to and including its last slash, such as / for /shop,
// because browsers send a cookie to all paths below its folder (RFC 6265 §5.1.4). It returns "/" for a room with routes of
// several paths, and for a path with characters that browsers encode or that a cookie cannot have.
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

// LongestSession returns the longest duration of a session in this room, with or without its events.
func (r *Room) LongestSession() time.Duration {
	longest := r.SessionDuration
	for i := range r.Events {
		longest = max(longest, r.Events[i].Settings.SessionDuration)
	}
	return longest
}

// Parse parses a file of rooms: a YAML list of them, or a mapping with the list under "rooms". It returns nil for a file without
// a list. name is the file's, for messages. The errors are those of [List] and [ParseNode].
func Parse(name string, text []byte) ([]Room, error) {
	return Document{Name: name, Text: string(text)}.Rooms()
}

// List returns the YAML list of rooms in the text of a file, for [ParseNode]; nil if the file is empty, or a mapping without
// "rooms". It does not check whether the node is a list, nor the rooms. name is the file's, for messages. It fails for a text of
// more than [MaxFile] bytes, malformed YAML, several documents, and a mapping with other members.
func List(name string, text []byte) (*yaml.Node, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("%s: has %d bytes; rooms may take %d", name, len(text), MaxFile)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // empty, or nothing but comments
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: holds more than one YAML document; put all rooms into the first", name)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return root, nil
	}
	r := &reader{file: name}
	var list *yaml.Node
	r.readFields(root, "", map[string]field{"rooms": func(n *yaml.Node, _ string) { list = n }})
	return list, errors.Join(r.problems...)
}

// Set are fields of rooms that an operator has set while a process ran: values in YAML, by room
// and field. They replace those in the file.
type Set map[string]map[string]string

// Apply returns a copy of a YAML list of rooms with the fields of the set changed. The list itself does not change; the copy
// shares unchanged nodes with it. Apply ignores rooms that the list does not have. It fails for the field name, and for a value
// that is not YAML. It does not check whether a room has the field, nor the value otherwise.
func (s Set) Apply(list *yaml.Node) (*yaml.Node, error) {
	applied := *list
	applied.Content = slices.Clone(list.Content)
	for i, n := range applied.Content {
		n = resolveAlias(n)
		if n.Kind != yaml.MappingNode {
			continue
		}
		name := ""
		if at := fieldIndex(n, "name"); at >= 0 {
			name = n.Content[at].Value
		}
		if len(s[name]) == 0 {
			continue
		}
		room := *n
		room.Content = slices.Clone(n.Content)
		for _, field := range slices.Sorted(maps.Keys(s[name])) {
			if err := setField(&room, field, s[name][field]); err != nil {
				return nil, fmt.Errorf("room %s: %s: %w", name, field, err)
			}
		}
		applied.Content[i] = &room
	}
	return &applied, nil
}

// setField sets a field of the YAML mapping room, which it changes, to the value in text, which is YAML. It adds the field if it
// is missing. It returns an error for the name, which cannot be set, and for a text that is not one YAML value.
func setField(room *yaml.Node, field, text string) error {
	if field == "name" {
		return errors.New("cannot be changed: tickets are bound to it")
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil || len(document.Content) != 1 {
		return valueError(text, "must be a value in YAML, such as true, 200 or [a, b]")
	}
	value := document.Content[0]
	value.Line = room.Line
	if at := fieldIndex(room, field); at >= 0 {
		room.Content[at] = value
		return nil
	}
	room.Content = append(room.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: field, Line: room.Line}, value)
	return nil
}

// SameUpstreams reports whether two rooms send requests to the same servers in the same way: the upstreams, in the same order,
// their timeout, certificates and health path, and the host of the first route are equal.
func (r *Room) SameUpstreams(other *Room) bool {
	return r.UpstreamTimeout == other.UpstreamTimeout && r.UpstreamHealth == other.UpstreamHealth && r.Routes[0].Host == other.Routes[0].Host &&
		slices.EqualFunc(r.Upstreams, other.Upstreams, func(a, b *url.URL) bool { return *a == *b }) &&
		(r.UpstreamCA == nil) == (other.UpstreamCA == nil) && (r.UpstreamCA == nil || r.UpstreamCA.Equal(other.UpstreamCA))
}

// ParseNode parses a YAML list of rooms, which may be part of a larger file, and returns them in its order. name is the file's,
// for messages. The error joins one for each mistake, up to 50 (maxProblems); the rooms are nil then. It looks for mistakes
// between rooms, such as equal names, only if it has found no other.
func ParseNode(name string, list *yaml.Node) ([]Room, error) {
	r := &reader{file: name}
	nodes := r.readList(list, "rooms", MaxRooms)
	rooms := make([]Room, 0, len(nodes))
	for _, n := range nodes {
		if room, ok := r.readRoom(n); ok {
			rooms = append(rooms, room)
		}
	}
	if len(r.problems) == 0 {
		r.checkRoutes(rooms, nodes)
	}
	if len(r.problems) > 0 {
		return nil, errors.Join(r.problems...)
	}
	return rooms, nil
}

// A reader walks a document and collects its mistakes.
type reader struct {
	file     string
	problems []error
}

// maxProblems is how many mistakes are reported at once.
const maxProblems = 50

// addMistake adds a mistake in a field to the reader's problems, with the line of the node n. field may be "". Mistakes beyond
// maxProblems are dropped.
func (r *reader) addMistake(n *yaml.Node, field, format string, args ...any) {
	if len(r.problems) >= maxProblems {
		return
	}
	at := fmt.Sprintf("%s:%d: ", r.file, n.Line)
	if field != "" {
		at += field + ": "
	}
	r.problems = append(r.problems, fmt.Errorf(at+format, args...))
}

// resolveAlias returns the node that a YAML alias stands for, and any other node itself.
func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// A field parses the value n of a member of a mapping, and adds its mistakes to the reader. n is no alias. name is the member's
// key, for messages.
type field func(n *yaml.Node, name string)

// readFields passes the value of each member of a mapping to the parser of that name in known. It adds unknown, repeated and
// empty members as mistakes. of is the name of the field that has the mapping, for messages. It returns false, after adding a
// mistake, if n is no mapping; after mistakes in members it returns true.
func (r *reader) readFields(n *yaml.Node, of string, known map[string]field) bool {
	n = resolveAlias(n)
	if n.Kind != yaml.MappingNode {
		r.addMistake(n, of, "must hold `name: value` lines")
		return false
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolveAlias(n.Content[i+1])
		read, ok := known[key.Value]
		first, twice := lines[key.Value]
		switch {
		case !ok:
			r.addMistake(key, of, "no such field as %q%s", cutValue(key.Value), suggestField(key.Value, known))
		case twice:
			r.addMistake(key, of, "%s is set already in line %d; remove one of the two", key.Value, first)
		case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
			r.addMistake(value, key.Value, "has no value; give it one, or remove the line for the default")
		default:
			lines[key.Value] = key.Line
			read(value, key.Value)
		}
	}
	return true
}

// suggestField returns the end of a message about an unknown field name: it suggests the field in known with a similar name, or
// else to remove the unknown one.
func suggestField(name string, known map[string]field) string {
	if best, ok := text.Nearest(name, slices.Collect(maps.Keys(known))); ok {
		return "; did you mean " + best + "?"
	}
	return "; remove it"
}

// readList returns the members of a YAML list, of which there may be up to most. Members may be aliases. If n is no list, or has
// more members, it adds a mistake and returns nil. field is for messages.
func (r *reader) readList(n *yaml.Node, field string, most int) []*yaml.Node {
	n = resolveAlias(n)
	switch {
	case n.Kind != yaml.SequenceNode:
		r.addMistake(n, field, "must be a list, its members on lines that begin with a dash")
	case len(n.Content) > most:
		r.addMistake(n, field, "has %d members; at most %d are possible", len(n.Content), most)
	default:
		return n.Content
	}
	return nil
}

// readText returns the text of a single YAML value; false, after adding a mistake, if n is not one. name is for messages.
func (r *reader) readText(n *yaml.Node, name string) (string, bool) {
	n = resolveAlias(n)
	if n.Kind != yaml.ScalarNode {
		r.addMistake(n, name, "must be a single value")
		return "", false
	}
	return n.Value, true
}

// newValueField returns a field parser that parses a single value by the function parse and stores it in target. After an error,
// which it adds as a mistake, target stays as it was.
func newValueField[T any](r *reader, target *T, parse func(string) (T, error)) field {
	return func(n *yaml.Node, name string) {
		s, ok := r.readText(n, name)
		if !ok {
			return
		}
		v, err := parse(s)
		if err != nil {
			r.addMistake(n, name, "%w", err)
			return
		}
		*target = v
	}
}

// newListField returns a field parser that parses one value, or a list of up to maxValues, by the function parse, and appends
// them to target. For a value with a mistake it appends the zero value.
func newListField[T any](r *reader, target *[]T, parse func(string) (T, error)) field {
	return func(n *yaml.Node, name string) {
		nodes := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			nodes = r.readList(n, name, maxValues)
		}
		for _, m := range nodes {
			var v T
			newValueField(r, &v, parse)(m, name)
			*target = append(*target, v)
		}
	}
}

// acceptText parses fields that may have any text: it returns the text, and no error.
func acceptText(s string) (string, error) { return s, nil }

// parseBool parses true or false, in exactly this spelling.
func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, valueError(s, "must be true or false")
	}
	return s == "true", nil
}

// wholeNumber returns a parser of whole numbers from least to most. The parser's result is the number times unit, such as
// [time.Second].
func wholeNumber[T ~int | ~int64](unit T, least, most int) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := strconv.Atoi(s)
		if err != nil || v < least || v > most {
			return 0, valueError(s, "must be a whole number from %d to %d", least, most)
		}
		return T(v) * unit, nil
	}
}

// validText returns a parser that accepts the texts for which isValid returns true. message is the end of the error for others.
func validText(isValid func(string) bool, message string, args ...any) func(string) (string, error) {
	return func(s string) (string, error) {
		if !isValid(s) {
			return "", valueError(s, message, args...)
		}
		return s, nil
	}
}

// parseTime parses a field with a time in RFC 3339, and returns it in UTC.
func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, valueError(s, "must be a time such as 2027-05-26T19:51:00Z")
	}
	return t.UTC(), nil
}

// oneOf returns a parser that accepts one of several words, in exactly their spelling.
func oneOf[T ~string](choices ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(choices, T(s)) {
			return T(s), nil
		}
		var names []string
		for _, c := range choices {
			names = append(names, string(c))
		}
		return "", valueError(s, "must be one of %s", strings.Join(names, ", "))
	}
}

// valueError returns an error about a value s that cannot be parsed: the value, quoted and cut to 80 bytes, and the formatted
// text.
func valueError(s, format string, args ...any) error {
	return fmt.Errorf("%q "+format, append([]any{cutValue(s)}, args...)...)
}

// cutValue returns a value of at most 80 bytes, for messages. If it has cut the value, the result ends with "…".
func cutValue(s string) string { return text.Short(s, 80) }
