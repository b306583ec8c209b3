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
	Document      = "page"         // the page itself, or a frame of it, if it cannot be read as a browser reads it
)

// A Reference is a place where a page loads or runs code, a style or a document.
type Reference struct {
	Kind string `json:"kind"`
	URL  string `json:"url"`  // absolute, if the page's own address is known
	Line int    `json:"line"` // of the page; 1 if it is not known
	// Integrity is the attribute, or what the import map has for the URL; "" for none.
	Integrity string `json:"integrity,omitempty"`
	From      string `json:"from,omitempty"` // the module, style sheet or frame that loads it
	// CORS says that browsers request it in CORS mode. They compare the integrity of what is from another origin only then.
	CORS bool `json:"cors,omitempty"`

	problem     string // why it is unknown what a browser loads
	body        string // the document, of a frame in an attribute or a data: address
	contentType string // the document's type, of a frame in a data: address
	page        *page  // the document that has it
}

// Limits of a page, which may be a stranger's.
const (
	MaxPage       = 8 << 20 // bytes
	maxReferences = 1000
	maxTreeMemory = 96 << 20 // bytes that its tree may take
	maxAttributes = 32       // of an element in formatting
	maxHandlers   = 100      // that are listed
)

// A page is what a parsed HTML document loads and runs.
type page struct {
	address    *webURL          // of the document; that of the surrounding one for srcdoc
	base       *webURL          // that relative addresses are resolved against
	based      bool             // base is set by an element
	from       string           // the URL of the frame that the document is in; "" for the page
	legacy     bool             // see [decodePage]
	lines      map[string][]int // of tags, by tagKey
	references []Reference
	maps       importMap
	modules    []inline // modules in the document itself
	sheets     []inline // style sheets and style attributes in the document itself
	scripts    []string // hashes of inline scripts, as in a Content-Security-Policy
	styles     []string // hashes of inline style sheets
	notes      []string
	handlers   int      // number of attributes such as onclick, and of javascript: addresses
	frames     []inline // addresses of frames
	styled     bool     // the document has style attributes
	templates  bool     // the document has templates
	foreign    bool     // the document has SVG or MathML
}

// An inline is a text in a document, such as a script.
type inline struct {
	text string
	line int
	base *webURL // of the document when the element was read
}

// parsePage parses an HTML page as browsers do, and returns what it loads and runs. contentType is the value of the
// Content-Type header, "" for a file. address is the page's own. It returns an error for a page that is over [MaxPage], is
// not HTML or has too many references, or if it would not be known completely what browsers load; then the result must not
// be used.
func parsePage(ctx context.Context, data []byte, contentType string, address *webURL) (*page, error) {
	if len(data) > MaxPage {
		return nil, fmt.Errorf("the page has over %d bytes", MaxPage)
	}
	if kind, _, _ := mime.ParseMediaType(contentType); contentType != "" && kind != "text/html" {
		return nil, fmt.Errorf("its Content-Type is %.100q, and only text/html is supported", contentType)
	}
	text, legacy, err := decodePage(data, contentType)
	if err != nil {
		return nil, err
	}
	p := &page{address: address, base: address, legacy: legacy}
	return p, p.parseText(ctx, text)
}

// parseText parses the decoded HTML text of a document, whose address and base p has, and records in p what it loads and
// runs. It returns an error for a document that has too many elements or references, or that browsers may read in another
// way, and if ctx has ended; then p is incomplete.
func (p *page) parseText(ctx context.Context, text string) error {
	early, err := p.scanTags(text)
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
		if _, marked := attribute(node.Attr, endMark); marked {
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
			p.addReference(Frame, frame.text, nil, frame.line)
		}
	}
	if !complete && early.templates && early.foreign { // the template may be in the SVG or MathML
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
	p.applyMapIntegrity()
	return nil
}

// endMark is an attribute of an element after the page. The parser ignores what follows a template in SVG or MathML, and then this
// element is not in the tree.
const endMark = "larder-end-of-page"

// formatting are the elements that the HTML parser copies when it repairs wrong nesting.
var formatting = []string{"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}

// scanTags reads the tags of a document's text without building its tree. It records in p.lines the line of each tag that
// has attributes or is a script or style. It returns a separate page, early, with what browsers load when they look ahead
// of the parser, including tags that turn out to be text. Too many references, or attributes of one tag in formatting, are
// an error.
func (p *page) scanTags(text string) (early *page, err error) {
	p.lines = map[string][]int{}
	early = &page{address: p.address, base: p.base, from: p.from, legacy: p.legacy}
	return early, eachTag([]byte(text), func(t tag) error {
		if len(t.Attr) > maxAttributes && slices.Contains(formatting, t.Data) {
			return fmt.Errorf("line %d of the page: a tag has over %d attributes", t.line, maxAttributes)
		}
		if len(t.Attr) > 0 || t.Data == "script" || t.Data == "style" {
			key := tagKey(t.Data, t.Attr)
			p.lines[key] = append(p.lines[key], t.line)
		}
		if len(early.references) > maxReferences {
			return fmt.Errorf("the page has over %d references", maxReferences)
		}
		early.addTag(t)
		return nil
	})
}

// addTag records in p what a tag that [page.scanTags] found loads, whatever its place in the tree, and whether it begins a
// template, SVG or MathML.
func (p *page) addTag(t tag) {
	switch t.Data {
	case "base":
		p.setBase(t.Attr)
	case "link":
		p.addLink(t.Attr, t.line)
	case "script":
		node := &html.Node{Type: html.ElementNode, Data: t.Data, Attr: t.Attr}
		node.AppendChild(&html.Node{Type: html.TextNode, Data: t.text})
		p.addScript(node, t.line)
	case "iframe", "frame", "fencedframe", "portal", "embed", "object":
		p.addFrame(t.Data, t.Attr, t.line)
	case "template":
		p.templates = true
	case "svg", "math":
		p.foreign = true
	}
}

// tagKey returns a key for a tag with this name and these attributes, by which its line is looked up: a hash that is the same
// for a token of the tokenizer and a node of the tree.
func tagKey(name string, attributes []html.Attribute) string {
	var b strings.Builder
	b.WriteString(name)
	for _, a := range attributes {
		b.WriteString("\x00" + strings.ToLower(a.Namespace+a.Key) + "\x01" + a.Val)
	}
	sum := sha256.Sum256([]byte(strings.ReplaceAll(b.String(), ":", ""))) // the tree has xlink:href as a name in a namespace
	return string(sum[:8])
}

// lineOf returns the line of a node's tag. For equal tags, it returns the line of the next one with each call, and removes
// the others from p.lines; the last line stays. It returns 1 if the line is unknown.
func (p *page) lineOf(node *html.Node) int {
	key := tagKey(node.Data, node.Attr)
	lines := p.lines[key]
	if len(lines) == 0 {
		return 1
	}
	if len(lines) > 1 {
		p.lines[key] = lines[1:]
	}
	return lines[0]
}

// A boundedReader passes a page to the parser in small pieces. It refuses the next one if ctx has ended, or if the tree, in which a
// few bytes may stand for many elements, takes too much memory.
type boundedReader struct {
	ctx   context.Context
	text  string
	reads int
	start uint64
}

// Read returns the next piece of the page, of at most 256 bytes. It fails if ctx has ended, or if the heap of this process
// has grown by more than maxTreeMemory and ten times the rest of the page since the first piece, also if other work in the
// process is the cause. It measures the heap at every fourth piece.
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

// addNote adds a formatted message to the notes of the document, which the report shows. It ignores all after the first 100.
func (p *page) addNote(format string, args ...any) {
	const maxNotes = 100
	if len(p.notes) < maxNotes {
		p.notes = append(p.notes, fmt.Sprintf(format, args...))
	}
}

// cspHash returns the hash of an inline script or style, with line breaks as the browser's parser has them, in the form that
// a Content-Security-Policy has, 'sha256-…' with the quotes.
func cspHash(text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n") // as the browser's parser does
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// parseDataURL returns the content type with its parameters, by default text/plain, and the decoded body of a data:
// address. path is the address without "data:" and fragment. One without a comma, or with malformed base64, is an error.
// See https://fetch.spec.whatwg.org/#data-urls.
func parseDataURL(path string) (contentType, body string, err error) {
	header, body, ok := strings.Cut(path, ",")
	if !ok {
		return "", "", errors.New("it has no comma")
	}
	body = percentDecode(body)
	header = strings.TrimSpace(percentDecode(header))
	if end := strings.LastIndexByte(header, ';'); end >= 0 && strings.EqualFold(strings.TrimSpace(header[end+1:]), "base64") {
		header = header[:end]
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
