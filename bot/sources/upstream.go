package sources

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// GroupDeprecations returns the versions that upstream has deprecated, sorted, by the reason it states, which is cut to [MaxNote] bytes. It takes no
// more than maxDeprecations different reasons, and leaves out versions with further ones. It returns nil if no version is deprecated.
func GroupDeprecations(versions map[string]Candidate) map[string][]string {
	said := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(versions)) { // so that the same reasons are stored each time
		v := versions[name]
		if v.Deprecated == "" {
			continue
		}
		why := text.Cut(v.Deprecated, MaxNote)
		if _, ok := said[why]; ok || len(said) < maxDeprecations {
			said[why] = append(said[why], name)
		}
	}
	if len(said) == 0 {
		return nil
	}
	return said
}

// maxDeprecations bounds the different reasons that are stored for one package.
const maxDeprecations = 200

// ReadDeprecations returns the versions of a package that upstream has deprecated, each with the reason; nil if this Larder has not read the
// versions of upstream, as for what is mirrored or imported.
func ReadDeprecations(r kvstore.Reader, pkg string) (map[string]string, error) {
	type deprecations struct {
		Seen       json.RawMessage     `json:"seen"` // a page of search results reads many packages, so this is not decoded
		Deprecated map[string][]string `json:"deprecated"`
	}
	row, err := readRow[deprecations](r, upstreamVersionsKey(pkg))
	if errors.Is(err, kvstore.ErrNotFound) { // 0.1.0 wrote the versions into the other row
		row, err = readRow[deprecations](r, kvstore.Key(pkg))
	}
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bot: couldn't read which versions of %s are deprecated: %w", pkg, err)
	}
	if row.Seen == nil && row.Deprecated == nil {
		return nil, nil
	}
	reasons := map[string]string{}
	for why, versions := range row.Deprecated {
		for _, version := range versions {
			reasons[version] = why
		}
	}
	return reasons, nil
}

// CountStart counts a version with that state in first, which chooses the releases that a package starts with: as passed over if it was refused for
// another reason than [Gone], else as taken.
func CountStart(first *packages.Start, s views.State) {
	if s.Kind == views.Refused && s.Reason != Gone {
		first.Pass()
	} else {
		first.Take(s.Version)
	}
}

// Gone is why a version is refused that upstream had before. Registries lag, so it
// may come back.
const Gone = "upstream lists this version no longer, or the package JSON ignores it now"

// RepositoryState is the record of a repository at GitHub. The zero value is that of a repository elsewhere, and of one
// that GitHub has not described yet.
type RepositoryState struct {
	ID       int64 `json:"id,omitempty"`
	Archived bool  `json:"archived,omitempty"`
	// ETag is that of the description at GitHub.
	ETag string `json:"etag,omitempty"`
}

// An Upstream is the record of a package's upstream.
type Upstream struct {
	Package    string           `json:"package"`
	Source     string           `json:"source,omitempty"`    // "npm" or "git"; "" in old rows is npm
	Target     string           `json:"target,omitempty"`    // its name or address there
	Validators fetch.Validators `json:"validators,omitzero"` // of the last response that was applied completely
	UpstreamVersions
	// Filled says that the package has the releases that it starts with, as far as upstream has any that can be
	// published; Examined is how many versions the bot tried for that.
	Filled   bool `json:"filled,omitempty"`
	Examined int  `json:"looked,omitempty"`
	// Began is when it had them first. Versions refused since then appeared later.
	Began time.Time `json:"began,omitzero"`
	// Retry are the versions that an earlier package JSON had refused, and for which the bot has not applied the current one yet.
	Retry []string `json:"mended,omitempty"`
	// Fresh are the versions that appeared after the first poll and wait while Filled does not hold.
	Fresh []string `json:"fresh,omitempty"`
	// Moves are when the last few releases appeared, newest first; Changed is when a poll last found a change
	// upstream, and Named when an event last reported one. They set the poll interval.
	Moves    []time.Time `json:"moves,omitempty"`
	Changed  time.Time   `json:"changed,omitzero"`
	Named    time.Time   `json:"named,omitzero"`
	Checked  time.Time   `json:"checked"`
	Next     time.Time   `json:"next"`               // poll
	Attempts int         `json:"attempts,omitempty"` // in a row that failed
	Reason   string      `json:"reason,omitempty"`   // why the last one failed
	Outage   bool        `json:"outage,omitempty"`   // that is not about the package
	Missing  bool        `json:"missing,omitempty"`  // the last one said that there is no such package
	// NoFiles is the open report that the file map selects nothing of a release.
	NoFiles NoFilesReport `json:"noFiles,omitzero"`
	// Repository is the repository at GitHub that the target names, as it was when its releases last changed.
	Repository RepositoryState `json:"repository,omitzero"`
	Replaced   bool            `json:"replaced,omitempty"` // at the last poll the target named another repository
	// Notes are remarks about the target for people, such as that it has moved.
	Notes []string `json:"notes,omitempty"`
}

// A NoFilesReport names the refused release whose log entry reports that the file map of a package JSON selects nothing. There is one for each
// package JSON.
type NoFilesReport struct {
	Version     string `json:"version"`
	PackageJSON int64  `json:"packageJSON"` // its entry in the log
}

// UpstreamVersions are the versions of an upstream. They have a row of their own, because they are many and change seldom, and the
// rest of an [Upstream] changes with each poll.
type UpstreamVersions struct {
	// Seen are the versions that upstream ever had. A version that is not among them later
	// has appeared since, also if its time is earlier: mirrors make up times.
	Seen []string `json:"seen,omitempty"`
	// Gone is how many of Seen, at its end, upstream did not list the last time; Ignored are versions that it did list
	// and the package JSON leaves out.
	Gone    int      `json:"gone,omitempty"`
	Ignored []string `json:"ignored,omitempty"`
	// Tried has the hashes, as upstream states them, of the archives of versions that were refused or are about to be
	// fetched. With another one a refused version is tried again.
	Tried map[string]string `json:"tried,omitempty"`
	// Deprecated are the versions that upstream warned of at the last poll, by its text.
	Deprecated map[string][]string `json:"deprecated,omitempty"`
}

// upstreamVersionsKey is the key of the row of a package's [UpstreamVersions].
func upstreamVersionsKey(pkg string) []byte { return kvstore.Key(pkg, "versions") }

// LookupUpstream returns what is recorded of a package's upstream, or kvstore.ErrNotFound. The versions are in a row of their own, except in old
// records. If that row cannot be read, the record without it comes with the error.
func LookupUpstream(r kvstore.Reader, pkg string) (Upstream, error) {
	u, err := readRow[Upstream](r, kvstore.Key(pkg)) // 0.1.0 wrote the versions into this row
	if err != nil {
		return Upstream{}, fmt.Errorf("bot: couldn't read the record of %s's upstream: %w", pkg, err)
	}
	versions, err := readRow[UpstreamVersions](r, upstreamVersionsKey(pkg))
	if errors.Is(err, kvstore.ErrNotFound) {
		return u, nil
	}
	if err != nil {
		return u, fmt.Errorf("bot: couldn't read the record of %s's versions: %w", pkg, err)
	}
	u.UpstreamVersions = versions
	return u, nil
}

// boundTimes repairs times that only a clock which was ahead can have written, so that such a clock delays no poll for longer than longest. It sets
// Next to now if it is later than longest after now, sets past times that are in the future to now, and deletes such Moves.
func (u *Upstream) boundTimes(now time.Time, longest time.Duration) {
	u.Next = BoundTime(u.Next, now, longest)
	for _, past := range []*time.Time{&u.Checked, &u.Changed, &u.Named, &u.Began} {
		*past = BoundTime(*past, now, 0)
	}
	u.Moves = slices.DeleteFunc(u.Moves, func(at time.Time) bool { return at.After(now) })
}

// Follows reports whether u is the record of the upstream that a package JSON names.
func (u Upstream) Follows(p *packages.Package) bool {
	return p.Autoupdate != nil && p.Autoupdate.Target == u.Target && p.Autoupdate.Source == cmp.Or(u.Source, KindNpm)
}

// UpdateFilled sets Filled and Examined by the states of a package's versions, unless Filled holds, Seen is empty or Retry has versions. Filled then
// holds if no version is pending, and either none was refused or there are as many others as newest says. It returns false only if Filled does not
// hold and a version was refused or is in Retry: the package needs another release to start with.
func (u *Upstream) UpdateFilled(states []views.State, newest int) bool {
	refused := len(u.Retry) > 0
	if !u.Filled && len(u.Seen) > 0 && !refused {
		first := packages.NewStart(newest)
		pending := false
		for _, s := range states {
			CountStart(first, s)
			pending = pending || !s.Kind.Final()
			refused = refused || s.Kind == views.Refused
		}
		u.Filled, u.Examined = !pending && (!refused || first.Full()), first.Examined()
	}
	return u.Filled || !refused
}

// displaysSame reports whether pages display the same for two records of a package: the same versions seen, gone, ignored and deprecated.
func (u Upstream) displaysSame(other Upstream) bool {
	return slices.Equal(u.Seen, other.Seen) && u.Gone == other.Gone && slices.Equal(u.Ignored, other.Ignored) && reflect.DeepEqual(u.Deprecated, other.Deprecated)
}

// ForgetTarget clears what was recorded of the previous target's versions, repository and changes, and the validators. It leaves the target itself,
// the poll schedule, the last failure, NoFiles and Notes.
func (u *Upstream) ForgetTarget() {
	u.Validators, u.UpstreamVersions, u.Filled, u.Examined = fetch.Validators{}, UpstreamVersions{}, false, 0
	u.Began, u.Retry = time.Time{}, nil
	u.Fresh, u.Moves, u.Changed, u.Named = nil, nil, time.Time{}, time.Time{}
	u.Repository, u.Replaced = RepositoryState{}, false
}

// Due returns when the upstream is polled next: at the stored time, but if no attempt has failed since the last poll, at most eleven tenths of
// interval after that poll, because the interval may have been longer when the time was stored.
func (u Upstream) Due(interval time.Duration) time.Time {
	if longest := u.Checked.Add(interval + interval/10); u.Attempts == 0 && longest.Before(u.Next) {
		return longest
	}
	return u.Next
}

// SetUpstream adds the rows of a record to a batch, which the caller commits: the row of the versions only if it differs from the one in r.
func SetUpstream(r kvstore.Reader, batch *kvstore.Batch, u Upstream) error {
	versions, err := json.Marshal(u.UpstreamVersions)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	u.UpstreamVersions = UpstreamVersions{}
	if err := setRow(batch, kvstore.Key(u.Package), u); err != nil {
		return err
	}
	before, err := r.Get(kvstore.Upstreams, upstreamVersionsKey(u.Package))
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	if !bytes.Equal(before, versions) {
		batch.Set(kvstore.Upstreams, upstreamVersionsKey(u.Package), versions)
	}
	return nil
}
