package signing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Options are what a Signer needs.
type Options struct {
	// Dir is the key folder, which is created if it does not exist. Required.
	Dir string
	// Origin is what the log is called. Default: what its key says, and
	// "larder.local/" with 8 random digits for a new one.
	Origin string
	// Store holds the log's tree, and Log grows in it. Required.
	Store *kvstore.Store
	Log   *logs.Log
	// Now is the clock by which checkpoints are cosigned. Default [time.Now].
	Now func() time.Time
	// Every is the least time between two signatures. Default 250 ms, and 5 s where
	// there are witnesses.
	Every time.Duration
	// Policy says which witnesses sign a checkpoint too before it is shown. Default:
	// none.
	Policy *Policy
	// Client speaks to the witnesses. Default: one that waits 10 s for an answer and
	// follows no redirects.
	Client *http.Client
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
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
	options   Options
	policy    *Policy
	logger    *slog.Logger
	folder    *folder
	origin    string
	metrics   *metrics
	witnesses []*witness // those of the policy, in its order

	mu       sync.Mutex    // serialises signing
	changed  chan struct{} // closed when something below changes
	keys     keyring
	last     Signed          // the last one that was signed, on the disk; with the log's signatures alone
	held     logs.Checkpoint // the last one that was signed of the log in the store
	sure     bool            // whether nothing newer was signed elsewhere, by the word of the witnesses
	running  bool
	disputes map[string]string // what disputes the log, by file
	proven   map[string]bool   // those files that hold an Evidence
	stuck    error             // of a change of keys that only the next start can finish

	shown atomic.Pointer[showing]
}

// A showing is what clients get. It is read without a lock, so that they never wait for a
// disk or a witness.
type showing struct {
	signed Signed
	held   logs.Checkpoint
	key    string // the verifier key
	err    error  // why no other checkpoint follows
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

// Open opens the key folder, and creates a key if it has none.
//
// Where the tree does not contain the last signed checkpoint, there is no error:
// the Signer is one that refuses, see [Signer.Checkpoint], so that everything else
// goes on.
func Open(o Options) (_ *Signer, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Every == 0 {
		o.Every = defaultEvery
		if o.Policy != nil {
			o.Every = witnessedEvery
		}
	}
	if o.Client == nil {
		o.Client = newClient()
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(o.FS, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	s := &Signer{options: o, policy: o.Policy, logger: o.Logger, folder: f, changed: make(chan struct{}), disputes: map[string]string{}, proven: map[string]bool{}}
	s.shown.Store(&showing{})
	if o.Policy != nil {
		for _, w := range o.Policy.witnesses {
			s.witnesses = append(s.witnesses, &witness{Witness: w, client: o.Client})
		}
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("signing: %w", err), f.close())
	}
	s.metrics = newMetrics(s, o.Registerer)
	return s, nil
}

// Checkpoint returns the newest checkpoint that clients may see, and a [*RefusedError]
// where no newer one will follow. It has no Note where the last one was lost, or where the
// first one waits for witnesses.
func (s *Signer) Checkpoint() (Signed, error) {
	what := s.shown.Load()
	return what.signed, what.err
}

// Held returns the last checkpoint that was signed of the log in the store. Where signing is
// refused, that may be less than [Signer.Checkpoint] returns, and there may be entries that
// do not belong to it.
func (s *Signer) Held() logs.Checkpoint { return s.shown.Load().held }

// Problem returns why the newest entries are not signed and shown, nil where nothing keeps
// them from it: a [*RefusedError], or which witnesses are missing.
func (s *Signer) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refused(); err != nil || s.settled() || s.running && s.hopeful() {
		return err
	}
	return s.missing()
}

// Origin is what the log is called.
func (s *Signer) Origin() string { return s.origin }

// Key returns the verifier key that goes with the present key, to be pinned.
func (s *Signer) Key() string { return s.shown.Load().key }

// Folder is the key folder.
func (s *Signer) Folder() string { return s.folder.dir }

// Part signs the log. Its owner closes the signer.
func (s *Signer) Part() parts.Part { return parts.Part{Name: "signer", Run: parts.RunUntilDone(s.Run)} }

// Run signs whenever the log has grown, cosigns the last checkpoint every hour, and has the
// witnesses sign, until ctx ends.
//
// Nothing is signed before the policy's witnesses have confirmed what was signed last:
// where store and key folder are both from an old backup, they know more. Nor is anything
// signed before that is shown, so that slow witnesses are not left behind.
func (s *Signer) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var consulting sync.WaitGroup
	defer consulting.Wait()
	defer cancel()
	if err := s.start(); err != nil {
		s.logger.Error("couldn't go on without witnesses", "err", err)
		return
	}
	for _, w := range s.witnesses {
		if w.URL != "" {
			consulting.Go(func() { s.consult(ctx, w) })
		}
	}
	pause := newPause(s.options.Every)
	for s.await(ctx, s.settled) {
		if err := s.awaitWork(ctx); err != nil {
			return
		}
		rest := s.options.Every
		if err := s.Sign(); errors.As(err, new(*RefusedError)) {
			return
		} else if err != nil {
			rest = pause.NextBackOff()
			s.logger.Error("couldn't sign the log; trying again", "err", err, "after", rest)
		} else {
			pause.Reset()
		}
		if !sleep(ctx, rest) {
			return
		}
	}
}

// start has Run begin. Without witnesses, those that the log has had are not waited for.
func (s *Signer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = true
	if len(s.witnesses) > 0 || s.sure || s.refused() != nil {
		return nil
	}
	s.logger.Warn("the log goes on without the witnesses that it had")
	if err := s.folder.remove(publishedFile); err != nil {
		return err
	}
	s.sure = true
	return s.publish()
}

// await returns once cond is true, which is asked with s.mu held. It reports whether ctx
// lives and signing goes on.
func (s *Signer) await(ctx context.Context, cond func() bool) bool {
	for {
		s.mu.Lock()
		met, refused, changed := cond(), s.refused(), s.changed
		s.mu.Unlock()
		if met || refused != nil || ctx.Err() != nil {
			return refused == nil && ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// awaitWork returns once the log has grown, or its last cosignature is due to be renewed.
func (s *Signer) awaitWork(ctx context.Context) error {
	for {
		s.mu.Lock()
		size, due := s.last.Size, s.renewalDue()
		s.mu.Unlock()
		if due {
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, renewCheck)
		_, err := s.options.Log.Wait(limited, size)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// notify has await ask again.
func (s *Signer) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// newPause returns the times between attempts at what failed.
func newPause(first time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: longestRetryRest}
	b.Reset()
	return b
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

// Sign signs what is in the log now, if that is not signed yet, or not cosigned within the last hour. It is shown once the policy
// has the cosignatures that it asks for. There is an error where witnesses have yet to
// confirm what was signed before.
func (s *Signer) Sign() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sign()
}

func (s *Signer) sign() error {
	if err := s.maySign(); err != nil {
		return err
	}
	err := s.signNow()
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		s.refuse(refused)
	}
	if err != nil {
		return err
	}
	return s.publish()
}

// maySign returns why the signer may not sign anything new.
func (s *Signer) maySign() error {
	if err := s.refused(); err != nil || s.sure {
		return err
	}
	return s.missing()
}

// hopeful reports whether witnesses that have not failed are enough.
func (s *Signer) hopeful() bool {
	return s.policy.met(func(i int) bool { return s.witnesses[i].URL != "" && s.witnesses[i].err == nil })
}

// missing says what the last signed checkpoint waits for.
func (s *Signer) missing() error {
	var waits []string
	for _, w := range s.witnesses {
		switch {
		case w.agrees && w.on == s.last.Checkpoint:
		case w.URL == "":
			waits = append(waits, w.Verifier.Name()+" (it has no URL)")
		case w.err == nil:
			waits = append(waits, w.Verifier.Name()+" (not asked yet)")
		default:
			waits = append(waits, fmt.Sprintf("%s (%v)", w.Verifier.Name(), w.err))
		}
	}
	if waits == nil {
		return errors.New("the log has witnesses, and only a process that serves it or fills it asks them")
	}
	return fmt.Errorf("too few witnesses have confirmed the last signed checkpoint, of %d entries, for newer ones to be shown; missing: %s", s.last.Size, strings.Join(waits, ", "))
}

// signNow brings the last signed checkpoint up to date.
func (s *Signer) signNow() error {
	c := s.options.Log.Checkpoint()
	if s.last.Note != nil {
		if err := s.follows(c); err != nil {
			return err
		}
		if c == s.last.Checkpoint && c == s.held && !s.renewalDue() {
			return nil
		}
	}
	return s.keep(c, s.options.Now())
}

// cosigned stores a witness's cosignatures of a checkpoint.
func (s *Signer) cosigned(w *witness, signed Signed, lines []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.on, w.note, w.lines, w.agrees, w.err = signed.Checkpoint, signed.Note, lines, true, nil
	return s.publish()
}

// settled reports whether the last signed checkpoint is confirmed and shown.
func (s *Signer) settled() bool {
	return s.sure && s.shown.Load().signed.Checkpoint == s.last.Checkpoint
}

// publish shows the last signed checkpoint, if it has the cosignatures that the policy asks
// for, with all that there are.
func (s *Signer) publish() error {
	signed := Signed{s.last.Checkpoint, bytes.Clone(s.last.Note)}
	for _, w := range s.witnesses {
		if w.on == s.last.Checkpoint {
			signed.Note = append(signed.Note, w.lines...)
		}
	}
	has := func(i int) bool { return s.witnesses[i].on == s.last.Checkpoint }
	if len(s.witnesses) > 0 && s.policy.met(func(i int) bool { return has(i) && s.witnesses[i].agrees }) {
		s.sure = true
	}
	if !s.policy.met(has) {
		return nil
	}
	return s.show(signed)
}

// show has clients get a checkpoint, also after the next start.
func (s *Signer) show(signed Signed) error {
	if len(s.witnesses) > 0 && signed.Note != nil {
		if err := s.folder.write(publishedFile, signed.Note, false); err != nil {
			return fmt.Errorf("signing: %w", err)
		}
	}
	s.expose(signed, s.refused())
	return nil
}

func (s *Signer) expose(signed Signed, err error) {
	s.shown.Store(&showing{signed, s.held, s.keys[0].public, err})
	s.notify()
}

// refuse ends signing until the next start. What is shown stays.
func (s *Signer) refuse(err *RefusedError) {
	s.logger.Error("the log is not signed any more", "err", err, "keys", s.folder.dir)
	s.expose(s.shown.Load().signed, err)
}

// refused returns why nothing is signed any more, nil where that is not so.
func (s *Signer) refused() error { return s.shown.Load().err }

// Close signs what was appended last, if the witnesses have confirmed what was signed
// before, and closes the key folder. Nothing may be appended any more, and Run must have
// ended.
func (s *Signer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.maySign() == nil {
		err = s.sign()
	}
	s.metrics.unregister()
	return errors.Join(err, s.folder.close())
}
