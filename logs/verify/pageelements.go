package verify

import (
	"errors"
	"mime"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// addElement records in p what an element of the document, with its lower-case name and its line, loads or runs. More counts
// as code than in a browser: the content of templates, and scripts of any namespace with any attribute that could be their
// address.
func (p *page) addElement(name string, node *html.Node, line int) {
	attributes := node.Attr
	p.addHandlers(attributes, line)
	if style, ok := attribute(attributes, "style"); ok {
		p.styled = true
		p.sheets = append(p.sheets, inline{style, line, p.base})
	}
	switch name {
	case "base":
		if node.Namespace == "" && !inTemplate(node) {
			p.setBase(attributes)
		}
	case "link":
		p.addLink(attributes, line)
	case "meta":
		if to := refreshTarget(attributes); to != "" {
			p.addReference(Frame, to, attributes, line)
		}
	case "style":
		p.styles = append(p.styles, cspHash(textContent(node)))
		p.sheets = append(p.sheets, inline{textContent(node), line, p.base})
	case "script":
		p.addScript(node, line)
	case "iframe", "frame", "fencedframe", "portal", "embed", "object":
		p.addFrame(name, attributes, line)
	}
}

// inTemplate reports whether a node is inside a template element.
func inTemplate(node *html.Node) bool {
	for around := range node.Ancestors() {
		if around.Data == "template" {
			return true
		}
	}
	return false
}

// textContent returns the text of all text nodes inside a node, also of those in its elements, joined without separators.
func textContent(node *html.Node) string {
	var b strings.Builder
	for child := range node.Descendants() { // in SVG, a style sheet may have elements, whose text is its own too
		if child.Type == html.TextNode {
			b.WriteString(child.Data)
		}
	}
	return b.String()
}

// addHandlers records in p, as a [Reference] of the kind Inline with the line and without the code, each attribute that runs code: event
// handlers, which are all whose names begin with on, and javascript: addresses in href, action, formaction or xlink:href. It counts them
// in p.handlers, and beyond maxHandlers only that.
func (p *page) addHandlers(attributes []html.Attribute, line int) {
	for _, a := range attributes {
		code := len(a.Key) > 2 && strings.HasPrefix(strings.ToLower(a.Key), "on")
		if slices.Contains([]string{"href", "action", "formaction", "xlink:href"}, strings.ToLower(a.Key)) {
			scheme, _ := cutScheme(cleanAddress(a.Val)) // of any length
			code = scheme == "javascript"
		}
		if !code {
			continue
		}
		if p.handlers++; p.handlers <= maxHandlers {
			p.references = append(p.references, Reference{Kind: Inline, Line: line, page: p, From: p.from})
		}
	}
}

// setBase sets the base address of the document, against which relative addresses are resolved, to that of a base element
// with these attributes, which is relative to p.address. It does nothing unless this is the first such element with an
// href. If that cannot be read, or is neither http nor https, the base stays, and later elements do not count either.
func (p *page) setBase(attributes []html.Attribute) {
	href, ok := attribute(attributes, "href")
	if !ok || p.based {
		return
	}
	p.based = true
	to, err := parseWebURL(href, p.address)
	if err == nil && !to.opaque {
		p.base = to
	}
}

// applyMapIntegrity gives the module scripts and preloads of the document that have no integrity attribute the integrity that
// its import maps have for their URLs.
func (p *page) applyMapIntegrity() {
	for i, r := range p.references {
		if r.Integrity == "" && (r.Kind == ModuleScript || r.Kind == ModulePreload) {
			p.references[i].Integrity = p.maps.Integrity[r.URL]
		}
	}
}

// attribute returns the value of the attribute with this name, whatever its case and its namespace, and reports whether there
// is one.
func attribute(attributes []html.Attribute, name string) (string, bool) {
	for _, a := range attributes {
		if strings.EqualFold(a.Key, name) {
			return a.Val, true
		}
	}
	return "", false
}

// addReference records that an element with these attributes, in a line of the page, loads the address to, which is
// resolved against p.base. kind is one of the kinds of [Reference]. An address that cannot be parsed, or whose characters
// are unknown, is recorded with that problem. It ignores an about: address, and records a javascript: one as inline code,
// and a data: one by [page.addDataURL].
func (p *page) addReference(kind, to string, attributes []html.Attribute, line int) {
	integrity, _ := attribute(attributes, "integrity")
	_, cors := attribute(attributes, "crossorigin")
	r := Reference{Kind: kind, Line: line, Integrity: strings.TrimSpace(integrity), From: p.from, page: p}
	r.CORS = cors || kind == ModuleScript || kind == ModulePreload
	at, err := parseWebURL(to, p.base)
	switch {
	case err != nil:
		r.URL, r.problem = to[:min(len(to), maxURL)], "its address cannot be read: "+err.Error()
	case at.scheme == "javascript":
		p.handlers++
		r = Reference{Kind: Inline, Line: line, From: p.from, page: p}
	case at.opaque && at.scheme == "about":
		return
	case at.opaque && at.scheme == "data":
		p.addDataURL(kind, at, line)
		return
	default:
		r.URL = at.String()
		if p.legacy && strings.ContainsRune(to, '\ufffd') || strings.Contains(r.URL, "%EF%BF%BD") {
			r.problem = "its address has characters that are not ASCII, in an encoding that is not supported"
		}
	}
	p.references = append(p.references, r)
}

// addDataURL records in p what a data: address, of this kind of [Reference], contains: a document as a frame, a style sheet
// as one in the page, and a script as inline code and as a module to be checked. One that cannot be decoded, or a script in
// UTF-16, is recorded with that problem. It ignores pictures in frames, and preloads but those of modules.
func (p *page) addDataURL(kind string, at *webURL, line int) {
	r := Reference{Kind: Inline, Line: line, From: p.from, page: p}
	contentType, body, err := parseDataURL(at.path)
	switch {
	case err != nil:
		r.Kind, r.URL, r.problem = kind, "data:", "its data: address cannot be read: "+err.Error()
	case kind == StyleSheet || kind == Preload:
		if kind == StyleSheet {
			p.sheets = append(p.sheets, inline{body, line, at})
		}
		return
	case kind == Frame && isPicture(contentType):
		return
	case kind == Frame:
		r.Kind, r.URL, r.body, r.contentType = Frame, "data:", body, contentType
	case strings.HasPrefix(body, "\xff\xfe") || strings.HasPrefix(body, "\xfe\xff"):
		r.problem = "it is a script in UTF-16, which is not supported"
	default:
		p.modules = append(p.modules, inline{strings.ToValidUTF8(body, "\ufffd"), line, at})
	}
	p.references = append(p.references, r)
}

// isPicture reports whether a Content-Type is that of an image that cannot run code, so not SVG or other XML. A malformed one, or one
// of several types, is not.
func isPicture(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && strings.HasPrefix(kind, "image/") && !strings.HasSuffix(kind, "xml")
}

// notCode are the values of a preload's as attribute that stand for neither code nor style. Any other value counts as code, because
// the parser drops the second of two attributes, which may be the one that counts.
var notCode = []string{"", "audio", "document", "embed", "fetch", "font", "image", "object", "track", "video"}

// preloadsCode reports whether a link with these relations and as attribute preloads code or style.
func preloadsCode(relations []string, as string) bool {
	return slices.Contains(relations, "preload") && !slices.Contains(notCode, strings.ToLower(as))
}

// addLink records in p which style sheets, modules and preloads a link element or a Link header with these attributes has
// browsers load. A preload that is a style sheet too is only that. Without an address it does nothing.
func (p *page) addLink(attributes []html.Attribute, line int) {
	href, ok := attribute(attributes, "href")
	if !ok || href == "" {
		return
	}
	rel, _ := attribute(attributes, "rel")
	as, _ := attribute(attributes, "as")
	relations := strings.Fields(strings.ToLower(rel))
	if slices.Contains(relations, "stylesheet") {
		p.addReference(StyleSheet, href, attributes, line)
	}
	if slices.Contains(relations, "modulepreload") {
		p.addReference(ModulePreload, href, attributes, line)
	}
	if preloadsCode(relations, as) && !slices.Contains(relations, "stylesheet") {
		p.addReference(Preload, href, attributes, line)
	}
}

// scriptTypes are the types of classic scripts. Browsers run no script with another type, except "module" and "importmap".
var scriptTypes = []string{"", "text/javascript", "application/javascript", "application/ecmascript", "application/x-javascript", "text/ecmascript", "text/jscript", "text/livescript", "text/x-javascript", "text/x-ecmascript", "application/x-ecmascript", "text/javascript1.0", "text/javascript1.1", "text/javascript1.2", "text/javascript1.3", "text/javascript1.4", "text/javascript1.5"}

// scriptType returns the type of a script element, by which browsers decide whether they run it: its attribute type, or without that
// text/ and its attribute language, in lower case, without parameters. It returns "", which browsers run as a classic script, if the
// element has neither, or its type is empty. It is more lenient than browsers, so that a script which one of them might run counts.
func scriptType(attributes []html.Attribute) string {
	kind, ok := attribute(attributes, "type")
	if language, has := attribute(attributes, "language"); !ok && has && language != "" {
		kind = "text/" + language
	}
	kind, _, _ = strings.Cut(kind, ";")
	return strings.ToLower(strings.Trim(kind, " \t\n\f\r"))
}

// addScript records in p what a script element does: the script that it loads, the code in it, or the import map in it,
// which it merges into p.maps. The code in it counts as a module too if it is one or contains "import". It notes an import
// map that cannot be read. It ignores elements of types that browsers do not run.
func (p *page) addScript(node *html.Node, line int) {
	kind := scriptType(node.Attr)
	classic := slices.Contains(scriptTypes, kind)
	if !classic && kind != "module" && kind != "importmap" {
		return
	}
	external := false
	for _, a := range node.Attr {
		if key := strings.ToLower(a.Key); a.Val != "" && (key == "src" || key == "href" || key == "xlink:href") {
			reference := ModuleScript // an import map with an address counts as one, so that it is not proven
			if classic {
				reference = ClassicScript
			}
			p.addReference(reference, a.Val, node.Attr, line)
			external = external || key == "src" || node.Namespace != ""
		}
	}
	if external {
		return
	}
	text := textContent(node)
	p.scripts = append(p.scripts, cspHash(text))
	p.references = append(p.references, Reference{Kind: Inline, Line: line, From: p.from, page: p})
	switch {
	case kind == "module" || classic && strings.Contains(text, "import"):
		p.modules = append(p.modules, inline{text, line, p.base})
	case kind == "importmap":
		err := p.maps.merge(text, p.base)
		if err == nil && p.legacy && strings.ContainsRune(text, '\ufffd') {
			err = errors.New("it has characters that are not ASCII, in an encoding that is not supported")
			p.references[len(p.references)-1].problem = err.Error()
		}
		if err != nil {
			p.addNote("line %d: the import map does not count: %v", line, err)
		}
	}
}

// addFrame records in p the document that an element called name, such as iframe or object, with these attributes loads:
// the text in an iframe's srcdoc, or else the address in src, of an object those in data and code. It also adds each
// address to p.frames. It ignores empty ones.
func (p *page) addFrame(name string, attributes []html.Attribute, line int) {
	if text, ok := attribute(attributes, "srcdoc"); ok && name == "iframe" {
		p.references = append(p.references, Reference{Kind: Frame, URL: "about:srcdoc", Line: line, From: p.from, body: text, page: p})
		return
	}
	for _, key := range []string{"src", "data", "code"} {
		if to, ok := attribute(attributes, key); ok && to != "" && (key == "src") != (name == "object") {
			p.addReference(Frame, to, attributes, line)
			p.frames = append(p.frames, inline{to, line, p.base})
		}
	}
}

// refreshTarget returns the address that a meta element with these attributes sends the browser to, "" for none:
// https://html.spec.whatwg.org/multipage/semantics.html#shared-declarative-refresh-steps.
func refreshTarget(attributes []html.Attribute) string {
	if of, _ := attribute(attributes, "http-equiv"); !strings.EqualFold(strings.TrimSpace(of), "refresh") {
		return ""
	}
	text, _ := attribute(attributes, "content")
	const space = " \t\n\f\r"
	text = strings.TrimLeft(strings.TrimLeft(strings.TrimLeft(text, space), "0123456789."), space)
	text = strings.TrimLeft(strings.TrimLeft(text, ";,"), space)
	if len(text) > 3 && strings.EqualFold(text[:3], "url") {
		if rest := strings.TrimLeft(text[3:], space); strings.HasPrefix(rest, "=") {
			text = strings.TrimLeft(rest[1:], space)
		}
	}
	if text != "" && (text[0] == '"' || text[0] == '\'') {
		text, _, _ = strings.Cut(text[1:], text[:1])
	}
	return text
}
