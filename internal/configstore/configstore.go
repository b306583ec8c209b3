// Package configstore keeps configuration as one record with versions.
//
// A version is never changed. A change creates the version with the next number, on the condition that the version it was
// made from is still in force (compare-and-swap), so of two changes at the same time one fails with a [*ConflictError].
//
// What it guarantees:
//
//   - [Store.Propose] returns after the new version is durable in the authority: the bucket that the nodes of a cluster
//     share, or the data folder of a single process.
//   - Every store copies the versions to a folder of its own. While the authority does not answer, and across a restart, the
//     last version that was copied stays in force.
//   - A damaged version is reported and never used. The newest sound version is in force.
//
// It must not know what the content means, nor how nodes reach each other.
package configstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// format is that of stored versions.
const format = 1

// Limits of the history. The version in force and the one before always stay.
const (
	maxVersions     = 100
	maxHistoryBytes = 128 << 20
)

const (
	followEvery = 2 * time.Second  // between two requests for the next version
	listEvery   = time.Minute      // between two listings, which also find versions behind a gap
	doubtTime   = 10 * time.Second // in which the authority must answer whether it has a version
)

// A Version is the record as it was or is in force.
type Version struct {
	Format int       `json:"format,omitempty"`
	Number int64     `json:"version"`
	Time   time.Time `json:"time"`
	// ID distinguishes versions of different records that have the same number.
	ID string `json:"id,omitempty"`
	Change
}

// A Change is what a version is made of.
type Change struct {
	// Origin says who or what made the change.
	Origin string `json:"origin"`
	// File is the hash of the file that the content is based on; "" for none.
	File string `json:"file,omitempty"`
	// Restores is the number of the version whose content this one has again; 0 for none.
	Restores int64  `json:"restores,omitempty"`
	Content  []byte `json:"content,omitempty"`
}

// A ConflictError reports a change of a version that is no longer in force.
type ConflictError struct {
	Base    int64   // that was changed
	Current Version // that is in force; without its content
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("nothing was changed: somebody else has changed version %d meanwhile, and version %d (%s) is in force; look at it, then repeat the change if it is still wanted", e.Base, e.Current.Number, e.Current.Origin)
}

// ErrNoOlder is the error of an undo where no older version is left.
var ErrNoOlder = errors.New("there is no older version to go back to")

// ErrNoVersion is the error about a version that the history does not contain.
var ErrNoVersion = errors.New("the history does not contain that version")

// Options are what a Store needs. All fields are required.
type Options struct {
	// Authority decides which versions there are. Copy is this machine's own; for a single process both are the same.
	Authority, Copy *Backend
	// Logger gets what happens.
	Logger *slog.Logger
	// Now is the clock.
	Now func() time.Time
}

// A State is what a store knows of the record.
type State struct {
	Version Version // in force; without its content. The number is 0 where there is none
	// Confirmed is when the authority last said so; zero if it has not since the store was opened.
	Confirmed time.Time
	// Problem says why the authority cannot be read, or which version is damaged; nil for none.
	Problem error
}

// A Store has the record of one process. It is safe for concurrent use.
type Store struct {
	options Options

	changing sync.Mutex // held while versions are read or created, and while subscribers run
	listed   int64      // the greatest number in the last listing of the authority; guarded by changing
	mu       sync.Mutex // guards what follows
	current  Version
	history  []Version // oldest first, without contents
	confirm  time.Time
	problem  error
	matched  bool   // the copy was compared with the authority
	reported string // the damage that was logged last
	notify   []func(Version)
}

// Open returns a store with the versions that the authority has, or if it cannot be read, with those in the copy. The error is
// about neither being readable, or about none of the versions being sound: then nobody knows what is in force.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{options: o}
	if err := s.load(ctx, o.Copy); err != nil && o.Copy == o.Authority {
		return nil, err
	} else if err != nil {
		s.setProblem(err)
		o.Logger.Error("the copy of the configuration record here cannot be read; the shared one is used", "err", err)
	}
	if o.Copy == o.Authority {
		s.confirmed()
		return s, nil
	}
	local := s.problem
	if err := s.Refresh(ctx); err != nil && (local != nil || isCorrupt(err) && s.State().Version.Number == 0) {
		return nil, errors.Join(local, err)
	} else if err != nil {
		o.Logger.Warn("the shared configuration record cannot be read; the last version that was copied here stays in force", "version", s.State().Version.Number, "err", err)
	}
	return s, nil
}

func isCorrupt(err error) bool { return errors.As(err, new(*CorruptError)) }

// load reads the versions of a backend, and has the newest sound one be in force.
func (s *Store) load(ctx context.Context, from *Backend) error {
	all, err := from.list(ctx)
	if err != nil {
		return err
	}
	var current Version
	var history []Version
	var damaged error
	for _, at := range all {
		v, err := from.read(ctx, at.number)
		switch {
		case isCorrupt(err):
			damaged = errors.Join(damaged, err)
			s.options.Logger.Error("a version of the configuration record is damaged and not used; restore it from a backup, or remove it", "version", at.number, "err", err)
			continue
		case errors.Is(err, bucket.ErrNotFound):
			continue // removed meanwhile
		case err != nil:
			return err
		}
		current, history = v, append(history, v.withoutContent())
	}
	if len(history) == 0 && damaged != nil {
		return fmt.Errorf("no version of the configuration record can be read, so it is unknown what is in force; restore one from a backup, or remove all of them to begin with the file: %w", damaged)
	}
	s.mu.Lock()
	s.current, s.history, s.problem = current, history, damaged
	s.mu.Unlock()
	return nil
}

func (v Version) withoutContent() Version {
	v.Content = nil
	return v
}

// Get returns the version in force; false if there is none yet.
func (s *Store) Get() (Version, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.current.Number > 0
}

// State returns what is known of the record.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{s.current.withoutContent(), s.confirm, s.problem}
}

// Subscribe calls notify with each version that comes into force from now on, one after the other.
func (s *Store) Subscribe(notify func(Version)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, notify)
}

// Shared reports whether the authority is a bucket that other nodes use, too.
func (s *Store) Shared() bool { return s.options.Copy != s.options.Authority }

// History returns the versions that are stored, newest first, without their contents.
func (s *Store) History() []Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.history)
	slices.Reverse(all)
	return all
}

// Read returns a version with its content.
func (s *Store) Read(ctx context.Context, number int64) (Version, error) {
	if v, ok := s.Get(); ok && v.Number == number {
		return v, nil
	}
	v, err := s.options.Copy.read(ctx, number)
	if errors.Is(err, bucket.ErrNotFound) {
		err = fmt.Errorf("version %d: %w", number, ErrNoVersion)
	}
	return v, err
}

// Propose creates the next version if base is in force; 0 stands for no version. The caller has checked the content.
func (s *Store) Propose(ctx context.Context, base int64, c Change) (Version, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.refresh(ctx); err != nil {
		return Version{}, fmt.Errorf("nothing was changed, because it cannot be found out which version is in force: %w", err)
	}
	return s.propose(ctx, base, c)
}

// propose follows a refresh without an error: the newest sound version of that listing is the one in force.
func (s *Store) propose(ctx context.Context, base int64, c Change) (Version, error) {
	current, _ := s.Get()
	if current.Number != base {
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	// Versions after base in the last listing are damaged. A version that was created since then takes the same number.
	v := Version{Number: max(s.listed, base) + 1, Time: s.options.Now().UTC(), ID: rand.Text(), Change: c}
	err := s.options.Authority.create(ctx, v)
	if errors.Is(err, bucket.ErrExists) {
		if err := s.refresh(ctx); err != nil {
			return Version{}, err
		}
		current, _ := s.Get()
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	if err != nil && !s.landed(ctx, v) {
		return Version{}, fmt.Errorf("the new version cannot be stored, so version %d should still be in force, as `larder room status` shows: %w", base, err)
	}
	// A process that was paused for long may have used the number of a version that was pruned meanwhile.
	all, err := s.options.Authority.list(ctx)
	if err == nil && len(all) > 0 && all[len(all)-1].number-v.Number >= maxVersions/2 {
		err = errors.Join(s.options.Authority.delete(ctx, v.Number), s.refresh(ctx))
		current, _ := s.Get()
		return Version{}, errors.Join(&ConflictError{base, current.withoutContent()}, err)
	}
	if err := s.copyVersion(ctx, v); err != nil {
		s.options.Logger.Warn("the new version of the configuration record cannot be copied here; it is stored with the others", "version", v.Number, "err", err)
	}
	s.enforce(v)
	s.prune(ctx, all)
	return v, nil
}

// landed reports whether a version was stored although the backend returned an error, as after a lost connection.
func (s *Store) landed(ctx context.Context, v Version) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doubtTime)
	defer cancel()
	have, err := s.options.Authority.read(ctx, v.Number)
	return err == nil && have.ID == v.ID
}

// Undo creates a version with the content of an older one: of the one before the version in force, or of version to if that
// is not 0. An undo that follows another one goes back further.
func (s *Store) Undo(ctx context.Context, base, to int64, origin string) (Version, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.refresh(ctx); err != nil {
		return Version{}, fmt.Errorf("nothing was changed, because it cannot be found out which version is in force: %w", err)
	}
	if current, _ := s.Get(); current.Number != base {
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	if to == 0 {
		if to = s.before(base); to == 0 {
			return Version{}, ErrNoOlder
		}
	}
	old, err := s.Read(ctx, to)
	if err != nil {
		return Version{}, err
	}
	return s.propose(ctx, base, Change{Origin: origin, File: old.File, Restores: to, Content: old.Content})
}

// before returns the version that an undo of number restores, 0 for none. A version that restores another one stands for that.
func (s *Store) before(number int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	restores := map[int64]int64{}
	for _, v := range s.history {
		restores[v.Number] = v.Restores
	}
	for restores[number] != 0 && restores[number] < number {
		number = restores[number]
	}
	older := int64(0)
	for _, v := range s.history {
		if v.Number < number {
			older = v.Number
		}
	}
	return older
}

// enforce has a version be in force, and notifies the subscribers.
func (s *Store) enforce(v Version) {
	s.mu.Lock()
	s.current = v
	notify := slices.Clone(s.notify)
	s.mu.Unlock()
	s.addToHistory(v)
	s.confirmed()
	for _, f := range notify {
		f(v)
	}
}

func (s *Store) addToHistory(v Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = slices.DeleteFunc(s.history, func(old Version) bool { return old.Number == v.Number })
	s.history = append(s.history, v.withoutContent())
	slices.SortFunc(s.history, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })
}

func (s *Store) contains(number int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.history, func(v Version) bool { return v.Number == number })
}

func (s *Store) confirmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm = s.options.Now()
	if s.Shared() || !isCorrupt(s.problem) { // a single process reports damage that load has found
		s.problem = nil
	}
}

func (s *Store) setProblem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err
}

func (s *Store) copyVersion(ctx context.Context, v Version) error {
	if !s.Shared() {
		return nil
	}
	return s.options.Copy.put(ctx, v)
}

// Refresh reads the versions that the authority has and this store does not know.
func (s *Store) Refresh(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.refresh(ctx)
}

func (s *Store) refresh(ctx context.Context) (err error) {
	defer func() {
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // a deadline is the authority's failure
			s.setProblem(err)
		}
	}()
	all, err := s.options.Authority.list(ctx)
	if err != nil {
		return err
	}
	s.listed = 0
	if len(all) > 0 {
		s.listed = all[len(all)-1].number
	}
	if len(all) > 0 && !s.matches(ctx, all) {
		return s.copyAll(ctx, all)
	}
	var damaged error
	for _, at := range slices.Backward(all) { // the newest first, which is to be in force
		if s.contains(at.number) {
			continue
		}
		v, err := s.options.Authority.read(ctx, at.number)
		switch {
		case isCorrupt(err):
			damaged = errors.Join(damaged, err)
			continue
		case errors.Is(err, bucket.ErrNotFound):
			continue // pruned meanwhile
		case err != nil:
			return err
		}
		if err := s.copyVersion(ctx, v); err != nil {
			s.options.Logger.Warn("a version of the configuration record cannot be copied here", "version", v.Number, "err", err)
		}
		if known, _ := s.Get(); v.Number > known.Number {
			s.enforce(v)
		}
		s.addToHistory(v)
	}
	s.confirmed()
	s.forget(ctx, all)
	if damaged != nil {
		s.reportDamage(damaged)
	}
	return nil
}

func (s *Store) reportDamage(err error) {
	s.mu.Lock()
	fresh := s.reported != err.Error()
	s.problem, s.reported = err, err.Error()
	s.mu.Unlock()
	if fresh {
		s.options.Logger.Error("a version of the shared configuration record is damaged and not used; the last sound version stays in force", "err", err)
	}
}

// Follow takes over new versions from the authority until ctx ends.
func (s *Store) Follow(ctx context.Context) {
	listed := time.Now()
	for pause(ctx, followEvery) {
		known, _ := s.Get()
		_, err := s.options.Authority.read(ctx, known.Number+1) // cheaper than a listing
		if errors.Is(err, bucket.ErrNotFound) && time.Since(listed) < listEvery {
			s.confirmed()
			continue
		}
		failed := s.State().Problem != nil
		if err := s.Refresh(ctx); err == nil {
			listed = time.Now()
		} else if !failed && ctx.Err() == nil {
			s.options.Logger.Warn("the shared configuration record cannot be read; the version that is in force here stays so", "version", known.Number, "err", err)
		}
	}
}

// pause waits; it returns false when ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// matches reports whether the copy belongs to the authority's record: the newest version that both have is the same one.
func (s *Store) matches(ctx context.Context, all []stored) bool {
	s.mu.Lock()
	history, matched := slices.Clone(s.history), s.matched
	s.matched = true // unless the comparison fails
	s.mu.Unlock()
	if matched || !s.Shared() || len(history) == 0 {
		return true
	}
	if history[len(history)-1].Number > all[len(all)-1].number {
		return false
	}
	for _, at := range slices.Backward(all) {
		i := slices.IndexFunc(history, func(v Version) bool { return v.Number == at.number })
		if i < 0 {
			continue
		}
		v, err := s.options.Authority.read(ctx, at.number)
		if err == nil {
			return v.ID == history[i].ID
		}
		if !isCorrupt(err) {
			s.mu.Lock()
			s.matched = false
			s.mu.Unlock()
			return true
		}
	}
	return true // the history here ended before the oldest version there
}

// copyAll puts the authority's versions in place of those in the copy, which belong to another record.
func (s *Store) copyAll(ctx context.Context, all []stored) error {
	var history []Version
	var current Version
	for _, at := range all {
		v, err := s.options.Authority.read(ctx, at.number)
		if isCorrupt(err) || errors.Is(err, bucket.ErrNotFound) {
			continue
		}
		if err == nil {
			err = s.options.Copy.put(ctx, v)
		}
		if err != nil {
			return err
		}
		current, history = v, append(history, v.withoutContent())
	}
	if current.Number == 0 {
		return &CorruptError{s.options.Authority.bucket.String() + "/" + s.options.Authority.prefix, errors.New("no version of it can be read")}
	}
	s.options.Logger.Warn("the configuration record of the cluster takes the place of the one that was here", "version", current.Number)
	s.mu.Lock()
	s.history = history
	s.mu.Unlock()
	s.enforce(current)
	s.removeCopies(ctx, all)
	return nil
}

// forget removes from the history and from the copy what the authority does not have.
func (s *Store) forget(ctx context.Context, all []stored) {
	if !s.Shared() || len(all) == 0 {
		return
	}
	s.mu.Lock()
	known := len(s.history)
	s.history = slices.DeleteFunc(s.history, func(v Version) bool { return v.Number != s.current.Number && !lists(all, v.Number) })
	removed := known != len(s.history)
	s.mu.Unlock()
	if removed {
		s.removeCopies(ctx, all)
	}
}

func lists(all []stored, number int64) bool {
	return slices.ContainsFunc(all, func(at stored) bool { return at.number == number })
}

// removeCopies removes from the copy what the authority does not have, except for the version in force.
func (s *Store) removeCopies(ctx context.Context, all []stored) {
	current, _ := s.Get()
	copied, err := s.options.Copy.list(ctx)
	for _, at := range copied {
		if at.number != current.Number && !lists(all, at.number) {
			err = errors.Join(err, s.options.Copy.delete(ctx, at.number))
		}
	}
	if err != nil {
		s.options.Logger.Warn("an old version of the configuration record cannot be removed here", "err", err)
	}
}

// prune removes the oldest versions beyond the limits of the history.
func (s *Store) prune(ctx context.Context, all []stored) {
	size := int64(0)
	keep := len(all)
	for i := range slices.Backward(all) {
		size += all[i].size
		if n := len(all) - i; n > 2 && (n > maxVersions || size > maxHistoryBytes) {
			keep = len(all) - i - 1
			break
		}
	}
	for _, at := range all[:len(all)-keep] {
		if err := s.options.Authority.delete(ctx, at.number); err != nil {
			s.options.Logger.Warn("an old version of the configuration record cannot be removed", "version", at.number, "err", err)
			return
		}
		if s.Shared() {
			if err := s.options.Copy.delete(ctx, at.number); err != nil {
				s.options.Logger.Warn("an old version of the configuration record cannot be removed here", "version", at.number, "err", err)
			}
		}
		s.mu.Lock()
		s.history = slices.DeleteFunc(s.history, func(v Version) bool { return v.Number == at.number })
		s.mu.Unlock()
	}
}

// Share stores the versions of the copy in an authority that has none: a cluster begins with the record of the process that
// founds it.
func (s *Store) Share(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if all, err := s.options.Authority.list(ctx); err != nil || len(all) > 0 {
		return err
	}
	s.mu.Lock()
	history := slices.Clone(s.history)
	s.matched = true
	s.mu.Unlock()
	for _, known := range history {
		v, err := s.options.Copy.read(ctx, known.Number)
		if err != nil {
			return err
		}
		if err := s.options.Authority.create(ctx, v); err != nil && !errors.Is(err, bucket.ErrExists) {
			return err
		}
	}
	return nil
}
