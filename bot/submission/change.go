package submission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// A Change is the difference between a package JSON and its published version.
type Change struct {
	// Fields has two lines for each field that differs, "- name: value" and "+ name: value"; one where the other version
	// lacks the field.
	Fields []string `json:"fields,omitempty"`
	// Release is the release whose files the published version selects, to be compared with those of the latest release.
	Release string `json:"release,omitempty"`
	// Added and Removed are the files of the latest release that only one of the versions publishes, by path.
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	// Problem says why the files that the published version selects are unknown; "" if they are known.
	Problem string `json:"problem,omitempty"`
}

// NewChange compares a package with its published version. selected is what the bot publishes by the published version; err is
// the reason if it is nil.
func NewChange(p *Preview, published *packages.Package, selected *Preview, err error) *Change {
	c := &Change{Fields: compareFields(published.JSON, p.Package.JSON)}
	if selected == nil {
		c.Problem = err.Error()
		return c
	}
	c.Release = selected.Latest.Name
	before, after := selected.Latest.paths(), p.Latest.paths()
	c.Added, c.Removed = subtract(after, before), subtract(before, after)
	return c
}

// subtract returns the sorted elements of all that are not in some.
func subtract(all, some []string) []string {
	has := make(map[string]bool, len(some))
	for _, s := range some {
		has[s] = true
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return has[s] })
	slices.Sort(rest)
	return rest
}

// compareFields returns the fields in which two JSON documents differ, sorted by name: a line "- name: value" if the field is in before, and "+ name:
// value" if it is in after. Members of objects, also of objects in lists, are fields of their own; any other list is one value.
func compareFields(before, after []byte) []string {
	old, current := fieldsOf(before), fieldsOf(after)
	all := maps.Clone(old)
	maps.Copy(all, current)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := old[name]
		is, has := current[name]
		if had && has && was == is {
			continue
		}
		if had {
			lines = append(lines, "- "+shortLine(name+": "+was))
		}
		if has {
			lines = append(lines, "+ "+shortLine(name+": "+is))
		}
	}
	return lines
}

// fieldsOf returns the values of a JSON document's fields, as JSON, by their paths, such as a.b[0].c; none if it is malformed. Members of
// objects are fields of their own, also those of objects in a list that has nothing but objects; any other list is one value. An empty object has none.
func fieldsOf(data []byte) map[string]string {
	fields := make(map[string]string)
	var document any
	if json.Unmarshal(data, &document) == nil { // a package JSON that could be parsed is JSON
		addFields(fields, "", document)
	}
	return fields
}

// addFields adds the fields of a JSON value to fields, under paths that begin with name.
func addFields(fields map[string]string, name string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for member, value := range v {
			addFields(fields, strings.TrimPrefix(name+"."+member, "."), value)
		}
		return
	case []any:
		if len(v) > 0 && !slices.ContainsFunc(v, func(e any) bool { _, ok := e.(map[string]any); return !ok }) {
			for i, element := range v {
				addFields(fields, fmt.Sprintf("%s[%d]", name, i), element)
			}
			return
		}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // of what was decoded from JSON
	fields[name] = strings.TrimSpace(b.String())
}

// describe returns a text that counts the files which a change of the package JSON adds to and removes from the release latest, or that
// says why they are unknown. It names the other release if the published version has another latest one.
func (c *Change) describe(latest string) string {
	counts := fmt.Sprintf("%d added, %d removed", len(c.Added), len(c.Removed))
	switch {
	case c.Problem != "":
		return "The files that the published version selects are unknown: " + c.Problem
	case c.Release != latest:
		return fmt.Sprintf("Files of %s compared with those of %s, the latest release of the published version: %s.", latest, c.Release, counts)
	}
	return fmt.Sprintf("Files of %s: %s. Published releases stay as they are; the change applies to later ones.", latest, counts)
}

// listedChanges is the number of files on each side of a difference that are listed.
const listedChanges = 60

// fileLines returns a line for each file that is removed, then for each that is added, up to listedChanges of each, and how many more there are.
func (c *Change) fileLines() (lines []string) {
	for _, side := range []struct {
		mark  string
		files []string
	}{{"-", c.Removed}, {"+", c.Added}} {
		for _, name := range side.files[:min(len(side.files), listedChanges)] {
			lines = append(lines, side.mark+" "+shortLine(name))
		}
		if more := len(side.files) - listedChanges; more > 0 {
			lines = append(lines, fmt.Sprintf("%s … and %d more", side.mark, more))
		}
	}
	return lines
}

// listedTags is the number of files besides the main one whose tags are displayed.
const listedTags = 3

// TagFiles returns the files of the latest release that pages most likely load: the main file, then minified ones, four at most.
func (p *Preview) TagFiles() []string {
	r := &p.Latest
	var files []string
	if r.Default != "" {
		files = append(files, r.Default)
	}
	for _, f := range r.Files {
		if f.Path != r.Default && strings.Contains(path.Base(f.Path), ".min.") && len(files) <= listedTags {
			files = append(files, f.Path)
		}
	}
	return files
}

// fieldsHeading returns the sentence before the fields that differ.
func (c *Change) fieldsHeading() string {
	if len(c.Fields) == 0 {
		return "No field differs from the published package JSON."
	}
	return fmt.Sprintf("Changes of the published package JSON, %s:", text.Count(len(c.Fields), "line", "lines"))
}
