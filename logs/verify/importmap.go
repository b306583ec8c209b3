package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// maxImportMap is how many bytes an import map may have.
const maxImportMap = 1 << 20

// An importMap maps the names of modules to addresses: https://html.spec.whatwg.org/multipage/webappapis.html#import-maps.
type importMap struct {
	Imports   map[string]string
	Scopes    map[string]map[string]string // by the address of the scope
	Integrity map[string]string            // by URL
}

// merge adds the import map in text, which is JSON, to m, with its relative addresses resolved against base. If several
// maps have an address or an integrity for one name, the first counts, as in browsers. Invalid addresses are skipped; the
// error says that the JSON is malformed, has a member that is not an object, or is too long, and then m is unchanged.
func (m *importMap) merge(text string, base *webURL) error {
	if len(text) > maxImportMap {
		return fmt.Errorf("it has over %d bytes", maxImportMap)
	}
	// A struct would also accept the names in other case, which browsers do not.
	var read map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		return err
	}
	imports, importsErr := parseObject(read["imports"])
	scopes, scopesErr := parseObject(read["scopes"])
	integrity, integrityErr := parseObject(read["integrity"])
	if err := cmp.Or(importsErr, scopesErr, integrityErr); err != nil {
		return err
	}
	if m.Imports == nil {
		m.Imports, m.Scopes, m.Integrity = map[string]string{}, map[string]map[string]string{}, map[string]string{}
	}
	addNames(m.Imports, imports, base)
	for scope, of := range scopes {
		names, ok := of.(map[string]any)
		at, err := parseWebURL(scope, base)
		if !ok || err != nil {
			continue
		}
		if m.Scopes[at.String()] == nil {
			m.Scopes[at.String()] = map[string]string{}
		}
		addNames(m.Scopes[at.String()], names, base)
	}
	for to, of := range integrity {
		text, ok := of.(string)
		at, ok2 := parseURLLike(to, base)
		if ok && ok2 && m.Integrity[at] == "" {
			m.Integrity[at] = text
		}
	}
	return nil
}

// parseObject parses the JSON object data, a member of an import map. For nil data, a missing member, it returns nil
// without an error; null is an error.
func parseObject(data json.RawMessage) (map[string]any, error) {
	if data == nil {
		return nil, nil
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return nil, fmt.Errorf("%.40q is not an object", data)
	}
	return object, nil
}

// addNames adds the names and addresses of an import map's JSON object from to the map into. It resolves the addresses, and
// names that are addresses, against base. It skips invalid ones and names that into has. If two names in from resolve to
// one address, either may count.
func addNames(into map[string]string, from map[string]any, base *webURL) {
	for name, to := range from {
		if at, ok := parseURLLike(name, base); ok {
			name = at
		}
		text, _ := to.(string)
		at, ok := parseURLLike(text, base)
		if _, exists := into[name]; ok && !exists && name != "" && (!strings.HasSuffix(name, "/") || strings.HasSuffix(at, "/")) {
			into[name] = at
		}
	}
}

// parseURLLike returns the absolute form of name if it is an address: an absolute one, or one relative to base that begins
// with /, ./ or ../. For anything else, such as the bare name of a module, it returns false.
func parseURLLike(name string, base *webURL) (string, bool) {
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "./") && !strings.HasPrefix(name, "../") {
		base = nil
	}
	at, err := parseWebURL(name, base)
	if err != nil {
		return "", false
	}
	return at.String(), true
}

// resolve returns the absolute address of the module that a script at the address from imports as name: what the narrowest
// scope with the name, or else m.Imports, has for it, or else name itself if that is an address. It returns "" if name is a
// bare name, such as "react", for which no map has an address, or if from cannot be parsed.
func (m *importMap) resolve(name, from string) string {
	base, err := parseWebURL(from, nil)
	if err != nil {
		return ""
	}
	at, isURL := parseURLLike(name, base)
	if isURL {
		name = at
	}
	var scopes []string
	for scope := range m.Scopes {
		if scope == from || strings.HasSuffix(scope, "/") && strings.HasPrefix(from, scope) {
			scopes = append(scopes, scope)
		}
	}
	slices.SortFunc(scopes, func(a, b string) int { return len(b) - len(a) }) // the narrowest first
	for _, scope := range scopes {
		if at := lookupAddress(m.Scopes[scope], name); at != "" {
			return at
		}
	}
	return cmp.Or(lookupAddress(m.Imports, name), at) // "" for a bare name
}

// lookupAddress returns the address of name in one part of an import map, addresses by name: that of the name itself, or
// that of its longest prefix in the map that ends with a slash, with the rest of the name appended. It returns "" if there
// is none, or if the rest leads out of the prefix's address.
func lookupAddress(in map[string]string, name string) string {
	if at, ok := in[name]; ok {
		return at
	}
	best := ""
	for prefix := range in {
		if strings.HasSuffix(prefix, "/") && strings.HasPrefix(name, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	if best == "" {
		return ""
	}
	to, err := parseWebURL(in[best], nil)
	if err != nil {
		return ""
	}
	at, err := parseWebURL(strings.TrimPrefix(name, best), to)
	if err != nil || !strings.HasPrefix(at.String(), in[best]) {
		return ""
	}
	return at.String()
}
