package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cbroglie/mustache"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// word is a name of a room or an event, or a cookie's suffix.
var word = text.NewRegexp(`^[A-Za-z0-9_-]{1,64}$`)

// Default returns a room with the defaults of all fields that have one. SubresourcesPerMinute is unset, a negative number:
// readRoom replaces it by NewUsersPerMinute.
func Default() Room {
	return Room{
		Routes: []Route{{Path: "/"}},
		Settings: queue.Settings{
			SessionDuration: 5 * time.Minute, Method: queue.FIFO, Allocator: queue.Counter,
			CurveFactor: 1, HistoryMinutes: 1, RefreshInterval: 20 * time.Second,
		},
		QueueingStatus:        http.StatusOK,
		Language:              language.AmericanEnglish,
		Cookie:                Cookie{SameSite: SameSiteAuto, Secure: SecureAuto, Partitioned: true},
		UpstreamTimeout:       30 * time.Second,
		SubresourcesPerMinute: unset,
		SubresourceMethods:    []string{http.MethodGet, http.MethodHead},
	}
}

// unset stands for a number that the file has not given.
const unset = -2

// readRoom parses one room of the file. It adds mistakes to the reader's problems, and returns false if there were any. It does
// not compare the room with others.
func (r *reader) readRoom(n *yaml.Node) (Room, bool) {
	before := len(r.problems)
	room := Default()
	room.TotalActiveUsers, room.NewUsersPerMinute = unset, unset
	var rules, events *yaml.Node
	automaticMax := 0
	ok := r.readFields(n, "", r.roomFields(&room, &automaticMax, &rules, &events))
	if !ok {
		return room, false
	}
	n = resolveAlias(n)
	switch {
	case room.Name == "":
		r.addMistake(n, "name", "is missing; give the room a name")
	case !word.MatchString(room.Name):
		r.addMistake(n, "name", "%q must have letters, digits, - and _ only, at most %d", cutValue(room.Name), maxNameBytes)
	}
	r.checkAutomatic(n, &room, automaticMax)
	if room.TotalActiveUsers == unset && !hasField(n, "total_active_users") {
		r.addMistake(n, "total_active_users", "is missing; say how many users may be active at once")
	}
	if room.NewUsersPerMinute == unset && !hasField(n, "new_users_per_minute") {
		r.addMistake(n, "new_users_per_minute", "is missing; say how many users may come in each minute")
	}
	if room.TotalActiveUsers > 0 && room.NewUsersPerMinute > room.TotalActiveUsers {
		r.addMistake(n, "new_users_per_minute", "is %d, more than the %d of total_active_users; make it smaller", room.NewUsersPerMinute, room.TotalActiveUsers)
	}
	if room.Cookie.SameSite == SameSiteNone && room.Cookie.Secure == SecureNever {
		r.addMistake(n, "cookie_attributes", "samesite none with secure never makes a cookie that browsers refuse; choose another of one of the two")
	}
	if len(room.Routes) > 1 && room.Cookie.Suffix == "" {
		r.addMistake(n, "additional_routes", "needs a cookie_suffix, which tells the cookies of several rooms apart")
	}
	if room.SubresourcesPerMinute == unset {
		room.SubresourcesPerMinute = max(room.NewUsersPerMinute, 0)
	}
	r.checkUpstreams(n, &room)
	if rules != nil {
		for _, m := range r.readList(rules, "rules", maxRules) {
			room.Rules = append(room.Rules, r.readRule(m))
		}
	}
	if events != nil {
		room.Events = r.readEvents(events, &room)
	}
	return room, len(r.problems) == before
}

// readTotal parses the limit of active users of a room: a number, which goes to room.TotalActiveUsers, or auto, which sets
// room.Automatic.
func (r *reader) readTotal(n *yaml.Node, name string, room *Room) {
	if room.Automatic = resolveAlias(n).Value == "auto"; !room.Automatic {
		newValueField(r, &room.TotalActiveUsers, wholeNumber(1, 1, queue.MaxUsers))(n, name)
	}
}

// checkAutomatic adds a mistake, at most one, if a field that belongs to an automatic limit is missing, or there without such a
// limit, if the minimum is above the maximum, or if the room has no upstream or another allocator than counter. For a room with
// an automatic limit and all these fields it sets TotalActiveUsers to automaticMax, the highest limit.
func (r *reader) checkAutomatic(n *yaml.Node, room *Room, automaticMax int) {
	fields := [...]string{"total_active_users_min", "total_active_users_max", "latency_objective_p99"}
	for _, field := range fields {
		if hasField(n, field) != room.Automatic {
			r.addMistake(n, field, "is needed with total_active_users: auto, and only then; give total_active_users_min, total_active_users_max and latency_objective_p99 with it")
			return
		}
	}
	switch {
	case !room.Automatic:
		return
	case room.AutomaticMin > automaticMax:
		r.addMistake(n, "total_active_users_min", "is %d, more than the %d of total_active_users_max; make it smaller", room.AutomaticMin, automaticMax)
	case len(room.Upstreams) == 0:
		r.addMistake(n, "total_active_users", "auto needs an upstream, whose response times the limit follows")
	case room.Allocator != queue.Counter:
		r.addMistake(n, "total_active_users", "auto needs the allocator counter")
	}
	room.TotalActiveUsers = automaticMax
}

// roomFields returns a parser for each field of a room, by the field's name. Each parses its value into room; the highest
// automatic limit goes to automaticMax. The parsers of rules and events only store their nodes in rules and events, because these
// can be parsed only after the other fields.
func (r *reader) roomFields(room *Room, automaticMax *int, rules, events **yaml.Node) map[string]field {
	return map[string]field{
		"name":                      newValueField(r, &room.Name, acceptText),
		"host":                      newValueField(r, &room.Routes[0].Host, parseHost),
		"path":                      newValueField(r, &room.Routes[0].Path, parsePath),
		"additional_routes":         func(n *yaml.Node, name string) { room.Routes = append(room.Routes[:1], r.readRoutes(n, name)...) },
		"total_active_users":        func(n *yaml.Node, name string) { r.readTotal(n, name, room) },
		"total_active_users_min":    newValueField(r, &room.AutomaticMin, wholeNumber(1, 1, queue.MaxUsers)),
		"total_active_users_max":    newValueField(r, automaticMax, wholeNumber(1, 1, queue.MaxUsers)),
		"latency_objective_p99":     newValueField(r, &room.LatencyObjective, wholeNumber(time.Millisecond, 1, 600_000)),
		"new_users_per_minute":      newValueField(r, &room.NewUsersPerMinute, wholeNumber(1, 1, queue.MaxUsers)),
		"session_duration":          newValueField(r, &room.SessionDuration, wholeNumber(time.Minute, 1, 30)),
		"disable_session_renewal":   newValueField(r, &room.FixedSessions, parseBool),
		"queueing_method":           newValueField(r, &room.Method, oneOf(queue.Methods...)),
		"rolling_minute":            newValueField(r, &room.RollingMinute, parseBool),
		"queue_all":                 newValueField(r, &room.QueueAll, parseBool),
		"each_node":                 newValueField(r, &room.EachNode, parseBool),
		"suspended":                 newValueField(r, &room.Suspended, parseBool),
		"queueing_status_code":      newValueField(r, &room.QueueingStatus, parseStatus),
		"json_response_enabled":     newValueField(r, &room.JSON, parseBool),
		"custom_page_html":          newValueField(r, &room.Template, parseTemplateText),
		"default_template_language": newValueField(r, &room.Language, parseLanguage),
		"cookie_attributes":         func(n *yaml.Node, name string) { r.readCookie(n, name, &room.Cookie) },
		"cookie_suffix":             newValueField(r, &room.Cookie.Suffix, parseWord),
		"enabled_origin_commands":   func(n *yaml.Node, name string) { room.OriginRevokes = r.readCommands(n, name) },
		"rules":                     func(n *yaml.Node, _ string) { *rules = n },
		"events":                    func(n *yaml.Node, _ string) { *events = n },
		"upstream":                  newListField(r, &room.Upstreams, parseUpstream),
		"upstream_timeout":          newValueField(r, &room.UpstreamTimeout, wholeNumber(time.Second, 1, 600)),
		"upstream_ca":               newValueField(r, &room.UpstreamCA, parseCertificates),
		"upstream_health":           newValueField(r, &room.UpstreamHealth, parseHealth),
		"challenge":                 newValueField(r, &room.Challenge, parseChallenge),
		"subresources":              func(n *yaml.Node, name string) { r.readSubresources(n, name, room) },
		"refresh_interval":          newValueField(r, &room.RefreshInterval, wholeNumber(time.Second, 5, 30)),
		"allocator":                 newValueField(r, &room.Allocator, oneOf(queue.Allocators...)),
		"curve_factor":              newValueField(r, &room.CurveFactor, parseFactor),
		"traffic_minutes_back":      newValueField(r, &room.HistoryMinutes, wholeNumber(1, 1, 2)),
	}
}

// checkFieldName returns an error if a room has no field of that name. The error suggests a similar name.
func checkFieldName(name string) error {
	room := Default()
	known := (&reader{}).roomFields(&room, new(int), new(*yaml.Node), new(*yaml.Node))
	if known[name] == nil {
		return fmt.Errorf("no such field as %q%s", cutValue(name), suggestField(name, known))
	}
	return nil
}

// hasField reports whether a YAML mapping has a field.
func hasField(n *yaml.Node, field string) bool { return fieldIndex(n, field) >= 0 }

// fieldIndex returns the index in n.Content of the value of a field of a YAML mapping, -1 if it has no such field.
func fieldIndex(n *yaml.Node, field string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			return i + 1
		}
	}
	return -1
}

// checkRoutes adds mistakes between rooms: equal names, equal routes, and cookies that would overwrite each other. Routes of a
// suspended room count too, because it may be resumed. nodes are the rooms in the file, in the same order as rooms.
func (r *reader) checkRoutes(rooms []Room, nodes []*yaml.Node) {
	names := map[string]int{}
	routes := map[Route]string{}
	for i := range rooms {
		n := resolveAlias(nodes[i])
		if first, twice := names[rooms[i].Name]; twice {
			r.addMistake(n, "name", "%q is the name of the room in line %d, too; choose another", rooms[i].Name, first)
			continue
		}
		names[rooms[i].Name] = n.Line
		for _, route := range rooms[i].Routes {
			if other, twice := routes[route]; twice {
				r.addMistake(n, "path", "the room %s covers %s%s, too; one of them must have another path", other, route.Host, cutValue(route.Path))
			}
			routes[route] = rooms[i].Name
		}
	}
	r.checkCookies(rooms, nodes)
}

// checkCookies adds a mistake for each room whose tickets would overwrite those of another: cookies of the same name and path on
// the same host, on any port (RFC 6265 §5.3, §8.5).
func (r *reader) checkCookies(rooms []Room, nodes []*yaml.Node) {
	type cookie struct{ suffix, path string }
	keepers := map[cookie]map[string]string{} // names of rooms by host, "" for every host
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
			host := trimPort(route.Host)
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
			r.addMistake(resolveAlias(nodes[i]), "cookie_suffix", "the room %s keeps its tickets in the same cookie, so users of one would lose their place in the other; give one of them a cookie_suffix", other)
			continue
		}
		for _, route := range room.Routes {
			hosts[trimPort(route.Host)] = room.Name
		}
	}
}

// parseHost parses the host of a route, which may have a port but no wildcard, and returns it in the form of [NormalizeHost].
func parseHost(s string) (string, error) {
	host := NormalizeHost(s)
	u, err := url.Parse("http://" + host)
	if host == "" || len(host) > 260 || err != nil || u.Host != host || u.User != nil || u.Hostname() == "" || !httpguts.ValidHostHeader(host) || strings.ContainsAny(host, "*%/") {
		return "", valueError(s, "must be a host such as shop.example.com, as browsers send it; remove the line to cover every host")
	}
	return host, nil
}

// NormalizeHost returns a Host field (RFC 9110 §7.2) in the form that rooms use: in lower case, without a dot at the end. A port
// stays, and a dot before it.
func NormalizeHost(s string) string {
	return strings.TrimSuffix(strings.ToLower(s), ".")
}

// parsePath returns s if it is a valid pattern of paths, for [matchesPath].
func parsePath(s string) (string, error) {
	plain := strings.TrimSuffix(s, "*")
	switch {
	case !strings.HasPrefix(s, "/"):
		return "", valueError(s, "must begin with a slash")
	case len(s) > maxPath:
		return "", fmt.Errorf("has %d bytes; at most %d are possible", len(s), maxPath)
	case strings.ContainsAny(plain, "?#*\x00\r\n") || Clean(plain) != plain:
		return "", valueError(s, "must be a path as a server reads it: no query, no percent-encoding, no double slash, no dots for folders; a * at the end covers every path that begins so")
	}
	return s, nil
}

// readRoutes parses the additional routes of a room. A route without a host is for every host, one without a path for all paths.
// name is the field's name, for messages.
func (r *reader) readRoutes(n *yaml.Node, name string) (routes []Route) {
	for _, m := range r.readList(n, name, maxRoutes) {
		route := Route{Path: "/"}
		r.readFields(m, name, map[string]field{"host": newValueField(r, &route.Host, parseHost), "path": newValueField(r, &route.Path, parsePath)})
		routes = append(routes, route)
	}
	return routes
}

// parseStatus parses the HTTP status of the waiting page: 200, 202 or 429.
func parseStatus(s string) (int, error) {
	s, err := oneOf("200", "202", "429")(s)
	status, _ := strconv.Atoi(s)
	return status, err
}

// parseTemplateText returns s, the template of a waiting page, and the error of [CheckTemplate].
func parseTemplateText(s string) (string, error) { return s, CheckTemplate(s) }

// CheckTemplate returns what is wrong with the template of a waiting page, as the end of a message; nil if it is valid. An empty
// template is not valid.
func CheckTemplate(s string) error {
	switch {
	case len(s) > MaxTemplate:
		return fmt.Errorf("has %d bytes; a template may have %d", len(s), MaxTemplate)
	case s == "":
		return errors.New("is empty; remove the line to have the built-in page")
	case strings.Contains(s, "\x00"):
		return errors.New("holds a NUL byte; it must be text")
	}
	if _, err := ParseTemplate(s); err != nil {
		return fmt.Errorf("is no Mustache template: %w", err)
	}
	return nil
}

// ParseTemplate parses the Mustache template of a waiting page. The template cannot include files: every partial is empty.
func ParseTemplate(s string) (*mustache.Template, error) {
	return mustache.ParseStringPartials(s, noPartials{})
}

// noPartials keeps templates from reading files.
type noPartials struct{}

// Get implements mustache.PartialProvider. Every partial is empty.
func (noPartials) Get(string) (string, error) { return "", nil }

// parseLanguage parses the tag of a language, such as de.
func parseLanguage(s string) (language.Tag, error) {
	tag, err := language.Parse(s)
	if err != nil {
		return tag, valueError(s, "must be a language such as en-US or de-DE")
	}
	return tag, nil
}

// readCookie parses the settings of a room's cookie into cookie; fields that the mapping n does not name stay. name is the
// field's name, for messages.
func (r *reader) readCookie(n *yaml.Node, name string, cookie *Cookie) {
	r.readFields(n, name, map[string]field{
		"samesite":    newValueField(r, &cookie.SameSite, oneOf(SameSiteAuto, SameSiteLax, SameSiteNone, SameSiteStrict)),
		"secure":      newValueField(r, &cookie.Secure, oneOf(SecureAuto, SecureAlways, SecureNever)),
		"partitioned": newValueField(r, &cookie.Partitioned, parseBool),
	})
}

// parseWord returns s if it is a word of letters, digits, hyphens and underscores, at most 64.
var parseWord = validText(word.MatchString, "must have letters, digits, - and _ only, at most %d", maxNameBytes)

// readCommands parses the commands that the room accepts from the origin, a list or a single value, and adds any but revoke, the only
// one, as a mistake. It returns whether there are any, mistakes included, with which the room is refused anyway.
func (r *reader) readCommands(n *yaml.Node, name string) (revoke bool) {
	var commands []string
	newListField(r, &commands, validText(func(s string) bool { return s == "revoke" }, "is no command; there is revoke"))(n, name)
	return len(commands) > 0
}

// parseUpstream parses the URL of an upstream server: scheme http, https or h2c, a host and perhaps a port, without a path but
// "/", which it removes. Errors do not repeat a password.
func parseUpstream(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		if i := strings.LastIndexByte(s, '@'); i >= 0 {
			s = "…" + s[i:] // a message must not repeat a password
		}
		return nil, valueError(s, "must be the origin of a site, such as http://127.0.0.1:3000, https://site.example, or h2c://127.0.0.1:3000 for HTTP/2 without TLS")
	}
	u.Path = ""
	return u, nil
}

// parseCertificates parses the certificates, in PEM, of the authorities of which one must have signed the upstream's certificate.
// It fails only if the text has no usable certificate, and ignores others.
func parseCertificates(s string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(s)) {
		return nil, errors.New("must be certificates in PEM, as in -----BEGIN CERTIFICATE-----")
	}
	return pool, nil
}

// parseHealth returns s if it is a valid path, perhaps with a query, for health checks of upstreams.
var parseHealth = validText(func(s string) bool {
	u, err := url.ParseRequestURI(s)
	return err == nil && strings.HasPrefix(s, "/") && len(s) <= maxPath && u.Host == ""
}, "must be a path such as /health")

// parseChallenge parses the URL, http or https, of the operator's service that is queried about new visitors. Errors do not
// repeat it.
func parseChallenge(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || len(s) > maxPath {
		return nil, errors.New("must be the address of what checks new visitors, such as http://127.0.0.1:9000/check, without a user or password")
	}
	return u, nil
}

// checkUpstreams adds mistakes between the fields about a room's upstreams: too many, equal ones, several schemes, fields without
// an upstream.
func (r *reader) checkUpstreams(n *yaml.Node, room *Room) {
	seen := map[string]bool{}
	for _, u := range room.Upstreams {
		if u == nil {
			return // reported already
		}
		switch {
		case u.Scheme != room.Upstreams[0].Scheme:
			r.addMistake(n, "upstream", "%s and %s differ in their scheme; all upstreams of a room must have the same", room.Upstreams[0], u)
		case seen[u.Host]:
			r.addMistake(n, "upstream", "%s is named twice; remove one", u)
		}
		seen[u.Host] = true
	}
	switch {
	case len(room.Upstreams) > maxUpstreams:
		r.addMistake(n, "upstream", "there are %d; a room may have %d", len(room.Upstreams), maxUpstreams)
	case len(room.Upstreams) == 0 && (room.UpstreamHealth != "" || room.UpstreamCA != nil):
		r.addMistake(n, "upstream", "is missing; upstream_health and upstream_ca say something of it")
	case room.UpstreamCA != nil && room.Upstreams[0].Scheme != "https":
		r.addMistake(n, "upstream_ca", "is for upstreams that begin with https://; remove it")
	}
}

// readSubresources parses which requests for parts of a page pass, and stores it in room. The value is how many of all clients
// together pass in a minute (0 for none, pass for no limit), or a mapping with that number, the methods, and the paths. The paths
// restrict nothing: at them the requests pass also for clients from whose address no user was admitted. name is the field's name,
// for messages.
func (r *reader) readSubresources(n *yaml.Node, name string, room *Room) {
	if resolveAlias(n).Kind != yaml.MappingNode {
		newValueField(r, &room.SubresourcesPerMinute, parseSubresources)(n, name)
		return
	}
	r.readFields(n, name, map[string]field{
		"per_minute": newValueField(r, &room.SubresourcesPerMinute, parseSubresources),
		"methods": func(n *yaml.Node, name string) {
			room.SubresourceMethods = nil
			newListField(r, &room.SubresourceMethods, parseMethod)(n, name)
		},
		"paths": newListField(r, &room.SubresourcePaths, parsePath),
	})
}

// parseSubresources parses how many requests for parts of pages may pass in a minute; -1 for "pass", which is without a limit.
func parseSubresources(s string) (int, error) {
	if s == "pass" {
		return -1, nil
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < 0 || v > queue.MaxUsers {
		return 0, valueError(s, "must be pass, or how many may pass in a minute, or lines with per_minute, methods and paths")
	}
	return v, nil
}

// parseFactor parses the exponent of the adaptive allocator, from 0.1 to 10.
func parseFactor(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0.1 && v <= 10) {
		return 0, valueError(s, "must be a number from 0.1 to 10")
	}
	return v, nil
}

// readRule parses a rule by which requests bypass the room. It adds a mistake for a rule without conditions, which would hold for
// every request.
func (r *reader) readRule(n *yaml.Node) Rule {
	var rule Rule
	action, enabled := "", true
	r.readFields(n, "rules", map[string]field{
		"action":      newValueField(r, &action, oneOf("bypass_waiting_room")),
		"description": newValueField(r, &rule.Description, acceptText),
		"enabled":     newValueField(r, &enabled, parseBool),
		"path":        newListField(r, &rule.Paths, parsePath),
		"method":      newListField(r, &rule.Methods, parseMethod),
		"header":      func(n *yaml.Node, name string) { rule.Headers = r.readHeaders(n, name) },
		"address":     newListField(r, &rule.Addresses, parseAddresses),
	})
	rule.Disabled = !enabled
	if n = resolveAlias(n); n.Kind == yaml.MappingNode && !slices.ContainsFunc([]string{"path", "method", "header", "address"}, func(f string) bool { return hasField(n, f) }) {
		r.addMistake(n, "rules", "a rule without path, method, header or address would let every request bypass the room; use suspended for that")
	}
	return rule
}

// parseMethod returns s if it is an HTTP method in capitals.
var parseMethod = validText(func(s string) bool {
	return httpguts.ValidHeaderFieldName(s) && strings.ToUpper(s) == s
}, "must be a method such as GET, in capitals")

// parseAddresses parses an IP address, or a prefix of addresses such as 192.0.2.0/24. A single address becomes a prefix of its
// full length. Bits behind the prefix become 0.
func parseAddresses(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	if address, alone := netip.ParseAddr(s); err != nil && alone == nil && address.Zone() == "" {
		prefix, err = address.Prefix(address.BitLen())
	}
	if err != nil {
		return prefix, valueError(s, "must be an address or a range such as 192.0.2.0/24")
	}
	return prefix.Masked(), nil
}

// readHeaders parses the conditions of a rule on header fields, a mapping of names to values. It returns them in their order,
// with canonical names, and leaves out those with mistakes, which it adds. field is for messages.
func (r *reader) readHeaders(n *yaml.Node, field string) (headers []Header) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 || len(n.Content) > 2*maxValues {
		r.addMistake(n, field, "must hold `Name: value` lines, at most %d; * is any value", maxValues)
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		value, ok := r.readText(n.Content[i+1], field)
		switch {
		case !ok:
		case !httpguts.ValidHeaderFieldName(name):
			r.addMistake(n.Content[i], field, "%q is no name of a header", cutValue(name))
		case value == "" || !httpguts.ValidHeaderFieldValue(value):
			r.addMistake(n.Content[i], field, "%q is no value of a header; * is any", cutValue(value))
		default:
			headers = append(headers, Header{http.CanonicalHeaderKey(name), value})
		}
	}
	return headers
}
