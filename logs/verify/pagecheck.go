package verify

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// Own is the outcome for what a page loads from its own address and no log is about: that is the page's own.
const Own Outcome = "own"

// The rules of a [Finding].
const (
	RuleOutcome          = "not-proven"
	RuleIntegrityMissing = "integrity-missing"
	RuleIntegrityWrong   = "integrity-wrong"
	RuleOutdated         = "outdated"
	RuleVulnerable       = "vulnerable"
)

// A Finding is something that the page's author should know of a reference.
type Finding struct {
	Rule    string `json:"rule"`
	Error   bool   `json:"error"` // otherwise it is only worth knowing
	Message string `json:"message"`
}

// A Referred is a reference and what was found of it.
type Referred struct {
	Reference
	Outcome  Outcome   `json:"outcome"`
	Problem  string    `json:"problem,omitempty"`
	Log      string    `json:"log,omitempty"` // the origin of the log that proves it
	File     *Result   `json:"file,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
}

// A PageReport is what verifying a page came to.
type PageReport struct {
	Page    string        `json:"page"`
	Outcome Outcome       `json:"outcome"` // the worst of the references, proven where there are none
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
	// Advisories are the known vulnerabilities.
	Advisories *Advisories
	// Imports returns what a module imports. Nil: imports are not followed.
	Imports func(ctx context.Context, module []byte) ([]string, error)
}

// Limits of following modules.
const (
	maxModules     = 500
	maxModuleBytes = 4 << 20
)

// Page verifies all that a page loads scripts and styles from. at is its URL, or a file on this machine. The error is for
// a page that cannot be read, and those of [Session.Verify].
func (s *Session) Page(ctx context.Context, at string, o PageOptions) (*PageReport, error) {
	c := &pageCheck{Session: s, o: o, seen: map[string]bool{}, report: &PageReport{Page: at, Outcome: Proven, References: []Referred{}}}
	data, err := c.read(ctx, at)
	if err != nil {
		return nil, err
	}
	if c.page, err = parsePage(data, c.address); err != nil {
		return nil, err
	}
	for _, r := range c.page.references {
		if err := c.check(ctx, r); err != nil {
			return nil, err
		}
	}
	if err := c.inlineImports(ctx); err != nil {
		return nil, err
	}
	c.inlineStyles()
	for len(c.pending) > 0 {
		next := c.pending[0]
		c.pending = c.pending[1:]
		if err := c.check(ctx, next); err != nil {
			return nil, err
		}
	}
	c.report.Logs, c.report.Notes = s.Logs(), c.page.notes
	c.report.Headers = c.headers()
	return c.report, nil
}

// A pageCheck is one page on its way.
type pageCheck struct {
	*Session
	o       PageOptions
	address *url.URL // nil for a file
	page    *page
	report  *PageReport
	seen    map[string]bool // kinds and URLs
	pending []Reference     // what modules and style sheets load and is still to be looked at
	count   int             // modules and style sheets that were followed
	newest  map[string]string
}

func (c *pageCheck) read(ctx context.Context, at string) ([]byte, error) {
	named := append(c.Known.servers(), c.o.Server)
	if IsURL(at) {
		var err error
		if c.address, err = url.Parse(at); err != nil {
			return nil, err
		}
		named = append(named, at)
	}
	if c.Options.Client == nil {
		c.Options.Client = guarded(named)
	}
	if c.address == nil {
		return readAtMost(at, MaxPage)
	}
	return c.fetch(ctx, at, MaxPage)
}

// fetch gets what is at a URL.
func (c *pageCheck) fetch(ctx context.Context, at string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	o := c.Options
	o.Server = at
	return o.remote().get(ctx, "", limit)
}

// check verifies a reference, once.
func (c *pageCheck) check(ctx context.Context, r Reference) error {
	at, err := url.Parse(r.URL)
	if err != nil || c.seen[r.Kind+" "+r.URL] {
		return nil
	}
	c.seen[r.Kind+" "+r.URL] = true
	found := Referred{Reference: r}
	server, name, err := ParseURL(r.URL)
	own := at.Host == "" || c.address != nil && at.Host == c.address.Host
	switch {
	case at.Scheme == "data" || at.Scheme == "blob":
		found.Outcome = Own
	case err == nil:
		if err := c.checkFile(ctx, &found, cmp.Or(c.o.Server, server), name, own); err != nil {
			return err
		}
	case own:
		found.Outcome = Own
	default:
		found.Outcome, found.Problem = Unproven, "no log is known that is about it"
	}
	if found.Outcome != Proven && found.Outcome != Own {
		found.add(RuleOutcome, true, "%s: %s", found.Outcome, found.Problem)
	}
	for _, f := range found.Findings {
		if f.Error {
			c.report.Errors++
		}
	}
	if slices.Index(Outcomes, found.Outcome) > slices.Index(Outcomes, c.report.Outcome) {
		c.report.Outcome = found.Outcome
	}
	c.report.References = append(c.report.References, found)
	switch r.Kind {
	case ModuleScript, ModulePreload, Import:
		return c.follow(ctx, found, own)
	case StyleSheet, StyleImport:
		return c.followStyle(ctx, found, own)
	}
	return nil
}

func (f *Referred) add(rule string, isError bool, format string, args ...any) {
	f.Findings = append(f.Findings, Finding{rule, isError, fmt.Sprintf(format, args...)})
}

// checkFile verifies a file that is under /ajax/libs/, and what the page says of it.
func (c *pageCheck) checkFile(ctx context.Context, found *Referred, server string, name Name, own bool) error {
	if !own && server != c.o.Server && c.Options.Trust.Key == "" {
		if _, ok := c.Known.OfServer(server); !ok { // the page must not choose whose word counts
			found.Outcome, found.Problem = Unproven, fmt.Sprintf("the log of %s was never seen from here, and only the page names it; verify one of its files first, or give --server or --key", server)
			return nil
		}
	}
	log, result, err := c.Verify(ctx, Subject{Server: server, Name: name, URL: found.URL})
	if err != nil {
		return err
	}
	found.File, found.Outcome, found.Problem, found.Log = &result, result.Outcome, result.Problem, log.Origin
	if result.SRI != (logs.SRI{}) {
		if err := c.integrity(ctx, found, own); err != nil {
			return err
		}
	}
	if result.Outcome != Proven && result.Outcome != Withdrawn {
		return nil
	}
	for _, a := range c.o.Advisories.of(upstreamName(result), result.Version) {
		found.add(RuleVulnerable, true, "%s %s is known to be vulnerable: %s", result.Package, result.Version, a)
	}
	if newest := c.newestOf(ctx, server, result.Package); newest != "" && packages.CompareVersions(result.Version, newest) < 0 {
		found.add(RuleOutdated, false, "%s %s is there, and the page loads %s", result.Package, newest, result.Version)
	}
	return nil
}

// upstreamName is what a release is called at npm.
func upstreamName(r Result) string {
	if r.Source != nil && r.Source.Type == "npm" {
		return r.Source.Name
	}
	return r.Package
}

// integrity holds what the page says of a file against its bytes.
func (c *pageCheck) integrity(ctx context.Context, found *Referred, own bool) error {
	if found.Integrity == "" {
		where := "its tag has no integrity attribute"
		switch found.Kind {
		case Import:
			where = "no import map has an integrity for it"
		case StyleURL:
			return nil
		case StyleImport:
			found.add(RuleIntegrityMissing, false, "a style sheet that another imports cannot have an integrity; a link of its own could, with %s", found.File.SRI)
			return nil
		}
		found.add(RuleIntegrityMissing, !own, "%s; it would be %s", where, found.File.SRI)
		return nil
	}
	hashes := map[string]string{"sha512": found.File.SRI.String(), "sha256": "sha256-" + base64.StdEncoding.EncodeToString(found.File.SHA256[:])}
	tokens := strongest(found.Integrity)
	if len(tokens) == 0 {
		found.add(RuleIntegrityWrong, true, "its integrity %q has no hash that browsers know, so they do not look at it; it would be %s", text.Short(found.Integrity, 200), found.File.SRI)
		return nil
	}
	if strings.HasPrefix(tokens[0], "sha384-") {
		data, err := c.fetch(ctx, found.URL, codedLimit(found.File.Size))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || kvstore.Sum(data) != found.File.SHA256 {
			found.add(RuleIntegrityWrong, false, "its integrity has a SHA-384, and the bytes to compare it with could not be had")
			return nil
		}
		sum := sha512.Sum384(data)
		hashes["sha384"] = "sha384-" + base64.StdEncoding.EncodeToString(sum[:])
	}
	algorithm, _, _ := strings.Cut(tokens[0], "-")
	if !slices.Contains(tokens, hashes[algorithm]) {
		found.Outcome = worse(found.Outcome, Differs)
		found.Problem = cmp.Or(found.Problem, "the integrity in the page is not that of the file")
		found.add(RuleIntegrityWrong, true, "its integrity is %s, and that of the file is %s: browsers do not take it", text.Short(strings.Join(tokens, " "), 200), hashes[algorithm])
	}
	return nil
}

func worse(a, b Outcome) Outcome {
	if slices.Index(Outcomes, b) > slices.Index(Outcomes, a) {
		return b
	}
	return a
}

// strongest returns those hashes that browsers compare with: https://www.w3.org/TR/SRI/#get-the-strongest-metadata.
func strongest(integrity string) []string {
	for _, algorithm := range []string{"sha512-", "sha384-", "sha256-"} {
		var tokens []string
		for token := range strings.FieldsSeq(integrity) {
			token, _, _ = strings.Cut(token, "?")
			if strings.HasPrefix(token, algorithm) {
				tokens = append(tokens, token)
			}
		}
		if len(tokens) > 0 {
			return tokens
		}
	}
	return nil
}

// newestOf asks a server for a library's newest version, which is the server's word; "" where it does not say.
func (c *pageCheck) newestOf(ctx context.Context, server, library string) string {
	if c.newest == nil {
		c.newest = map[string]string{}
	}
	key := server + " " + library
	version, ok := c.newest[key]
	if !ok {
		const most = 64 << 10
		var said struct {
			Version string `json:"version"`
		}
		data, err := c.fetch(ctx, server+"/libraries/"+url.PathEscape(library)+"?fields=version", most)
		if err == nil && json.Unmarshal(data, &said) == nil && packages.ValidVersion(said.Version) {
			version = said.Version
		}
		c.newest[key] = version
	}
	return version
}

// inlineImports looks at what the modules in the page itself import.
func (c *pageCheck) inlineImports(ctx context.Context) error {
	for _, m := range c.page.modules {
		if err := c.imports(ctx, []byte(m.text), c.page.base.String(), m.line, ""); err != nil {
			return err
		}
	}
	return nil
}

// follow looks at what a module imports.
func (c *pageCheck) follow(ctx context.Context, found Referred, own bool) error {
	if c.o.Imports == nil {
		return nil
	}
	data, err := c.body(ctx, found, own)
	if err != nil || data == nil {
		return err
	}
	return c.imports(ctx, data, found.URL, found.Line, found.URL)
}

// body returns the bytes of a module or a style sheet, to look at what they load; nil where they do not count or cannot be had.
func (c *pageCheck) body(ctx context.Context, found Referred, own bool) ([]byte, error) {
	if found.Outcome != Proven && (found.Outcome != Own || c.address == nil || !own) {
		return nil, nil
	}
	if c.count++; c.count > maxModules {
		c.page.note("there are over %d modules and style sheets, and what the rest loads is not looked at", maxModules)
		c.report.Outcome = worse(c.report.Outcome, Unproven)
		return nil, nil
	}
	data, err := c.fetch(ctx, found.URL, maxModuleBytes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil && found.File != nil && kvstore.Sum(data) != found.File.SHA256 {
		err = errors.New("it has other bytes than before")
	}
	if err != nil {
		c.page.note("line %d: what %s loads is not known: %v", found.Line, found.URL, err)
		return nil, nil
	}
	return data, nil
}

func (c *pageCheck) imports(ctx context.Context, module []byte, base string, line int, from string) error {
	if c.o.Imports == nil {
		return nil
	}
	names, err := c.o.Imports(ctx, module)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.page.note("line %d: what a module imports is not known: %v", line, err)
		return nil
	}
	for _, name := range names {
		at := c.page.maps.resolve(name, base)
		switch {
		case at == "" || len(at) > maxURL:
			c.page.note("line %d: a module imports %q, which no import map has an address for", line, text.Short(name, 200))
		case c.seen[Import+" "+at] || c.seen[ModuleScript+" "+at]:
		case len(c.pending) >= maxReferences:
			return fmt.Errorf("over %d modules are imported", maxReferences)
		default:
			c.pending = append(c.pending, Reference{Kind: Import, URL: at, Line: line, Integrity: c.page.maps.Integrity[at], From: from})
		}
	}
	return nil
}

// headers are what the page could be served with: that scripts and styles need an integrity, and which of them there are.
func (c *pageCheck) headers() map[string]string {
	scripts, styles := []string{"'self'"}, []string{"'self'"}
	missing := false
	for _, r := range c.report.References {
		for _, f := range r.Findings {
			missing = missing || f.Rule == RuleIntegrityMissing
		}
		if r.Outcome == Own || r.Kind == StyleURL {
			continue
		}
		missing = missing || r.Integrity == ""
		into := &scripts
		if r.Kind == StyleSheet || r.Kind == StyleImport {
			into = &styles
		}
		if source := cspSource(r.URL); source != "" && r.Outcome == Proven && !slices.Contains(*into, source) {
			*into = append(*into, source)
		}
	}
	for _, hash := range c.page.scripts {
		if !slices.Contains(scripts, hash) {
			scripts = append(scripts, hash)
		}
	}
	for _, hash := range c.page.styles {
		if !slices.Contains(styles, hash) {
			styles = append(styles, hash)
		}
	}
	if c.page.handlers {
		c.page.note("attributes such as onclick do not run under this Content-Security-Policy; move them into scripts")
	}
	if c.page.styled {
		c.page.note("style attributes do not count under this Content-Security-Policy; move them into style sheets")
	}
	c.report.Notes = c.page.notes
	policy := "Integrity-Policy"
	if missing {
		policy = "Integrity-Policy-Report-Only" // until each has one, enforcing would break the page
	}
	return map[string]string{
		policy:                    "blocked-destinations=(script style)",
		"Content-Security-Policy": fmt.Sprintf("script-src %s; style-src %s; object-src 'none'; base-uri 'self'", strings.Join(scripts, " "), strings.Join(styles, " ")),
	}
}

// cspSource names exactly one address in a Content-Security-Policy.
func cspSource(at string) string {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return ""
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return strings.NewReplacer(";", "%3B", ",", "%2C").Replace(u.String())
}

// IsURL reports whether an argument is a URL rather than a file.
func IsURL(argument string) bool {
	return strings.HasPrefix(argument, "http://") || strings.HasPrefix(argument, "https://")
}

// IsPage reports whether an argument names a page rather than a file of a library.
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
