package bot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Add fetches a package of the catalogue now: the releases that are due where
// version is "", else that one version, which may be older than those known or
// have been refused before.
func (b *Bot) Add(ctx context.Context, name, version string) error {
	return b.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		if version == "" {
			return b.addDue(ctx, p)
		}
		return b.addChosen(ctx, p, "", version)
	})
}

// AddUnattested is Add for one version, which is published also if it does not satisfy the policy of its package. The log has
// the operator's reason.
func (b *Bot) AddUnattested(ctx context.Context, name, version, reason string) error {
	return b.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		return b.addChosen(ctx, p, reason, version)
	})
}

// Retry fetches all releases of a package now that were refused or have failed.
func (b *Bot) Retry(ctx context.Context, name string) error {
	return b.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		states, err := views.States(b.store, name)
		if err != nil {
			return err
		}
		var versions []string
		for _, s := range states {
			if tried := s.Kind == views.Refused && s.Reason != gone || s.Kind == views.Failed; tried && packages.ValidVersion(s.Version) {
				versions = append(versions, s.Version)
			}
		}
		if versions == nil {
			return fmt.Errorf("no release was refused or has failed; `larder add %s` gets those that are new", name)
		}
		return b.addChosen(ctx, p, "", versions...)
	})
}

// forOperator does what the operator asks about a package of the catalogue, and tells as an error what came of the
// releases if not all were published.
func (b *Bot) forOperator(ctx context.Context, name string, do func(context.Context, *packages.Package) error) error {
	p, err := b.lookup(name)
	if err != nil {
		return err
	}
	if b.source(p) == nil {
		return fmt.Errorf("package %s is not updated from anywhere; bring a release in with `larder import %s VERSION FOLDER|ARCHIVE`", name, name)
	}
	if err := b.enrol(ctx, p); err != nil {
		return err
	}
	// What an interrupted command leaves unfinished is the schedule's.
	defer func() { b.sooner(ctx, name, b.options.Now().Add(minWait)) }()
	var t tally
	if err := do(counted(ctx, &t), p); err != nil {
		return err
	}
	if s := t.sum(); s.Refused+s.Failed > 0 {
		return fmt.Errorf("%d published, %d refused, %d failed; `larder status %s` says why", s.Published, s.Refused, s.Failed, name)
	}
	return nil
}

// addDue releases what is due, until a new package has the releases that it starts with.
func (b *Bot) addDue(ctx context.Context, p *packages.Package) error {
	for again := true; again; _, again = b.refills.LoadAndDelete(p.Name) {
		if err := b.looks.hold(ctx, p.Name); err != nil {
			return err
		}
		tasks, err := b.ask(ctx, p, inquiry{actor: actorOperator, force: true, has: func(string) bool { return false }})
		b.looks.drop(p.Name)
		if err == nil {
			err = b.releaseAll(ctx, tasks)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addChosen releases these versions, if upstream has all of them. override is that of [intake].
func (b *Bot) addChosen(ctx context.Context, p *packages.Package, override string, versions ...string) error {
	for _, version := range versions {
		if err := b.unpublished(p.Name, version); err != nil {
			return err
		}
	}
	listed, err := b.source(p).list(ctx, p.Autoupdate.Target, fetch.Validators{})
	if err != nil {
		return err
	}
	if upstream := b.knownUpstream(p.Name); upstream.follows(p) {
		if err := b.checkRepository(ctx, p, &upstream); err != nil {
			return err
		}
	}
	var tasks []task
	for _, version := range versions {
		t, err := b.choose(p, version, listed)
		if err != nil {
			return err
		}
		t.override = override
		tasks = append(tasks, t)
	}
	return b.releaseAll(ctx, tasks)
}

// choose finds one version upstream and records it as detected.
func (b *Bot) choose(p *packages.Package, version string, listed *listing) (task, error) {
	v, ok := listed.versions[version]
	if !ok {
		return task{}, b.missing(p, version, slices.Collect(maps.Keys(listed.versions)))
	}
	state, err := views.LookupState(b.store, p.Name, version)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return task{}, err
	}
	released := v.published
	change := stateChange{was: state.Kind, State: views.State{Package: p.Name, Version: version, Kind: views.Detected, Released: released, Updated: b.options.Now()}}
	if state.Kind != views.Processing { // else it is on its way already
		if _, err := b.record([]stateChange{change}, actorOperator); err != nil {
			return task{}, err
		}
	}
	return task{pkg: p, version: v, released: released, actor: actorOperator}, nil
}

// releaseAll releases the tasks now. It waits for those that the schedule
// is releasing, and reports how they ended.
func (b *Bot) releaseAll(ctx context.Context, tasks []task) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(b.options.Downloads)
	for _, t := range tasks {
		g.Go(func() error {
			for {
				wait, err := b.release(ctx, t)
				if wait == nil {
					return err
				}
				select {
				case <-wait:
				case <-ctx.Done():
					return ctx.Err()
				}
				state, err := views.LookupState(b.store, t.pkg.Name, t.version.name)
				if err != nil {
					return err
				}
				switch state.Kind {
				case views.Published, views.Mirrored:
					return nil
				case views.Refused, views.Failed:
					report(ctx, Event{Kind: EventKind(state.Kind), Package: state.Package, Version: state.Version, Reason: state.Reason, Next: state.Next})
					return nil
				}
				// The goroutine that had it was stopped; now it is ours.
			}
		})
	}
	return g.Wait()
}

func (b *Bot) lookup(name string) (*packages.Package, error) {
	p, ok := b.catalogue().Get(name)
	if !ok {
		for _, refused := range b.catalogue().Problems() {
			if path.Base(refused.File) == name+".json" {
				return nil, fmt.Errorf("the catalogue has a JSON for package %q, but it was refused: %w", name, refused)
			}
		}
		var names []string
		for _, p := range b.catalogue().Packages() {
			names = append(names, p.Name)
		}
		return nil, fmt.Errorf("the catalogue has no package %q; add its JSON, or name another catalogue with --catalogue%s", name, nearest(name, names))
	}
	return p, nil
}

// unpublished returns an error where a version cannot or need not be published.
func (b *Bot) unpublished(name, version string) error {
	if !packages.ValidVersion(version) {
		return fmt.Errorf("%q is not a version: letters, digits and . _ + - are allowed, a letter or digit first", version)
	}
	switch v, err := views.LookupVersion(b.store, name, version); {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case v.Withdrawn != nil:
		return fmt.Errorf("%s %s was withdrawn (%s); `larder restore %s %s` serves it again as it was", name, version, v.Withdrawn.Reason, name, version)
	default:
		return fmt.Errorf("%s %s is published already, and a published version is never rewritten", name, version)
	}
}

// nearest returns a hint at the word that is most like got, or "".
func nearest(got string, words []string) string {
	if best, ok := text.Nearest(got, words); ok {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// A Status tells how far releases have come.
type Status struct {
	Packages []PackageStatus `json:"packages"`
	// Changed has the published releases of which upstream has another archive now, or none, and those that were found to
	// have other files than it.
	Changed []ChangedUpstream `json:"changed"`
	// Audited is how many releases have been compared with upstream, file by file, and did not differ.
	Audited int `json:"audited"`
	// Troubles are all that is wrong, by cause, the most harmful first.
	Troubles []Trouble `json:"troubles"`
	// Versions has every version that the upstream of the package that was asked for has or had, newest first; without
	// one, only those that failed or were refused.
	Versions   []views.Account `json:"versions"`
	Unsqueezed int             `json:"unsqueezed"` // contents that wait for their best compression
	Squeezing  Squeezing       `json:"squeezing"`  // the contents in that queue, and how long they take
}

// ChangedUpstream tells of a published release that upstream has changed or removed.
type ChangedUpstream struct {
	Package string    `json:"package"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"` // the entry in the log, or the last comparison of the files
}

// PackageStatus counts a package's versions by state.
type PackageStatus struct {
	Name      string `json:"name"`
	Newest    string `json:"newest,omitempty"` // latest version that is served
	Published int    `json:"published"`
	Waiting   int    `json:"waiting"` // detected or being processed
	Failed    int    `json:"failed"`  // and tried again
	Refused   int    `json:"refused"`
	Withdrawn int    `json:"withdrawn"`
	// Checked is when upstream was last asked, Next when it will be, and Problem why the last time failed.
	Checked time.Time `json:"checked,omitzero"`
	Next    time.Time `json:"next,omitzero"`
	Problem string    `json:"problem,omitempty"`
	// Notes are what people should know of upstream, such as that it has moved.
	Notes []string `json:"notes,omitempty"`
	// Looked is how many releases of a new package were looked at to find those that can be published.
	Looked int `json:"looked,omitempty"`
	// Removed: the catalogue has it no more, so no release follows.
	Removed bool `json:"removed,omitempty"`

	target string   // what the package is called upstream
	served []string // versions
	outage string   // the upstream, where it does not answer
	// missing: upstream says that it has no such package.
	missing bool
	// replaced: the address names another repository than before.
	replaced bool
}

func (p *PackageStatus) add(s views.State) {
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

// addUpstream adds what is known of the package's upstream.
func (p *PackageStatus) addUpstream(snapshot kvstore.Reader) error {
	upstream, err := LookupUpstream(snapshot, p.Name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Checked, p.Next, p.Problem, p.Notes = upstream.Checked, upstream.Next, upstream.Reason, upstream.Notes
	p.Looked, p.target, p.missing = upstream.Looked, upstream.Target, upstream.Missing && upstream.Reason != ""
	p.replaced = upstream.Replaced && upstream.Reason != ""
	if upstream.Outage && upstream.Reason != "" {
		p.outage = upstreamOf(&packages.Package{Autoupdate: &packages.Autoupdate{Source: upstream.Source, Target: upstream.Target}})
	}
	return nil
}

// ReadStatus reads the status of all packages, or of the one that is named.
func ReadStatus(snapshot kvstore.Reader, name string) (*Status, error) {
	enrolled, err := views.Packages(snapshot)
	if err != nil {
		return nil, err
	}
	states, err := views.States(snapshot, name)
	if err != nil {
		return nil, err
	}
	byName := map[string]*PackageStatus{}
	for _, p := range enrolled {
		if name == "" || p.Name == name {
			byName[p.Name] = &PackageStatus{Name: p.Name, Removed: p.Removed}
		}
	}
	s := &Status{Packages: []PackageStatus{}, Versions: []views.Account{}, Changed: []ChangedUpstream{}}
	for _, state := range states {
		if byName[state.Package] == nil {
			byName[state.Package] = &PackageStatus{Name: state.Package}
		}
		byName[state.Package].add(state)
		if name == "" && (state.Kind == views.Failed || state.Kind == views.Refused) {
			s.Versions = append(s.Versions, views.Account{State: state})
		}
	}
	if name != "" && len(byName) == 0 {
		return nil, fmt.Errorf("no package %q is here; `larder status` lists those that are, `larder add` fetches one", name)
	}
	if name != "" {
		if s.Versions, err = ReadAccounts(snapshot, name); err != nil {
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
		origins, err := LookupOrigins(snapshot, name)
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
	s.Troubles = s.troubles()
	if s.Squeezing, err = ReadSqueezing(snapshot); err != nil {
		return nil, err
	}
	s.Unsqueezed = s.Squeezing.Contents
	return s, nil
}
