package config

import (
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cbroglie/mustache"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/text/language"
)

// word is what rooms and events are called, and what a cookie's suffix may be.
var word = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Default returns a room with the defaults of all that has one.
func Default() Room {
	return Room{
		Routes:                []Route{{Path: "/"}},
		Traffic:               Traffic{SessionDuration: 5 * time.Minute, Method: FIFO},
		QueueingStatus:        http.StatusOK,
		Language:              language.AmericanEnglish,
		Cookie:                Cookie{SameSite: SameSiteAuto, Secure: SecureAuto, Partitioned: true},
		UpstreamTimeout:       30 * time.Second,
		SubresourcesPerMinute: unset,
		RefreshInterval:       20 * time.Second,
		Allocator:             Counter,
		CurveFactor:           1,
		TrafficMinutesBack:    1,
	}
}

// unset stands for a number that nobody has given yet.
const unset = -2

// room reads one room.
func (r *reader) room(n *yaml.Node) (Room, bool) {
	before := len(r.problems)
	room := Default()
	room.TotalActiveUsers, room.NewUsersPerMinute = unset, unset
	var rules, events *yaml.Node
	ok := r.fields(n, "", map[string]func(*yaml.Node){
		"name":                      r.string(&room.Name, "name"),
		"host":                      r.host(&room.Routes[0].Host, "host"),
		"path":                      r.path(&room.Routes[0].Path, "path"),
		"additional_routes":         func(n *yaml.Node) { room.Routes = append(room.Routes[:1], r.routes(n)...) },
		"total_active_users":        r.whole(&room.TotalActiveUsers, "total_active_users", 1, maxUsers),
		"new_users_per_minute":      r.whole(&room.NewUsersPerMinute, "new_users_per_minute", 1, maxUsers),
		"session_duration":          r.units(&room.SessionDuration, "session_duration", time.Minute, 1, 30),
		"disable_session_renewal":   r.bool(&room.FixedSessions, "disable_session_renewal"),
		"queueing_method":           choice(r, &room.Method, "queueing_method", FIFO, Random, Passthrough, Reject),
		"queue_all":                 r.bool(&room.QueueAll, "queue_all"),
		"suspended":                 r.bool(&room.Suspended, "suspended"),
		"queueing_status_code":      r.status(&room.QueueingStatus),
		"json_response_enabled":     r.bool(&room.JSON, "json_response_enabled"),
		"custom_page_html":          r.template(&room.Template),
		"default_template_language": r.language(&room.Language),
		"cookie_attributes":         func(n *yaml.Node) { r.cookie(n, &room.Cookie) },
		"cookie_suffix":             r.suffix(&room.Cookie.Suffix),
		"enabled_origin_commands":   func(n *yaml.Node) { room.OriginRevokes = r.commands(n) },
		"rules":                     func(n *yaml.Node) { rules = n },
		"events":                    func(n *yaml.Node) { events = n },
		"upstream":                  r.upstream(&room.Upstream),
		"upstream_timeout":          r.units(&room.UpstreamTimeout, "upstream_timeout", time.Second, 1, 600),
		"subresources":              r.subresources(&room.SubresourcesPerMinute),
		"refresh_interval":          r.units(&room.RefreshInterval, "refresh_interval", time.Second, 5, 30),
		"allocator":                 choice(r, &room.Allocator, "allocator", Even, Adaptive, Counter),
		"curve_factor":              r.factor(&room.CurveFactor),
		"traffic_minutes_back":      r.whole(&room.TrafficMinutesBack, "traffic_minutes_back", 1, 2),
	})
	if !ok {
		return room, false
	}
	n = resolve(n)
	switch {
	case room.Name == "":
		r.fail(n, "name", "is missing; give the room one")
	case !word.MatchString(room.Name):
		r.fail(n, "name", "%q must have letters, digits, - and _ only, at most %d", short(room.Name), maxNameBytes)
	}
	if room.TotalActiveUsers == unset && !named(n, "total_active_users") {
		r.fail(n, "total_active_users", "is missing; say how many users may be active at once")
	}
	if room.NewUsersPerMinute == unset && !named(n, "new_users_per_minute") {
		r.fail(n, "new_users_per_minute", "is missing; say how many users may come in each minute")
	}
	if room.TotalActiveUsers > 0 && room.NewUsersPerMinute > room.TotalActiveUsers {
		r.fail(n, "new_users_per_minute", "is %d, more than the %d of total_active_users; make it smaller", room.NewUsersPerMinute, room.TotalActiveUsers)
	}
	if room.Cookie.SameSite == SameSiteNone && room.Cookie.Secure == SecureNever {
		r.fail(n, "cookie_attributes", "samesite none with secure never makes a cookie that browsers refuse; choose another of one of the two")
	}
	if len(room.Routes) > 1 && room.Cookie.Suffix == "" {
		r.fail(n, "additional_routes", "needs a cookie_suffix, which tells the cookies of several rooms apart")
	}
	if room.SubresourcesPerMinute == unset {
		room.SubresourcesPerMinute = max(room.NewUsersPerMinute, 0)
	}
	if rules != nil {
		for _, m := range r.list(rules, "rules", maxRules) {
			room.Rules = append(room.Rules, r.rule(m))
		}
	}
	if events != nil {
		room.Events = r.events(events, room.Traffic)
	}
	return room, len(r.problems) == before
}

func named(n *yaml.Node, field string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			return true
		}
	}
	return false
}

// checkTogether looks for what is wrong with several rooms only. The routes of a suspended room count too: it may be resumed.
func (r *reader) checkTogether(rooms []Room, nodes []*yaml.Node) {
	names := map[string]int{}
	routes := map[Route]string{}
	for i := range rooms {
		n := resolve(nodes[i])
		if first, twice := names[rooms[i].Name]; twice {
			r.fail(n, "name", "%q is the name of the room in line %d, too; choose another", rooms[i].Name, first)
			continue
		}
		names[rooms[i].Name] = n.Line
		for _, route := range rooms[i].Routes {
			if other, twice := routes[route]; twice {
				r.fail(n, "path", "the room %s covers %s%s, too; one of them must have another path", other, route.Host, short(route.Path))
			}
			routes[route] = rooms[i].Name
		}
	}
	r.checkCookies(rooms, nodes)
}

// checkCookies looks for rooms whose tickets would overwrite each other: with cookies of
// one name and path on the same host, whatever its port (RFC 6265 §5.3, §8.5).
func (r *reader) checkCookies(rooms []Room, nodes []*yaml.Node) {
	type cookie struct{ suffix, path string }
	keepers := map[cookie]map[string]string{} // by host, "" for every one; which room it is
	for i := range rooms {
		room := &rooms[i]
		c := cookie{room.Cookie.Suffix, room.CookiePath()}
		hosts := keepers[c]
		if hosts == nil {
			hosts = map[string]string{}
			keepers[c] = hosts
		}
		other := ""
		for _, route := range room.Routes {
			host := withoutPort(route.Host)
			for _, same := range [...]string{host, ""} {
				if keeper := hosts[same]; keeper != "" && keeper != room.Name {
					other = keeper
				}
			}
			for _, keeper := range hosts {
				if host == "" && keeper != room.Name && (other == "" || keeper < other) {
					other = keeper
				}
			}
		}
		if other != "" {
			r.fail(resolve(nodes[i]), "cookie_suffix", "the room %s keeps its tickets in the same cookie, so users of one would lose their place in the other; give one of them a cookie_suffix", other)
			continue
		}
		for _, route := range room.Routes {
			hosts[withoutPort(route.Host)] = room.Name
		}
	}
}

func (r *reader) host(target *string, field string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		if !ok {
			return
		}
		host := NormalHost(s)
		u, err := url.Parse("http://" + host)
		if host == "" || len(host) > 260 || err != nil || u.Host != host || u.User != nil || u.Hostname() == "" || !httpguts.ValidHostHeader(host) || strings.ContainsAny(host, "*%/") {
			r.fail(n, field, "%q must be a host such as shop.example.com, as browsers send it; remove the line to cover every host", short(s))
			return
		}
		*target = host
	}
}

// NormalHost returns a Host field (RFC 9110 §7.2) as rooms know it: in lower case, without
// a dot at the end.
func NormalHost(s string) string {
	for i := range len(s) {
		if c := s[i]; 'A' <= c && c <= 'Z' {
			s = strings.ToLower(s)
			break
		}
	}
	return strings.TrimSuffix(s, ".")
}

func (r *reader) path(target *string, field string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		if !ok {
			return
		}
		switch {
		case !strings.HasPrefix(s, "/"):
			r.fail(n, field, "%q must begin with a slash", short(s))
		case len(s) > maxPath:
			r.fail(n, field, "has %d bytes; at most %d are possible", len(s), maxPath)
		case strings.ContainsAny(s, "?#*\x00\r\n") || Clean(s) != s:
			r.fail(n, field, "%q must be the beginning of a path as a server reads it: no query, no percent-encoding, no double slash, no dots for folders, no *", short(s))
		default:
			*target = s
		}
	}
}

func (r *reader) routes(n *yaml.Node) (routes []Route) {
	for _, m := range r.list(n, "additional_routes", maxRoutes) {
		route := Route{Path: "/"}
		r.fields(m, "additional_routes", map[string]func(*yaml.Node){"host": r.host(&route.Host, "host"), "path": r.path(&route.Path, "path")})
		routes = append(routes, route)
	}
	return routes
}

func (r *reader) status(target *int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, _ := r.text(n, "queueing_status_code")
		switch s {
		case "200", "202", "429":
			*target, _ = strconv.Atoi(s)
		default:
			r.fail(n, "queueing_status_code", "%q must be one of 200, 202, 429", short(s))
		}
	}
}

func (r *reader) template(target *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, "custom_page_html")
		if !ok {
			return
		}
		if problem := CheckTemplate(s); problem != "" {
			r.fail(n, "custom_page_html", "%s", problem)
			return
		}
		*target = s
	}
}

// CheckTemplate says what is wrong with a template, "" for nothing.
func CheckTemplate(s string) string {
	switch {
	case len(s) > MaxTemplate:
		return "has " + strconv.Itoa(len(s)) + " bytes; a template may have " + strconv.Itoa(MaxTemplate)
	case s == "":
		return "is empty; remove the line to have the built-in page"
	case strings.Contains(s, "\x00"):
		return "holds a NUL byte; it must be text"
	}
	if _, err := ParseTemplate(s); err != nil {
		return "is no Mustache template: " + err.Error()
	}
	return ""
}

// ParseTemplate reads a template, which can include no other.
func ParseTemplate(s string) (*mustache.Template, error) {
	return mustache.ParseStringPartials(s, noPartials{})
}

// noPartials keeps templates from reading files.
type noPartials struct{}

func (noPartials) Get(string) (string, error) { return "", nil }

func (r *reader) language(target *language.Tag) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, "default_template_language")
		if !ok {
			return
		}
		tag, err := language.Parse(s)
		if err != nil {
			r.fail(n, "default_template_language", "%q must be a language such as en-US or de-DE", short(s))
			return
		}
		*target = tag
	}
}

func (r *reader) cookie(n *yaml.Node, cookie *Cookie) {
	r.fields(n, "cookie_attributes", map[string]func(*yaml.Node){
		"samesite":    choice(r, &cookie.SameSite, "samesite", SameSiteAuto, SameSiteLax, SameSiteNone, SameSiteStrict),
		"secure":      choice(r, &cookie.Secure, "secure", SecureAuto, SecureAlways, SecureNever),
		"partitioned": r.bool(&cookie.Partitioned, "partitioned"),
	})
}

func (r *reader) suffix(target *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, "cookie_suffix")
		if ok && !word.MatchString(s) {
			r.fail(n, "cookie_suffix", "%q must have letters, digits, - and _ only, at most %d", short(s), maxNameBytes)
			return
		}
		*target = s
	}
}

func (r *reader) commands(n *yaml.Node) (revoke bool) {
	for _, s := range r.texts(n, "enabled_origin_commands") {
		if s != "revoke" {
			r.fail(n, "enabled_origin_commands", "%q is no command; there is revoke", short(s))
			continue
		}
		revoke = true
	}
	return revoke
}

func (r *reader) upstream(target **url.URL) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, "upstream")
		if !ok {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
			r.fail(n, "upstream", "%q must be the origin of a site, such as http://127.0.0.1:3000", short(redacted(s)))
			return
		}
		u.Path = ""
		*target = u
	}
}

// redacted hides a password in what a message repeats.
func redacted(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return "…" + s[i:]
	}
	return s
}

func (r *reader) subresources(target *int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if s, ok := r.text(n, "subresources"); ok && s == "pass" {
			*target = -1
			return
		}
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < 0 || v > maxUsers {
			r.fail(n, "subresources", "%q must be pass, or how many may pass in a minute", short(n.Value))
			return
		}
		*target = v
	}
}

func (r *reader) factor(target *float64) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, "curve_factor")
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0.1 && v <= 10) {
			r.fail(n, "curve_factor", "%q must be a number from 0.1 to 10", short(s))
			return
		}
		*target = v
	}
}

// rule reads one rule. All of its conditions must hold.
func (r *reader) rule(n *yaml.Node) Rule {
	var rule Rule
	action, enabled := "bypass_waiting_room", true
	r.fields(n, "rules", map[string]func(*yaml.Node){
		"action":      choice(r, &action, "action", "bypass_waiting_room"),
		"description": r.string(&rule.Description, "description"),
		"enabled":     r.bool(&enabled, "enabled"),
		"path": func(n *yaml.Node) {
			for _, s := range r.texts(n, "path") {
				path := ""
				r.path(&path, "path")(&yaml.Node{Kind: yaml.ScalarNode, Value: s, Line: n.Line})
				rule.Paths = append(rule.Paths, path)
			}
		},
		"method": func(n *yaml.Node) {
			for _, s := range r.texts(n, "method") {
				if !httpguts.ValidHeaderFieldName(s) || strings.ToUpper(s) != s {
					r.fail(n, "method", "%q must be a method such as GET, in capitals", short(s))
				}
				rule.Methods = append(rule.Methods, s)
			}
		},
		"header": func(n *yaml.Node) { rule.Headers = r.headers(n) },
		"address": func(n *yaml.Node) {
			for _, s := range r.texts(n, "address") {
				prefix, err := netip.ParsePrefix(s)
				if address, alone := netip.ParseAddr(s); err != nil && alone == nil && address.Zone() == "" {
					prefix, err = address.Prefix(address.BitLen())
				}
				if err != nil {
					r.fail(n, "address", "%q must be an address or a range such as 192.0.2.0/24", short(s))
					continue
				}
				rule.Addresses = append(rule.Addresses, prefix.Masked())
			}
		},
	})
	rule.Disabled = !enabled
	if n = resolve(n); n.Kind == yaml.MappingNode && !slices.ContainsFunc([]string{"path", "method", "header", "address"}, func(f string) bool { return named(n, f) }) {
		r.fail(n, "rules", "a rule without path, method, header or address would let everybody past the room; use suspended for that")
	}
	return rule
}

func (r *reader) headers(n *yaml.Node) (headers []Header) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 || len(n.Content) > 2*maxValues {
		r.fail(n, "header", "must hold `Name: value` lines, at most %d; * is any value", maxValues)
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		value, ok := r.text(n.Content[i+1], "header")
		switch {
		case !ok:
		case !httpguts.ValidHeaderFieldName(name):
			r.fail(n.Content[i], "header", "%q is no name of a header", short(name))
		case value == "" || !httpguts.ValidHeaderFieldValue(value):
			r.fail(n.Content[i], "header", "%q is no value of a header; * is any", short(value))
		default:
			headers = append(headers, Header{http.CanonicalHeaderKey(name), value})
		}
	}
	return headers
}

// events reads a room's events. Where one says nothing, the room's own traffic holds.
func (r *reader) events(n *yaml.Node, room Traffic) []Event {
	nodes := r.list(n, "events", maxEvents)
	names := map[string]bool{}
	var events []Event
	for _, m := range nodes {
		e := Event{Traffic: room}
		ok := r.fields(m, "events", map[string]func(*yaml.Node){
			"name":                    r.string(&e.Name, "name"),
			"event_start_time":        r.moment(&e.Start, "event_start_time"),
			"event_end_time":          r.moment(&e.End, "event_end_time"),
			"prequeue_start_time":     r.moment(&e.Prequeue, "prequeue_start_time"),
			"shuffle_at_event_start":  r.bool(&e.Shuffle, "shuffle_at_event_start"),
			"custom_page_html":        r.template(&e.Template),
			"total_active_users":      r.whole(&e.TotalActiveUsers, "total_active_users", 1, maxUsers),
			"new_users_per_minute":    r.whole(&e.NewUsersPerMinute, "new_users_per_minute", 1, maxUsers),
			"queueing_method":         choice(r, &e.Method, "queueing_method", FIFO, Random, Passthrough, Reject),
			"session_duration":        r.units(&e.SessionDuration, "session_duration", time.Minute, 1, 30),
			"disable_session_renewal": r.bool(&e.FixedSessions, "disable_session_renewal"),
		})
		if !ok {
			continue
		}
		m = resolve(m)
		r.checkEvent(m, &e, names)
		names[e.Name] = true
		for i := range events {
			if e.From().Before(events[i].End) && events[i].From().Before(e.End) {
				r.fail(m, "events", "%s and %s are on at the same time, with their pre-queues; move one of them", e.Name, events[i].Name)
			}
		}
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b Event) int { return a.From().Compare(b.From()) })
	return events
}

func (r *reader) checkEvent(n *yaml.Node, e *Event, names map[string]bool) {
	switch {
	case !word.MatchString(e.Name):
		r.fail(n, "events", "name %q must have letters, digits, - and _ only, at most %d", short(e.Name), maxNameBytes)
	case names[e.Name]:
		r.fail(n, "events", "two are called %q; choose another name for one", e.Name)
	}
	if e.Start.IsZero() || e.End.IsZero() {
		r.fail(n, "events", "%s needs an event_start_time and an event_end_time", short(e.Name))
	} else if e.End.Sub(e.Start) < leastApart {
		r.fail(n, "events", "%s must end a minute after its start, or later", short(e.Name))
	}
	if !e.Prequeue.IsZero() && e.Start.Sub(e.Prequeue) < leastAhead {
		r.fail(n, "events", "%s: prequeue_start_time must be 5 minutes before the start, or earlier", short(e.Name))
	}
	if e.Shuffle && e.Prequeue.IsZero() {
		r.fail(n, "events", "%s: shuffle_at_event_start needs a prequeue_start_time: who would be shuffled?", short(e.Name))
	}
	if named(n, "total_active_users") != named(n, "new_users_per_minute") {
		r.fail(n, "events", "%s: total_active_users and new_users_per_minute can only be changed together; give both", short(e.Name))
	} else if e.TotalActiveUsers > 0 && e.NewUsersPerMinute > e.TotalActiveUsers {
		r.fail(n, "events", "%s: new_users_per_minute is more than total_active_users; make it smaller", short(e.Name))
	}
}
