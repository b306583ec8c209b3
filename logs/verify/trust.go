package verify

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/transparency-dev/formats/log"
	formats "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/signing"
)

// Trust says whose signatures count.
type Trust struct {
	// Key is the log's verifier key (https://c2sp.org/signed-note), or an earlier one
	// that led to it. Its name is the log's origin.
	Key string
	// Witnesses are the verifier keys of witnesses (https://c2sp.org/tlog-cosignature),
	// of which Need must have signed the checkpoint.
	Witnesses []string
	Need      int
}

// CheckKey returns an error where text is no verifier key.
func CheckKey(text string) error {
	if isPrivate(text) {
		return errPrivate
	}
	if _, err := note.NewVerifier(text); err != nil {
		return fmt.Errorf("%q is not a verifier key such as cdn.example.com/log+1a2b3c4d+AZ…: %w", text, err)
	}
	return nil
}

// CheckWitness returns an error where text is no verifier key of a witness.
func CheckWitness(text string) error {
	if isPrivate(text) {
		return errPrivate
	}
	if _, err := formats.NewVerifierForCosignatureV1(text); err != nil {
		return fmt.Errorf("%q is not the verifier key of a witness, such as witness.example+1a2b3c4d+BZ…: %w", text, err)
	}
	return nil
}

// errPrivate does not repeat the key: messages end up where others read them.
var errPrivate = errors.New("that is a private key; give the verifier key that goes with it, which a key folder has in log.pub")

func isPrivate(text string) bool { return strings.HasPrefix(text, "PRIVATE+KEY+") }

// A Cosignature is a witness's word that the checkpoint follows those that it saw.
type Cosignature struct {
	Witness string    `json:"witness"` // its name
	Time    time.Time `json:"time"`    // when it signed
}

// A checkpoint is a signed one whose signatures were verified.
type checkpoint struct {
	tlog.Tree
	note         []byte
	cosignatures []Cosignature
}

// open verifies a signed checkpoint. changes lead from the trusted key to the one that
// must have signed, which is returned with the changes that were used.
func (t Trust) open(signed []byte, changes []signing.KeyChange) (checkpoint, string, []signing.KeyChange, error) {
	pinned, err := note.NewVerifier(t.Key)
	if err != nil {
		return checkpoint{}, "", nil, CheckKey(t.Key)
	}
	present, key, used := pinned, t.Key, []signing.KeyChange(nil)
	for _, c := range changes {
		if !c.By(present) {
			continue // of the time before the pinned key, or nothing to go by
		}
		if next, err := note.NewVerifier(c.Key); err == nil && next.Name() == pinned.Name() {
			present, key, used = next, c.Key, append(used, c)
		}
	}
	verifiers := []note.Verifier{present}
	for _, w := range t.Witnesses {
		v, err := formats.NewVerifierForCosignatureV1(w)
		if err != nil {
			return checkpoint{}, "", nil, CheckWitness(w)
		}
		verifiers = append(verifiers, v)
	}
	n, err := note.Open(signed, note.VerifierList(verifiers...))
	if err != nil {
		origin, _, _ := strings.Cut(string(signed), "\n")
		switch unsigned := errors.As(err, new(*note.UnverifiedNoteError)); {
		case unsigned && origin != pinned.Name():
			return checkpoint{}, "", nil, differs("the checkpoint is that of the log %.200q, not of %q", origin, pinned.Name())
		case unsigned:
			return checkpoint{}, "", nil, differs("the checkpoint is not signed with %s", key)
		}
		return checkpoint{}, "", nil, differs("the checkpoint is not signed with %s: %v", key, err)
	}
	c := checkpoint{note: signed}
	var own bool
	for _, s := range n.Sigs {
		if s.Name == present.Name() && s.Hash == present.KeyHash() {
			own = true
			continue
		}
		at, err := formats.CoSigV1Timestamp(s)
		if err != nil {
			return checkpoint{}, "", nil, differs("the signature of the witness %s has no time: %v", s.Name, err)
		}
		c.cosignatures = append(c.cosignatures, Cosignature{s.Name, at.UTC()})
	}
	if !own {
		return checkpoint{}, "", nil, differs("the checkpoint is signed by witnesses, but not with %s", key)
	}
	if c.Tree, err = parse(n.Text, pinned.Name()); err != nil {
		return checkpoint{}, "", nil, differs("the checkpoint is signed, but: %v", err)
	}
	if len(c.cosignatures) < t.Need {
		return checkpoint{}, "", nil, differs("%d of the given witnesses have signed the checkpoint, and %d are required", len(c.cosignatures), t.Need)
	}
	return c, key, used, nil
}

// parse reads a checkpoint's text. Lines that extend it are of no concern here.
func parse(text, origin string) (tlog.Tree, error) {
	var body log.Checkpoint
	if _, err := body.Unmarshal([]byte(text)); err != nil {
		return tlog.Tree{}, err
	}
	if body.Origin != origin {
		return tlog.Tree{}, fmt.Errorf("it is that of the log %.200q, not of %q", body.Origin, origin)
	}
	if len(body.Hash) != tlog.HashSize || body.Size > math.MaxInt64 {
		return tlog.Tree{}, errors.New("its text is not that of a checkpoint")
	}
	return tlog.Tree{N: int64(body.Size), Hash: tlog.Hash(body.Hash)}, nil
}

// parseSeen reads a checkpoint that was verified when it was seen.
func parseSeen(signed []byte, origin string) (tlog.Tree, error) {
	text, _, _ := strings.Cut(string(signed), "\n\n")
	return parse(text+"\n", origin)
}
