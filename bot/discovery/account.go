package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// mostAccounts bounds how many versions that were never tried are accounted for.
const mostAccounts = 20_000

// ReadAccounts returns what became of every version that a package's upstream has or had, newest first: the states of those that
// were tried, and why the others were not. Of the latter it returns the newest if they are more than 20,000. For a withdrawn
// release whose files were erased, it says so in the reason, and Command is "". For a package that the log does not have, the
// result has only states, maybe none.
func ReadAccounts(r kvstore.Reader, name string) ([]views.Account, error) {
	states, err := views.States(r, name)
	if err != nil {
		return nil, err
	}
	row, err := views.LookupPackage(r, name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return accountVersions(nil, false, sources.Upstream{}, states), nil
	}
	if err != nil {
		return nil, err
	}
	p, err := packages.Parse(packages.Path(name), row.JSON)
	if err != nil {
		return nil, fmt.Errorf("bot: the package JSON of %s in the store: %w", name, err)
	}
	upstream, err := sources.LookupUpstream(r, name)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	accounts := accountVersions(p, row.Removed, upstream, states)
	for i, a := range accounts {
		if a.Kind != views.Withdrawn {
			continue
		}
		erased, err := ingest.IsErased(r, name, a.Version)
		if err != nil {
			return nil, err
		}
		if erased { // nothing is left to restore
			accounts[i].Command = ""
			accounts[i].Reason = strings.TrimSuffix(a.Reason, ".") + "; its files were erased for good"
		}
	}
	return accounts, nil
}

// accountVersions returns what became of the versions of a package, newest first: the states of those that were tried, and, if
// upstream is about the target that the package follows, why the others that upstream has or had were not, at most 20,000. p is
// nil if the package is not registered; removed says that the catalogue no longer has it. In both cases it returns only the
// states.
func accountVersions(p *packages.Package, removed bool, upstream sources.Upstream, states []views.State) []views.Account {
	followed := p != nil && !removed && p.Autoupdate != nil
	known := make(map[string]bool, len(states)+len(upstream.Seen))
	all := make([]views.Account, 0, len(states)+min(len(upstream.Seen), mostAccounts))
	for _, s := range states {
		known[s.Version] = true
		all = append(all, views.Account{State: s, Command: operatorCommand(s, p, followed)})
	}
	add := func(version string, kind views.StateKind, reason string) {
		if known[version] || len(all) >= len(states)+mostAccounts {
			return
		}
		known[version] = true
		s := views.State{Package: p.Name, Version: version, Kind: kind, Reason: reason}
		all = append(all, views.Account{State: s, Command: operatorCommand(s, p, followed)})
	}
	if followed && upstream.Follows(p) {
		ignored := setOf(upstream.Ignored)
		there := len(upstream.Seen) - upstream.Gone
		for i, version := range upstream.Seen {
			switch {
			case ignored[version] || p.IgnoresVersion(version):
				add(version, views.Ignored, ignoredReason(p, version))
			case i >= there:
				add(version, views.Gone, "upstream lists it no longer, and it was not taken while upstream did")
			case !packages.ValidVersion(version):
				add(version, views.Refused, invalidVersion)
			case packages.IsPrerelease(version):
				add(version, views.Prerelease, "a package starts with its newest releases, of which at most two are prereleases, and then gets those that are newer")
			default:
				add(version, views.Older, "it is older than what was taken; a package starts with its newest releases, and then gets those that are newer")
			}
		}
		for _, version := range upstream.Ignored {
			add(version, views.Ignored, ignoredReason(p, version))
		}
	}
	// The list of upstream, thousands of versions, is sorted already, of which a stable sort makes use.
	slices.SortStableFunc(all, func(a, b views.Account) int { return packages.CompareVersions(b.Version, a.Version) })
	return all
}

// ignoredReason returns a clause for people that says which pattern of ignoreVersions in the package JSON p matches a version. If
// none does, the clause says that one did at the last poll.
func ignoredReason(p *packages.Package, version string) string {
	if pattern := p.IgnoredBy(version); pattern != "" {
		return fmt.Sprintf("the package JSON's ignoreVersions has the pattern %.100q for it", pattern)
	}
	return "the package JSON's ignoreVersions had a pattern for it at the last poll"
}

// operatorCommand returns the command line with which an operator gets a version that is in the state s published, "" if none
// helps or it is served. p is the version's package, nil if it is not registered; followed says whether the bot polls it.
func operatorCommand(s views.State, p *packages.Package, followed bool) string {
	switch {
	case !packages.ValidVersion(s.Version) || s.Kind.Served():
		return ""
	case s.Kind == views.Withdrawn:
		return fmt.Sprintf("larder withdraw --undo %s %s --reason TEXT", s.Package, s.Version)
	case !followed:
		return ""
	case s.Kind == views.Refused && s.Reason == sources.Gone && p.IgnoresVersion(s.Version):
	case s.Kind == views.Gone, s.Kind == views.Refused && s.Reason == sources.Gone:
		return fmt.Sprintf("larder import %s %s FOLDER|ARCHIVE", s.Package, s.Version)
	case s.Kind == views.Refused, s.Kind == views.Failed:
		return fmt.Sprintf("larder add --retry %s@%s", s.Package, s.Version)
	}
	return fmt.Sprintf("larder add %s@%s", s.Package, s.Version)
}
