package signing

import (
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/kvstore"
)

// signedByKey is the row of LogState that says which key signs the log in the
// store.
var signedByKey = kvstore.Key("signed-by")

// SignedBy returns the verifier key of whoever signed the log in the store last, and
// "" where nobody has.
func SignedBy(store kvstore.Reader) (key string, err error) {
	data, err := store.Get(kvstore.LogState, signedByKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return "", fmt.Errorf("signing: couldn't read which key signed the log before: %w", err)
	}
	return string(data), nil
}

// noteSigner writes the present key into the store. Where another one signed the
// log before, and has not handed over, somebody may just have forgotten to say
// where the keys are: then everybody who has pinned the other one is left behind.
func (s *Signer) noteSigner() error {
	present := s.keys[0]
	data, err := s.options.Store.Get(kvstore.LogState, signedByKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("couldn't read which key signed the log before: %w", err)
	}
	if string(data) == present.public {
		return nil
	}
	if data != nil && !s.leadsHere(string(data)) {
		s.logger.Warn("another key signed this log before, and whoever has pinned that will not believe this one; if its key folder is still there, end this process and start with that",
			"before", string(data), "key", present.public, "keys", s.folder.dir)
	}
	b := s.options.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, signedByKey, []byte(present.public))
	if err := b.Commit(); err != nil {
		return fmt.Errorf("couldn't write which key signs the log: %w", err)
	}
	return nil
}

// leadsHere reports whether changes of keys lead from that key to the present one.
func (s *Signer) leadsHere(public string) bool {
	before, err := note.NewVerifier(public)
	if err != nil {
		return false
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return false
	}
	chain := Follow(before, changes)
	return chain[len(chain)-1].KeyHash() == s.keys[0].verifier.KeyHash()
}
