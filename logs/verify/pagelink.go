package verify

import (
	"strings"

	"golang.org/x/net/html"
)

// addHeaderLinks records in p, at line 1, what the values of a document's Link headers (RFC 8288), fields, have browsers
// load. Their addresses are relative to the document's own, and not to its base element's. A header that cannot be parsed,
// or after which there are too many references, is recorded as a problem, and the headers after it are ignored.
func (p *page) addHeaderLinks(fields []string) {
	base := p.base
	p.base = p.address
	defer func() {
		p.base = base
		p.applyMapIntegrity()
	}()
	for _, field := range fields {
		decoded := make([]rune, len(field)) // browsers read the bytes of a header as ISO 8859-1
		for i := range decoded {
			decoded[i] = rune(field[i])
		}
		links, complete := parseLinkHeader(string(decoded))
		for _, link := range links {
			p.addLink(link, 1)
		}
		if !complete || len(p.references) > maxReferences {
			p.references = append(p.references, Reference{Kind: Document, Line: 1, From: p.from, problem: "its Link header cannot be read", page: p})
			return
		}
	}
}

// parseLinkHeader parses the value of a Link header. It returns each link as the attributes that a link element would have,
// with names in lower case, and reports whether the whole value is a list of links. If it is not, links has those before
// the error.
func parseLinkHeader(text string) (links [][]html.Attribute, complete bool) {
	const space = " \t"
	for {
		text = strings.TrimLeft(text, space+",")
		if text == "" {
			return links, true
		}
		target, rest, closed := strings.Cut(text, ">")
		target, opened := strings.CutPrefix(target, "<")
		if !opened || !closed {
			return links, false
		}
		link := []html.Attribute{{Key: "href", Val: target}}
		text = strings.TrimLeft(rest, space)
		for strings.HasPrefix(text, ";") {
			text = strings.TrimLeft(text[1:], space)
			end := strings.IndexAny(text, "=;,"+space)
			if end < 0 {
				end = len(text)
			}
			attribute := html.Attribute{Key: strings.ToLower(text[:end])}
			text = strings.TrimLeft(text[end:], space)
			if value, ok := strings.CutPrefix(text, "="); ok {
				if attribute.Val, text, ok = cutLinkValue(strings.TrimLeft(value, space)); !ok {
					return links, false
				}
			}
			if attribute.Key != "" && attribute.Key != "href" {
				link = append(link, attribute)
			}
			text = strings.TrimLeft(text, space)
		}
		links = append(links, link)
		if text != "" && text[0] != ',' {
			return links, false
		}
	}
}

// cutLinkValue returns the value at the beginning of text, a token or a quoted string, and the text after it. ok is false
// for a quoted string without an end.
func cutLinkValue(text string) (value, rest string, ok bool) {
	quoted, ok := strings.CutPrefix(text, `"`)
	if !ok {
		end := strings.IndexAny(text, ";, \t")
		if end < 0 {
			end = len(text)
		}
		return text[:end], text[end:], true
	}
	var b strings.Builder
	for i := 0; i < len(quoted); i++ {
		switch c := quoted[i]; {
		case c == '"':
			return b.String(), quoted[i+1:], true
		case c == '\\' && i+1 < len(quoted):
			i++
			b.WriteByte(quoted[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
