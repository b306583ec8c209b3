package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// A PageTag is a script or link element in the bytes of a page by which browsers load a script or a style sheet.
type PageTag struct {
	// URL is absolute, and Integrity the attribute as the page has it, "" for none.
	URL       string
	Integrity string
	// Line is that of the page where the tag begins, and Text its bytes.
	Line int
	Text string

	start      int    // of the tag in the page
	address    string // the name of the attribute that has the address
	attributes []tagAttribute
}

// End returns the offset in the page of the byte after the tag.
func (t PageTag) End() int { return t.start + len(t.Text) }

// Start returns the offset of the tag in the page.
func (t PageTag) Start() int { return t.start }

// A tagAttribute says where in a tag an attribute is.
type tagAttribute struct {
	html.Attribute
	start, end int // of the attribute; end is after its value
	value      int // offset of the value with its quotes; end for an attribute without one
	quote      byte
}

// maxEditable bounds the tags of a page that can be edited.
const maxEditable = 5000

// ReadPageTags returns the tags of an HTML page that load scripts and style sheets, or preload such, in order. A relative
// address, also an empty one, is resolved against the first base element with an href if that is before the tag, or else
// https://page.invalid/. It leaves out tags
// whose address or attributes cannot be read. A page that is too large, has too many such tags, has the byte order mark of
// UTF-16, or has an encoding that [decodePage] refuses, is an error; then the tags must not be used.
func ReadPageTags(data []byte) ([]PageTag, error) {
	if len(data) > MaxPage {
		return nil, fmt.Errorf("the page has over %d bytes", MaxPage)
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, errors.New("the page is in UTF-16; save it in UTF-8")
	}
	if _, _, err := decodePage(data, ""); err != nil {
		return nil, fmt.Errorf("couldn't read the page: %w", err)
	}
	address, err := parseWebURL(unknownHost+"/", nil)
	if err != nil {
		return nil, err
	}
	base := page{address: address, base: address}
	var tags []PageTag
	err = eachTag(data, func(found tag) error {
		if found.Data == "base" {
			base.setBase(found.Attr)
		}
		name := addressOf(found)
		if name == "" {
			return nil
		}
		t := PageTag{Line: found.line, Text: found.raw, start: found.start, address: name, attributes: scanAttributes(found.raw)}
		to, _ := attribute(found.Attr, name)
		at, err := parseWebURL(to, base.base)
		if err == nil && sameAttributes(t.attributes, found.Attr) { // else browsers load nothing, or it is not known what
			t.URL = at.String()
			t.Integrity, _ = attribute(found.Attr, "integrity")
			tags = append(tags, t)
		}
		if len(tags) > maxEditable {
			return fmt.Errorf("the page has over %d tags that load something", maxEditable)
		}
		return nil
	})
	return tags, err
}

// A tag is a start tag in an HTML page.
type tag struct {
	html.Token
	raw   string // its bytes
	start int    // offset of the first one
	line  int    // where it begins, from 1
	text  string // the content of a script element
}

// eachTag calls do with each start tag of an HTML page, in order. The error of do ends it and is returned.
func eachTag(data []byte, do func(tag) error) error {
	z := html.NewTokenizer(bytes.NewReader(data))
	z.SetMaxBuf(MaxPage + 1)
	at, line := 0, 1
	next := func() (kind html.TokenType, t tag) {
		kind = z.Next()
		t = tag{raw: string(z.Raw()), start: at, line: line}
		at, line = at+len(t.raw), line+strings.Count(t.raw, "\n")
		if kind != html.ErrorToken {
			t.Token = z.Token()
		}
		return kind, t
	}
	for {
		kind, t := next()
		switch {
		case kind == html.ErrorToken && !errors.Is(z.Err(), io.EOF):
			return fmt.Errorf("line %d of the page: %w", t.line, z.Err())
		case kind == html.ErrorToken:
			return nil
		case kind != html.StartTagToken && kind != html.SelfClosingTagToken:
			continue
		}
		if t.Data == "script" {
			if kind, content := next(); kind == html.TextToken {
				t.text = content.Data
			}
		}
		if err := do(t); err != nil {
			return err
		}
	}
}

// addressOf returns the name of the attribute, "src" or "href", in which a tag has the address, possibly empty, of a script
// or a style sheet that browsers load or preload. It returns "" if the tag loads none. It does not look at the type of a
// script.
func addressOf(t tag) string {
	_, hasSource := attribute(t.Attr, "src")
	_, hasTarget := attribute(t.Attr, "href")
	switch {
	case t.Data == "script" && hasSource:
		return "src"
	case t.Data == "link" && hasTarget:
		rel, _ := attribute(t.Attr, "rel")
		as, _ := attribute(t.Attr, "as")
		relations := strings.Fields(strings.ToLower(rel))
		if slices.Contains(relations, "stylesheet") || slices.Contains(relations, "modulepreload") || preloadsCode(relations, as) {
			return "href"
		}
	}
	return ""
}

// tagSpace is what separates attributes.
const tagSpace = " \t\n\f\r"

// scanAttributes returns the attributes in tag, the bytes of a start tag, and where they are, by the rules of
// https://html.spec.whatwg.org/#before-attribute-name-state: names in lower case, values without quotes and not decoded,
// repeated ones too. Callers compare them with those of the tokenizer, which has no positions.
func scanAttributes(tag string) (found []tagAttribute) {
	at := 1
	for at < len(tag) && !strings.ContainsRune(tagSpace+"/>", rune(tag[at])) { // the tag's name
		at++
	}
	skip := func(set string) {
		for at < len(tag) && strings.IndexByte(set, tag[at]) >= 0 {
			at++
		}
	}
	for {
		skip(tagSpace + "/")
		if at >= len(tag) || tag[at] == '>' {
			return found
		}
		a := tagAttribute{start: at}
		for at++; at < len(tag) && strings.IndexByte(tagSpace+"/>=", tag[at]) < 0; {
			at++
		}
		a.Key = strings.ToLower(tag[a.start:at])
		a.end, a.value = at, at
		skip(tagSpace)
		if at < len(tag) && tag[at] == '=' {
			at++
			skip(tagSpace)
			a.value = at
			if at < len(tag) && (tag[at] == '"' || tag[at] == '\'') {
				a.quote = tag[at]
				length := strings.IndexByte(tag[at+1:], a.quote)
				if length < 0 {
					return found
				}
				a.Val = tag[at+1 : at+1+length]
				at += length + 2
			} else {
				for at < len(tag) && strings.IndexByte(tagSpace+">", tag[at]) < 0 {
					at++
				}
				a.Val = tag[a.value:at]
			}
			a.end = at
		}
		found = append(found, a)
	}
}

// sameAttributes reports whether the attributes that [scanAttributes] found in a tag have the names and values of the
// tokenizer's attributes. Of several with one name, the tokenizer has the first.
func sameAttributes(found []tagAttribute, attributes []html.Attribute) bool {
	named := map[string]bool{}
	found = slices.DeleteFunc(slices.Clone(found), func(a tagAttribute) bool {
		again := named[a.Key]
		named[a.Key] = true
		return again
	})
	newlines := strings.NewReplacer("\r\n", "\n", "\r", "\n")
	return slices.EqualFunc(found, attributes, func(a tagAttribute, b html.Attribute) bool {
		return a.Key == b.Key && html.UnescapeString(newlines.Replace(a.Val)) == b.Val
	})
}

// A TagChange gives a tag another address, which must be absolute and as browsers write it, and another integrity.
type TagChange struct {
	Tag       PageTag
	URL       string
	Integrity string
}

// A TagError reports the change of a tag that cannot be made alone.
type TagError struct {
	Change int // its index
	Line   int
}

// Error returns a message with the tag's line, and without the index of the change.
func (e *TagError) Error() string {
	return fmt.Sprintf("line %d of the page: the tag cannot be changed without changing what surrounds it", e.Line)
}

// ReplaceTags returns a copy of the page data with changed tags, each with its new address, its integrity, and
// crossorigin="anonymous". The tags are from [ReadPageTags] of data, the changes in the order of the page, and each URL
// absolute. All other bytes stay as they are. If a tokenizer reads one of the changed tags in another way in the result, or
// with another URL or integrity, the error is a [*TagError]. Other errors are those of ReadPageTags.
func ReplaceTags(data []byte, changes []TagChange) ([]byte, error) {
	var b bytes.Buffer
	at := 0
	for _, c := range changes {
		b.Write(data[at:c.Tag.start])
		b.WriteString(c.changedTag())
		at = c.Tag.End()
	}
	b.Write(data[at:])
	changed := b.Bytes()
	tags, err := ReadPageTags(changed)
	if err != nil {
		return nil, err
	}
	shift := 0
	for n, c := range changes {
		text := c.changedTag()
		i := slices.IndexFunc(tags, func(t PageTag) bool { return t.start == c.Tag.start+shift })
		if i < 0 || tags[i].Text != text || tags[i].URL != c.URL || tags[i].Integrity != c.Integrity {
			return nil, &TagError{n, c.Tag.Line}
		}
		shift += len(text) - len(c.Tag.Text)
	}
	return changed, nil
}

// changedTag returns the text of the tag with the address and integrity of the change, and crossorigin="anonymous", for
// which an empty one stays. It keeps the other attributes, and writes the new values with the quotation marks that the
// address had, by default double ones.
func (c TagChange) changedTag() string {
	quote := byte('"')
	for _, a := range c.Tag.attributes {
		if a.Key == c.Tag.address && a.quote != 0 {
			quote = a.quote
		}
	}
	write := func(name, value string) string {
		return name + "=" + string(quote) + html.EscapeString(value) + string(quote)
	}
	missing := ""
	for _, wanted := range [][2]string{{"integrity", c.Integrity}, {"crossorigin", "anonymous"}} {
		if !slices.ContainsFunc(c.Tag.attributes, func(a tagAttribute) bool { return a.Key == wanted[0] }) {
			missing += " " + write(wanted[0], wanted[1])
		}
	}
	var b strings.Builder
	at := 0
	seen := map[string]bool{}
	for _, a := range c.Tag.attributes {
		name, value, rest := c.Tag.Text[a.start:a.start+len(a.Key)], "", ""
		switch {
		case seen[a.Key]: // the first one counts
			continue
		case a.Key == c.Tag.address:
			value, rest = c.URL, missing
		case a.Key == "integrity":
			value = c.Integrity
		case a.Key == "crossorigin" && a.Val != "" && !strings.EqualFold(a.Val, "anonymous"):
			value = "anonymous"
		default:
			continue
		}
		seen[a.Key] = true
		b.WriteString(c.Tag.Text[at:a.start] + write(name, value) + rest)
		at = a.end
	}
	return b.String() + c.Tag.Text[at:]
}
