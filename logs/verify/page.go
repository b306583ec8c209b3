package verify

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"runtime/metrics"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// The kinds of [Reference].
const (
	ClassicScript = "script"
	ModuleScript  = "module"
	StyleSheet    = "style"
	Preload       = "preload"
	ModulePreload = "modulepreload"
	Import        = "import"       // of a module by another, or by a script in the page
	StyleImport   = "import-style" // of a style sheet by another, or by one in the page
	StyleURL      = "style-url"    // what else a style sheet loads, such as a font
	Frame         = "frame"        // another document: a frame, an object, an embedded one, or what the page is replaced by
	Inline        = "inline"       // a script in the page itself, in a data: address or in an attribute; it has no URL
	Document      = "page"         // the page itself, or a frame of it, where it cannot be read as a browser reads it
)

// A Reference is what a page loads code or a style from.
type Reference struct {
	Kind string `json:"kind"`
	URL  string `json:"url"`  // absolute, if the page's own address is known
	Line int    `json:"line"` // of the page; 1 where it is not known
	// Integrity is the attribute, or what the import map has for the URL; "" for none.
	Integrity string `json:"integrity,omitempty"`
	From      string `json:"from,omitempty"` // the module, style sheet or frame that loads it
	// CORS says that browsers request it in CORS mode. They compare the integrity of what is from another origin only then.
	CORS bool `json:"cors,omitempty"`

	problem     string // why it is not known what a browser loads
	body        string // of a frame in an attribute or a data: address
	contentType string // of such an address
	page        *page  // whose import maps count
}

// Limits of a page, which may be a stranger's.
const (
	MaxPage       = 8 << 20 // bytes
	maxReferences = 1000
	maxTreeMemory = 96 << 20 // bytes that its tree may take
	maxAttributes = 32       // of an element that the tree's construction may copy
	maxHandlers   = 100      // that are listed
)

// A page is what its HTML says.
type page struct {
	address    *webURL // of the document, or of the one around it
	base       *webURL
	based      bool   // by an element
	from       string // the frame that the page is in
	legacy     bool   // characters that are not ASCII are not known
	lines      map[string][]int
	references []Reference
	maps       importMap
	modules    []inline // modules in the page itself
	sheets     []inline // style sheets too
	scripts    []string // hashes of scripts in the page, as for a Content-Security-Policy
	styles     []string // the same of style sheets
	notes      []string
	handlers   int      // attributes such as onclick, and addresses with javascript:
	frames     []inline // addresses of frames
	styled     bool     // style attributes
	templates  bool     // the page has templates
	foreign    bool     // the page has SVG or MathML
}

type inline struct {
	text string
	line int
	base *webURL // that of the document when the element was read
}

// parsePage reads a document with the HTML parser of the standard. contentType is what the server says, "" for a file. address
// is the page's own.
func parsePage(ctx context.Context, data []byte, contentType string, address *webURL) (*page, error) {
	if len(data) > MaxPage {
		return nil, fmt.Errorf("the page has over %d bytes", MaxPage)
	}
	if kind, _, _ := mime.ParseMediaType(contentType); contentType != "" && kind != "text/html" {
		return nil, fmt.Errorf("its Content-Type is %.100q, and only text/html is supported", contentType)
	}
	decoded, err := decodePage(data, contentType)
	if err != nil {
		return nil, err
	}
	p := &page{address: address, base: address, legacy: decoded.legacy}
	return p, p.parse(ctx, decoded.text)
}

// parse reads a document's text.
func (p *page) parse(ctx context.Context, text string) error {
	early, err := p.scan(text)
	if err != nil {
		return err
	}
	root, err := html.Parse(&boundedReader{ctx: ctx, text: text + "<script " + endMark + "></script>"})
	if err != nil {
		return fmt.Errorf("its HTML cannot be read: %w", err)
	}
	complete, frames := false, false
	for node := range root.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		if _, marked := get(node.Attr, endMark); marked {
			complete = true
			continue
		}
		frames = frames || node.Data == "frameset"
		p.addElement(strings.ToLower(node.Data), node, p.lineOf(node))
		if len(p.references) > maxReferences {
			return fmt.Errorf("the page has over %d references", maxReferences)
		}
	}
	for _, frame := range p.frames { // browsers may load it when a later base counts
		if frame.base != p.base {
			p.add(Frame, frame.text, nil, frame.line)
		}
	}
	if !complete && early.mixed() {
		return errors.New("it has a template in SVG or MathML, which the HTML parser does not support")
	}
	if frames && early.foreign { // the scripts of a body that is replaced have run
		return errors.New("it has frames in the place of a body, and SVG or MathML that may have been in that")
	}
	for _, m := range early.modules {
		if !slices.ContainsFunc(p.modules, func(other inline) bool { return other.text == m.text }) {
			p.modules = append(p.modules, m)
		}
	}
	for _, r := range early.references {
		same := func(other Reference) bool { return other.Kind == r.Kind && other.URL == r.URL && other.body == r.body }
		if r.page = p; r.Kind != Inline && !slices.ContainsFunc(p.references, same) {
			p.references = append(p.references, r)
		}
	}
	p.mapIntegrities()
	return nil
}

// endMark is an attribute of an element after the page. The parser ignores what follows a template in SVG or MathML, and then this
// element is not in the tree.
const endMark = "larder-end-of-page"

// mixed reports whether a page could have a template in SVG or MathML.
func (p *page) mixed() bool { return p.templates && p.foreign }

// formatting are the elements that the construction of the tree copies.
var formatting = []string{"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}

// scan reads the tags without the tree. It finds their lines, which the tree does not have, and returns what browsers load when
// they look ahead of the parser, which may be tags that turn out to be text.
func (p *page) scan(text string) (early *page, err error) {
	p.lines = map[string][]int{}
	early = &page{address: p.address, base: p.base, from: p.from, legacy: p.legacy}
	z := html.NewTokenizer(strings.NewReader(text))
	z.SetMaxBuf(MaxPage + 1)
	for line := 1; ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("line %d of the page: %w", line, err)
			}
			return early, nil
		}
		at := line
		for _, c := range z.Raw() {
			if c == '\n' {
				line++
			}
		}
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		token := z.Token()
		if len(token.Attr) > maxAttributes && slices.Contains(formatting, token.Data) {
			return nil, fmt.Errorf("line %d of the page: a tag has over %d attributes", at, maxAttributes)
		}
		if len(token.Attr) > 0 || token.Data == "script" || token.Data == "style" {
			key := fingerprint(token.Data, token.Attr)
			p.lines[key] = append(p.lines[key], at)
		}
		if len(early.references) > maxReferences {
			return nil, fmt.Errorf("the page has over %d references", maxReferences)
		}
		text := ""
		if token.Data == "script" {
			if z.Next() == html.TextToken {
				text = z.Token().Data
			}
			line += strings.Count(string(z.Raw()), "\n")
		}
		early.addEarly(token, text, at)
	}
}

// addEarly adds what a tag loads, without its place in the tree.
func (p *page) addEarly(token html.Token, text string, line int) {
	switch token.Data {
	case "base":
		p.setBase(token.Attr)
	case "link":
		p.addLink(token.Attr, line)
	case "script":
		node := &html.Node{Type: html.ElementNode, Data: token.Data, Attr: token.Attr}
		if text != "" {
			node.AppendChild(&html.Node{Type: html.TextNode, Data: text})
		}
		p.addScript(node, line)
	case "iframe", "frame", "fencedframe", "portal", "embed", "object":
		p.addFrame(token.Data, token.Attr, line)
	case "template":
		p.templates = true
	case "svg", "math":
		p.foreign = true
	}
}

func fingerprint(name string, attributes []html.Attribute) string {
	var b strings.Builder
	b.WriteString(name)
	for _, a := range attributes {
		b.WriteString("\x00" + strings.ToLower(a.Namespace+a.Key) + "\x01" + a.Val)
	}
	sum := sha256.Sum256([]byte(strings.ReplaceAll(b.String(), ":", ""))) // the tree has xlink:href as a name in a namespace
	return string(sum[:8])
}

func (p *page) lineOf(node *html.Node) int {
	key := fingerprint(node.Data, node.Attr)
	lines := p.lines[key]
	if len(lines) == 0 {
		return 1
	}
	if len(lines) > 1 {
		p.lines[key] = lines[1:]
	}
	return lines[0]
}

// A boundedReader gives the parser a page in pieces that are so small that it can refuse the next one before the tree, in which
// a few bytes may stand for many elements, takes too much memory or time.
type boundedReader struct {
	ctx   context.Context
	text  string
	reads int
	start uint64
}

func (r *boundedReader) Read(p []byte) (int, error) {
	const piece, every = 256, 4
	if r.text == "" {
		return 0, io.EOF
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.reads%every == 0 {
		heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(heap)
		now := heap[0].Value.Uint64()
		if r.reads == 0 {
			r.start = now
		}
		if now > r.start && now-r.start > maxTreeMemory+uint64(10*len(r.text)) {
			return 0, fmt.Errorf("its elements take over %d bytes of memory", maxTreeMemory)
		}
	}
	r.reads++
	n := copy(p[:min(len(p), piece)], r.text)
	r.text = r.text[n:]
	return n, nil
}

// addElement adds what an element loads or runs. It takes more for code than a browser does: the content of templates, scripts of
// any namespace with any attribute that could be their address.
func (p *page) addElement(name string, node *html.Node, line int) {
	attributes := node.Attr
	p.addHandlers(attributes, line)
	if style, ok := get(attributes, "style"); ok {
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
			p.add(Frame, to, attributes, line)
		}
	case "style":
		p.styles = append(p.styles, cspHash(content(node)))
		p.sheets = append(p.sheets, inline{content(node), line, p.base})
	case "script":
		p.addScript(node, line)
	case "iframe", "frame", "fencedframe", "portal", "embed", "object":
		p.addFrame(name, attributes, line)
	}
}

func inTemplate(node *html.Node) bool {
	for around := range node.Ancestors() {
		if around.Data == "template" {
			return true
		}
	}
	return false
}

// content is the text in an element.
func content(node *html.Node) string {
	var b strings.Builder
	for child := range node.Descendants() { // in SVG, a style sheet may have elements, whose text is its own too
		if child.Type == html.TextNode {
			b.WriteString(child.Data)
		}
	}
	return b.String()
}

// addHandlers adds the code in attributes.
func (p *page) addHandlers(attributes []html.Attribute, line int) {
	for _, a := range attributes {
		code := len(a.Key) > 2 && strings.HasPrefix(strings.ToLower(a.Key), "on")
		if slices.Contains([]string{"href", "action", "formaction", "xlink:href"}, strings.ToLower(a.Key)) {
			to, err := parseWebURL(a.Val, p.base)
			code = err == nil && to.scheme == "javascript"
		}
		if !code {
			continue
		}
		if p.handlers++; p.handlers <= maxHandlers {
			p.references = append(p.references, Reference{Kind: Inline, Line: line, page: p, From: p.from})
		}
	}
}

// setBase is for the first base element with an address.
func (p *page) setBase(attributes []html.Attribute) {
	href, ok := get(attributes, "href")
	if !ok || p.based {
		return
	}
	p.based = true
	to, err := parseWebURL(href, p.address)
	if err == nil && !to.opaque {
		p.base = to
	}
}

// mapIntegrities sets the integrity of modules that have none to that of the import maps.
func (p *page) mapIntegrities() {
	for i, r := range p.references {
		if r.Integrity == "" && (r.Kind == ModuleScript || r.Kind == ModulePreload) {
			p.references[i].Integrity = p.maps.Integrity[r.URL]
		}
	}
}

// get returns an attribute, whatever its namespace, as xlink:href is an address too.
func get(attributes []html.Attribute, name string) (string, bool) {
	for _, a := range attributes {
		if strings.EqualFold(a.Key, name) {
			return a.Val, true
		}
	}
	return "", false
}

// add adds a reference to what an attribute names.
func (p *page) add(kind, to string, attributes []html.Attribute, line int) {
	integrity, _ := get(attributes, "integrity")
	_, cors := get(attributes, "crossorigin")
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
		p.addData(kind, at, line)
		return
	default:
		r.URL = at.String()
		if p.legacy && strings.ContainsRune(to, '\ufffd') || strings.Contains(r.URL, "%EF%BF%BD") {
			r.problem = "its address has characters that are not ASCII, in an encoding that is not supported"
		}
	}
	p.references = append(p.references, r)
}

// addData adds a document, a script or a style sheet whose address contains it.
func (p *page) addData(kind string, at *webURL, line int) {
	r := Reference{Kind: Inline, Line: line, From: p.from, page: p}
	contentType, body, err := readDataURL(at.path)
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

// isPicture reports whether a document of a media type cannot run code.
func isPicture(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.HasPrefix(kind, "image/") && kind != "image/svg+xml"
}

// notCode is what a preload may be for that is neither code nor style. With any other word it is taken for code, because the parser
// drops the second of two attributes, which may be the one that counts.
var notCode = []string{"", "audio", "document", "embed", "fetch", "font", "image", "object", "track", "video"}

func (p *page) addLink(attributes []html.Attribute, line int) {
	href, ok := get(attributes, "href")
	if !ok || href == "" {
		return
	}
	rel, _ := get(attributes, "rel")
	as, _ := get(attributes, "as")
	relations := strings.Fields(strings.ToLower(rel))
	if slices.Contains(relations, "stylesheet") {
		p.add(StyleSheet, href, attributes, line)
	}
	if slices.Contains(relations, "modulepreload") {
		p.add(ModulePreload, href, attributes, line)
	}
	if slices.Contains(relations, "preload") && !slices.Contains(notCode, strings.ToLower(as)) && !slices.Contains(relations, "stylesheet") {
		p.add(Preload, href, attributes, line)
	}
}

// scriptTypes are those of classic scripts; with any other type but "module" and "importmap", nothing is run.
var scriptTypes = []string{"", "text/javascript", "application/javascript", "application/ecmascript", "application/x-javascript", "text/ecmascript", "text/jscript", "text/livescript", "text/x-javascript", "text/x-ecmascript", "application/x-ecmascript", "text/javascript1.0", "text/javascript1.1", "text/javascript1.2", "text/javascript1.3", "text/javascript1.4", "text/javascript1.5"}

// scriptType returns what decides whether a script is run.
func scriptType(attributes []html.Attribute) string {
	kind, ok := get(attributes, "type")
	if language, has := get(attributes, "language"); !ok && has && language != "" {
		kind = "text/" + language
	}
	kind, _, _ = strings.Cut(kind, ";")
	return strings.ToLower(strings.Trim(kind, " \t\n\f\r"))
}

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
			p.add(reference, a.Val, node.Attr, line)
			external = external || key == "src" || node.Namespace != ""
		}
	}
	if external {
		return
	}
	text := content(node)
	p.scripts = append(p.scripts, cspHash(text))
	p.references = append(p.references, Reference{Kind: Inline, Line: line, From: p.from, page: p})
	switch {
	case kind == "module" || classic && strings.Contains(text, "import"):
		p.modules = append(p.modules, inline{text, line, p.base})
	case kind == "importmap":
		err := p.maps.add(text, p.base)
		if err == nil && p.legacy && strings.ContainsRune(text, '\ufffd') {
			err = errors.New("it has characters that are not ASCII, in an encoding that is not supported")
			p.references[len(p.references)-1].problem = err.Error()
		}
		if err != nil {
			p.note("line %d: the import map does not count: %v", line, err)
		}
	}
}

// addFrame adds the document that an element loads.
func (p *page) addFrame(name string, attributes []html.Attribute, line int) {
	if text, ok := get(attributes, "srcdoc"); ok && name == "iframe" {
		p.references = append(p.references, Reference{Kind: Frame, URL: "about:srcdoc", Line: line, From: p.from, body: text, page: p})
		return
	}
	for _, key := range []string{"src", "data", "code"} {
		if to, ok := get(attributes, key); ok && to != "" && (key == "src") != (name == "object") {
			p.add(Frame, to, attributes, line)
			p.frames = append(p.frames, inline{to, line, p.base})
		}
	}
}

// refreshTarget returns the address that a meta element sends the browser to, "" for none:
// https://html.spec.whatwg.org/multipage/semantics.html#shared-declarative-refresh-steps.
func refreshTarget(attributes []html.Attribute) string {
	if of, _ := get(attributes, "http-equiv"); !strings.EqualFold(strings.TrimSpace(of), "refresh") {
		return ""
	}
	text, _ := get(attributes, "content")
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

func (p *page) note(format string, args ...any) {
	const most = 100
	if len(p.notes) < most {
		p.notes = append(p.notes, fmt.Sprintf(format, args...))
	}
}

// cspHash is how a Content-Security-Policy names what is in the page itself.
func cspHash(text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n") // as the browser's parser does
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// readDataURL returns the content type and the body of a data: address: https://fetch.spec.whatwg.org/#data-urls.
func readDataURL(path string) (contentType, body string, err error) {
	header, body, ok := strings.Cut(path, ",")
	if !ok {
		return "", "", errors.New("it has no comma")
	}
	body = percentDecode(body)
	header = strings.TrimSpace(percentDecode(header))
	if before, last, _ := lastCut(header, ";"); strings.EqualFold(strings.TrimSpace(last), "base64") {
		header = before
		text := strings.TrimRight(strings.NewReplacer(" ", "", "\t", "", "\n", "", "\f", "", "\r", "").Replace(body), "=")
		decoded, err := base64.RawStdEncoding.DecodeString(text)
		if err != nil {
			return "", "", err
		}
		body = string(decoded)
	}
	if header == "" || header[0] == ';' {
		header = "text/plain" + header
	}
	return header, body, nil
}

func lastCut(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}
