package witness

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// renewEvery is how old the cosignature of a polled log that does not grow may become before it is renewed.
const renewEvery = time.Hour

// pollInterval is how long the witness waits before it polls the Larders again, and pollTimeout bounds a poll.
const (
	pollInterval = 10 * time.Second
	pollTimeout  = time.Minute
)

// A source is a Larder whose log is polled.
type source struct {
	url      string
	keys     []string // that have signed the log, the oldest first; none before the first poll
	reported string   // the last failure
}

// addSource adds a Larder, by its URL, whose log the witness polls. It reads the keys that earlier runs stored for it, and
// accepts them. It sends no request.
func (w *Witness) addSource(url string) error {
	s := &source{url: strings.TrimRight(url, "/")}
	data, err := os.ReadFile(w.folder.keysFile(s.url))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("couldn't read the keys of the log at %s: %w", s.url, err)
	}
	s.keys = strings.Fields(string(data))
	for _, key := range s.keys {
		if _, err := w.addKey(key); err != nil {
			return fmt.Errorf("%s: %w; put a good copy there", w.folder.keysFile(s.url), err)
		}
	}
	w.sources = append(w.sources, s)
	return nil
}

// keysFile returns the path of the file with the keys of the log at a URL.
func (f *folder) keysFile(url string) string {
	return f.path(fmt.Sprintf("%x.keys", sha256.Sum256([]byte(url))))
}

// Run polls the logs that are given by URL, one after the other, with 10 seconds between two rounds, until ctx ends. It logs the error of a
// poll, unless the poll of that log before had the same.
func (w *Witness) Run(ctx context.Context) {
	if len(w.sources) == 0 {
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		for _, s := range w.sources {
			err := w.poll(ctx, s)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				s.reported = ""
			case err.Error() != s.reported:
				s.reported = err.Error()
				w.logger.Warn("couldn't cosign a polled log", "url", s.url, "err", err)
			}
		}
		_ = retry.Sleep(ctx, pollInterval) // the loop ends with ctx
	}
}

// poll cosigns what the log of a Larder has signed since the last poll, or renews an old cosignature. If there is nothing to
// cosign, it returns nil. The first poll trusts the key that the server names; each stores the key if it is new. The error
// says why poll did not cosign; after a fork, the evidence is stored.
func (w *Witness) poll(ctx context.Context, s *source) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	o := verify.Options{Server: s.url, UserAgent: "larder witness"}
	if len(s.keys) == 0 {
		key, err := verify.FetchKey(ctx, o)
		if err != nil {
			return err
		}
		w.logger.Warn("trusting the key that the log's server names; compare it with the one that the operator publishes", "url", s.url, "key", key)
		if err := w.acceptKey(s, key); err != nil {
			return err
		}
	}
	o.Trust.Key = s.keys[0]
	o.Known = func(string) (verify.KnownLog, bool) { return w.knownLog(s) }
	log, err := verify.Open(ctx, o)
	if fork := (*verify.ForkError)(nil); errors.As(err, &fork) {
		return errors.Join(err, w.storeEvidence(s, fork.Evidence))
	}
	if err != nil {
		return err
	}
	if err := log.Unverified(); err != nil {
		return err
	}
	if !slices.Contains(s.keys, log.Key()) { // which the log has proven
		if err := w.acceptKey(s, log.Key()); err != nil {
			return err
		}
	}
	l := w.logByOrigin(log.Origin())
	signed, err := l.openCheckpoint(log.Note())
	if err != nil {
		return err
	}
	last := l.lastCosigned()
	switch {
	case signed.Size < last.Size:
		return fmt.Errorf("it has %d entries, and %d were cosigned", signed.Size, last.Size)
	case last.Note != nil && signed.Checkpoint == last.Checkpoint && w.now().Sub(l.cosignedAt()) < renewEvery:
		return nil
	}
	var proven error
	if last.Size > 0 && last.Size < signed.Size {
		proven = log.CheckContains(ctx, last.Checkpoint)
		if ctx.Err() != nil || proven != nil && !errors.As(proven, new(*verify.Difference)) {
			return errors.Join(proven, ctx.Err()) // it says nothing about the log
		}
	}
	_, err = w.cosignAfter(l, last.Size, signed, func(signing.Signed) error { return proven })
	return err
}

// knownLog returns the keys and the last cosigned checkpoint of a polled log, and reports whether one was cosigned, also by
// an earlier run. With it, [verify.Open] detects a log that does not continue it, with evidence. The source must have a key.
func (w *Witness) knownLog(s *source) (verify.KnownLog, bool) {
	origin, _, _ := strings.Cut(s.keys[0], "+")
	last := w.logByOrigin(origin).lastCosigned()
	newest := len(s.keys) - 1
	return verify.KnownLog{Key: s.keys[newest], Former: s.keys[:newest], Checkpoint: string(last.Note)}, last.Note != nil
}

// storeEvidence logs that a polled log has forked, and stores the evidence in the folder.
func (w *Witness) storeEvidence(s *source, e *signing.Evidence) error {
	proof, err := e.Encode()
	if err != nil {
		return err
	}
	origin, _, _ := strings.Cut(s.keys[0], "+")
	w.logger.Error("a polled log has forked; the evidence is stored", "log", origin, "url", s.url, "folder", w.folder.dir)
	return w.folder.storeEvidence(origin, proof)
}

// acceptKey adds a verifier key to those of a polled log, whose signatures count from now on, and stores it. If no
// checkpoint of the log is known, it then reads the stored one. The caller has verified that the log has changed to that
// key, or trusts it as the first one.
func (w *Witness) acceptKey(s *source, key string) error {
	l, err := w.addKey(key)
	if err != nil {
		return err
	}
	keys := append(slices.Clone(s.keys), key)
	if err := disk.Replace(w.folder.keysFile(s.url), []byte(strings.Join(keys, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	s.keys = keys
	if l.lastCosigned().Note == nil { // it may have been witnessed by another key before
		return w.folder.readCheckpoint(l)
	}
	return nil
}

// cosignedAt returns when this process cosigned the log last, zero if it has not.
func (l *witnessed) cosignedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signed
}

// lastCosigned returns the checkpoint that was cosigned last; one of no entries, without a Note, if none was.
func (l *witnessed) lastCosigned() signing.Signed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}
