package config

import (
	"cmp"
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// A Table finds the room that covers a request. It is never changed.
type Table struct {
	hosts map[string][]entry // by host as configured, with or without port
	every []entry            // for every host
	ports bool               // whether some host has a port
}

// An entry is a room and the pattern of one of its paths.
type entry struct {
	path string
	room *Room
}

// matchesPath reports whether a pattern covers a path p, which it compares without decoding. "/shop" covers itself and what is
// below it, "/shop/" every path that begins with "/shop/", and "/shop*" every path that begins with "/shop". Some servers read
// "/shop;a=1", "/shop.", "/shop " and what follows a NUL byte as "/shop", so these are covered too.
func matchesPath(pattern, p string) bool {
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	rest, found := strings.CutPrefix(p, prefix)
	if !found || isPrefix || strings.HasSuffix(prefix, "/") {
		return found
	}
	if rest != "" && (rest[0] == '/' || rest[0] == ';' || rest[0] == 0) {
		return true
	}
	return strings.Trim(rest, ". \t") == ""
}

// compareEntries orders entries by the length of their paths without a final star, the longest first, and at equal length those
// without a star first. So the first entry that covers a path is the most specific one. It returns a negative number, 0 or a
// positive number; 0 also for different paths of equal length.
func compareEntries(a, b entry) int {
	withoutStar := func(e entry) int { return len(strings.TrimSuffix(e.path, "*")) }
	return cmp.Or(withoutStar(b)-withoutStar(a), len(a.path)-len(b.path))
}

// NewTable returns the table by which requests find the rooms that cover them. The table points to the rooms, which must not be
// modified afterwards.
func NewTable(rooms []Room) *Table {
	t := &Table{hosts: map[string][]entry{}}
	for i := range rooms {
		for _, route := range rooms[i].Routes {
			e := entry{route.Path, &rooms[i]}
			if route.Host == "" {
				t.every = append(t.every, e)
				continue
			}
			t.hosts[route.Host] = append(t.hosts[route.Host], e)
			t.ports = t.ports || trimPort(route.Host) != route.Host
		}
	}
	for _, entries := range t.hosts {
		slices.SortStableFunc(entries, compareEntries)
	}
	slices.SortStableFunc(t.every, compareEntries)
	return t
}

// Find returns the room that covers a path on a host, which may have a port; raw is the path, percent-encoded as the client sent
// it. Rooms of the host with its port come first, then those of the host, then those of every host; among these the longest path
// counts. If a server that decodes and cleans the path would find another room, the request is ambiguous: then canonical is a
// path that is not, to which the caller redirects, and room is the one that this server would find, nil for none. If both results
// are zero, no room covers the request.
func (t *Table) Find(host, raw string) (room *Room, canonical string) {
	room = t.lookup(host, raw)
	if !isAmbiguous(raw) {
		return room, ""
	}
	clean := Clean(raw)
	other := t.lookup(host, clean)
	if other == room {
		return room, ""
	}
	if canonical = (&url.URL{Path: clean}).EscapedPath(); canonical == raw {
		return other, "" // it has to be encoded, and is
	}
	return other, canonical
}

// Covers reports whether Find returns a room or a canonical path for the same arguments. It does not allocate for a path that
// needs no cleaning.
func (t *Table) Covers(host, raw string) bool {
	if len(t.hosts) == 0 && len(t.every) == 0 {
		return false
	}
	return t.lookup(host, raw) != nil || isAmbiguous(raw) && t.lookup(host, Clean(raw)) != nil
}

// CoversSomewhere reports whether Find may return a room or a canonical path for a path, percent-encoded as the client sent it,
// on any host. It does not allocate for a path that needs no cleaning.
func (t *Table) CoversSomewhere(raw string) bool {
	if len(t.hosts) == 0 && len(t.every) == 0 {
		return false
	}
	paths := [...]string{raw, raw}
	if isAmbiguous(raw) {
		paths[1] = Clean(raw)
	}
	for _, p := range paths {
		if longestMatch(t.every, p) != nil {
			return true
		}
		for _, entries := range t.hosts {
			if longestMatch(entries, p) != nil {
				return true
			}
		}
	}
	return false
}

// lookup returns the room that covers a path on a host, by the order of [Table.Find], nil for none. It compares the path as it
// is, without decoding or cleaning it.
func (t *Table) lookup(host, p string) *Room {
	if len(t.hosts) > 0 {
		host = NormalizeHost(host)
		if t.ports {
			if room := longestMatch(t.hosts[host], p); room != nil {
				return room
			}
		}
		if bare := strings.TrimSuffix(trimPort(host), "."); bare != "" {
			if room := longestMatch(t.hosts[bare], p); room != nil {
				return room
			}
		}
	}
	return longestMatch(t.every, p)
}

// longestMatch returns the room of the first entry whose pattern covers p, nil for none. The entries must be sorted, the most
// specific first.
func longestMatch(entries []entry, p string) *Room {
	for i := range entries {
		if matchesPath(entries[i].path, p) {
			return entries[i].room
		}
	}
	return nil
}

// trimPort returns a host without its port, if it has one. It leaves the colons of an IPv6 address in brackets.
func trimPort(host string) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.IndexByte(host[i:], ']') >= 0 {
		return host
	}
	return host[:i]
}

// isAmbiguous reports whether some server may read a path as another one: it has a percent sign, a backslash, a double slash or a
// dot after a slash.
func isAmbiguous(raw string) bool {
	return strings.IndexByte(raw, '%') >= 0 || strings.Contains(raw, "//") || strings.Contains(raw, "/.") || strings.IndexByte(raw, '\\') >= 0
}

// Clean returns a path as a server reads it that decodes percent-encoding, takes backslashes for slashes, and resolves dots and
// double slashes. A path with malformed percent-encoding is not decoded. The result begins with a slash, and ends with one if the
// path does or its last folder is a dot or two.
func Clean(raw string) string {
	p := raw
	if decoded, err := url.PathUnescape(raw); err == nil {
		p = decoded
	}
	p = strings.ReplaceAll(p, `\`, "/")
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	cleaned := path.Clean(p)
	if cleaned != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		cleaned += "/"
	}
	return cleaned
}

// pathInterpretations yields a path as it came, and as servers behind the room may read it: decoded and cleaned up to three
// times, and after each of them also without the parameters of its folders (RFC 3986 §3.3). It may yield a path twice. For a path
// that is not ambiguous and has no parameters it yields only that.
func pathInterpretations(raw string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(raw) || !isAmbiguous(raw) && strings.IndexByte(raw, ';') < 0 {
			return
		}
		const deepest = 3
		p := raw
		for range deepest {
			p = Clean(p)
			if !yield(p) || !yield(Clean(parameters.ReplaceAllString(p, ""))) {
				return
			}
		}
	}
}

var parameters = text.NewRegexp(`;[^/]*`)

// Bypassed reports whether one of the room's rules lets a request bypass the room, so that it does not count or wait. The result
// everybody says that such a rule looks at neither header fields nor addresses, so it lets all clients do so with the same
// request. raw is the path as the client sent it; address is the client's, invalid if it is not known.
func (r *Room) Bypassed(req *http.Request, raw string, address netip.Addr) (bypasses, everybody bool) {
	for i := range r.Rules {
		if rule := &r.Rules[i]; rule.matches(req, raw, address) {
			bypasses = true
			everybody = everybody || rule.Headers == nil && rule.Addresses == nil
		}
	}
	return bypasses, everybody
}

// matches reports whether the rule is enabled and a request fulfils all of its conditions. raw and address are as in
// [Room.Bypassed].
func (rule *Rule) matches(req *http.Request, raw string, address netip.Addr) bool {
	address = address.Unmap().WithZone("") // if it is invalid, no prefix contains it
	return !rule.Disabled &&
		(rule.Paths == nil || matchesEveryReading(rule.Paths, raw)) &&
		(rule.Methods == nil || slices.Contains(rule.Methods, req.Method)) &&
		!slices.ContainsFunc(rule.Headers, func(h Header) bool { return !hasValue(req, h) }) &&
		(rule.Addresses == nil || slices.ContainsFunc(rule.Addresses, func(p netip.Prefix) bool { return p.Contains(address) }))
}

// IsSubresourcePath reports whether a path is on the room's list of paths (SubresourcePaths) at which parts of pages, such as
// images, pass without a ticket: in each way in which a server may read it. raw is the path as the client sent it.
func (r *Room) IsSubresourcePath(raw string) bool {
	return matchesEveryReading(r.SubresourcePaths, raw)
}

// matchesEveryReading reports whether each way in which a server may read a path is covered by some pattern: /free/../shop must
// not pass as /free.
func matchesEveryReading(patterns []string, raw string) bool {
	for p := range pathInterpretations(raw) {
		if !slices.ContainsFunc(patterns, func(pattern string) bool { return matchesPath(pattern, p) }) {
			return false
		}
	}
	return true
}

// hasValue reports whether a request has the header field that a rule requires: one whose value is exactly the rule's or, for
// "*", any. Hosts are compared without regard to case.
func hasValue(req *http.Request, h Header) bool {
	if h.Name == "Host" { // net/http keeps it elsewhere
		return h.Value == "*" || strings.EqualFold(req.Host, h.Value)
	}
	values := req.Header[h.Name]
	return h.Value == "*" && len(values) > 0 || slices.Contains(values, h.Value)
}
