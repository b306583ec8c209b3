package signing

import (
	"errors"
	"fmt"
	"math"

	"github.com/transparency-dev/formats/log"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// A Signed is a checkpoint with signatures.
type Signed struct {
	logs.Checkpoint
	// Note is the signed note (https://c2sp.org/signed-note) as it is served.
	Note []byte
}

// sign makes the note of a checkpoint.
func sign(origin string, c logs.Checkpoint, keys keyring) (Signed, error) {
	body := log.Checkpoint{Origin: origin, Size: uint64(c.Size), Hash: c.Root[:]}
	signed, err := note.Sign(&note.Note{Text: string(body.Marshal())}, keys.signers()...)
	if err != nil {
		return Signed{}, fmt.Errorf("signing: couldn't sign a checkpoint of %d entries: %w", c.Size, err)
	}
	return Signed{c, signed}, nil
}

// open reads a signed checkpoint, in which one of the keys must have had a hand.
func open(data []byte, origin string, keys note.Verifiers) (Signed, *note.Note, error) {
	n, err := note.Open(data, keys)
	if err != nil {
		return Signed{}, nil, err
	}
	c, err := parseBody(n.Text, origin)
	if err != nil {
		return Signed{}, nil, err
	}
	return Signed{c, data}, n, nil
}

// parseBody reads a checkpoint's text, in the only form that sign writes.
func parseBody(text, origin string) (logs.Checkpoint, error) {
	var body log.Checkpoint
	if _, err := body.Unmarshal([]byte(text)); err != nil {
		return logs.Checkpoint{}, err
	}
	if body.Origin != origin {
		return logs.Checkpoint{}, fmt.Errorf("it is that of the log %q, not of %q", body.Origin, origin)
	}
	if len(body.Hash) != tlog.HashSize || body.Size > math.MaxInt64 || string(body.Marshal()) != text {
		return logs.Checkpoint{}, errors.New("its text is not that of a checkpoint")
	}
	return logs.Checkpoint{Size: int64(body.Size), Root: tlog.Hash(body.Hash)}, nil
}

// hasAll reports whether each of the keys has signed.
func hasAll(n *note.Note, keys keyring) bool {
	have := make(map[uint32]bool)
	for _, s := range n.Sigs {
		have[s.Hash] = true
	}
	for _, k := range keys {
		if !have[k.signer.KeyHash()] {
			return false
		}
	}
	return true
}
