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
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// renewEvery is how old the cosignature of a log that is followed and does not grow may become before it is renewed.
const renewEvery = time.Hour

// looksEvery is how often a log is looked at that is followed, and looksFor how long a look may take.
const (
	looksEvery = 10 * time.Second
	looksFor   = time.Minute
)

// A source is a Larder whose log is followed.
type source struct {
	url  string
	keys []string // that have signed it, the oldest first; none before the first look
	told string   // the last failure
}

// addSource has a Larder's log be followed. What was remembered of its keys counts.
func (w *Witness) addSource(url string) error {
	s := &source{url: strings.TrimRight(url, "/")}
	data, err := os.ReadFile(w.folder.keysOf(s.url))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("couldn't read the keys of the log at %s: %w", s.url, err)
	}
	s.keys = strings.Fields(string(data))
	for _, key := range s.keys {
		if _, err := w.addKey(key); err != nil {
			return fmt.Errorf("%s: %w; put a good copy there", w.folder.keysOf(s.url), err)
		}
	}
	w.sources = append(w.sources, s)
	return nil
}

// keysOf is where the keys of a log that is followed are.
func (f *folder) keysOf(url string) string {
	return f.path(fmt.Sprintf("%x.keys", sha256.Sum256([]byte(url))))
}

// Run follows the logs that are given by URL until ctx ends.
func (w *Witness) Run(ctx context.Context) {
	if len(w.sources) == 0 {
		<-ctx.Done()
		return
	}
	ticks := time.NewTicker(looksEvery)
	defer ticks.Stop()
	for {
		for _, s := range w.sources {
			err := w.look(ctx, s)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				s.told = ""
			case err.Error() != s.told:
				s.told = err.Error()
				w.logger.Warn("couldn't cosign a log that is followed", "url", s.url, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// look cosigns what a log has signed since the last look.
func (w *Witness) look(ctx context.Context, s *source) error {
	ctx, cancel := context.WithTimeout(ctx, looksFor)
	defer cancel()
	o := verify.Options{Server: s.url, UserAgent: "larder witness"}
	if len(s.keys) == 0 {
		key, err := verify.FetchKey(ctx, o)
		if err != nil {
			return err
		}
		w.logger.Warn("trusting the key that a log names itself; compare it with one that you had elsewhere", "url", s.url, "key", key)
		if err := w.remember(s, key); err != nil {
			return err
		}
	}
	o.Trust.Key = s.keys[0]
	o.Known = func(string) (verify.KnownLog, bool) { return w.known(s) }
	log, err := verify.Open(ctx, o)
	if fork := (*verify.ForkError)(nil); errors.As(err, &fork) {
		return errors.Join(err, w.keepEvidence(s, fork.Evidence))
	}
	if err != nil {
		return err
	}
	if err := log.Unverified(); err != nil {
		return err
	}
	if !slices.Contains(s.keys, log.Key()) { // which the log has proven
		if err := w.remember(s, log.Key()); err != nil {
			return err
		}
	}
	l := w.log(log.Origin())
	signed, err := l.open(log.Note())
	if err != nil {
		return err
	}
	last := l.last()
	switch {
	case signed.Size < last.Size:
		return fmt.Errorf("it shows %d entries, of which %d were cosigned", signed.Size, last.Size)
	case last.Note != nil && signed.Checkpoint == last.Checkpoint && w.now().Sub(l.signedAt()) < renewEvery:
		return nil
	}
	var proven error
	if last.Size > 0 && last.Size < signed.Size {
		proven = log.CheckContains(ctx, last.Checkpoint)
		if ctx.Err() != nil || proven != nil && !errors.As(proven, new(*verify.Difference)) {
			return errors.Join(proven, ctx.Err()) // which says nothing of the log
		}
	}
	_, err = w.cosign(l, last.Size, signed, func(signing.Signed) error { return proven })
	return err
}

// known is what was cosigned last of a log that is followed. With it, a log that does not continue that is found out with
// the proof.
func (w *Witness) known(s *source) (verify.KnownLog, bool) {
	origin, _, _ := strings.Cut(s.keys[0], "+")
	last := w.log(origin).last()
	newest := len(s.keys) - 1
	return verify.KnownLog{Key: s.keys[newest], Former: s.keys[:newest], Checkpoint: string(last.Note)}, last.Note != nil
}

// keepEvidence keeps the proof that a log that is followed has forked.
func (w *Witness) keepEvidence(s *source, e *signing.Evidence) error {
	proof, err := e.Encode()
	if err != nil {
		return err
	}
	origin, _, _ := strings.Cut(s.keys[0], "+")
	w.logger.Error("a log that is followed has forked; the evidence is kept", "log", origin, "url", s.url, "folder", w.folder.dir)
	return w.folder.keepFork(origin, proof)
}

// remember has a key of a log that is followed count from now on.
func (w *Witness) remember(s *source, key string) error {
	l, err := w.addKey(key)
	if err != nil {
		return err
	}
	keys := append(slices.Clone(s.keys), key)
	if err := disk.Replace(w.folder.keysOf(s.url), []byte(strings.Join(keys, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	s.keys = keys
	if l.last().Note == nil { // it may have been witnessed by another key before
		return w.folder.read(l)
	}
	return nil
}

// signedAt returns when the log was cosigned last, zero before the first time since the start.
func (l *witnessed) signedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signed
}

// last returns what was cosigned last.
func (l *witnessed) last() signing.Signed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}
