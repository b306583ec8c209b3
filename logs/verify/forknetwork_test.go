package verify

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// TestForkWithoutNetwork: if the server fails while the evidence of a fork is made, that is an error of the network, and no difference.
func TestForkWithoutNetwork(t *testing.T) {
	private, key, err := note.GenerateKey(rand.Reader, "log.example")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(size int64, root byte) signing.Signed {
		c := logs.Checkpoint{Size: size, Root: tlog.Hash{root}}
		signed, err := note.Sign(&note.Note{Text: fmt.Sprintf("log.example\n%d\n%s\n", c.Size, c.Root)}, signer)
		if err != nil {
			t.Fatal(err)
		}
		return signing.Signed{Checkpoint: c, Note: signed}
	}
	down := errors.New("the network is down")
	reads := 0
	hashes := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		if reads++; reads > 1 {
			return nil, down
		}
		return make([]tlog.Hash, len(indexes)), nil
	})
	l := &Log{trusted: []string{key}}
	if err := l.compareCheckpoints(sign(1, 1), sign(2, 2), hashes); !errors.Is(err, down) || OutcomeOf(err) != Unproven {
		t.Errorf("%v, which is %s", err, OutcomeOf(err))
	}
	_, other, err := note.GenerateKey(rand.Reader, "log.example")
	if err != nil {
		t.Fatal(err)
	}
	reads = 0
	l = &Log{trusted: []string{other}}
	if err := l.compareCheckpoints(sign(1, 1), sign(2, 2), hashes); OutcomeOf(err) != Differs {
		t.Errorf("with keys that do not lead to each other: %v", err)
	}
}
