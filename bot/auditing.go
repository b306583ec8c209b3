package bot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// The budget of comparing what is published with upstream, besides the usual looks. Each day some releases are compared
// file by file, with those that differed the last time; and some packages have all their integrities compared with
// upstream's full list: so many that every package has its turn within a month.
const (
	auditEvery    = 24 * time.Hour
	auditReleases = 10
	auditAgain    = 10 // of those that differed
	auditDays     = 28 // for all packages
	auditTime     = 10 * time.Minute
	auditPause    = time.Hour // after an upstream that does not answer
)

// An Audit is what comparing a release with its upstream came to, file by file.
type Audit struct {
	At      time.Time      `json:"at"`
	Outcome verify.Outcome `json:"outcome"` // proven, differs or unproven
	Problem string         `json:"problem,omitempty"`
	// Files are upstream's, Made were made again and came out the same, Unchecked are neither.
	Files     int `json:"files,omitempty"`
	Made      int `json:"made,omitempty"`
	Unchecked int `json:"unchecked,omitempty"`
}

var auditSuffix = []byte("audit\x00")

// auditKey is beside that of the package's Upstream.
func auditKey(pkg, version string) []byte { return kvstore.Key(pkg, "audit", version) }

// ReadAudits returns what comparing the releases of a package with upstream came to, of all packages where that is "".
func ReadAudits(r kvstore.Reader, pkg string) (map[ReleaseName]Audit, error) {
	var within kvstore.Range
	if pkg != "" {
		within.Prefix = kvstore.Prefix(pkg)
	}
	found := map[ReleaseName]Audit{}
	for item, err := range r.Scan(kvstore.Upstreams, within) {
		if err != nil {
			return nil, fmt.Errorf("bot: couldn't read how releases compared with upstream: %w", err)
		}
		name, rest, _ := bytes.Cut(item.Key, []byte{0})
		version, ok := bytes.CutPrefix(rest, auditSuffix)
		var a Audit
		if ok && json.Unmarshal(item.Value, &a) == nil { // a damaged row is compared again
			found[ReleaseName{string(name), string(version)}] = a
		}
	}
	return found, nil
}

// A ReleaseName is a package and one of its versions.
type ReleaseName struct {
	Package string `json:"package"`
	Version string `json:"version"`
}

// An agendaOfAudits is the rest of a day's share of audits.
type agendaOfAudits struct {
	Next     time.Time     `json:"next"` // when the next share begins
	Packages []string      `json:"packages,omitempty"`
	Releases []ReleaseName `json:"releases,omitempty"`
}

// auditsKey is that of no package, as those have names.
var auditsKey = []byte("\x00audits")

func (b *Bot) readAudits() (a agendaOfAudits, err error) {
	data, err := b.store.Get(kvstore.Upstreams, auditsKey)
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		b.logger.Warn("couldn't read which releases are still to be compared with upstream; choosing anew", "err", err)
	}
	return a, nil
}

func (b *Bot) writeUpstreams(key []byte, row any) error {
	data, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Upstreams, key, data)
	return batch.Commit()
}

// auditForever does each day's share until ctx ends.
func (b *Bot) auditForever(ctx context.Context) error {
	for {
		next, err := b.Audit(ctx)
		if err != nil {
			return err
		}
		if err := retry.Sleep(ctx, min(max(next.Sub(b.options.Now()), time.Minute), time.Hour)); err != nil {
			return nil // it is ctx that ended
		}
	}
}

// Audit holds what is published against upstream, as far as that is due, and returns when more is. The first share is
// due a day after the first call. The rest of a share is in the store, so a restart goes on with it. The error is for what stops the bot.
func (b *Bot) Audit(ctx context.Context) (next time.Time, err error) {
	todo, err := b.readAudits()
	if err != nil {
		return time.Time{}, err
	}
	now := b.options.Now()
	if todo.Next.IsZero() {
		todo.Next = now.Add(auditEvery)
		return todo.Next, b.writeUpstreams(auditsKey, todo)
	}
	if len(todo.Packages)+len(todo.Releases) == 0 {
		if todo.Next = boundTime(todo.Next, now, auditEvery); now.Before(todo.Next) {
			return todo.Next, nil
		}
		if todo, err = b.share(now); err != nil {
			return time.Time{}, err
		}
		if err := b.writeUpstreams(auditsKey, todo); err != nil {
			return time.Time{}, err
		}
	}
	for len(todo.Packages)+len(todo.Releases) > 0 {
		var problem error
		if len(todo.Packages) > 0 {
			problem = b.compareAll(ctx, todo.Packages[0])
		} else {
			problem = b.auditRelease(ctx, todo.Releases[0])
		}
		switch {
		case ctx.Err() != nil:
			return time.Time{}, ctx.Err()
		case stops(problem):
			return time.Time{}, problem
		case problem != nil:
			b.logger.Warn("couldn't compare releases with upstream; their turn comes again", "err", problem)
		}
		// What failed is not tried again at once: it may be that package's own fault, and must not hold up the others.
		if len(todo.Packages) > 0 {
			if problem != nil {
				problem = errors.Join(problem, b.auditFailed(todo.Packages[0]))
			}
			todo.Packages = todo.Packages[1:]
		} else {
			todo.Releases = todo.Releases[1:]
		}
		if err := b.writeUpstreams(auditsKey, todo); err != nil {
			return time.Time{}, err
		}
		if isOutage(problem) && len(todo.Packages)+len(todo.Releases) > 0 {
			return b.options.Now().Add(auditPause), nil
		}
	}
	return todo.Next, nil
}

// share chooses what a day has to do.
func (b *Bot) share(now time.Time) (agendaOfAudits, error) {
	todo := agendaOfAudits{Next: now.Add(auditEvery)}
	states, err := views.States(b.store, "")
	if err != nil {
		return todo, err
	}
	before, err := ReadAudits(b.store, "")
	if err != nil {
		return todo, err
	}
	type turn struct {
		name string
		last time.Time
	}
	var due []turn
	var some, again []ReleaseName
	all := 0
	for _, s := range states {
		if s.Kind != views.Published {
			continue
		}
		name := ReleaseName{s.Package, s.Version}
		if before[name].Outcome == verify.Differs {
			again = append(again, name)
		} else {
			some = append(some, name)
		}
		if all > 0 && due[len(due)-1].name == s.Package {
			continue
		}
		all++
		origins, err := LookupOrigins(b.store, s.Package)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			b.logger.Warn("couldn't read where releases come from", "package", s.Package, "err", err)
		}
		last := later(boundTime(origins.Compared, now, 0), boundTime(origins.Failed, now, 0))
		for _, o := range origins.Versions { // a change is one only after another look
			if !o.Since.IsZero() {
				last = time.Time{}
			}
		}
		due = append(due, turn{s.Package, last})
	}
	slices.SortStableFunc(due, func(a, b turn) int { return a.last.Compare(b.last) })
	for _, t := range due {
		if len(todo.Packages) < (all+auditDays-1)/auditDays || t.last.IsZero() && len(todo.Packages) < 2*((all+auditDays-1)/auditDays) {
			todo.Packages = append(todo.Packages, t.name)
		}
	}
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	rand.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	todo.Releases = append(again[:min(auditAgain, len(again))], some[:min(auditReleases, len(some))]...)
	return todo, nil
}

// compareAll compares the integrities of all published releases of a package with the full lists of their upstreams, also
// where the catalogue no longer has the package or names another upstream now.
func (b *Bot) compareAll(ctx context.Context, name string) error {
	if err := b.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.polling.Release(1)
	if err := b.looks.hold(ctx, name); err != nil {
		return err
	}
	defer b.looks.drop(name)
	states, err := views.States(b.store, name)
	if err != nil {
		return err
	}
	now := b.upstreamNow(name)
	places, err := b.places(name, now, states)
	if err != nil {
		return err
	}
	for _, from := range places {
		source := b.sourceOf(from.kind)
		if source == nil {
			continue
		}
		listed, err := source.list(ctx, from.target, fetch.Validators{})
		at := look{from: from, listing: listed}
		switch {
		case errors.Is(err, fetch.ErrNotFound):
			at.listing = nil
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := b.watch(ctx, name, now, at, states); err != nil {
			return err
		}
	}
	b.watching.Lock()
	defer b.watching.Unlock()
	origins := b.knownOrigins(name, now)
	origins.Compared = b.options.Now()
	defer b.options.Changed(name)
	return b.writeUpstreams(originsKey(name), origins)
}

// auditFailed notes that a package could not be compared.
func (b *Bot) auditFailed(name string) error {
	b.watching.Lock()
	defer b.watching.Unlock()
	origins := b.knownOrigins(name, b.upstreamNow(name))
	origins.Failed = b.options.Now()
	defer b.options.Changed(name)
	return b.writeUpstreams(originsKey(name), origins)
}

// upstreamNow is where a package's releases come from by its JSON, as it last was.
func (b *Bot) upstreamNow(name string) place {
	p, ok := b.catalogue().Get(name)
	if !ok {
		row, err := views.LookupPackage(b.store, name)
		if err == nil {
			p, err = packages.Parse(packages.Path(name), row.JSON)
		}
		if err != nil { // the manifests say it too
			return place{}
		}
	}
	return placeOf(p)
}

// places are the upstreams of all published releases of a package.
func (b *Bot) places(name string, now place, states []views.State) ([]place, error) {
	b.watching.Lock()
	defer b.watching.Unlock()
	known := b.knownOrigins(name, now)
	var all []place
	for _, s := range states {
		if s.Kind != views.Published {
			continue
		}
		origin, ok := known.Versions[s.Version]
		if !ok {
			var err error
			if origin, err = b.origin(known.at(), name, s.Version); err != nil {
				b.logger.Warn("origin not known", "package", name, "version", s.Version, "err", err)
				continue
			}
		}
		from := known.at()
		if origin.From != "" {
			from = parsePlace(origin.From)
		}
		if origin.Published != "" && !slices.Contains(all, from) {
			all = append(all, from)
		}
	}
	return all, nil
}

// auditRelease compares a release with its upstream, file by file, and keeps what came of it. An error is that nothing could be found out.
func (b *Bot) auditRelease(ctx context.Context, name ReleaseName) error {
	claim, err := b.claim(name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // it was withdrawn since
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", name.Package, name.Version, err)
	}
	limited, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	found := b.auditor.Compare(limited, claim)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a := Audit{
		At: b.options.Now(), Outcome: found.Outcome, Problem: text.Short(found.Problem, maxNote),
		Files: found.Files, Made: found.Made, Unchecked: found.Unchecked,
	}
	if a.Outcome == verify.Unproven && isOutage(found.Err) {
		return fmt.Errorf("%s %s: %w", name.Package, name.Version, found.Err)
	}
	event := Event{Kind: Audited, Package: name.Package, Version: name.Version, Reason: a.Problem}
	if a.Outcome == verify.Differs {
		event.Kind = Differing
		b.logger.Error("a release is not what upstream has", "package", name.Package, "version", name.Version, "err", a.Problem)
	}
	if err := b.writeUpstreams(auditKey(name.Package, name.Version), a); err != nil {
		return err
	}
	b.options.Changed(name.Package)
	b.emit(ctx, event)
	return nil
}

// claim is what the log says of a release that is served.
func (b *Bot) claim(name ReleaseName) (c verify.Claim, err error) {
	if s, err := views.LookupState(b.store, name.Package, name.Version); err != nil || !s.Kind.Served() {
		return c, cmp.Or(err, kvstore.ErrNotFound)
	}
	e, err := logs.LastPublication(b.store, name.Package, name.Version)
	if err != nil {
		return c, err
	}
	c.Entry = e.Entry
	if c.Manifest, err = logs.ReadManifest(b.store, e.Entry.Manifest); err != nil {
		return c, err
	}
	if err := c.ReadAttestations(b.store.Identity); err != nil {
		return c, err
	}
	if row, err := views.LookupPackage(b.store, name.Package); err == nil {
		c.PackageJSON = row.JSON
	}
	return c, nil
}

// UpstreamNote says in a sentence how what upstream has of a release differs from it, or when it was found to be the same,
// file by file; "" where neither is known. problem says that it differs.
func UpstreamNote(r kvstore.Reader, pkg, version string) (note string, problem bool, err error) {
	origins, err := LookupOrigins(r, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return "", false, err
	}
	if o := origins.Versions[version]; o.Differs() {
		return capital(o.Reason()) + ".", true, nil
	}
	data, err := r.Get(kvstore.Upstreams, auditKey(pkg, version))
	if errors.Is(err, kvstore.ErrNotFound) {
		return "", false, nil
	}
	var a Audit
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err != nil {
		return "", false, err
	}
	switch a.Outcome {
	case verify.Differs:
		return capital(a.reason()) + ".", true, nil
	case verify.Proven:
		note = fmt.Sprintf("On %s all that could be checked was the same at its upstream: %s byte for byte", a.At.Format("2 January 2006"), text.Count(a.Files, "file", "files"))
		if a.Made > 0 {
			note += fmt.Sprintf(", and %s made again", text.Count(a.Made, "file", "files"))
		}
		if a.Unchecked > 0 {
			note += fmt.Sprintf("; %s not checked", text.Count(a.Unchecked, "file was", "files were"))
		}
		return note + ".", false, nil
	}
	return "", false, nil
}

// addAudits adds what comparing the releases in these states with upstream came to.
func (s *Status) addAudits(r kvstore.Reader, pkg string, states []views.State) error {
	audits, err := ReadAudits(r, pkg)
	if err != nil {
		return err
	}
	for _, state := range states {
		a := audits[ReleaseName{state.Package, state.Version}]
		switch {
		case !state.Kind.Served():
		case a.Outcome == verify.Proven:
			s.Audited++
		case a.Outcome == verify.Differs:
			s.Changed = append(s.Changed, ChangedUpstream{Package: state.Package, Version: state.Version, Reason: a.reason(), Since: a.At})
		}
	}
	slices.SortStableFunc(s.Changed, func(a, b ChangedUpstream) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), packages.CompareVersions(b.Version, a.Version))
	})
	return nil
}

// reason says how a release differs.
func (a Audit) reason() string {
	return "what is served is not what upstream has: " + strings.TrimSuffix(a.Problem, ".")
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
