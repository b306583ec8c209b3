package bot

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// FoldedVersions returns s.Versions in a shorter form: first each version that was tried, then one for each state of those that
// were never tried. The Version of such a one also says how many others have the state, as in "1.0.0 and 3 others". It does not
// change s.
func (s *Status) FoldedVersions() []views.Account {
	counts := make(map[views.StateKind]int)
	for _, v := range s.Versions {
		if v.Updated.IsZero() {
			counts[v.Kind]++
		}
	}
	var tried, folded []views.Account
	for _, v := range s.Versions {
		switch n := counts[v.Kind]; {
		case !v.Updated.IsZero():
			tried = append(tried, v)
		case n > 0:
			if n > 1 {
				v.Version += " and " + text.Count(n-1, "other", "others")
			}
			folded = append(folded, v)
			counts[v.Kind] = 0
		}
	}
	return append(tried, folded...)
}

// addAudits adds the last audits of releases, the comparisons with upstream, to the status: it counts in s.Audited the releases
// that did not differ, adds those that differed to s.Changed, and sorts that. It reads the audits of the package pkg, "" for all,
// and ignores releases that are not served according to states.
func (s *Status) addAudits(r kvstore.Reader, pkg string, states []views.State) error {
	audits, err := sources.ReadAudits(r, pkg)
	if err != nil {
		return err
	}
	for _, state := range states {
		a := audits[sources.ReleaseName{Package: state.Package, Version: state.Version}]
		switch {
		case !state.Kind.Served():
		case a.Outcome == verify.Proven:
			s.Audited++
		case a.Outcome == verify.Differs:
			s.Changed = append(s.Changed, ChangedUpstream{Package: state.Package, Version: state.Version, Reason: a.Reason(), Since: a.At})
		}
	}
	slices.SortStableFunc(s.Changed, func(a, b ChangedUpstream) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), packages.CompareVersions(b.Version, a.Version))
	})
	return nil
}

// A Status is the state of the bot's packages and releases.
type Status struct {
	Packages []PackageStatus `json:"packages"`
	// Changed has the published releases of which upstream has another archive now, or none, and those that were found to
	// have other files than it.
	Changed []ChangedUpstream `json:"changed"`
	// Audited is how many releases have been compared with upstream, file by file, and did not differ.
	Audited int `json:"audited"`
	// Problems are the problems, by cause, the most harmful first.
	Problems []Problem `json:"problems"`
	// Versions has every version that the upstream of the requested package has or had, newest first; without
	// one, only those that failed or were refused.
	Versions   []views.Account          `json:"versions"`
	Unsqueezed int                      `json:"unsqueezed"` // contents that wait for their best compression
	Squeezing  recompression.QueueState `json:"squeezing"`  // the contents in that queue, and how long they take
}

// ChangedUpstream is a published release that upstream has changed or removed.
type ChangedUpstream struct {
	Package string    `json:"package"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"` // the entry in the log, or the last comparison of the files
}

// PackageStatus is the status of a package.
type PackageStatus struct {
	Name   string `json:"name"`
	Newest string `json:"newest,omitempty"` // latest version that is served
	StateCounts
	// Checked is when upstream was last polled, Next when it will be, and Problem why the last poll failed.
	Checked time.Time `json:"checked,omitzero"`
	Next    time.Time `json:"next,omitzero"`
	Problem string    `json:"problem,omitempty"`
	// Notes are remarks about upstream for people, such as that it has moved.
	Notes []string `json:"notes,omitempty"`
	// Examined is how many releases of a new package the bot tried to find those that can be published.
	Examined int `json:"looked,omitempty"`
	// Removed: the catalogue has it no more, so no release follows.
	Removed bool `json:"removed,omitempty"`

	served   []string // versions
	upstream upstreamProblem
}

// StateCounts counts a package's versions by state.
type StateCounts struct {
	Published int `json:"published"`
	Waiting   int `json:"waiting"` // detected or being processed
	Failed    int `json:"failed"`  // and tried again
	Refused   int `json:"refused"`
	Withdrawn int `json:"withdrawn"`
}

// An upstreamProblem says what is wrong with a package's upstream.
type upstreamProblem struct {
	target   string // the package's name or address upstream
	outage   string // the name of the upstream if it does not respond
	missing  bool   // upstream reports that it has no such package
	replaced bool   // the address names another repository than before
}

// count counts a version of the package by its state s, one that is detected or being processed in Waiting. It also adds a
// version that is served to p.served.
func (p *PackageStatus) count(s views.State) {
	switch s.Kind {
	case views.Published, views.Mirrored:
		p.Published++
		p.served = append(p.served, s.Version)
	case views.Failed:
		p.Failed++
	case views.Refused:
		p.Refused++
	case views.Withdrawn:
		p.Withdrawn++
	default:
		p.Waiting++
	}
}

// addUpstream sets the fields of p that the stored record of the package's upstream has: the times of the polls, the problem of
// the last one and its kind, notes, and how many releases of a new package were tried. The kind and the target are in p.upstream,
// for groupProblems. It does nothing if no record exists.
func (p *PackageStatus) addUpstream(snapshot kvstore.Reader) error {
	upstream, err := sources.LookupUpstream(snapshot, p.Name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Checked, p.Next, p.Problem, p.Notes = upstream.Checked, upstream.Next, upstream.Reason, upstream.Notes
	p.Examined, p.upstream.target, p.upstream.missing = upstream.Examined, upstream.Target, upstream.Missing && upstream.Reason != ""
	p.upstream.replaced = upstream.Replaced && upstream.Reason != ""
	if upstream.Outage && upstream.Reason != "" {
		p.upstream.outage = sources.UpstreamName(&packages.Package{Autoupdate: &packages.Autoupdate{Source: upstream.Source, Target: upstream.Target}})
	}
	return nil
}

// ReadStatus reads the status of all packages or, if name is not "", of the package name. It returns an error if the store has
// nothing about that package. Versions of the result has all versions of the one package, but of all packages only those that
// failed or were refused.
func ReadStatus(snapshot kvstore.Reader, name string) (*Status, error) {
	rows, err := views.Packages(snapshot)
	if err != nil {
		return nil, err
	}
	states, err := views.States(snapshot, name)
	if err != nil {
		return nil, err
	}
	byName := map[string]*PackageStatus{}
	for _, p := range rows {
		if name == "" || p.Name == name {
			byName[p.Name] = &PackageStatus{Name: p.Name, Removed: p.Removed}
		}
	}
	s := &Status{Packages: []PackageStatus{}, Versions: []views.Account{}, Changed: []ChangedUpstream{}}
	for _, state := range states {
		if byName[state.Package] == nil {
			byName[state.Package] = &PackageStatus{Name: state.Package}
		}
		byName[state.Package].count(state)
		if name == "" && (state.Kind == views.Failed || state.Kind == views.Refused) {
			s.Versions = append(s.Versions, views.Account{State: state})
		}
	}
	if name != "" && len(byName) == 0 {
		return nil, fmt.Errorf("no package %q is here; `larder status` lists those that are, `larder add` fetches one", name)
	}
	if name != "" {
		if s.Versions, err = discovery.ReadAccounts(snapshot, name); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(s.Versions, func(a, b views.Account) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), packages.CompareVersions(b.Version, a.Version))
	})
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p := byName[name]
		p.Newest = packages.LatestVersion(p.served)
		if err := p.addUpstream(snapshot); err != nil {
			return nil, err
		}
		s.Packages = append(s.Packages, *p)
		origins, err := sources.LookupOrigins(snapshot, name)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return nil, err
		}
		for _, version := range origins.Changed() {
			o := origins.Versions[version]
			s.Changed = append(s.Changed, ChangedUpstream{Package: name, Version: version, Reason: o.Reason(), Since: o.Changed})
		}
	}
	if err := s.addAudits(snapshot, name, states); err != nil {
		return nil, err
	}
	s.Problems = s.groupProblems()
	if s.Squeezing, err = recompression.ReadQueue(snapshot); err != nil {
		return nil, err
	}
	s.Unsqueezed = s.Squeezing.Contents
	return s, nil
}

// AddModuleProblems adds to the notes of each package why its newest served release has no ES modules although its package JSON
// asked for them, or lacks some, or which modules use globals that browsers lack. It reads the manifests of these releases.
func (s *Status) AddModuleProblems(store *kvstore.Store) error {
	for i := range s.Packages {
		p := &s.Packages[i]
		v, err := views.LookupVersion(store, p.Name, p.Newest)
		if errors.Is(err, kvstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		m, err := logs.ReadManifest(store, v.Manifest)
		if err != nil {
			return err
		}
		if m.About == nil || m.About.Modules == nil {
			continue
		}
		if m.About.Modules.Problem != "" {
			p.Notes = append(p.Notes, fmt.Sprintf("%s was published without modules: %s", p.Newest, m.About.Modules.Problem))
			continue
		}
		for _, sentence := range m.About.Modules.DescribeSkipped(10) {
			p.Notes = append(p.Notes, p.Newest+": "+sentence)
		}
		if sentence := m.About.Modules.DescribeGlobals(); sentence != "" {
			p.Notes = append(p.Notes, p.Newest+": "+sentence)
		}
	}
	return nil
}

// groupProblems returns the problems of s.Packages and s.Versions, one for each cause, the most harmful kind first and then those
// of most packages. An upstream counts as down if at least sources.FailuresDown packages had an outage there at their last poll.
// Failed releases of these packages have no problem of their own; they are counted in Waiting of the upstream's problem.
func (s *Status) groupProblems() []Problem {
	byCause := make(map[[2]string]*Problem)
	add := func(kind ProblemKind, cause, pkg, reason string, next time.Time) {
		key := [2]string{string(kind), cause}
		t := byCause[key]
		if t == nil {
			t = &Problem{Kind: kind, Cause: reason, Next: next}
			byCause[key] = t
		}
		if t.Count++; !slices.Contains(t.Packages, pkg) {
			t.Packages = append(t.Packages, pkg)
		}
		if next.Before(t.Next) {
			t.Next = next
		}
	}
	causes := make(causes)
	out := make(map[string]int)        // packages by the upstream that does not respond
	targets := make(map[string]string) // by package
	for _, p := range s.Packages {
		targets[p.Name] = p.upstream.target
		if p.upstream.outage != "" {
			out[p.upstream.outage]++
		}
	}
	down := make(map[string]*Problem) // by package
	for _, p := range s.Packages {
		switch {
		case p.upstream.outage != "" && out[p.upstream.outage] >= sources.FailuresDown: // whatever the error of each request was
			add(UpstreamProblem, "outage of "+p.upstream.outage, p.Name, p.Problem, p.Next)
			down[p.Name] = byCause[[2]string{string(UpstreamProblem), "outage of " + p.upstream.outage}]
		case p.upstream.replaced:
			add(ReplacedProblem, "", p.Name, p.Problem, p.Next)
		case p.upstream.missing:
			add(MissingProblem, causes.get(p.Problem, p.upstream.target, p.Name), p.Name, p.Problem, p.Next)
		case p.Problem != "":
			add(UpstreamProblem, causes.get(p.Problem, p.upstream.target, p.Name), p.Name, p.Problem, p.Next)
		}
		if p.Published == 0 && p.Examined > 0 && p.Waiting == 0 {
			add(EmptyProblem, "", p.Name, "none of the newest releases can be published", time.Time{})
		}
	}
	for _, v := range s.Versions {
		switch {
		case v.Kind == views.Failed && down[v.Package] != nil:
			down[v.Package].Waiting++
		case v.Kind == views.Failed:
			add(FailedProblem, causes.get(v.Reason, targets[v.Package], v.Version, v.Package), v.Package, v.Reason, v.Next)
		case v.Kind == views.Refused:
			add(RefusedProblem, causes.get(v.Reason, targets[v.Package], v.Version, v.Package), v.Package, v.Reason, time.Time{})
		}
	}
	all := []Problem{}
	for _, t := range byCause {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Kind.rank(), b.Kind.rank()),
			cmp.Compare(len(b.Packages), len(a.Packages)), cmp.Compare(b.Count, a.Count), strings.Compare(a.Packages[0], b.Packages[0]))
	})
	return all
}

// joinNames returns the first three names, separated by commas, and how many others there are, for people: "a, b, c and 2
// others".
func joinNames(names []string) string {
	const most = 3
	joined := strings.Join(names[:min(len(names), most)], ", ")
	if n := len(names) - most; n > 0 {
		joined += " and " + text.Count(n, "other", "others")
	}
	return joined
}

// changedReleases are releases that differ from their upstream in the same way.
type changedReleases struct {
	reason string // of the first
	names  []string
}

// changesByReason groups the releases in s.Changed by how they differ from their upstream: whether upstream has another archive,
// has none, or has other files. Groups and releases have the order of s.Changed.
func (s *Status) changesByReason() []changedReleases {
	var all []changedReleases
	index := make(map[string]int)
	causes := make(causes)
	for _, c := range s.Changed {
		cause := causes.get(c.Reason, c.Version, c.Package)
		i, ok := index[cause]
		if !ok {
			i = len(all)
			index[cause] = i
			all = append(all, changedReleases{reason: c.Reason})
		}
		all[i].names = append(all[i].names, c.Package+" "+c.Version)
	}
	return all
}

// Lines returns the rows of a table for people, which counts packages, releases and contents: first what is wrong, by cause, the
// most harmful first, then what waits, and what is published. It leaves out rows that would count 0.
func (s *Status) Lines() []Line {
	var lines []Line
	add := func(n int, one, many, where, why string, next time.Time) {
		if n > 0 {
			lines = append(lines, Line{n, english.PluralWord(n, one, many), where, why, next})
		}
	}
	for _, t := range s.Problems {
		rank := t.Kind.rank()
		if rank == len(problemTexts) { // the status is that of a newer server
			continue
		}
		words := problemTexts[rank]
		cause, _, _ := strings.Cut(t.Cause, "\n")
		why := cause + words.help
		if t.Waiting > 0 {
			why = text.Count(t.Waiting, "release waits", "releases wait") + " for that, too; " + why
		}
		add(t.Count, words.one, words.many, joinNames(t.Packages), why, t.Next)
	}
	for _, c := range s.changesByReason() {
		add(len(c.names), "release differs from its upstream", "releases differ from their upstream", joinNames(c.names), c.reason, time.Time{})
	}
	var sum StateCounts
	for _, p := range s.Packages {
		sum.Published += p.Published
		sum.Waiting += p.Waiting
		sum.Withdrawn += p.Withdrawn
	}
	all := "of " + humanize.Comma(int64(len(s.Packages)))
	if len(s.Packages) == 1 {
		all = s.Packages[0].Name
	}
	add(sum.Waiting, "release waits", "releases wait", all, "", time.Time{})
	add(s.Squeezing.Contents, "content to squeeze", "contents to squeeze", "", s.Squeezing.Describe(), time.Time{})
	add(s.Squeezing.GivenUp, "content not squeezed", "contents not squeezed", "", "an encoder was killed three times; `larder squeeze` tries again", time.Time{})
	add(sum.Withdrawn, "release withdrawn", "releases withdrawn", all, "", time.Time{})
	add(s.Audited, "release compared", "releases compared", "", "with upstream, file by file, and the same", time.Time{})
	add(sum.Published, "release published", "releases published", all, "", time.Time{})
	return lines
}
