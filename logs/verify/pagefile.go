package verify

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// checkFile verifies a file that is under /ajax/libs/, and what the page says of it.
func (c *pageCheck) checkFile(ctx context.Context, found *Referred, server string, name Name) error {
	own := !c.isForeign(found.Reference)
	if !own && server != c.o.Server && c.Options.Trust.Key == "" && c.Options.Trust.Root == "" {
		if _, ok := c.Known.OfServer(server); !ok { // the page must not choose whose word counts
			found.Outcome, found.Problem = Unproven, fmt.Sprintf("the log of %s was never seen from here, and only the page names it; verify one of its files first, or give --server, --key or --root", server)
			return nil
		}
	}
	file, ok := c.files[found.URL]
	if !ok {
		log, result, err := c.Verify(ctx, Subject{Server: server, Name: name, URL: found.URL})
		if err != nil {
			return err
		}
		file = checkedFile{result, log.Origin}
		c.files[found.URL] = file
	}
	result := file.result
	found.File, found.Outcome, found.Problem, found.Log = &result, result.Outcome, result.Problem, file.origin
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
		case StyleURL, Frame: // nothing can have one
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
		found.Outcome = Worse(found.Outcome, Differs)
		found.Problem = cmp.Or(found.Problem, "the integrity in the page is not that of the file")
		found.add(RuleIntegrityWrong, true, "its integrity is %s, and that of the file is %s: browsers do not take it", text.Short(strings.Join(tokens, " "), 200), hashes[algorithm])
	}
	return nil
}

// Worse returns the worse outcome.
func Worse(a, b Outcome) Outcome {
	rank := func(o Outcome) int {
		switch o {
		case Nothing:
			return -2
		case Own:
			return -1
		}
		return slices.Index(Outcomes, o)
	}
	if rank(b) > rank(a) {
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
