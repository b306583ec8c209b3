package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v3"
)

// Parse reads a file of rooms: a list of them, or a mapping with the list under "rooms".
// name is the file's, for messages. The error joins one for each mistake.
func Parse(name string, text []byte) ([]Room, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: has %d bytes; rooms may take %d", name, len(text), maxFile)
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
	if root.Kind == yaml.MappingNode {
		r := &reader{file: name}
		var list *yaml.Node
		r.fields(root, "", map[string]func(*yaml.Node){"rooms": func(n *yaml.Node) { list = n }})
		if len(r.problems) > 0 {
			return nil, errors.Join(r.problems...)
		}
		if list == nil {
			return nil, nil
		}
		root = list
	}
	return ParseNode(name, root)
}

// ParseNode is Parse for a list that stands in another file's document.
func ParseNode(name string, list *yaml.Node) ([]Room, error) {
	r := &reader{file: name}
	nodes := r.list(list, "rooms", MaxRooms)
	rooms := make([]Room, 0, len(nodes))
	for _, n := range nodes {
		if room, ok := r.room(n); ok {
			rooms = append(rooms, room)
		}
	}
	if len(r.problems) == 0 {
		r.checkTogether(rooms, nodes)
	}
	if len(r.problems) > 0 {
		return nil, errors.Join(r.problems...)
	}
	return rooms, nil
}

// A reader walks a document and notes what is wrong with it.
type reader struct {
	file     string
	problems []error
}

// maxProblems is how many mistakes are told at once.
const maxProblems = 50

func (r *reader) fail(n *yaml.Node, field, format string, args ...any) {
	if len(r.problems) >= maxProblems {
		return
	}
	at := fmt.Sprintf("%s:%d: ", r.file, n.Line)
	if field != "" {
		at += field + ": "
	}
	r.problems = append(r.problems, fmt.Errorf(at+format, args...))
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// fields hands the value of each member of a mapping to who knows it.
func (r *reader) fields(n *yaml.Node, of string, known map[string]func(*yaml.Node)) bool {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.fail(n, of, "must hold `name: value` lines")
		return false
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		read, ok := known[key.Value]
		first, twice := lines[key.Value]
		switch {
		case !ok:
			r.fail(key, of, "no such field as %q%s", short(key.Value), suggest(key.Value, known))
		case twice:
			r.fail(key, of, "%s is set already in line %d; remove one of the two", key.Value, first)
		case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
			r.fail(value, key.Value, "has no value; give it one, or remove the line to have the default")
		default:
			lines[key.Value] = key.Line
			read(value)
		}
	}
	return true
}

func suggest(name string, known map[string]func(*yaml.Node)) string {
	best, distance := "", len(name)/3+2
	for k := range known {
		if d := levenshtein.ComputeDistance(name, k); d < distance || d == distance && k < best {
			best, distance = k, d
		}
	}
	if best == "" || len(name) > maxNameBytes {
		return "; remove it"
	}
	return "; did you mean " + best + "?"
}

// list returns the members of a list.
func (r *reader) list(n *yaml.Node, field string, most int) []*yaml.Node {
	n = resolve(n)
	switch {
	case n.Kind != yaml.SequenceNode:
		r.fail(n, field, "must be a list, its members on lines that begin with a dash")
	case len(n.Content) > most:
		r.fail(n, field, "has %d members; at most %d are possible", len(n.Content), most)
	default:
		return n.Content
	}
	return nil
}

// texts reads one value or a list of them.
func (r *reader) texts(n *yaml.Node, field string) []string {
	nodes := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		nodes = r.list(n, field, maxValues)
	}
	var values []string
	for _, m := range nodes {
		if s, ok := r.text(m, field); ok {
			values = append(values, s)
		}
	}
	return values
}

func (r *reader) text(n *yaml.Node, field string) (string, bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode {
		r.fail(n, field, "must be a single value")
		return "", false
	}
	return n.Value, true
}

// each of these returns what reads a value into its target.

func (r *reader) string(target *string, field string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if s, ok := r.text(n, field); ok {
			*target = s
		}
	}
}

func (r *reader) bool(target *bool, field string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		switch {
		case !ok:
		case s == "true":
			*target = true
		case s == "false":
			*target = false
		default:
			r.fail(n, field, "%q must be true or false", short(s))
		}
	}
}

func (r *reader) whole(target *int, field string, least, most int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < least || v > most {
			r.fail(n, field, "%q must be a whole number from %d to %d", short(s), least, most)
			return
		}
		*target = v
	}
}

func (r *reader) units(target *time.Duration, field string, unit time.Duration, least, most int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		count := -1
		r.whole(&count, field, least, most)(n)
		if count >= 0 {
			*target = time.Duration(count) * unit
		}
	}
}

func (r *reader) moment(target *time.Time, field string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		if !ok {
			return
		}
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			r.fail(n, field, "%q must be a time such as 2027-05-26T19:51:00Z", short(s))
			return
		}
		*target = t.UTC()
	}
}

func choice[T ~string](r *reader, target *T, field string, choices ...T) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, field)
		if !ok {
			return
		}
		var names []string
		for _, c := range choices {
			if string(c) == s {
				*target = c
				return
			}
			names = append(names, string(c))
		}
		r.fail(n, field, "%q must be one of %s", short(s), strings.Join(names, ", "))
	}
}

// short cuts what is repeated in a message.
func short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
