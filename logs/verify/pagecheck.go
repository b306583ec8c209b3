package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// Outcomes of references and pages without proven files and without problems.
const (
	// Own is for code that is the page's own: inline scripts, and addresses that the user has declared.
	Own Outcome = "own"
	// Nothing is for a page that loads and runs nothing.
	Nothing Outcome = "nothing"
)

// The rules of a [Finding].
const (
	RuleOutcome          = "not-proven"
	RuleIntegrityMissing = "integrity-missing"
	RuleIntegrityWrong   = "integrity-wrong"
	RuleCORSMissing      = "crossorigin-missing"
	RuleOutdated         = "outdated"
	RuleVulnerable       = "vulnerable"
)

// A Finding is something that the page's author should know of a reference.
type Finding struct {
	Rule    string `json:"rule"`
	Error   bool   `json:"error"` // otherwise it is only worth knowing
	Message string `json:"message"`
}

// A Referred is a reference and the result of verifying it.
type Referred struct {
	Reference
	Outcome  Outcome   `json:"outcome"`
	Problem  string    `json:"problem,omitempty"`
	Log      string    `json:"log,omitempty"` // the origin of the log that proves it
	File     *Result   `json:"file,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
}

// A PageReport is the result of verifying a page.
type PageReport struct {
	Page    string        `json:"page"`
	Outcome Outcome       `json:"outcome"` // the worst of the references, and of what could not be followed; [Nothing] without any
	Logs    []*SessionLog `json:"logs"`
	// Errors counts the findings that are errors.
	Errors     int        `json:"errors"`
	References []Referred `json:"references"`
	// Headers are a recipe: what the page could be served with, so that browsers enforce what was found.
	Headers map[string]string `json:"headers"`
	Notes   []string          `json:"notes,omitempty"`
}

// PageOptions say how a page is verified.
type PageOptions struct {
	// Server is where the log of all files under /ajax/libs/ is, whatever host the page loads them from. "" is the host
	// of each.
	Server string
	// Own are the prefixes of addresses that are the page's own, absolute or relative to the page, such as /.
	Own []string
	// Advisories are the known vulnerabilities.
	Advisories packages.AdvisoryDatabase
	// Imports returns what a module imports. Nil: imports are not followed.
	Imports func(ctx context.Context, module []byte) ([]string, error)
}

// Limits of following modules.
const (
	maxModules     = 500
	maxModuleBytes = 4 << 20
)

// unknownHost stands for the host of a page in a file. No browser can reach it: https://www.rfc-editor.org/rfc/rfc6761#section-6.4.
const unknownHost = "https://page.invalid"

// maxDepth is how deep frames may be in frames.
const maxDepth = 8

// VerifyPage verifies everything that a page loads and runs. at is the page's URL or the path of a file. What is not proven
// is no error: the report says so. The error says that the page cannot be read or fetched, that o.Own is invalid, or that
// too many modules are imported, or is one of [Session.Verify]. Without a client in s.Options, it sets one there that
// connects only to public addresses and to hosts that the user has named.
func (s *Session) VerifyPage(ctx context.Context, at string, o PageOptions) (*PageReport, error) {
	c := &pageCheck{Session: s, options: o, followed: map[string]bool{}, files: map[string]checkedFile{}, newest: map[string]string{}}
	c.report = &PageReport{Page: at, Outcome: Nothing, References: []Referred{}}
	fetched, err := c.readPage(ctx, at)
	if err != nil {
		return nil, err
	}
	if c.own, err = resolvePrefixes(o.Own, fetched.address); err != nil {
		return nil, err
	}
	if err := c.checkDocument(ctx, fetched, Reference{Kind: Document, URL: at, Line: 1}, 0); err != nil {
		return nil, err
	}
	c.report.Logs = s.Logs()
	c.report.Headers = c.recommendedHeaders()
	return c.report, nil
}

// A document is a page as it was fetched.
type document struct {
	data        []byte
	contentType string
	links       []string // the Link header
	address     *webURL
}

// A pageCheck is the verification of one page with its frames.
type pageCheck struct {
	*Session
	options  PageOptions
	file     bool // the page is a file, whose address is not known
	own      []string
	pages    []*page // the page, and its frames
	report   *PageReport
	followed map[string]bool // kinds and URLs of what was fetched or queued
	files    map[string]checkedFile
	pending  []Reference // the queue of what modules and style sheets load
	count    int         // modules, style sheets and frames that were followed
	newest   map[string]string
}

// A checkedFile is what a log says of a file, which is the same for each tag.
type checkedFile struct {
	result Result
	origin string
}

// readPage returns the page at a URL or in a file, without parsing it. The address of a file's page is one that no browser
// can reach. It also sets the HTTP client of the session, unless the caller has set one: it connects to public addresses,
// and to hosts that the user has named. Of a larger page, it reads at most one byte more than [MaxPage].
func (c *pageCheck) readPage(ctx context.Context, at string) (document, error) {
	named := append(c.Known.servers(), c.options.Server)
	if IsURL(at) {
		named = append(named, at)
	}
	if c.Options.Client == nil {
		c.Options.Client = newGuardedClient(named)
	}
	if IsURL(at) {
		return c.fetchDocument(ctx, at)
	}
	c.file = true
	data, err := disk.ReadAtMost(at, MaxPage)
	if err != nil {
		return document{}, err
	}
	address, err := parseWebURL(unknownHost+"/"+url.PathEscape(filepath.Base(at)), nil)
	return document{data: data, address: address}, err
}

// fetchDocument fetches the document at a URL, with the headers that matter to browsers, within the session's timeout. Its
// address is the one after redirects. It reads at most one byte more than [MaxPage]. Any status but 200 is an error.
func (c *pageCheck) fetchDocument(ctx context.Context, at string) (document, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	response, err := c.Options.newRemote().sendGetOK(ctx, at, "")
	if err != nil {
		return document{}, err
	}
	defer response.Body.Close()
	d := document{contentType: strings.Join(response.Header["Content-Type"], ", "), links: response.Header["Link"]}
	if d.data, err = io.ReadAll(io.LimitReader(response.Body, MaxPage+1)); err != nil {
		return document{}, fmt.Errorf("%s: %w", at, err)
	}
	d.address, err = parseWebURL(response.Request.URL.String(), nil) // after redirects
	return d, err
}

// fetchURL returns the body of the response for a URL, within the session's timeout. A body of over limit bytes, or a
// status other than 200, is an error.
func (c *pageCheck) fetchURL(ctx context.Context, at string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return c.Options.fetchURL(ctx, at, limit)
}

// resolvePrefixes returns the prefixes of the page's own addresses in absolute form and in order, resolved against the
// page's address. A host alone gets a slash, so https://a.example is no prefix of https://a.example.com. One that is not
// the beginning of http or https addresses is an error.
func resolvePrefixes(prefixes []string, address *webURL) ([]string, error) {
	var own []string
	for _, prefix := range prefixes {
		at, err := parseWebURL(prefix, address)
		if err != nil || at.opaque {
			return nil, fmt.Errorf("%q is not the beginning of addresses, such as / or https://www.example.com/js/: %w", prefix, cmp.Or(err, errors.New("it has no host")))
		}
		own = append(own, at.String())
	}
	return own, nil
}

// isOwn reports whether the user has declared, by a prefix, that an absolute address is the page's own. The prefix counts
// if it ends with a slash, if a slash or a query follows it, or if it is the whole address. Without prefixes, nothing is.
func (c *pageCheck) isOwn(at string) bool {
	return slices.ContainsFunc(c.own, func(prefix string) bool {
		rest, ok := strings.CutPrefix(at, prefix)
		return ok && (rest == "" || strings.HasSuffix(prefix, "/") || strings.IndexByte("/?", rest[0]) >= 0)
	})
}

// checkDocument parses a document, the page or a frame, and checks everything that it loads. r is the reference to it; depth
// is how many frames it is in. A document that cannot be parsed is reported as [Unproven], and is no error; see
// [pageCheck.checkReference] for errors.
func (c *pageCheck) checkDocument(ctx context.Context, d document, r Reference, depth int) error {
	p, err := c.parseDocument(ctx, d)
	if err != nil {
		r.problem = err.Error()
		return c.checkReference(ctx, r, depth)
	}
	if depth > 0 {
		p.setFrame(r.URL, r.Line)
	}
	return c.checkPage(ctx, p, depth)
}

// parseDocument returns what a document, the page or a frame, loads by its HTML and by its Link headers. It takes at most
// the session's timeout. For errors, with which the result must not be used, see [parsePage].
func (c *pageCheck) parseDocument(ctx context.Context, d document) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	p, err := parsePage(ctx, d.data, d.contentType, d.address)
	if err == nil {
		p.addHeaderLinks(d.links)
	}
	return p, err
}

// checkPage checks everything that a parsed document loads, also what is in the queue c.pending after that, and adds it and
// the document's notes to the report. depth is how many frames the document is in. For errors see
// [pageCheck.checkReference].
func (c *pageCheck) checkPage(ctx context.Context, p *page, depth int) error {
	c.pages = append(c.pages, p)
	for _, r := range p.references {
		if err := c.checkReference(ctx, r, depth); err != nil {
			return err
		}
	}
	for _, m := range p.modules {
		if err := c.queueImports(ctx, p, []byte(m.text), m.base, m.line, p.from); err != nil {
			return err
		}
	}
	for _, sheet := range p.sheets {
		c.queueStyleReferences(p, sheet.text, sheet.base, sheet.line, p.from)
	}
	for len(c.pending) > 0 {
		next := c.pending[0]
		c.pending = c.pending[1:]
		if err := c.checkReference(ctx, next, depth); err != nil {
			return err
		}
	}
	if p.handlers > maxHandlers {
		p.addNote("%d attributes run code; the first %d are listed", p.handlers, maxHandlers)
	}
	c.report.Notes = append(c.report.Notes, p.notes...)
	p.notes = nil
	return nil
}

// checkReference verifies what a tag or an import refers to, adds it to the report, and checks or queues what that loads in
// turn. depth is how many frames the tag's document is in. Each tag is checked by itself; what it refers to is verified
// once. What is not proven is no error, but the report says so; the error ends the whole check: ctx has ended, the known
// logs or the evidence of a fork could not be written, or too many modules are imported.
func (c *pageCheck) checkReference(ctx context.Context, r Reference, depth int) error {
	found := Referred{Reference: r}
	server, name, err := ParseURL(r.URL)
	switch {
	case r.problem != "":
		found.Outcome, found.Problem = Unproven, r.problem
	case r.Kind == Inline || r.body != "" || r.URL == "about:srcdoc" || r.URL == "data:":
		found.Outcome = Own
	case err == nil && !strings.HasPrefix(r.URL, unknownHost+"/"):
		if err := c.checkLibraryFile(ctx, &found, cmp.Or(c.options.Server, server), name); err != nil {
			return err
		}
	default:
		found.Outcome, found.Problem = Unproven, "no known log has it"
	}
	if found.Outcome == Unproven && r.problem == "" && c.isOwn(r.URL) {
		found.Outcome, found.Problem = Own, ""
	}
	if r.Integrity != "" && !r.CORS && r.page != nil && c.isCrossOrigin(r) {
		found.addFinding(RuleCORSMissing, true, "it is from another origin and has an integrity without crossorigin=\"anonymous\": browsers block it")
	}
	if found.Outcome != Proven && found.Outcome != Own {
		found.addFinding(RuleOutcome, true, "%s: %s", found.Outcome, found.Problem)
	}
	for _, f := range found.Findings {
		if f.Error {
			c.report.Errors++
		}
	}
	c.report.Outcome = Worse(c.report.Outcome, found.Outcome)
	shown := found
	shown.URL = strings.TrimPrefix(found.URL, unknownHost)
	shown.From = strings.TrimPrefix(found.From, unknownHost)
	c.report.References = append(c.report.References, shown)
	switch r.Kind {
	case Frame:
		return c.followFrame(ctx, found, depth+1)
	case StyleSheet, StyleImport:
		return c.followCode(ctx, found, true)
	case ModuleScript, ModulePreload, Import:
		if c.options.Imports != nil {
			return c.followCode(ctx, found, false)
		}
	}
	return nil
}

// isCrossOrigin reports whether a reference leads to another origin than that of r.page, the document that has it, which
// must not be nil. It is false for an address without an origin, such as data:, and for one that cannot be parsed.
func (c *pageCheck) isCrossOrigin(r Reference) bool {
	at, err := parseWebURL(r.URL, nil)
	return err == nil && !at.opaque && at.origin() != r.page.address.origin()
}

// followFrame checks the document in a frame that was found in the page, if the frame's address is proven or the page's
// own. It fetches the document, unless the tag itself contains it, and checks each URL once. It ignores pictures, and only
// notes an address relative to a file, and one of the page's own that cannot be fetched. depth is how many frames that
// document is in. Any other document that cannot be read, or is too deep, is reported as [Unproven]; for errors see
// [pageCheck.checkReference].
func (c *pageCheck) followFrame(ctx context.Context, found Referred, depth int) error {
	around := found.page
	if found.Outcome != Proven && found.Outcome != Own || found.Kind != Frame {
		return nil
	}
	c.count++
	if depth > maxDepth || c.count > maxModules {
		found.Reference.problem = fmt.Sprintf("frames are over %d deep, or over %d documents and files are loaded", maxDepth, maxModules)
		found.Reference.Kind = Document
		return c.checkReference(ctx, found.Reference, depth)
	}
	if found.URL == "about:srcdoc" {
		p := &page{address: around.base, base: around.base, from: found.URL, legacy: around.legacy}
		limited, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		if err := p.parseText(limited, found.body); err != nil {
			return c.checkReference(ctx, Reference{Kind: Document, URL: found.URL, Line: found.Line, problem: err.Error()}, depth)
		}
		p.setFrame(found.URL, found.Line)
		return c.checkPage(ctx, p, depth)
	}
	d := document{data: []byte(found.body), contentType: found.contentType, address: &webURL{scheme: "data", opaque: true}}
	if found.URL != "data:" {
		if c.followed[Frame+" "+found.URL] {
			return nil
		}
		c.followed[Frame+" "+found.URL] = true
		if strings.HasPrefix(found.URL, unknownHost) {
			around.addNote("line %d: what the frame %s loads is not checked, because the page's address is not known", found.Line, strings.TrimPrefix(found.URL, unknownHost))
			return nil
		}
		var err error
		d, err = c.fetchDocument(ctx, found.URL)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil && found.Outcome == Own:
			around.addNote("line %d: what %s loads is not known: %v", found.Line, found.URL, err)
			return nil
		case err != nil:
			return c.checkReference(ctx, Reference{Kind: Document, URL: found.URL, Line: found.Line, problem: err.Error()}, depth)
		case isPicture(d.contentType):
			return nil
		case found.File != nil && kvstore.Sum(d.data) != found.File.SHA256:
			return c.checkReference(ctx, Reference{Kind: Document, URL: found.URL, Line: found.Line, problem: "it has other bytes than before"}, depth)
		}
	}
	return c.checkDocument(ctx, d, Reference{Kind: Document, URL: found.URL, Line: found.Line}, depth)
}

// setFrame records that the document is in a frame with this URL. It sets the line of everything that the document loads to that of
// the frame's tag in the page.
func (p *page) setFrame(url string, line int) {
	p.from = url
	for i := range p.references {
		p.references[i].From, p.references[i].Line = url, line
	}
	for i := range p.modules {
		p.modules[i].line = line
	}
	for i := range p.sheets {
		p.sheets[i].line = line
	}
}

// addFinding adds a formatted message for the page's author to a verified reference. rule is one of the rules of a [Finding].
func (f *Referred) addFinding(rule string, isError bool, format string, args ...any) {
	f.Findings = append(f.Findings, Finding{rule, isError, fmt.Sprintf(format, args...)})
}

// followCode fetches a style sheet or else a module that the page loads, once, also one whose bytes were verified before, and
// queues what that loads or imports, to be checked next. It does nothing for an address that is unknown, or for what
// [pageCheck.fetchCode] leaves out; what that notes may make the report [Unproven]. The error says that ctx has ended or there
// are too many imports.
func (c *pageCheck) followCode(ctx context.Context, found Referred, isStyle bool) error {
	key := fmt.Sprintf("followed %t %s", isStyle, found.URL)
	if c.followed[key] || found.problem != "" {
		return nil
	}
	c.followed[key] = true
	data, base, err := c.fetchCode(ctx, found)
	switch {
	case err != nil || data == nil:
		return err
	case isStyle:
		c.queueStyleReferences(found.page, string(data), base, found.Line, found.URL)
		return nil
	}
	return c.queueImports(ctx, found.page, data, base, found.Line, found.URL)
}

// fetchCode returns the bytes and the address of a module or a style sheet that was found in the page, to find what they
// load. It always fetches them. It returns nil without an error if they are neither proven nor the page's own, or if their
// address is relative to a file; and, with a note, if they cannot be fetched, are others than those that were verified, or
// are too many. Such a note makes the report [Unproven], unless the code is the page's own and within the limit. The error
// says that ctx has ended.
func (c *pageCheck) fetchCode(ctx context.Context, found Referred) ([]byte, *webURL, error) {
	base, err := parseWebURL(found.URL, nil)
	if err != nil || found.Outcome != Proven && found.Outcome != Own || strings.HasPrefix(found.URL, unknownHost) {
		return nil, nil, nil
	}
	if c.count++; c.count > maxModules {
		found.page.addNote("there are over %d modules, style sheets and frames, and what the rest loads is not checked", maxModules)
		c.report.Outcome = Worse(c.report.Outcome, Unproven)
		return nil, nil, nil
	}
	data, err := c.fetchURL(ctx, found.URL, maxModuleBytes)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err == nil && found.File != nil && kvstore.Sum(data) != found.File.SHA256 {
		err = errors.New("it has other bytes than before")
	}
	if err != nil {
		found.page.addNote("line %d: what %s loads is not known: %v", found.Line, found.URL, err)
		if found.Outcome == Proven {
			c.report.Outcome = Worse(c.report.Outcome, Unproven)
		}
		return nil, nil, nil
	}
	return data, base, nil
}

// queueImports adds to c.pending what a module imports, each address once, to be checked next; it resolves names by the
// import maps of p, and notes those without an address. A module in a data: address is listed each time, and what it
// imports is queued at once. line is that of the page's tag; from is the module's URL, or that of the frame that has it. A
// module that cannot be parsed is queued as a problem. Without Options.Imports, it does nothing. The error says that ctx
// has ended or there are too many imports.
func (c *pageCheck) queueImports(ctx context.Context, p *page, module []byte, base *webURL, line int, from string) error {
	if c.options.Imports == nil {
		return nil
	}
	names, err := c.options.Imports(ctx, module)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // a browser might read it all the same
		c.pending = append(c.pending, Reference{Kind: Import, URL: from, Line: line, From: from, page: p, problem: "what a script imports is not known: " + err.Error()})
		return nil
	}
	for _, name := range names {
		at := p.maps.resolve(name, base.String())
		switch {
		case at == "":
			p.addNote("line %d: a script imports %q, which no import map has an address for", line, text.Short(name, 200))
		case strings.HasPrefix(at, "data:"):
			inner := &page{address: base, base: base, maps: p.maps, from: from}
			inner.addReference(Import, at, nil, line)
			for _, r := range inner.references {
				r.page = p
				c.pending = append(c.pending, r)
			}
			for _, m := range inner.modules {
				if c.count++; c.count > maxModules {
					return fmt.Errorf("over %d modules are imported", maxModules)
				}
				if err := c.queueImports(ctx, p, []byte(m.text), &webURL{scheme: "data", opaque: true}, line, from); err != nil {
					return err
				}
			}
		case c.followed[Import+" listed "+at]:
		case len(c.pending) >= maxReferences:
			return fmt.Errorf("over %d modules are imported", maxReferences)
		default:
			r := Reference{Kind: Import, URL: at, Line: line, Integrity: p.maps.Integrity[at], From: from, CORS: true, page: p}
			if p.legacy && from == p.from && strings.ContainsRune(name, '\ufffd') {
				r.problem = "its address has characters that are not ASCII, in an encoding that is not supported"
			}
			c.followed[Import+" listed "+at] = true
			c.pending = append(c.pending, r)
		}
	}
	return nil
}

// addNote adds a message to the notes of the report, unless it has the same message already.
func (c *pageCheck) addNote(text string) {
	if !slices.Contains(c.report.Notes, text) {
		c.report.Notes = append(c.report.Notes, text)
	}
}

// IsURL reports whether an argument begins with http:// or https:// in lower case, rather than being the path of a file.
func IsURL(argument string) bool {
	return strings.HasPrefix(argument, "http://") || strings.HasPrefix(argument, "https://")
}

// maxOSV bounds the OSV data at a URL, in bytes.
const maxOSV = 512 << 20

// ReadAdvisories reads known vulnerabilities in the OSV format from the file or http(s) URL at. Of the options it uses
// Client and UserAgent, for a URL; its response is held in memory, and over 512 MiB are an error.
func ReadAdvisories(ctx context.Context, o Options, at string) (packages.AdvisoryDatabase, error) {
	if !IsURL(at) {
		known, _, err := packages.ReadAdvisoryFile(at)
		return known, err
	}
	data, err := o.fetchURL(ctx, at, maxOSV)
	if err != nil {
		return nil, err
	}
	known, err := packages.ReadAdvisories(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		err = fmt.Errorf("%s: %w", at, err)
	}
	return known, err
}

// IsPage reports whether an argument, a URL or the path of a file, names a web page, by its extension (.html, .htm, .xhtml
// or .php, in any case), rather than a library's file. A URL without an extension is one of a page; a malformed URL, or one
// with /ajax/libs/, is not.
func IsPage(argument string) bool {
	name := argument
	if IsURL(argument) {
		u, err := url.Parse(argument)
		if err != nil || strings.Contains(u.EscapedPath(), assets) {
			return false
		}
		if name = u.Path; path.Ext(name) == "" {
			return true
		}
	}
	return slices.Contains([]string{".html", ".htm", ".xhtml", ".php"}, strings.ToLower(path.Ext(name)))
}
