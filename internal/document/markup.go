package document

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// allowed has the elements of each kind, with their attributes.
var allowed = map[Kind]map[string][]string{
	Source:     {"span": {"class"}},
	Comparison: {"span": nil, "ins": nil, "del": nil},
	Readme:     allowedReadmeElements(),
}

// IsReadmeElement reports whether a README may have an element with that name.
func IsReadmeElement(name string) bool {
	_, ok := allowed[Readme][name]
	return ok
}

// plainElements are the elements of a README beside headings, links and preformatted text. They have no attributes.
var plainElements = []string{"p", "br", "hr", "ul", "ol", "li", "blockquote", "code", "kbd", "samp", "var", "em", "strong", "b", "i",
	"s", "del", "ins", "sub", "sup", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "details", "summary", "abbr", "small"}

// allowedReadmeElements returns the elements that a README may have, with their attributes.
func allowedReadmeElements() map[string][]string {
	all := map[string][]string{"a": {"href", "rel"}, "pre": {"tabindex"}}
	for _, name := range plainElements {
		all[name] = nil
	}
	for _, name := range []string{"h3", "h4", "h5", "h6"} { // below the headings of the page
		all[name] = []string{"id"}
	}
	return all
}

// deepest limits the nesting of elements.
const deepest = 100

// checkMarkup returns an error unless markup has only the elements and attributes of its kind, each closed in order, at most 100 levels deep and
// in source within its line, and links only to web pages, mail addresses, /files/ and #readme- targets. Tags must be written as the renderer
// writes them; it does not check the text between them.
func checkMarkup(kind Kind, markup string) error {
	elements := allowed[kind]
	var open []string
	for {
		at := strings.IndexByte(markup, '<')
		if kind == Source && strings.IndexByte(markup[:max(at, 0)], '\n') >= 0 && len(open) > 0 {
			return errors.New("an element goes from one line into the next")
		}
		if at < 0 {
			break
		}
		tag, rest, ok := strings.Cut(markup[at+1:], ">")
		if !ok {
			return errors.New("a tag does not end")
		}
		markup = rest
		if name, ok := strings.CutPrefix(tag, "/"); ok {
			if len(open) == 0 || open[len(open)-1] != name {
				return fmt.Errorf("</%.20s> closes nothing", name)
			}
			open = open[:len(open)-1]
			continue
		}
		name, attributes, _ := strings.Cut(strings.TrimSuffix(tag, "/"), " ")
		known, ok := elements[name]
		if !ok {
			return fmt.Errorf("there is a <%.20s>", name)
		}
		if err := checkAttributes(kind, known, attributes); err != nil {
			return fmt.Errorf("<%s>: %w", name, err)
		}
		if name == "br" || name == "hr" {
			continue
		}
		if open = append(open, name); len(open) > deepest {
			return errors.New("its elements are too deep in each other")
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("<%s> is not closed", open[len(open)-1])
	}
	return nil
}

// checkAttributes returns an error unless the text of an element's attributes has only known ones with allowed values.
func checkAttributes(kind Kind, known []string, attributes string) error {
	for attributes != "" {
		name, rest, ok := strings.Cut(attributes, `="`)
		if !ok || !slices.Contains(known, name) {
			return fmt.Errorf("there is an attribute %.20q", name)
		}
		value, rest, ok := strings.Cut(rest, `"`)
		if !ok || strings.ContainsAny(value, "<\n") {
			return errors.New("an attribute does not end")
		}
		if !isAllowedValue(kind, name, value) {
			return fmt.Errorf("%s is %.100q", name, value)
		}
		attributes = strings.TrimPrefix(rest, " ")
	}
	return nil
}

// isAllowedValue reports whether an attribute may have a value: href a web page, a mail address, /files/ or a target in the README;
// rel nofollow first; id readme- at its start; tabindex 0; class one byte, in source. Other attributes may have none.
func isAllowedValue(kind Kind, name, value string) bool {
	switch name {
	case "href":
		return slices.ContainsFunc([]string{"#readme-", "/files/", "https://", "http://", "mailto:"}, func(p string) bool { return strings.HasPrefix(value, p) })
	case "rel":
		return strings.HasPrefix(value, "nofollow")
	case "id":
		return strings.HasPrefix(value, "readme-")
	case "tabindex":
		return value == "0"
	case "class":
		return len(value) == 1 && kind == Source
	}
	return false
}
