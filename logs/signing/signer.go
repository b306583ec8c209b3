package signing

import (
	"bytes"
	"cmp"
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
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Options are the options of a Signer.
type Options struct {
	// Dir is the key folder, which is created if it does not exist. Required.
	Dir string
	// Origin is the name of the log. Default: that of its key, or "larder.local/" with 8 random digits for a new key.
	Origin string
	// Store holds the log's tree, and Log grows in it. Required.
	Store *kvstore.Store
	Log   *logs.Log
	// Now is the clock by which checkpoints are cosigned. Default [time.Now].
	Now func() time.Time
	// Every is the least time between two signatures. Default 250 ms, and 5 s with witnesses.
	Every time.Duration
	// Policy says which witnesses must cosign a checkpoint before it is published. Default: none.
	Policy *Policy
	// Client is for requests to witnesses. Default: one that waits 10 s for a response and follows no redirects.
	Client *http.Client
	// Logger logs failures. Required.
	Logger *slog.Logger
	// Registerer registers the metrics. Default: none.
	Registerer prometheus.Registerer
	// FS is where Dir is. Default: the real file system.
	FS vfs.FS
}

const (
	defaultEvery     = 250 * time.Millisecond
	witnessedEvery   = 5 * time.Second
	witnessTimeout   = 10 * time.Second
	maxRetryInterval = time.Minute
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

	mu          sync.Mutex    // serialises signing
	changed     chan struct{} // closed when something below changes
	keys        keyring
	last        Signed          // the last one that was signed, on the disk; with the log's signatures alone
	inStore     logs.Checkpoint // the last one that was signed of the log in the store
	confirmed   bool            // whether nothing newer was signed elsewhere, by the word of the witnesses
	running     bool
	disputes    map[string]string // what disputes the log, by file
	proven      map[string]bool   // those files that hold an Evidence
	rotationErr error             // of a change of keys that only the next start can finish
	unconfirmed bool              // the log may announce the key in nextKeyFile: its commit is not confirmed

	published atomic.Pointer[published]
}

// A published is the signed data that clients get. They read it without a lock, so that they never wait for a disk or a witness.
type published struct {
	signed  Signed
	inStore logs.Checkpoint
	key     string // the verifier key
	err     error  // why no other checkpoint follows
}

// A RefusedError says why nothing is signed any more.
type RefusedError struct {
	// Reason is public. It ends with what to do.
	Reason string
	// Cause is the error that led to it, or nil.
	Cause error
}

// Error returns the reason, and the cause if there is one.
func (e *RefusedError) Error() string {
	if e.Cause != nil {
		return e.Reason + ": " + e.Cause.Error()
	}
	return e.Reason
}

// Unwrap returns the cause, or nil.
func (e *RefusedError) Unwrap() error { return e.Cause }

// Open opens the key folder and locks it until Close. A folder without a key gets one, which signs the first checkpoint. Open
// publishes the checkpoint that was published before, finishes a change of keys that was interrupted, and registers the
// metrics.
//
// If the tree does not contain the last signed checkpoint, there is no error: the Signer refuses to sign, see
// [Signer.Checkpoint], so that everything else continues.
func Open(o Options) (_ *Signer, err error) {
	o.FS = cmp.Or(o.FS, vfs.Default)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Every == 0 {
		o.Every = defaultEvery
		if o.Policy != nil {
			o.Every = witnessedEvery
		}
	}
	o.Client = cmp.Or(o.Client, newWitnessClient())
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(o.FS, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	s := &Signer{options: o, policy: o.Policy, logger: o.Logger, folder: f, changed: make(chan struct{}), disputes: map[string]string{}, proven: map[string]bool{}}
	s.published.Store(&published{})
	s.metrics = newMetrics(s)
	if o.Policy != nil {
		for _, w := range o.Policy.witnesses {
			s.witnesses = append(s.witnesses, &witness{Witness: w, client: o.Client})
		}
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("signing: %w", err), f.unlock())
	}
	s.metrics.register(o.Registerer)
	return s, nil
}

// Checkpoint returns the newest checkpoint that clients may see, and a [*RefusedError] if no newer one will follow. It has no
// Note if the last one was lost, or while the first one waits for witnesses.
func (s *Signer) Checkpoint() (Signed, error) {
	what := s.published.Load()
	return what.signed, what.err
}

// SignedInStore returns the last checkpoint that was signed of the log in the store. While signing is refused, it may be
// smaller than that of [Signer.Checkpoint], and the store may have entries that do not belong to it.
func (s *Signer) SignedInStore() logs.Checkpoint { return s.published.Load().inStore }

// Problem returns why the newest entries are not signed and published: a [*RefusedError], or which witnesses are missing. It
// returns nil if nothing prevents that.
func (s *Signer) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil || s.isPublished() || s.running && s.mayReachQuorum() {
		return err
	}
	return s.missingWitnesses()
}

// Origin returns the name of the log.
func (s *Signer) Origin() string { return s.origin }

// Key returns the verifier key of the present key, for clients to pin.
func (s *Signer) Key() string { return s.published.Load().key }

// Folder returns the path of the key folder.
func (s *Signer) Folder() string { return s.folder.dir }

// Part returns a [parts.Part] that runs the signer until its context ends. Stopping the part does not close the signer: the code that
// opened it must.
func (s *Signer) Part() parts.Part { return parts.Part{Name: "signer", Run: parts.RunUntilDone(s.Run)} }

// Run signs the log whenever it has grown, cosigns the last checkpoint every hour, and requests the witnesses' cosignatures,
// until ctx ends or signing is refused. It logs an error of signing and tries again. If the log had witnesses and has none
// any more, and the file of the published checkpoint cannot be deleted, it logs that and ends.
//
// It signs nothing before the policy's witnesses have confirmed the last signed checkpoint, because they know more if store
// and key folder are both from an old backup. It signs nothing before that checkpoint is published, so that slow witnesses
// can keep up.
func (s *Signer) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var consulting sync.WaitGroup
	defer consulting.Wait()
	defer cancel()
	if err := s.startRun(); err != nil {
		s.logger.Error("couldn't continue the log without witnesses", "err", err)
		return
	}
	for _, w := range s.witnesses {
		if w.URL != "" {
			consulting.Go(func() { s.runWitness(ctx, w) })
		}
	}
	pause := newBackoff(s.options.Every)
	for s.awaitCondition(ctx, s.isPublished) {
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
		if retry.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// startRun marks the signer as running. If the log had witnesses and has none any more, and signing is not refused, it
// deletes the file of the published checkpoint, counts the last signed one as confirmed, and publishes that in memory. The
// error says that the file could not be deleted; then nothing is confirmed or published.
func (s *Signer) startRun() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = true
	if len(s.witnesses) > 0 || s.confirmed || s.refusal() != nil {
		return nil
	}
	s.logger.Warn("the log continues without the witnesses that it had")
	if err := s.folder.remove(publishedFile); err != nil {
		return err
	}
	s.confirmed = true
	return s.publishIfMet()
}

// awaitCondition waits until cond, which is called with s.mu held, returns true. It reports whether that happened: it
// returns false if ctx ends or signing is refused.
func (s *Signer) awaitCondition(ctx context.Context, cond func() bool) bool {
	for {
		s.mu.Lock()
		met, refused, changed := cond(), s.refusal(), s.changed
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

// awaitWork waits until the log has grown beyond the last signed checkpoint, or its last cosignature must be renewed, and
// returns nil then. The error says that ctx has ended.
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

// notifyWaiters has the goroutines in awaitCondition evaluate their condition again. The caller holds s.mu, unless it is
// still opening the Signer.
func (s *Signer) notifyWaiters() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// newBackoff returns the intervals between attempts: about first, varied at random, and then twice as long each time, up to
// a minute.
func newBackoff(first time.Duration) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: maxRetryInterval}
	b.Reset()
	return b
}

// Sign signs the log, unless its entries are signed and were cosigned within the last hour. Then it publishes the last
// signed checkpoint if that has the cosignatures that the policy requires. The error says that witnesses have not confirmed
// the last signed checkpoint yet, or that signing fails or is refused.
func (s *Signer) Sign() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sign()
}

// sign does what Sign does, with s.mu held.
func (s *Signer) sign() error {
	if err := s.checkMaySign(); err != nil {
		return err
	}
	err := s.signIfNeeded()
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		s.refuseSigning(refused)
	}
	if err != nil {
		return err
	}
	return s.publishIfMet()
}

// checkMaySign returns why the signer may not sign anything new: signing is refused, or witnesses have not confirmed the
// last signed checkpoint. It returns nil if it may. The caller holds s.mu.
func (s *Signer) checkMaySign() error {
	if err := s.refusal(); err != nil || s.confirmed {
		return err
	}
	return s.missingWitnesses()
}

// mayReachQuorum reports whether the witnesses that have a URL, and whose last request has not failed, are enough for the
// policy. The caller holds s.mu.
func (s *Signer) mayReachQuorum() bool {
	return s.policy.isMet(func(i int) bool { return s.witnesses[i].URL != "" && s.witnesses[i].err == nil })
}

// missingWitnesses returns an error that lists the witnesses which have not confirmed the last signed checkpoint, and why.
// It never returns nil. The caller holds s.mu.
func (s *Signer) missingWitnesses() error {
	var waits []string
	for _, w := range s.witnesses {
		switch {
		case w.agrees && w.cosignedTree == s.last.Checkpoint:
		case w.URL == "":
			waits = append(waits, w.Verifier.Name()+" (it has no URL)")
		case w.err == nil:
			waits = append(waits, w.Verifier.Name()+" (no request yet)")
		default:
			waits = append(waits, fmt.Sprintf("%s (%v)", w.Verifier.Name(), w.err))
		}
	}
	if waits == nil {
		return errors.New("the log has witnesses, and only a process that serves it or fills it requests their cosignatures")
	}
	return fmt.Errorf("too few witnesses have confirmed the last signed checkpoint, of %d entries, so newer ones cannot be published; missing: %s", s.last.Size, strings.Join(waits, ", "))
}

// signIfNeeded signs and stores the log's checkpoint, unless that is signed and cosigned within the last hour. It does not
// publish it, unless it first finishes a change of the key whose commit was confirmed meanwhile. The error is a
// [*RefusedError] if the log does not contain the last signed checkpoint; any other one says that reading or writing failed.
func (s *Signer) signIfNeeded() error {
	if s.unconfirmed {
		if done, err := s.finishAnnounced(); done || err != nil {
			return err
		}
	}
	c := s.options.Log.Checkpoint()
	if s.last.Note != nil {
		if err := s.checkExtendsLast(c); err != nil {
			return err
		}
		if c == s.last.Checkpoint && c == s.inStore && !s.renewalDue() {
			return nil
		}
	}
	return s.signAndStore(c, s.options.Now())
}

// storeCosignatures records that a witness has cosigned a checkpoint with these lines, and publishes the last signed
// checkpoint if it has enough cosignatures. The error is about publishing it.
func (s *Signer) storeCosignatures(w *witness, signed Signed, lines []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.cosignedTree, w.sentNote, w.lines, w.agrees, w.err = signed.Checkpoint, signed.Note, lines, true, nil
	return s.publishIfMet()
}

// isPublished reports whether a checkpoint of the last signed tree is published, and confirmed: no newer one was signed
// elsewhere, by the word of the witnesses. The caller holds s.mu.
func (s *Signer) isPublished() bool {
	return s.confirmed && s.published.Load().signed.Checkpoint == s.last.Checkpoint
}

// publishIfMet publishes the last signed checkpoint with all of its cosignatures, if these satisfy the policy. If they do
// not, it publishes nothing and returns nil. It also sets s.confirmed if enough witnesses have cosigned for this Signer. The
// caller holds s.mu, unless it is still opening the Signer.
func (s *Signer) publishIfMet() error {
	signed := Signed{s.last.Checkpoint, bytes.Clone(s.last.Note)}
	for _, w := range s.witnesses {
		if w.cosignedTree == s.last.Checkpoint {
			signed.Note = append(signed.Note, w.lines...)
		}
	}
	has := func(i int) bool { return s.witnesses[i].cosignedTree == s.last.Checkpoint }
	if len(s.witnesses) > 0 && s.policy.isMet(func(i int) bool { return has(i) && s.witnesses[i].agrees }) {
		s.confirmed = true
	}
	if !s.policy.isMet(has) {
		return nil
	}
	return s.publishCheckpoint(signed)
}

// publishCheckpoint publishes a checkpoint to clients. If the log has witnesses and the checkpoint has a note, it first
// writes that to the key folder; if this fails, it publishes nothing. The caller holds s.mu, unless it is still opening the
// Signer.
func (s *Signer) publishCheckpoint(signed Signed) error {
	if len(s.witnesses) > 0 && signed.Note != nil {
		if err := s.folder.write(publishedFile, signed.Note, false); err != nil {
			return fmt.Errorf("signing: %w", err)
		}
	}
	s.setPublished(signed, s.refusal())
	return nil
}

// setPublished publishes a checkpoint to clients, with the present key, and with err as the reason why no other one follows,
// nil if others do. It notifies waiters, and writes nothing to the disk. The caller holds s.mu, unless it is still opening
// the Signer.
func (s *Signer) setPublished(signed Signed, err error) {
	s.published.Store(&published{signed, s.inStore, s.keys[0].public, err})
	s.notifyWaiters()
}

// refuseSigning ends signing until the next start, for the reason err, and logs that. The published checkpoint stays.
func (s *Signer) refuseSigning(err *RefusedError) {
	s.logger.Error("the log is not signed any more", "err", err, "keys", s.folder.dir)
	s.setPublished(s.published.Load().signed, err)
}

// refusal returns why nothing is signed any more, nil if signing goes on.
func (s *Signer) refusal() error { return s.published.Load().err }

// Close signs the last entries, if the witnesses have confirmed what was signed before and signing is not refused. In any
// case it unregisters the metrics and unlocks the key folder. Nothing may be appended after that, and Run must have ended.
// It must be called once.
func (s *Signer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.checkMaySign() == nil {
		err = s.sign()
	}
	s.metrics.unregister()
	return errors.Join(err, s.folder.unlock())
}
