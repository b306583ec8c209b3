package signing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Options are what a Signer needs.
type Options struct {
	// Dir is the key folder. It is made where there is none. Required.
	Dir string
	// Origin is what the log is called. Default: what its key says, and
	// "larder.local/" with 8 random digits for a new one.
	Origin string
	// Store holds the log's tree, and Log grows in it. Required.
	Store *kvstore.Store
	Log   *logs.Log
	// Every is the least time between two signatures. Default 250 ms, and 5 s where
	// there are witnesses.
	Every time.Duration
	// Witnesses sign every checkpoint too, if they can, before it is shown. Default:
	// none.
	Witnesses []Witness
	// Client speaks to the witnesses. Default: one that waits 10 s for an answer.
	Client *http.Client
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: nobody.
	Registerer prometheus.Registerer
	// FS is where Dir is. Default: the real file system.
	FS vfs.FS
}

const (
	defaultEvery     = 250 * time.Millisecond
	witnessedEvery   = 5 * time.Second
	witnessTimeout   = 10 * time.Second
	longestRetryRest = time.Minute
)

// A Signer signs the checkpoints of one log. It is safe for concurrent use.
type Signer struct {
	options Options
	logger  *slog.Logger
	folder  *folder
	origin  string
	metrics *metrics

	// Run's alone. Before the witnesses were asked about the last signed checkpoint,
	// nothing new is signed: they may know that it would be a fork.
	witnesses []*witnessing
	asked     bool

	mu    sync.Mutex // serialises signing
	keys  keyring
	last  Signed // on the disk
	stuck error  // of a change of keys that only the next start can finish

	shown atomic.Pointer[shown]
}

// shown is what clients get: a checkpoint, or why there is none.
type shown struct {
	signed Signed
	err    error
}

// A RefusedError says why nothing is signed any more.
type RefusedError struct {
	// Reason is for everybody. It ends with what to do.
	Reason string
	// Cause is what was met on the way, or nil.
	Cause error
}

func (e *RefusedError) Error() string {
	if e.Cause != nil {
		return e.Reason + ": " + e.Cause.Error()
	}
	return e.Reason
}

func (e *RefusedError) Unwrap() error { return e.Cause }

// Open opens the key folder, and makes a key where there is none.
//
// Where the tree does not contain the last signed checkpoint, there is no error:
// the Signer is one that refuses, see [Signer.Checkpoint], so that everything else
// goes on.
func Open(o Options) (_ *Signer, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Every == 0 {
		o.Every = defaultEvery
		if len(o.Witnesses) > 0 {
			o.Every = witnessedEvery
		}
	}
	if o.Client == nil {
		o.Client = &http.Client{
			Timeout:       witnessTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(o.FS, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	s := &Signer{options: o, logger: o.Logger, folder: f}
	for _, w := range o.Witnesses {
		s.witnesses = append(s.witnesses, &witnessing{Witness: w, client: o.Client, pause: newPause(o.Every)})
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("signing: %w", err), f.close())
	}
	s.metrics = newMetrics(s, o.Registerer)
	return s, nil
}

func (s *Signer) open() error {
	fresh, err := s.loadKeys()
	if err != nil {
		return err
	}
	s.origin = s.keys[0].signer.Name()
	if !fresh {
		if err := s.settle(); err != nil {
			return err
		}
	}
	var refused *RefusedError
	switch err := s.loadCheckpoint(fresh); {
	case errors.As(err, &refused):
		s.refuse(refused)
		return nil
	case err != nil:
		return err
	}
	if fresh {
		// The first checkpoint comes before the key has its name. So a key without
		// a checkpoint is one whose checkpoint somebody has lost.
		if err := s.signNow(); err != nil {
			return err
		}
		if err := s.folder.rename(nextKeyFile, keyFile); err != nil {
			return fmt.Errorf("couldn't put the new key in place: %w", err)
		}
		s.logger.Info("made the key that signs the log; who verifies the log pins it", "origin", s.origin, "key", s.keys[0].public, "folder", s.folder.dir)
	}
	if !s.signedByAll() { // where a change of keys was cut short
		if err := s.signNow(); err != nil {
			return err
		}
	}
	s.show(shown{signed: s.last})
	return errors.Join(s.writePublic(), s.noteSigner())
}

// loadKeys reads the keys, and tells whether the present one is not yet in use.
func (s *Signer) loadKeys() (fresh bool, err error) {
	data, err := s.folder.read(keyFile)
	if err != nil {
		return false, err
	}
	name := keyFile
	if data == nil {
		fresh, name = true, nextKeyFile
		if data, err = s.folder.read(nextKeyFile); err != nil {
			return false, err
		}
	}
	if data == nil {
		if data, err = s.makeKey(); err != nil {
			return false, err
		}
	}
	present, err := parseKey(data)
	if err != nil {
		return false, fmt.Errorf("couldn't read %s: %w; put a good copy of it there", s.folder.path(name), err)
	}
	if o := s.options.Origin; o != "" && o != present.signer.Name() {
		return false, fmt.Errorf("the key in %s is that of the log %q, not of %q; leave the origin to the key, or choose another key folder for another log",
			s.folder.dir, present.signer.Name(), o)
	}
	s.keys = keyring{present}
	return fresh, s.loadOldKeys()
}

// makeKey makes the key of a new log.
func (s *Signer) makeKey() ([]byte, error) {
	if data, err := s.folder.read(checkpointFile); err != nil || data != nil {
		return nil, errors.Join(err, fmt.Errorf("there is a signed checkpoint in %s, but no %s; put the key back, or choose an empty key folder to begin a log that nobody knows yet",
			s.folder.dir, keyFile))
	}
	origin := s.options.Origin
	if origin == "" {
		origin = someOrigin()
	}
	if err := CheckOrigin(origin); err != nil {
		return nil, fmt.Errorf("the origin %q %w", origin, err)
	}
	k, err := newKey(origin)
	if err != nil {
		return nil, fmt.Errorf("couldn't make a key: %w", err)
	}
	data := []byte(k.private + "\n")
	return data, s.folder.write(nextKeyFile, data, true)
}

// loadCheckpoint reads the last signed checkpoint and holds the tree against it.
// Of a fresh key there need not be one yet.
func (s *Signer) loadCheckpoint(fresh bool) error {
	const restore = "put the latest one into the key folder, from a backup of that or from somebody who follows the log"
	data, err := s.folder.read(checkpointFile)
	if err != nil {
		return err
	}
	if data == nil {
		if fresh {
			return nil
		}
		return &RefusedError{Reason: "the last signed checkpoint is gone from the key folder, and without it nobody could tell a fork of the log; " + restore}
	}
	if s.last, _, err = open(data, s.origin, s.keys.verifiers()); err != nil {
		return &RefusedError{"the last signed checkpoint in the key folder cannot be read; " + restore, err}
	}
	if err = s.follows(s.options.Log.Checkpoint()); err == nil || errors.As(err, new(*RefusedError)) {
		return err
	}
	return &RefusedError{"the log's tree cannot be read; `larder fsck` tells what is damaged", err}
}

// follows returns an error where the tree of c does not contain the last signed
// checkpoint.
func (s *Signer) follows(c logs.Checkpoint) error {
	const remedy = ", as after restoring an old backup or damage to the end of the store; bring a store that has those entries, from a newer backup or from somebody who follows the log, " +
		"or choose another key folder, which begins a log with a new key that everybody has to be told"
	last := s.last.Checkpoint
	if c.Size < last.Size {
		return &RefusedError{Reason: fmt.Sprintf("the store has %d log entries, but a checkpoint of %d was signed before%s", c.Size, last.Size, remedy)}
	}
	contains, err := contains(s.options.Store, c, last)
	if err != nil {
		return err
	}
	if !contains {
		return &RefusedError{Reason: fmt.Sprintf("the store's log is another one than that of which a checkpoint of %d entries was signed before%s", last.Size, remedy)}
	}
	return nil
}

// contains reports whether the tree of c begins with the tree of before. It takes
// the stored hashes' word for nothing: what they say is checked as any client
// would check it.
func contains(r kvstore.Reader, c, before logs.Checkpoint) (bool, error) {
	switch {
	case c.Size == before.Size:
		return c.Root == before.Root, nil
	case before.Size == 0:
		empty, err := tlog.TreeHash(0, nil)
		return before.Root == empty, err
	}
	proof, err := tlog.ProveTree(c.Size, before.Size, logs.Hashes(r))
	if err != nil {
		return false, fmt.Errorf("couldn't prove that the log of %d entries contains that of %d: %w", c.Size, before.Size, err)
	}
	return tlog.CheckTree(proof, c.Size, c.Root, before.Size, before.Root) == nil, nil
}

// refuse ends signing until the next start.
func (s *Signer) refuse(err *RefusedError) {
	s.logger.Error("the log is not signed any more", "err", err, "keys", s.folder.dir)
	s.show(shown{err: err})
}

func (s *Signer) show(what shown) { s.shown.Store(&what) }

// refused returns why nothing is signed any more, nil where that is not so.
func (s *Signer) refused() error {
	if what := s.shown.Load(); what != nil {
		return what.err
	}
	return nil
}

// writePublic writes the verifier key beside the private one.
func (s *Signer) writePublic() error {
	want := s.keys[0].public + "\n"
	data, err := s.folder.read(publicFile)
	if err != nil || string(data) == want {
		return err
	}
	return s.folder.write(publicFile, []byte(want), false)
}

// Checkpoint returns the newest signed checkpoint that everybody may see, or a
// [*RefusedError].
func (s *Signer) Checkpoint() (Signed, error) {
	what := s.shown.Load()
	return what.signed, what.err
}

// Origin is what the log is called.
func (s *Signer) Origin() string { return s.origin }

// Key returns the verifier key that goes with the present key, to be pinned.
func (s *Signer) Key() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[0].public
}

// Folder is the key folder.
func (s *Signer) Folder() string { return s.folder.dir }

// Run signs whenever the log has grown, and has the witnesses sign, until ctx ends.
func (s *Signer) Run(ctx context.Context) {
	pause := newPause(s.options.Every)
	done := s.signedSize()
	if len(s.witnesses) > 0 {
		done = -1 // they may not have signed what there was
	}
	for s.refused() == nil {
		if !s.wait(ctx, done) {
			return
		}
		size, err := s.advance(ctx)
		if ctx.Err() != nil || errors.As(err, new(*RefusedError)) {
			return
		}
		rest := s.options.Every
		if err != nil {
			rest = pause.NextBackOff()
			s.logger.Error("couldn't sign the log; trying again", "err", err, "after", rest)
		} else {
			done = size
			pause.Reset()
		}
		if !sleep(ctx, rest) {
			return
		}
	}
}

// newPause returns the times between attempts at what failed.
func newPause(first time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: longestRetryRest}
	b.Reset()
	return b
}

// wait returns when the log has more than size entries, or a witness that has not
// signed is to be asked again. It reports whether ctx lives.
func (s *Signer) wait(ctx context.Context, size int64) bool {
	waiting := ctx
	if next, ok := s.nextAsked(); ok {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, next)
		defer cancel()
	}
	_, _ = s.options.Log.Wait(waiting, size) // its error is that of a context
	return ctx.Err() == nil
}

// advance signs what is in the log now, has the witnesses sign it, and shows it
// with what signatures there are then.
func (s *Signer) advance(ctx context.Context) (size int64, err error) {
	if len(s.witnesses) == 0 {
		err := s.Sign()
		return s.signedSize(), err
	}
	s.mu.Lock()
	if s.asked {
		err = s.signOrRefuse()
	}
	signed := s.last
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s.asked = true
	witnessed := signed
	if signed.Size > 0 { // of an empty log there is nothing to witness
		if witnessed, err = s.witness(ctx, signed); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(s.last.Note, signed.Note) {
		return signed.Size, nil // somebody has signed more, and shown that
	}
	if !bytes.Equal(witnessed.Note, signed.Note) {
		if err := s.folder.write(checkpointFile, witnessed.Note, false); err != nil {
			return 0, fmt.Errorf("signing: %w", err)
		}
		s.last = witnessed
	}
	s.show(shown{signed: s.last})
	return signed.Size, nil
}

// sleep returns whether ctx lived that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Signer) signedSize() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Size
}

// Sign signs what is in the log now, if that is not signed yet, and shows it
// without asking the witnesses.
func (s *Signer) Sign() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.signOrRefuse()
	if err == nil {
		s.show(shown{signed: s.last})
	}
	return err
}

// signOrRefuse is signNow, for a Signer that may have to refuse from now on.
func (s *Signer) signOrRefuse() error {
	if err := s.refused(); err != nil {
		return err
	}
	err := s.signNow()
	var refused *RefusedError
	if errors.As(err, &refused) {
		s.refuse(refused)
	}
	return err
}

// signNow brings the last signed checkpoint up to date, on the disk and in s.last.
func (s *Signer) signNow() error {
	c := s.options.Log.Checkpoint()
	if s.last.Note != nil {
		if err := s.follows(c); err != nil {
			return err
		}
		if c == s.last.Checkpoint && s.signedByAll() {
			return nil
		}
	}
	signed, err := sign(s.origin, c, s.keys)
	if err != nil {
		return err
	}
	if err := s.folder.write(checkpointFile, signed.Note, false); err != nil {
		s.metrics.failed()
		return fmt.Errorf("signing: %w", err)
	}
	s.metrics.signed()
	s.last = signed
	return nil
}

// signedByAll reports whether every key has signed the last checkpoint.
func (s *Signer) signedByAll() bool {
	n, err := note.Open(s.last.Note, s.keys.verifiers())
	return err == nil && hasAll(n, s.keys)
}

// Close signs what was appended last, and closes the key folder. Nothing may be
// appended any more, and Run must have ended.
func (s *Signer) Close() error {
	var err error
	if s.refused() == nil {
		err = s.Sign()
	}
	s.metrics.unregister()
	return errors.Join(err, s.folder.close())
}
