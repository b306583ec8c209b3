// Package configstore keeps configuration as one record with versions.
//
// A version is never changed. A change creates the version with the next number, on the condition that the version it was
// made from is still in force (compare-and-swap), so of two changes at the same time one fails with a [*ConflictError].
//
// What it guarantees:
//
//   - [Store.Propose] returns after the new version is durable in the authority: the bucket that the nodes of a cluster
//     share, or the data folder of a single process.
//   - Every store copies the versions to a folder of its own. While the authority does not respond, and across a restart, the
//     last version that was copied stays in force.
//   - An authority that has lost its last versions does not take them back: the newest version of the same record stays in
//     force, and the store that owns the record uploads it again.
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

	"github.com/larder-cdn/larder/internal/retry"
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
	followInterval    = 2 * time.Second  // between two requests for the next version
	listInterval      = time.Minute      // between two listings, which also find versions behind a gap
	confirmTimeout    = 10 * time.Second // in which the authority must respond whether it has a version
	finishTimeout     = time.Minute      // to copy a version that the authority has stored, and to remove old ones
	firstApplyBackoff = 2 * time.Second  // backoff after a version could not be applied
	maxApplyBackoff   = time.Minute      // longest such backoff
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

// A Change is the content of a version.
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

// Error says which version was replaced during the change, and which one is in force.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("nothing was changed: version %d was replaced during the change, and version %d (%s) is in force; compare it, then repeat the change if necessary", e.Base, e.Current.Number, e.Current.Origin)
}

// An ApplyError reports a version that is stored, and that this process could not apply.
type ApplyError struct {
	Number int64
	Err    error
}

// Error says which version is stored and not applied by this process, and why.
func (e *ApplyError) Error() string {
	return fmt.Sprintf("version %d is stored, but this process cannot apply it and goes on with the one before; it tries again: %v", e.Number, e.Err)
}

// Unwrap returns the cause.
func (e *ApplyError) Unwrap() error { return e.Err }

// ErrNoOlder is the error of an undo if no older version is left.
var ErrNoOlder = errors.New("there is no older version to go back to")

// ErrNoVersion is the error about a version that the history does not contain.
var ErrNoVersion = errors.New("the history does not contain that version")

// Options are the dependencies of a Store. All fields are required.
type Options struct {
	// Authority decides which versions there are. Copy is this machine's own; for a single process both are the same.
	Authority, Copy *Backend
	// Logger gets what happens.
	Logger *slog.Logger
	// Now is the clock.
	Now func() time.Time
}

// A State is the state of the record as a store knows it.
type State struct {
	Version Version // in force; without its content. The number is 0 before the first version
	// Confirmed is when the authority last confirmed that; zero if it has not since the store was opened.
	Confirmed time.Time
	// Problem joins the problems of the authority and of the copy; nil for none.
	Problem error
	// Unconfirmed says that a newer version may be in force elsewhere.
	Unconfirmed bool
}

// A problem is a kind of problem with the record.
type problem int

// Kinds of problems. Each lasts until a refresh finds the opposite.
const (
	unreadable problem = iota // the authority
	damaged                   // versions that cannot be read
	lacking                   // versions that are here, and that the authority does not have
	uncopied                  // versions that could not be copied
	problems
)

// A Store has the record of one process. It is safe for concurrent use.
type Store struct {
	options Options

	// changing is held while versions are read or created, and while subscribers run. It guards the fields up to mu.
	changing sync.Mutex
	listed   int64            // the greatest number in the last listing of the authority
	pruned   int64            // the greatest number that was removed because of the limits of the history
	owns     bool             // this store uploads what the authority lacks
	foreign  bool             // the copy contains versions of another record
	toCopy   map[int64]bool   // versions that could not be copied
	reported map[int64]string // the damage of versions that was logged
	applying backoff          // of the version in force, where a subscriber could not apply it

	inForce Value[Version]

	mu       sync.Mutex // guards what follows
	history  []Version  // oldest first, without contents
	confirm  time.Time
	problems [problems]error
	behind   bool      // the authority does not have the version in force
	checked  time.Time // when the authority was listed and everything was in order; zero if something is left to do
}

// A backoff counts failures in a row.
type backoff struct {
	failures int
	next     time.Time
}

// Open returns a store with the versions of o.Authority, the shared backend, or of o.Copy, this machine's own, if the former
// cannot be read. It returns an error if neither can be read or no version is sound, because the version in force is unknown
// then.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{options: o, toCopy: map[int64]bool{}, reported: map[int64]string{}}
	local := s.load(ctx, o.Copy)
	if !s.Shared() {
		s.setConfirmed()
		if local != nil {
			return nil, local
		}
		return s, nil
	}
	if local != nil {
		o.Logger.Error("the copy of the configuration record here cannot be read; the shared one is used", "err", local)
	}
	if err := s.Refresh(ctx); err != nil && (local != nil || isCorrupt(err) && s.State().Version.Number == 0) {
		return nil, errors.Join(local, err)
	} else if err != nil {
		o.Logger.Warn("the shared configuration record cannot be read; the last version that was copied here stays in force", "version", s.State().Version.Number, "err", err)
	}
	return s, nil
}

// isCorrupt reports whether err is or wraps a [*CorruptError].
func isCorrupt(err error) bool { return errors.As(err, new(*CorruptError)) }

// load reads the versions of a backend into the history, and puts the newest sound one into force. It only records and logs damaged
// versions, unless all are damaged: then it returns an error, as it does if the backend cannot be read.
func (s *Store) load(ctx context.Context, from *Backend) error {
	all, err := from.list(ctx)
	if err == nil {
		err = s.readUnknown(ctx, from, all)
	}
	if err != nil {
		return err
	}
	if wrong := s.problemOf(damaged); wrong != nil && s.inForce.Get().Number == 0 {
		return fmt.Errorf("no version of the configuration record can be read, so the version in force is unknown; restore one from a backup, or remove all of them to start with the file: %w", wrong)
	}
	return nil
}

// withoutContent returns a copy of the version without its content.
func (v Version) withoutContent() Version {
	v.Content = nil
	return v
}

// Get returns the version in force; a zero Version and false before the first one.
func (s *Store) Get() (Version, bool) {
	v := s.inForce.Get()
	return v, v.Number > 0
}

// State returns the version in force, when the authority (the shared backend) last confirmed it, and what is wrong.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{
		Version: s.inForce.Get().withoutContent(), Confirmed: s.confirm, Problem: errors.Join(s.problems[:]...),
		Unconfirmed: s.problems[unreadable] != nil || s.behind,
	}
}

// Subscribe calls notify with each version that comes into force from now on, one after the other. The store holds its lock for
// changes meanwhile, so notify must not call Propose, Undo, Refresh or Share. A version is in force also if notify returns an error,
// which keeps later subscribers from getting the version. Then [Store.Follow] calls all subscribers again, with the version that is
// in force by then.
func (s *Store) Subscribe(notify func(Version) error) {
	s.inForce.Subscribe(func(_ context.Context, v Version) error { return notify(v) })
}

// Shared reports whether the authority, which decides which versions exist, is a bucket that other nodes use, too. Otherwise the
// authority is this machine's own backend.
func (s *Store) Shared() bool { return s.options.Copy != s.options.Authority }

// History returns the versions that are stored, newest first, without their contents.
func (s *Store) History() []Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.history)
	slices.Reverse(all)
	return all
}

// Read returns the version with a number, with its content: the one in force from memory, others from this machine's copy or else
// from the authority. The error is [ErrNoVersion] if the history does not contain it, or it was deleted meanwhile; a
// [*CorruptError] if it is damaged; or says that the authority cannot be read.
func (s *Store) Read(ctx context.Context, number int64) (Version, error) {
	current := s.inForce.Get()
	s.mu.Lock()
	i := slices.IndexFunc(s.history, func(v Version) bool { return v.Number == number })
	if i < 0 {
		s.mu.Unlock()
		return Version{}, fmt.Errorf("version %d: %w", number, ErrNoVersion)
	}
	id := s.history[i].ID
	s.mu.Unlock()
	if current.Number == number {
		return current, nil
	}
	v, err := s.options.Copy.read(ctx, number)
	if (err != nil || v.ID != id) && s.Shared() { // it could not be copied
		v, err = s.options.Authority.read(ctx, number)
	}
	if errors.Is(err, bucket.ErrNotFound) || err == nil && v.ID != id {
		err = fmt.Errorf("version %d: %w", number, ErrNoVersion)
	}
	return v, err
}

// Propose creates the next version with the change c if base, the number of a version, is in force; 0 if there must be no version
// yet. It puts the new version into force, notifies the subscribers, and returns it. It refreshes the store first. The caller has
// checked the content. If another version is in force, it returns a [*ConflictError]: of several changes of base at once, one
// succeeds. With an [*ApplyError] the version is stored and in force, and returned, but a subscriber could not apply it. Other
// errors say that the authority cannot be read or written, and that nothing should have changed.
func (s *Store) Propose(ctx context.Context, base int64, c Change) (Version, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.refresh(ctx); err != nil {
		return Version{}, fmt.Errorf("nothing was changed, because the version in force is unknown: %w", err)
	}
	return s.propose(ctx, base, c)
}

// propose creates the next version if base is in force, with the errors of [Store.Propose]. It copies the version to this machine,
// puts it into force, notifies the subscribers, and deletes versions beyond the limits of the history. The caller holds changing,
// and a refresh has just succeeded, so that the newest sound version is the one in force.
func (s *Store) propose(ctx context.Context, base int64, c Change) (Version, error) {
	current, _ := s.Get()
	if current.Number != base {
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	// Versions after base in the last listing are damaged. A version that was created since then takes the same number.
	v := Version{Number: max(s.listed, base) + 1, Time: s.options.Now().UTC(), ID: rand.Text(), Change: c}
	if v.Number >= maxNumber {
		return Version{}, fmt.Errorf("no number is left for a new version after %d; remove %s, which Larder cannot have written", v.Number-1, s.options.Authority.key(s.listed))
	}
	err := s.options.Authority.create(ctx, v)
	if errors.Is(err, bucket.ErrExists) {
		if err := s.refresh(ctx); err != nil {
			return Version{}, err
		}
		current, _ := s.Get()
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	if err != nil && !s.wasStored(ctx, v) {
		return Version{}, fmt.Errorf("the new version cannot be stored, so version %d should still be in force, as `larder room status` shows: %w", base, err)
	}
	// The version is stored. That the client goes away changes nothing any more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	// A process that was paused for long may have used the number of a version that was pruned meanwhile.
	all, err := s.options.Authority.list(ctx)
	if err == nil && newestNumber(all)-v.Number >= maxVersions/2 {
		err = errors.Join(s.options.Authority.delete(ctx, v.Number), s.refresh(ctx))
		current, _ := s.Get()
		return Version{}, errors.Join(&ConflictError{base, current.withoutContent()}, err)
	}
	s.copyVersion(ctx, v)
	err = s.putInForce(v)
	s.setConfirmed()
	s.prune(ctx, s.options.Authority)
	if s.Shared() {
		s.prune(ctx, s.options.Copy)
	}
	if err != nil {
		return v, &ApplyError{v.Number, err}
	}
	return v, nil
}

// wasStored reports whether the authority (the shared backend) has exactly the version v, although it returned an error for
// creating it, as after a lost connection. It returns false also if the authority does not respond.
func (s *Store) wasStored(ctx context.Context, v Version) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	have, err := s.options.Authority.read(ctx, v.Number)
	return err == nil && have.ID == v.ID
}

// Undo creates a version with the content of an older one: of version number to, or if that is 0, of the one before base, which
// must be the version in force. An undo that follows another one goes back further. If check returns an error for the older
// version, Undo returns it and changes nothing. [ErrNoOlder] says that the history has no older version, if to is 0; other errors
// are those of [Store.Propose] and [Store.Read].
func (s *Store) Undo(ctx context.Context, base, to int64, origin string, check func(Version) error) (Version, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.refresh(ctx); err != nil {
		return Version{}, fmt.Errorf("nothing was changed, because the version in force is unknown: %w", err)
	}
	if current, _ := s.Get(); current.Number != base {
		return Version{}, &ConflictError{base, current.withoutContent()}
	}
	if to == 0 {
		if to = s.undoTarget(base); to == 0 {
			return Version{}, ErrNoOlder
		}
	}
	old, err := s.Read(ctx, to)
	if err == nil {
		err = check(old)
	}
	if err != nil {
		return Version{}, err
	}
	return s.propose(ctx, base, Change{Origin: origin, File: old.File, Restores: to, Content: old.Content})
}

// undoTarget returns the number of the version that an undo of version number restores, 0 for none. If version number itself
// restored an older one, the undo goes back from that.
func (s *Store) undoTarget(number int64) int64 {
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

// putInForce puts a version into force, adds it to the history, and notifies the subscribers. The version is in force also if
// putInForce returns an error, which is that of a subscriber. The caller holds changing.
func (s *Store) putInForce(v Version) error {
	s.inForce.Set(v)
	s.addToHistory(v)
	s.applying = backoff{}
	return s.notifySubscribers(v)
}

// notifySubscribers has the subscribers apply the version v, which is in force. After an error, which it returns, it sets when
// [Store.retryApply] tries again. The caller holds changing.
func (s *Store) notifySubscribers(v Version) error {
	err := s.inForce.Notify(context.Background(), v)
	if err == nil {
		s.applying = backoff{}
		return nil
	}
	s.applying.failures++
	s.applying.next = s.options.Now().Add(retry.Doubled(s.applying.failures, firstApplyBackoff, maxApplyBackoff))
	return err
}

// retryApply notifies the subscribers again if one of them could not apply the version in force, and the backoff is over.
// Otherwise it does nothing.
func (s *Store) retryApply() {
	s.changing.Lock()
	defer s.changing.Unlock()
	if s.applying.failures > 0 && !s.options.Now().Before(s.applying.next) {
		current, _ := s.Get()
		s.notifySubscribers(current) //nolint:errcheck // the subscriber reports it, and is notified again
	}
}

// addToHistory adds a version to the history, in place of one with the same number.
func (s *Store) addToHistory(v Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = slices.DeleteFunc(s.history, func(old Version) bool { return old.Number == v.Number })
	s.history = append(s.history, v.withoutContent())
	slices.SortFunc(s.history, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })
}

// inHistory reports whether the history has a version with a number.
func (s *Store) inHistory(number int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.history, func(v Version) bool { return v.Number == number })
}

// setConfirmed records that the authority, which decides which versions exist, has confirmed the version in force just now.
func (s *Store) setConfirmed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm = s.options.Now()
}

// setProblem records err as the present problem of the kind p, which [Store.State] reports; nil if it is solved.
func (s *Store) setProblem(p problem, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems[p] = err
}
