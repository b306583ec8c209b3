package verify

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// recommendedHeaders returns HTTP headers, by their names, by which browsers would enforce what was found: an
// Integrity-Policy, or Integrity-Policy-Report-Only as long as a script or style sheet has no integrity, and a
// Content-Security-Policy with the addresses of the proven ones, 'self', and the hashes of inline ones. It adds notes to
// the report about code and styles in attributes, which this policy blocks.
func (c *pageCheck) recommendedHeaders() map[string]string {
	scripts, styles := []string{"'self'"}, []string{"'self'"}
	missing := false
	for _, r := range c.report.References {
		for _, f := range r.Findings {
			missing = missing || f.Rule == RuleIntegrityMissing
		}
		if r.Outcome == Own || r.Kind == StyleURL || r.Kind == Frame {
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
	scripts, styles = c.addHashes(scripts, styles)
	policy := "Integrity-Policy"
	if missing {
		policy = "Integrity-Policy-Report-Only" // until each has one, enforcing would break the page
	}
	return map[string]string{
		policy:                    "blocked-destinations=(script style)",
		"Content-Security-Policy": fmt.Sprintf("script-src %s; style-src %s; object-src 'none'; base-uri 'self'", strings.Join(scripts, " "), strings.Join(styles, " ")),
	}
}

// addHashes returns the sources of a Content-Security-Policy with the hashes of the inline scripts and styles of the page
// and its srcdoc frames appended, each once. It adds a note to the report about code, and one about styles, in attributes,
// which no hash covers.
func (c *pageCheck) addHashes(scripts, styles []string) ([]string, []string) {
	for i, p := range c.pages {
		if i > 0 && p.from != "about:srcdoc" { // other frames have policies of their own
			continue
		}
		scripts, styles = appendMissing(scripts, p.scripts), appendMissing(styles, p.styles)
		if p.handlers > 0 {
			c.addNote("attributes such as onclick do not run under this Content-Security-Policy; move them into scripts")
		}
		if p.styled {
			c.addNote("style attributes do not count under this Content-Security-Policy; move them into style sheets")
		}
	}
	return scripts, styles
}

// appendMissing returns list with those items appended, in order and each once, that it does not have.
func appendMissing(list, items []string) []string {
	for _, item := range items {
		if !slices.Contains(list, item) {
			list = append(list, item)
		}
	}
	return list
}

// cspSource returns an address, without its user, query and fragment, as the source in a Content-Security-Policy that allows
// it, "" if it has no host.
func cspSource(at string) string {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return ""
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return strings.NewReplacer(";", "%3B", ",", "%2C").Replace(u.String())
}
