package replication

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// KnownFile is the file in the key folder that says what was seen of the source.
const KnownFile = "source.json"

// Options say what is followed, and into which store.
type Options struct {
	// Source has the log. Required.
	Source Source
	// Trust says whose signatures count. Without a key and a root key the one counts that was remembered or, at
	// first, the one that the source names.
	Trust verify.Trust
	// Store and Log take the log over. They must be empty, or have a beginning of it. Required.
	Store *kvstore.Store
	Log   *logs.Log
	// Keys is the key folder, outside of the store's. Required.
	Keys string
	// Only reports whether a release is wanted. The others are in the log only. Default: all are.
	Only func(pkg, version string) bool
	// Dictionaries has the follower take over deltas between the versions of a file.
	Dictionaries bool
	// Logger gets what goes wrong, and what is done about it. Required.
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Changed, where set, is called when State has changed, by one goroutine at a time.
	Changed func(State)
}

// A State is how far a follower has come.
type State struct {
	Source string `json:"source"`
	// Key is the verifier key that is trusted, "" if none is known yet; FirstUse says that
	// nothing but the source itself has named it.
	Key      string `json:"key,omitempty"`
	FirstUse bool   `json:"firstUse,omitempty"`
	// Packages are patterns of the releases whose files the source has, if it is a bundle that has only some.
	Packages []string `json:"packages,omitempty"`
	// Entries are those that are here, of all that are signed at the source.
	Entries int64 `json:"entries"`
	Of      int64 `json:"of"`
	// Ready: everything was here once that a checkpoint has.
	Ready bool `json:"ready"`
	// Current is when all was here that the source showed.
	Current time.Time `json:"current,omitzero"`
	// Cosigned is as of when the source's checkpoint is vouched to be the newest of its log, and Stale why it need not be any more.
	Cosigned time.Time `json:"cosigned,omitzero"`
	Stale    string    `json:"stale,omitempty"`
	// Problem says why no more is taken over at the moment, and Refused that it is because the
	// source has said what cannot be true. Evidence is the file that proves a fork.
	Problem  string `json:"problem,omitempty"`
	Refused  bool   `json:"refused,omitempty"`
	Evidence string `json:"evidence,omitempty"`
	// Files and Bytes count what was fetched.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Describe returns lines of text for an operator: the source and how many of its entries are here, why no more is applied if s.Problem says so, and
// why what is here may be out of date if s.Stale does. It returns "" for nil.
func (s *State) Describe() string {
	if s == nil {
		return ""
	}
	description := fmt.Sprintf("It follows %s and has %d of %d log entries.\n", s.Source, s.Entries, s.Of)
	if s.Problem != "" {
		description += fmt.Sprintf("Nothing more is taken over: %s.\n", text.Plain(s.Problem))
	}
	if s.Stale != "" {
		description += fmt.Sprintf("What is here may be out of date: %s.\n", text.Plain(s.Stale))
	}
	return description
}

// A Follower has a store follow a source. Its methods are safe for concurrent use; Once,
// CatchUp and Run are for one caller.
type Follower struct {
	Options
	record *signing.Record
	known  *verify.Known

	manifests *semaphore.Weighted
	memory    Budget
	flights   singleflight.Group
	files     atomic.Int64 // that were fetched
	bytes     atomic.Int64

	filled bool // whether what was left out before, and is wanted now, is here

	mu    sync.Mutex
	state State
	shown signing.Signed
	seen  []byte // the source's checkpoint, as it was sent last
}

// Open returns a follower that continues where the key folder and the store say; see restoreState for records that are missing. It locks the key
// folder. The caller closes it before the store.
func Open(o Options) (*Follower, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	record, err := signing.OpenRecord(o.Keys, o.Store)
	if err != nil {
		return nil, err
	}
	o.Trust.Now = o.Now
	f := &Follower{Options: o, record: record, manifests: semaphore.NewWeighted(manifestMemory), memory: NewBudget()}
	if err := f.restoreState(); err != nil {
		return nil, errors.Join(err, record.Close())
	}
	return f, nil
}

// restoreState sets the state from what the key folder and the store say: which checkpoint was served last, and in f.Trust.Key which key is trusted,
// unless the options name one. If the folder is new or its checkpoint cannot be read, or the log in the store does not contain that, the follower
// starts without one; that is no error. It returns an error if the file of known logs is invalid, or the store cannot be read.
func (f *Follower) restoreState() (err error) {
	if f.known, err = verify.ReadKnown(filepath.Join(f.Keys, KnownFile)); err != nil {
		return err
	}
	local := f.Log.Checkpoint()
	shown, key, err := f.record.Last(local)
	if err != nil {
		return err
	}
	before, _ := f.known.ByServer(f.Source.Name())
	if f.Trust.Key = cmp.Or(f.Trust.Key, before.Key, key); f.Trust.Key == "" && local.Size > 0 {
		if f.Trust.Key, err = signing.SignedBy(f.Store); err != nil {
			return err
		}
	}
	f.shown = shown
	f.state = State{Source: f.Source.Name(), Key: f.Trust.Key, Entries: local.Size, Of: local.Size, Ready: shown.Note != nil, Cosigned: f.Trust.CosignedAt(shown.Note)}
	return nil
}

// Close unlocks the key folder. The caller makes sure that Run, Once and CatchUp have returned.
func (f *Follower) Close() error { return f.record.Close() }

// State returns how far the follower has come, and whether the source's checkpoint may be out of date by now.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := f.state
	if err := f.checkAge(state); err != nil {
		state.Stale = err.Error()
	}
	return state
}

// updateState calls do with the state under the lock, and then [Options.Changed] with the new state, without the lock.
func (f *Follower) updateState(do func(*State)) {
	f.mu.Lock()
	do(&f.state)
	state := f.state
	f.mu.Unlock()
	if f.Changed != nil {
		f.Changed(state)
	}
}

// A RefusedError says that the source cannot be believed.
type RefusedError struct{ Err error }

// Error returns what is wrong, and that nothing of it was applied.
func (e *RefusedError) Error() string {
	return e.Err.Error() + "; nothing of it was taken over, and what is here stays as it is"
}

// Unwrap returns what is wrong with the source's data.
func (e *RefusedError) Unwrap() error { return e.Err }

// The backoff after failures. The first is short, for a source that is several nodes behind one address, of which one may be a
// moment behind the one that was queried before.
const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = time.Minute
	// transientFailures is how many failures in a row may be such a moment: some fifteen seconds.
	transientFailures = 6
)

// Run follows the source until ctx ends: it applies what is new and waits for more. In the background it stores better encodings and deltas, and logs
// when the source's checkpoint becomes too old. After a failure it logs it and tries again with a backoff, and [Follower.State] has the reason.
func (f *Follower) Run(ctx context.Context) {
	var improving sync.WaitGroup
	defer improving.Wait()
	improving.Go(func() { f.improveRegularly(ctx) })
	improving.Go(func() { f.reportAgeRegularly(ctx) })
	for failures := 0; ctx.Err() == nil; {
		err := f.CatchUp(ctx)
		if err == nil {
			f.mu.Lock()
			seen := f.seen
			f.mu.Unlock()
			err = f.await(ctx, seen)
		}
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		f.recordFailure(err)
		failures++
		rest := retry.After(failures, minBackoff, maxBackoff)
		f.Logger.Log(ctx, f.failureLevel(failures), "couldn't follow the source; trying again", "source", f.Source.Name(), "err", err, "after", rest)
		if retry.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// awaitTimeout bounds how long one call waits for a new checkpoint. Then the follower reads the present one again, so that a source where nothing
// happens counts as current, and one that does not respond as failing.
const awaitTimeout = time.Minute

// await waits until the source may have another checkpoint than this one, or for awaitTimeout, and returns nil. Otherwise it returns the error of the
// source, or that of ctx. It waits for a bundle without a limit: only [Bundle.Await] opens the next one, and the present one may have been removed.
func (f *Follower) await(ctx context.Context, checkpoint []byte) error {
	if _, ok := f.Source.(*Bundle); ok {
		return f.Source.Await(ctx, checkpoint)
	}
	waiting, stop := context.WithTimeout(ctx, awaitTimeout)
	defer stop()
	err := f.Source.Await(waiting, checkpoint)
	if waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// failureLevel returns the level at which to log the given number of failures in a row: a warning up to transientFailures, an error after that. With
// evidence in the state that the log has forked, it is always an error.
func (f *Follower) failureLevel(failures int) slog.Level {
	if failures > transientFailures || f.State().Evidence != "" {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// recordFailure puts err into the state, as the reason why nothing more of the source is applied at the moment.
func (f *Follower) recordFailure(err error) {
	f.updateState(func(s *State) {
		s.Problem, s.Refused = err.Error(), errors.As(err, new(*RefusedError))
	})
}

// Once applies everything that the source has now, then stores the smaller encodings and the deltas that are due. Errors of the second step are only
// logged.
func (f *Follower) Once(ctx context.Context) error {
	err := f.CatchUp(ctx)
	if err == nil {
		f.improveAndLog(ctx)
		err = ctx.Err()
	}
	return err
}

// CatchUp applies all entries that the source's newest checkpoint covers, and then stores that checkpoint, serves it and clears the problem in the
// state. It keeps the present checkpoint if the new one is of the same tree with older cosignatures. Before it stores the checkpoint, until that has
// succeeded once, it fetches files that an earlier run left out and that are wanted now. After an error, the entries that were applied stay, and the
// old checkpoint is served.
func (f *Follower) CatchUp(ctx context.Context) error {
	log, err := f.openLog(ctx)
	if err != nil {
		return err
	}
	if err := f.applyNew(ctx, log); err != nil {
		return err
	}
	if !f.filled {
		if err := f.fillAbsent(ctx); err != nil {
			return err
		}
		f.filled = true
	}
	have := f.Log.Checkpoint()
	if have != (logs.Checkpoint{Size: log.Size(), Root: log.Root()}) {
		return &RefusedError{fmt.Errorf("the log of %d entries does not have the root that is signed", have.Size)}
	}
	signed := signing.Signed{Checkpoint: have, Note: log.Note()}
	// A source of several nodes may send older cosignatures of the same checkpoint, which must not replace newer ones.
	same := f.Trust.Key == log.Key() && bytes.Equal(f.shown.Note, log.Note())
	if !same && (f.shown.Checkpoint != have || f.shown.Note == nil || f.Trust.Key != log.Key() || !log.Cosigned().Before(f.Trust.CosignedAt(f.shown.Note))) {
		if err := f.record.Store(log.Key(), signed); err != nil {
			return err
		}
		f.mu.Lock()
		f.shown, f.Trust.Key = signed, log.Key()
		f.mu.Unlock()
	}
	f.updateState(func(s *State) {
		s.Key, s.Ready, s.Current = log.Key(), true, f.Now()
		s.Problem, s.Refused, s.Evidence = "", false, ""
	})
	return nil
}

// openLog opens the source's log, verifies its checkpoint and that it continues the log in the store, and records the checkpoint and the key. It
// reads the signed list of the log's keys from the key folder before, and writes a newer one there. If the source contradicts itself or the store's
// log, or its log proves nothing, the error is a [RefusedError]; evidence of a fork is in the state. A bundle that begins beyond the store's log is
// another error.
func (f *Follower) openLog(ctx context.Context) (*verify.Log, error) {
	local := f.Log.Checkpoint()
	bundle, _ := f.Source.(*Bundle)
	if bundle != nil && bundle.Since() > local.Size {
		return nil, fmt.Errorf("the bundle begins after %d log entries, and %d are here: take the bundles in between first, or make one with `larder bundle --since %d`", bundle.Since(), local.Size, local.Size)
	}
	if err := f.readKeyList(); err != nil {
		return nil, err
	}
	log, firstUse, err := f.known.Open(ctx, verify.Options{Server: f.Source.Name(), Read: f.Source.Get, Trust: f.Trust}, f.Now())
	if shareErr := f.writeKeyList(); shareErr != nil {
		return nil, errors.Join(err, shareErr)
	}
	if fork := (*verify.ForkError)(nil); errors.As(err, &fork) {
		f.updateState(func(s *State) { s.Evidence = fork.File })
		return nil, &RefusedError{err}
	}
	if err != nil {
		return nil, refuseContradiction(err)
	}
	if firstUse {
		f.updateState(func(s *State) { s.Key, s.FirstUse = log.Key(), true })
	}
	if err := log.Unverified(); err != nil {
		return nil, &RefusedError{err}
	}
	if err := log.CheckContains(ctx, local); verify.OutcomeOf(err) == verify.Differs {
		return nil, &RefusedError{fmt.Errorf("the log of %d entries that is here is not that of %s: %w; a data folder follows one log for good, so follow this one into another (--data, --keys)", local.Size, f.Source.Name(), err)}
	} else if err != nil {
		return nil, err
	}
	f.updateState(func(s *State) {
		f.seen = log.Note()
		if s.Of, s.Cosigned = log.Size(), log.Cosigned(); bundle != nil {
			s.Packages = bundle.Packages()
		}
	})
	return log, nil
}

// Checkpoint returns the source's last signed checkpoint of which the store has everything, for serving. Before there is one, the error is a
// [signing.RefusedError] with a reason for clients, and the result is the zero value.
func (f *Follower) Checkpoint() (signing.Signed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown.Note == nil {
		return f.shown, &signing.RefusedError{Reason: "this mirror has yet to catch up with its source for the first time"}
	}
	return f.shown, nil
}

// SignedInStore returns the size and root of the checkpoint that [Follower.Checkpoint] returns, the zero value before the first.
func (f *Follower) SignedInStore() logs.Checkpoint {
	signed, _ := f.Checkpoint()
	return signed.Checkpoint
}

// Key returns the verifier key of the served checkpoint, "" before there is one.
func (f *Follower) Key() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown.Note == nil {
		return ""
	}
	return f.Trust.Key
}

// KeyChanges returns the rotations of the log's key that the store's log records, oldest first.
func (f *Follower) KeyChanges() ([]signing.KeyChange, error) { return signing.KeyChanges(f.Store) }
