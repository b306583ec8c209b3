package packages

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/larder-cdn/larder/internal/text"
)

// explainSyntax returns why data, which must not be empty, is not JSON, in plain words, and at which byte. err is the decoder's
// error for data; the offset is 0 if that is no *[json.SyntaxError]. If data ends too early, the offset is that of the white space
// at its end.
func explainSyntax(data []byte, err error) (offset int, message string) {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return 0, "the file is not JSON: " + err.Error()
	}
	// Offset counts the bytes up to and with the one that cannot be.
	at := min(max(0, int(syntax.Offset)-1), len(data)-1)
	if strings.HasPrefix(syntax.Error(), "unexpected end") {
		return len(strings.TrimRight(string(data), " \t\r\n")), `the file ends too early; a closing "}", "]" or quotation mark is missing`
	}
	before := at - 1
	for before > 0 && strings.IndexByte(" \t\r\n", data[before]) >= 0 {
		before--
	}
	char, _ := utf8.DecodeRune(data[at:])
	switch {
	case before >= 0 && data[before] == ',' && (char == '}' || char == ']'):
		return before, fmt.Sprintf("remove the comma: nothing follows before the %q", char)
	case strings.Contains(syntax.Error(), "after object key:value pair"), strings.Contains(syntax.Error(), "after array element"):
		return before + 1, fmt.Sprintf("a comma or a closing bracket is missing before %q", char)
	case strings.Contains(syntax.Error(), "after object key"):
		return at, fmt.Sprintf("a colon is missing between a property's name and its value, before %q", char)
	case strings.Contains(syntax.Error(), "after top-level value"):
		return at, fmt.Sprintf("the document is complete before %q; remove what follows", char)
	case strings.Contains(syntax.Error(), "in string literal"):
		return at, fmt.Sprintf("a string cannot hold %q; is its closing quotation mark missing? A line break is written \\n", char)
	case strings.Contains(syntax.Error(), "in string escape code"), strings.Contains(syntax.Error(), `in \u`):
		return at, fmt.Sprintf(`%q does not make an escape after a backslash; a backslash itself is written \\`, char)
	case char == '\'':
		return at, "JSON strings stand in double quotation marks, not single ones"
	case char == '/' || char == '#':
		return at, "JSON has no comments; remove it"
	case strings.Contains(syntax.Error(), "beginning of object key"):
		return at, fmt.Sprintf("a property's name in double quotation marks is expected, not %q", char)
	default:
		return at, fmt.Sprintf("a value is expected, not %q; strings stand in double quotation marks", char)
	}
}

// addSchemaErrors adds a problem, with a message in plain words, for each error that the schema library found: for the causes
// of err, or for err itself if it has none. It marks the file as failed. Beyond the limit of problems it only counts them.
func (c *check) addSchemaErrors(err *jsonschema.ValidationError) {
	if len(err.Causes) > 0 {
		for _, cause := range err.Causes {
			c.addSchemaErrors(cause)
		}
		return
	}
	c.failed = true
	if c.countIfFull() {
		return // before the work of writing a message
	}
	at, s := err.InstanceLocation, cmp.Or(schemaAt(err.InstanceLocation), &jsonschema.Schema{})
	n := c.root.find(at...)
	switch k := err.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range k.Missing {
			location := append(slices.Clone(at), name)
			c.add(Error, "required", n.at, location, describeMissing(formatLocation(location), schemaAt(location)))
		}
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties)
		for _, name := range k.Properties {
			if c.countIfFull() {
				continue
			}
			location := append(slices.Clone(at), name)
			c.add(Error, "unknown-property", n.find(name).keyAt, location, describeUnknown(name, at, s))
		}
	case *kind.Type:
		c.add(Error, "type", n.at, at, fmt.Sprintf("%s is %s; it has to be %s%s",
			describeLocation(at), nameType(k.Got), nameType(strings.Join(k.Want, " or ")), exampleOf(s)))
	case *kind.MinLength:
		c.add(Error, "empty", n.at, at, fmt.Sprintf("%s is empty; fill it in%s", describeLocation(at), exampleOf(s)))
	case *kind.MinItems:
		c.add(Error, "empty", n.at, at, fmt.Sprintf("%s has no entries; add at least one%s", describeLocation(at), exampleOf(s)))
	case *kind.UniqueItems:
		first, second := k.Duplicates[0], k.Duplicates[1]
		location := append(slices.Clone(at), strconv.Itoa(second))
		value := n.find(strconv.Itoa(first))
		c.add(Error, "repeated", n.find(strconv.Itoa(second)).at, location, fmt.Sprintf("%s holds %s twice; remove one of them",
			describeLocation(at), shorten(string(c.data[value.at:value.end]))))
	case *kind.Pattern:
		// A pattern's $comment says in words what the pattern allows.
		c.add(Error, "value", n.at, at, fmt.Sprintf("%s is %s, which cannot be used; %s",
			describeLocation(at), quote(k.Got), s.Comment))
	case *kind.Enum:
		allowed := make([]string, len(k.Want))
		for i, want := range k.Want {
			allowed[i] = fmt.Sprint(want)
		}
		got := fmt.Sprint(k.Got)
		c.add(Error, "value", n.at, at, fmt.Sprintf("%s is %s; it has to be %s%s",
			describeLocation(at), quote(got), joinQuoted(allowed, "or"), didYouMean(got, allowed)))
	default:
		c.add(Error, "schema", n.at, at, fmt.Sprintf("%s breaks a rule of the schema: %s", describeLocation(at), err.Error()))
	}
}

// describeMissing returns the message that a required property is missing, with the first example of its schema s. name is its
// location as [formatLocation] writes it. s may be nil.
func describeMissing(name string, s *jsonschema.Schema) string {
	message := fmt.Sprintf("%q is missing; add it", name)
	if s != nil && len(s.Examples) > 0 {
		last := name[strings.LastIndexByte(name, '.')+1:]
		message += fmt.Sprintf(", for example %q: %s", last, encodeExample(s.Examples[0]))
	}
	return message
}

// describeUnknown returns the message that the object at the location at must not have the property name. The message names
// the property that was probably meant; else, at the top, the property inside which name belongs; else those that the object's
// schema s has.
func describeUnknown(name string, at []string, s *jsonschema.Schema) string {
	object := "a package"
	if len(at) > 0 {
		object = describeLocation(at)
	}
	message := quote(name) + " is not a property of " + object
	names := slices.Sorted(maps.Keys(s.Properties))
	if hint := didYouMean(name, names); hint != "" {
		return message + hint
	}
	if home := parentPropertyOf(name); home != "" && len(at) == 0 {
		return message + fmt.Sprintf("; it belongs inside %q", home)
	}
	return message + "; remove it. Known are " + joinQuoted(names, "and")
}

// describeLocation returns how messages call the value at a location.
func describeLocation(location []string) string {
	if len(location) == 0 {
		return "the document"
	}
	return strconv.Quote(formatLocation(location))
}

// nameType returns how messages call a value of a JSON type: "an array", "a string", "null", and "true or false" for a
// boolean. It puts "a " before any other text, such as "string or null", also where "an" would be right.
func nameType(jsonType string) string {
	switch jsonType {
	case "null":
		return "null"
	case "array", "object", "integer":
		return "an " + jsonType
	case "boolean":
		return "true or false"
	default:
		return "a " + jsonType
	}
}

// exampleOf returns the text ", for example …" with the first example of the schema, to be appended to a message; "" if the
// schema has none.
func exampleOf(s *jsonschema.Schema) string {
	if len(s.Examples) == 0 {
		return ""
	}
	return ", for example " + encodeExample(s.Examples[0])
}

// encodeExample returns an example as JSON on one line.
func encodeExample(v any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// quote returns a text from outside for a message: quoted, short, without control characters.
func quote(s string) string { return strconv.Quote(shorten(s)) }

// shorten cuts a text to 80 bytes for a message.
func shorten(s string) string { return text.Short(s, 80) }

// joinQuoted returns the words as "a", "b" and "c", with last in place of and.
func joinQuoted(words []string, last string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	if len(quoted) < 2 {
		return strings.Join(quoted, "")
	}
	end := len(quoted) - 1
	return strings.Join(quoted[:end], ", ") + " " + last + " " + quoted[end]
}

// didYouMean returns a question about the word that is most similar to got, to be appended to a message: `; did you mean
// "name"?`. It returns "" if none is similar.
func didYouMean(got string, words []string) string {
	if best, ok := text.Nearest(got, words); ok {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}
