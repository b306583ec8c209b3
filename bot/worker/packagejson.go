package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/packages/glob"
)

// A packageJSON has the fields of a package.json that decide how imports are resolved. Members of unexpected types count as
// missing.
type packageJSON struct {
	Name     string
	Exports  *target
	Imports  *target
	entry    []string // the files for ".", the preferred one first: browser, module, main
	browser  map[string]string
	disabled map[string]bool // keys of the browser field that are false
	requires map[string]bool // the packages that it depends on
	isModule bool            // "type": "module"

	noSideEffects bool
	sideEffects   []*glob.Glob // the files with side effects if sideEffects is a list
}

// parsePackageJSON parses the members of a package.json that decide which files are modules, how imports are resolved, and which
// files have side effects; also its name and dependencies. It ignores members of wrong types. Data that is neither a JSON object
// nor null, and exports or imports beyond the limits, are errors.
func parsePackageJSON(data []byte) (*packageJSON, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	text := func(member string) (s string) {
		_ = json.Unmarshal(raw[member], &s)
		return s
	}
	p := &packageJSON{Name: text("name"), isModule: text("type") == "module", browser: map[string]string{}, disabled: map[string]bool{}, requires: map[string]bool{}}
	for member, into := range map[string]**target{"exports": &p.Exports, "imports": &p.Imports} {
		if raw[member] == nil {
			continue
		}
		t, err := parseTarget(json.NewDecoder(bytes.NewReader(raw[member])), 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", member, err)
		}
		*into = t
	}
	p.readBrowser(raw["browser"])
	if main := p.browser["."]; main != "" {
		p.entry = append(p.entry, main)
	}
	for _, member := range []string{"browser", "module", "main"} {
		if s := text(member); s != "" {
			p.entry = append(p.entry, s)
		}
	}
	for _, member := range []string{"dependencies", "peerDependencies", "optionalDependencies"} {
		var names map[string]json.RawMessage
		_ = json.Unmarshal(raw[member], &names)
		for name := range names {
			p.requires[name] = true
		}
	}
	p.readSideEffects(raw["sideEffects"])
	return p, nil
}

// readBrowser adds the members of a browser field that is an object to the maps p.browser (replacements, by what they replace)
// and p.disabled (true for those that are false): https://github.com/defunctzombie/package-browser-field-spec. The caller has
// made both maps. It ignores a field or member of another type.
func (p *packageJSON) readBrowser(data json.RawMessage) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(data, &fields)
	for from, value := range fields {
		var to string
		var enabled bool
		if json.Unmarshal(value, &to) == nil {
			p.browser[from] = to
		} else if json.Unmarshal(value, &enabled) == nil && !enabled {
			p.disabled[from] = true
		}
	}
}

// readSideEffects sets p.noSideEffects and p.sideEffects from the sideEffects field: a boolean, or a list of patterns of the
// files that have side effects. It ignores a list of over 100 patterns, as if the field were missing, and invalid patterns.
func (p *packageJSON) readSideEffects(data json.RawMessage) {
	const most = 100
	var any bool
	var patterns []string
	switch {
	case data == nil:
	case json.Unmarshal(data, &any) == nil:
		p.noSideEffects = !any
	case json.Unmarshal(data, &patterns) == nil && len(patterns) <= most:
		p.noSideEffects = true
		for _, pattern := range patterns {
			if !strings.Contains(pattern, "/") {
				pattern = "**/" + pattern
			}
			if g, err := glob.Compile(path.Clean(pattern)); err == nil {
				p.sideEffects = append(p.sideEffects, g)
			}
		}
	}
}

// hasSideEffects reports whether importing a file, whose path is relative to the package.json, may have an effect besides its
// exports, according to the sideEffects field. It is true for all files if there is no such field.
func (p *packageJSON) hasSideEffects(file string) bool {
	return !p.noSideEffects || slices.ContainsFunc(p.sideEffects, func(g *glob.Glob) bool { return g.Match(file) })
}

// A target is a value in exports or imports of a package.json: https://nodejs.org/api/packages.html#conditional-exports. All of
// its fields are empty for null.
type target struct {
	Path  string    // for a string
	Keys  []string  // for an object, in their order: subpaths or conditions
	Items []*target // the values of these keys, or the items of an array
}

// maxTargetDepth and maxTargets bound the depth of exports and the members of one of its objects.
const (
	maxTargetDepth = 20
	maxTargets     = 10_000
)

// parseTarget parses the decoder's next JSON value, a part of exports or imports of a package.json, and keeps the order of an
// object's members, which decides. depth is the number of values around this one, 0 for the whole. Values that are neither
// strings, objects nor arrays become a null target. Over maxTargetDepth levels, or over maxTargets members of one object or
// array, are an error. Without an error the result is not nil.
func parseTarget(d *json.Decoder, depth int) (*target, error) {
	if depth > maxTargetDepth {
		return nil, fmt.Errorf("over %d levels", maxTargetDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	t := &target{}
	switch token := token.(type) {
	case string:
		t.Path = token
	case json.Delim:
		for d.More() {
			if len(t.Items) == maxTargets {
				return nil, fmt.Errorf("over %d members", maxTargets)
			}
			if token == '{' {
				key, err := d.Token()
				if err != nil {
					return nil, err
				}
				t.Keys = append(t.Keys, key.(string))
			}
			item, err := parseTarget(d, depth+1)
			if err != nil {
				return nil, err
			}
			t.Items = append(t.Items, item)
		}
		_, err = d.Token()
	}
	return t, err
}

// hasSubpathKeys reports whether t is an object whose keys are subpaths ("./client") or private names ("#dom"), and not
// conditions ("import"). It looks only at the first key.
func (t *target) hasSubpathKeys() bool {
	return len(t.Keys) > 0 && (strings.HasPrefix(t.Keys[0], ".") || strings.HasPrefix(t.Keys[0], "#"))
}

// matchConditions returns the path to which a value in exports or imports leads under the given conditions, such as "import". Of
// the keys of an object, the first that is a condition and has a path or null counts; of an array, the first item with a path.
// The path may contain an asterisk, and the file may not exist. The result is "" if the value has no path for the conditions, or
// null. The order of conditions does not matter.
func (t *target) matchConditions(conditions []string) string {
	for i, item := range t.Items {
		if t.Keys != nil && !slices.Contains(conditions, t.Keys[i]) {
			continue
		}
		if found := item.matchConditions(conditions); found != "" || t.Keys != nil && item.isNull() {
			return found
		}
	}
	return t.Path
}

// isNull reports whether the value is null, which excludes its subpath or condition, or has neither a path nor members.
func (t *target) isNull() bool { return t.Path == "" && len(t.Items) == 0 }

// errNotExported says that a package.json's exports do not have a subpath.
var errNotExported = errors.New("the package.json does not export it")

// lookup returns the path to which exports or imports of a package.json lead for a subpath such as "./client", or a private name
// such as "#dom", under the given conditions. If t has no subpaths as keys, it stands for "." alone. Of the patterns that match
// the name, the most specific one counts. The path may not exist. The only error is errNotExported, also for null.
func (t *target) lookup(name string, conditions []string) (string, error) {
	if !t.hasSubpathKeys() {
		if found := t.matchConditions(conditions); name == "." && found != "" {
			return found, nil
		}
		return "", errNotExported
	}
	best, replacement := -1, ""
	for i, key := range t.Keys {
		if key == name && !strings.Contains(key, "*") {
			best, replacement = i, ""
			break
		}
		prefix, suffix, pattern := strings.Cut(key, "*")
		if pattern && len(name) >= len(prefix)+len(suffix) && strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) &&
			(best < 0 || isMoreSpecific(key, t.Keys[best])) {
			best, replacement = i, name[len(prefix):len(name)-len(suffix)]
		}
	}
	if best < 0 {
		return "", errNotExported
	}
	found := t.Items[best].matchConditions(conditions)
	if found == "" {
		return "", errNotExported
	}
	return strings.ReplaceAll(found, "*", replacement), nil
}

// isMoreSpecific reports whether the pattern a, such as "./icons/*", is preferred to the pattern b if both match a name: its part
// before the asterisk is longer, or that part is as long and the whole pattern is longer.
func isMoreSpecific(a, b string) bool {
	beforeA, _, _ := strings.Cut(a, "*")
	beforeB, _, _ := strings.Cut(b, "*")
	return len(beforeA) > len(beforeB) || len(beforeA) == len(beforeB) && len(a) > len(b)
}
