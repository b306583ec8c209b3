package verify

import (
	"cmp"
	"context"
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

// checkLibraryFile verifies a file under /ajax/libs/ that the page loads by the log of server, once for each URL, and
// compares the integrity that the page states for it. If only the page names that server, which is not its own, and no key
// is given or known, it sends no request and the file is [Unproven]. It sets the outcome of found and adds findings, also
// about a vulnerable or outdated version, for which it requests the newest one from server. A file that is not proven is no
// error; the error is one of [Session.Verify].
func (c *pageCheck) checkLibraryFile(ctx context.Context, found *Referred, server string, name Name) error {
	own := !c.isCrossOrigin(found.Reference)
	if !own && server != c.options.Server && c.Options.Trust.Key == "" && c.Options.Trust.Root == "" {
		if _, ok := c.Known.ByServer(server); !ok { // the page must not choose which logs count
			found.Outcome, found.Problem = Unproven, fmt.Sprintf("the log of %s is unknown, and only the page names it; verify one of its files first, or give --server, --key or --root", server)
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
		if err := c.checkIntegrity(ctx, found, own); err != nil {
			return err
		}
	}
	if result.Outcome != Proven && result.Outcome != Withdrawn {
		return nil
	}
	for _, a := range c.options.Advisories.Of(upstreamName(result), result.Version) {
		found.addFinding(RuleVulnerable, true, "%s %s is known to be vulnerable: %s, %s", result.Package, result.Version, a.ID, a.Summary)
	}
	if newest := c.newestVersion(ctx, server, result.Package); newest != "" && packages.CompareVersions(result.Version, newest) < 0 {
		found.addFinding(RuleOutdated, false, "%s %s is there, and the page loads %s", result.Package, newest, result.Version)
	}
	return nil
}

// upstreamName returns the name of a verified file's package at npm, or its name in the log if the release does not come
// from npm.
func upstreamName(r Result) string {
	if r.Source != nil && r.Source.Type == "npm" {
		return r.Source.Name
	}
	return r.Package
}

// checkIntegrity compares the integrity that the page states for a file with found.File's hashes; for a SHA-384 it fetches
// the file again. own says whether the file is of the page's own origin, where a missing integrity is no error. A wrong or
// missing integrity becomes a finding, and one with another hash makes the outcome [Differs] unless it is worse. A SHA-384
// that cannot be compared is only a finding. The error only says that ctx has ended.
func (c *pageCheck) checkIntegrity(ctx context.Context, found *Referred, own bool) error {
	if found.Integrity == "" {
		where := "its tag has no integrity attribute"
		switch found.Kind {
		case Import:
			where = "no import map has an integrity for it"
		case StyleURL, Frame: // nothing can have one
			return nil
		case StyleImport:
			found.addFinding(RuleIntegrityMissing, false, "a style sheet that another imports cannot have an integrity; a link of its own could, with %s", found.File.SRI)
			return nil
		}
		found.addFinding(RuleIntegrityMissing, !own, "%s; it would be %s", where, found.File.SRI)
		return nil
	}
	hashes := map[string]string{"sha512": found.File.SRI.String(), "sha256": "sha256-" + base64.StdEncoding.EncodeToString(found.File.SHA256[:])}
	tokens := logs.StrongestHashes(found.Integrity)
	if len(tokens) == 0 {
		found.addFinding(RuleIntegrityWrong, true, "its integrity %q has no hash that browsers know, so they do not look at it; it would be %s", text.Short(found.Integrity, 200), found.File.SRI)
		return nil
	}
	if strings.HasPrefix(tokens[0], "sha384-") {
		data, err := c.fetchURL(ctx, found.URL, maxEncodedSize(found.File.Size))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || kvstore.Sum(data) != found.File.SHA256 {
			found.addFinding(RuleIntegrityWrong, false, "its integrity has a SHA-384, and the bytes to compare it with could not be had")
			return nil
		}
		hashes["sha384"], _ = logs.MatchHashes(tokens, data)
	}
	algorithm, _, _ := strings.Cut(tokens[0], "-")
	if !slices.Contains(tokens, hashes[algorithm]) {
		found.Outcome = Worse(found.Outcome, Differs)
		found.Problem = cmp.Or(found.Problem, "the integrity in the page is not that of the file")
		found.addFinding(RuleIntegrityWrong, true, "its integrity is %s, and that of the file is %s: browsers do not take it", text.Short(strings.Join(tokens, " "), 200), hashes[algorithm])
	}
	return nil
}

// Worse returns the worse of two outcomes, in the order [Nothing], [Own], and then that of [Outcomes], which ends with the
// worst.
func Worse(a, b Outcome) Outcome {
	all := append([]Outcome{Nothing, Own}, Outcomes...)
	return all[max(0, slices.Index(all, a), slices.Index(all, b))]
}

// newestVersion returns the newest version of a library as its server's API states it, which nothing proves; "" if the
// server states no valid one or the request fails. It sends one request for each library of a server, and caches the
// result, also "".
func (c *pageCheck) newestVersion(ctx context.Context, server, library string) string {
	key := server + " " + library
	version, ok := c.newest[key]
	if !ok {
		const most = 64 << 10
		var said struct {
			Version string `json:"version"`
		}
		data, err := c.fetchURL(ctx, server+"/libraries/"+url.PathEscape(library)+"?fields=version", most)
		if err == nil && json.Unmarshal(data, &said) == nil && packages.ValidVersion(said.Version) {
			version = said.Version
		}
		c.newest[key] = version
	}
	return version
}
