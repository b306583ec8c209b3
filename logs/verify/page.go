package verify

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
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
)

// A Reference is what a page loads code or a style from.
type Reference struct {
	Kind string `json:"kind"`
	URL  string `json:"url"`  // absolute, if the page's own address is known
	Line int    `json:"line"` // of the page
	// Integrity is the attribute, or what the import map has for the URL; "" for none.
	Integrity string `json:"integrity,omitempty"`
	From      string `json:"from,omitempty"` // the module or style sheet that loads it
}

// Limits of a page, which may be a stranger's.
const (
	MaxPage       = 8 << 20 // bytes
	maxReferences = 1000
	maxURL        = 4096 // bytes
	maxImportMap  = 1 << 20
)

// A page is what its HTML says.
type page struct {
	base       *url.URL
	based      bool // by an element
	references []Reference
	maps       importMap
	modules    []inline // modules in the page itself
	sheets     []inline // style sheets too
	scripts    []string // hashes of scripts in the page, as for a Content-Security-Policy
	styles     []string // the same of style sheets
	notes      []string
	handlers   bool // attributes such as onclick
	styled     bool // style attributes
}

type inline struct {
	text string
	line int
}

// parsePage reads a page. address is its own, nil for one that is not known.
func parsePage(data []byte, address *url.URL) (*page, error) {
	if len(data) > MaxPage {
		return nil, fmt.Errorf("the page has over %d bytes", MaxPage)
	}
	p := &page{base: cmp.Or(address, new(url.URL))}
	z := html.NewTokenizer(bytes.NewReader(data))
	z.SetMaxBuf(MaxPage + 1)
	for line := 1; ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("line %d of the page: %w", line, err)
			}
			p.mapIntegrities()
			return p, nil
		}
		at := line
		line += bytes.Count(z.Raw(), []byte("\n"))
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		name, attributes := tag(z)
		text := ""
		if name == "script" || name == "style" {
			if z.Next() == html.TextToken { // after a tag that seems to close itself too
				text = string(z.Raw())
			}
			line += bytes.Count(z.Raw(), []byte("\n"))
		}
		p.element(name, attributes, text, at)
		if len(p.references) > maxReferences {
			return nil, fmt.Errorf("the page has over %d references", maxReferences)
		}
	}
}

// element takes an element, with the text of a script or a style sheet.
func (p *page) element(name string, attributes []html.Attribute, text string, at int) {
	p.handlers = p.handlers || slices.ContainsFunc(attributes, func(a html.Attribute) bool { return len(a.Key) > 2 && strings.HasPrefix(a.Key, "on") })
	if style, ok := get(attributes, "style"); ok {
		p.styled = true
		p.sheets = append(p.sheets, inline{style, at})
	}
	switch name {
	case "base":
		if href, ok := get(attributes, "href"); ok && !p.based {
			p.based = true
			if to, err := p.base.Parse(strings.TrimSpace(href)); err == nil {
				p.base = to
			}
		}
	case "link":
		p.link(attributes, at)
	case "style":
		p.styles = append(p.styles, cspHash(text))
		p.sheets = append(p.sheets, inline{text, at})
	case "script":
		p.script(attributes, text, at)
	}
}

// mapIntegrities gives modules without an integrity that of the import maps.
func (p *page) mapIntegrities() {
	for i, r := range p.references {
		if r.Integrity == "" && (r.Kind == ModuleScript || r.Kind == ModulePreload) {
			p.references[i].Integrity = p.maps.Integrity[r.URL]
		}
	}
}

func tag(z *html.Tokenizer) (string, []html.Attribute) {
	t := z.Token()
	return t.Data, t.Attr
}

func get(attributes []html.Attribute, name string) (string, bool) {
	for _, a := range attributes {
		if a.Key == name && a.Namespace == "" {
			return a.Val, true
		}
	}
	return "", false
}

// add adds a reference to what an attribute names.
func (p *page) add(kind, to string, attributes []html.Attribute, line int) {
	to = strings.TrimSpace(to)
	if to == "" || len(to) > maxURL {
		p.note("line %d: a %s whose address is empty or over %d bytes is left out", line, kind, maxURL)
		return
	}
	at, err := p.base.Parse(to)
	if err != nil {
		p.note("line %d: the address of a %s is none: %v", line, kind, err)
		return
	}
	integrity, _ := get(attributes, "integrity")
	at.Fragment, at.RawFragment = "", ""
	p.references = append(p.references, Reference{Kind: kind, URL: at.String(), Line: line, Integrity: strings.TrimSpace(integrity)})
}

func (p *page) link(attributes []html.Attribute, line int) {
	href, ok := get(attributes, "href")
	if !ok {
		return
	}
	rel, _ := get(attributes, "rel")
	as, _ := get(attributes, "as")
	relations := strings.Fields(strings.ToLower(rel))
	switch {
	case slices.Contains(relations, "stylesheet"):
		p.add(StyleSheet, href, attributes, line)
	case slices.Contains(relations, "modulepreload"):
		p.add(ModulePreload, href, attributes, line)
	case slices.Contains(relations, "preload") && slices.Contains([]string{"script", "style"}, strings.ToLower(as)):
		p.add(Preload, href, attributes, line)
	}
}

// scriptTypes are those of classic scripts; with any other type but "module" and "importmap", nothing is run.
var scriptTypes = []string{"", "text/javascript", "application/javascript", "application/ecmascript", "application/x-javascript", "text/ecmascript", "text/jscript", "text/livescript", "text/x-javascript", "text/x-ecmascript", "application/x-ecmascript", "text/javascript1.0", "text/javascript1.1", "text/javascript1.2", "text/javascript1.3", "text/javascript1.4", "text/javascript1.5"}

func (p *page) script(attributes []html.Attribute, text string, line int) {
	kind, _ := get(attributes, "type")
	kind = strings.ToLower(strings.TrimSpace(kind))
	src, external := get(attributes, "src")
	switch {
	case kind == "importmap":
		p.scripts = append(p.scripts, cspHash(text))
		if err := p.maps.add(text, p.base); err != nil {
			p.note("line %d: the import map does not count: %v", line, err)
		}
	case kind == "module" && external:
		p.add(ModuleScript, src, attributes, line)
	case kind == "module":
		p.scripts = append(p.scripts, cspHash(text))
		p.modules = append(p.modules, inline{text, line})
	case !slices.Contains(scriptTypes, kind):
	case external:
		p.add(ClassicScript, src, attributes, line)
	default:
		p.scripts = append(p.scripts, cspHash(text))
	}
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

// An importMap says where modules are by what they are called.
type importMap struct {
	Imports   map[string]string
	Scopes    map[string]map[string]string
	Integrity map[string]string // by URL
}

// add takes an import map in. Of what several of them say of one name the first counts, as in browsers.
func (m *importMap) add(text string, base *url.URL) error {
	if len(text) > maxImportMap {
		return fmt.Errorf("it has over %d bytes", maxImportMap)
	}
	var read struct {
		Imports   map[string]any            `json:"imports"`
		Scopes    map[string]map[string]any `json:"scopes"`
		Integrity map[string]any            `json:"integrity"`
	}
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		return err
	}
	if m.Imports == nil {
		m.Imports, m.Scopes, m.Integrity = map[string]string{}, map[string]map[string]string{}, map[string]string{}
	}
	names(m.Imports, read.Imports, base)
	for scope, of := range read.Scopes {
		at, err := base.Parse(scope)
		if err != nil {
			continue
		}
		if m.Scopes[at.String()] == nil {
			m.Scopes[at.String()] = map[string]string{}
		}
		names(m.Scopes[at.String()], of, base)
	}
	for to, of := range read.Integrity {
		integrity, ok := of.(string)
		at, ok2 := urlLike(to, base)
		if ok && ok2 && m.Integrity[at] == "" {
			m.Integrity[at] = integrity
		}
	}
	return nil
}

// names adds names to a map, with the addresses that they stand for.
func names(into map[string]string, from map[string]any, base *url.URL) {
	for name, to := range from {
		if at, ok := urlLike(name, base); ok {
			name = at
		}
		text, _ := to.(string)
		at, ok := urlLike(text, base)
		if _, there := into[name]; ok && !there && name != "" && (!strings.HasSuffix(name, "/") || strings.HasSuffix(at, "/")) {
			into[name] = at
		}
	}
}

// urlLike reads what is an address rather than a bare name.
func urlLike(name string, base *url.URL) (string, bool) {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		at, err := base.Parse(name)
		if err != nil {
			return "", false
		}
		return at.String(), true
	}
	at, err := url.Parse(name)
	if err != nil || at.Scheme == "" {
		return "", false
	}
	return at.String(), true
}

// resolve finds where an imported module is, "" for a name that stands for nothing.
func (m *importMap) resolve(name, from string) string {
	base, err := url.Parse(from)
	if err != nil {
		return ""
	}
	if at, ok := urlLike(name, base); ok {
		name = at
	}
	var scopes []string
	for scope := range m.Scopes {
		if scope == from || strings.HasSuffix(scope, "/") && strings.HasPrefix(from, scope) {
			scopes = append(scopes, scope)
		}
	}
	slices.SortFunc(scopes, func(a, b string) int { return len(b) - len(a) }) // the narrowest first
	for _, scope := range scopes {
		if at := lookup(m.Scopes[scope], name); at != "" {
			return at
		}
	}
	if at := lookup(m.Imports, name); at != "" {
		return at
	}
	if at, err := url.Parse(name); err == nil && at.Scheme != "" {
		return at.String()
	}
	return ""
}

// lookup finds a name, or the longest prefix of it that ends with a slash.
func lookup(in map[string]string, name string) string {
	if at, ok := in[name]; ok {
		return at
	}
	best := ""
	for prefix := range in {
		if strings.HasSuffix(prefix, "/") && strings.HasPrefix(name, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	if best == "" {
		return ""
	}
	to, err := url.Parse(in[best])
	if err != nil {
		return ""
	}
	at, err := to.Parse("./" + strings.TrimPrefix(name, best))
	if err != nil || !strings.HasPrefix(at.String(), in[best]) {
		return ""
	}
	return at.String()
}
