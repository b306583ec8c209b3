package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server/purge"
)

// status is what `larder status` tells, and its JSON form.
type status struct {
	Process  *process        `json:"process,omitempty"` // that has the folder open, if any
	Packages []packageStatus `json:"packages"`
	// Changed has the published releases of which upstream has another archive now, or none.
	Changed []changedUpstream `json:"changed"`
	// Versions has every version of the package that was asked for, newest first; without one, only those that failed
	// or were refused.
	Versions   []views.State `json:"versions"`
	Unsqueezed int           `json:"unsqueezed"` // contents that wait for their best compression
	Purges     []purge.Job   `json:"purges"`     // withdrawals of which the cache in front has yet to be told
	// Unsigned says why the process refuses to sign the log, and what to do; it is empty where nothing is wrong.
	Unsigned string `json:"unsigned,omitempty"`
	// Catalogue is how the catalogue stands, of a process that follows it.
	Catalogue *catalogue.State `json:"catalogue,omitempty"`
	// LogPush is how far the log has come to GitHub, of a process that pushes it.
	LogPush *logPush `json:"logPush,omitempty"`
}

// process describes a running process.
type process struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Address string    `json:"address,omitempty"` // where it serves
	Private string    `json:"private,omitempty"` // host and port of the private listener
}

// changedUpstream tells of a published release that upstream has changed or removed.
type changedUpstream struct {
	Package string    `json:"package"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"` // the entry in the log
}

// packageStatus counts a package's versions by state.
type packageStatus struct {
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
	// Removed: the catalogue has it no more, so no release follows.
	Removed bool `json:"removed,omitempty"`

	served []string // versions
}

func (p *packageStatus) add(s views.State) {
	switch s.Kind {
	case views.Published:
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

// status reads the status of all packages, or of the one that is named.
func (f *folder) status(process *process, name string) (*status, error) {
	snapshot := f.store.Snapshot()
	defer snapshot.Close()

	enrolled, err := views.Packages(snapshot)
	if err != nil {
		return nil, err
	}
	states, err := views.States(snapshot, name)
	if err != nil {
		return nil, err
	}
	byName := map[string]*packageStatus{}
	for _, p := range enrolled {
		if name == "" || p.Name == name {
			byName[p.Name] = &packageStatus{Name: p.Name, Removed: p.Removed}
		}
	}
	s := &status{Process: process, Packages: []packageStatus{}, Versions: []views.State{}, Changed: []changedUpstream{}}
	for _, state := range states {
		if byName[state.Package] == nil {
			byName[state.Package] = &packageStatus{Name: state.Package}
		}
		byName[state.Package].add(state)
		if name != "" || state.Kind == views.Failed || state.Kind == views.Refused {
			s.Versions = append(s.Versions, state)
		}
	}
	if name != "" && len(byName) == 0 {
		return nil, fmt.Errorf("no package %q is here; `larder status` lists those that are, `larder add` fetches one", name)
	}
	slices.SortStableFunc(s.Versions, func(a, b views.State) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), packages.CompareVersions(b.Version, a.Version))
	})
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p := byName[name]
		p.Newest = packages.LatestVersion(p.served)
		switch upstream, err := bot.LookupUpstream(snapshot, name); {
		case err == nil:
			p.Checked, p.Next, p.Problem, p.Notes = upstream.Checked, upstream.Next, upstream.Reason, upstream.Notes
		case !errors.Is(err, kvstore.ErrNotFound):
			return nil, err
		}
		s.Packages = append(s.Packages, *p)
		origins, err := bot.LookupOrigins(snapshot, name)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return nil, err
		}
		for _, version := range origins.Changed() {
			o := origins.Versions[version]
			s.Changed = append(s.Changed, changedUpstream{Package: name, Version: version, Reason: o.Reason(), Since: o.Changed})
		}
	}
	if s.Unsqueezed, err = bot.Unsqueezed(snapshot); err != nil {
		return nil, err
	}
	if s.Purges, err = purge.Pending(snapshot); err != nil {
		return nil, err
	}
	s.Unsigned = f.whyUnsigned()
	s.LogPush = f.logPush()
	s.Catalogue = f.catalogueState()
	s.Purges = slices.DeleteFunc(s.Purges, func(j purge.Job) bool { return name != "" && j.Package != name })
	return s, nil
}
