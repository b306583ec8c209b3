package signing

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
)

// evidenceFormat is the version of the format of evidence.
const evidenceFormat = 1

// MaxEvidence bounds the file of an Evidence, in bytes.
const MaxEvidence = 1 << 20

// Evidence proves that a log has forked: its key has signed two checkpoints that cannot both be of one log. Anyone can check it
// offline, without trusting the client that stored it. No field counts before Check has verified it.
type Evidence struct {
	Format int `json:"format"`
	// Key is a verifier key of the log, from which Changes lead to the keys that signed.
	Key     string      `json:"key"`
	Changes []KeyChange `json:"changes,omitempty"`
	// Heads are the two signed checkpoints, as they were served. The first is not larger.
	Heads [2]string `json:"heads"`
	// Prefix is required if the checkpoints have different sizes and Leaves is nil.
	Prefix *Prefix `json:"prefix,omitempty"`
	// Leaves are different entries that the two trees have at one index.
	Leaves *Leaves `json:"leaves,omitempty"`
}

// A Prefix is the root that the second checkpoint's tree has over as many entries as the
// first has, and the proof of that (RFC 6962, section 2.1.2).
type Prefix struct {
	Root  tlog.Hash      `json:"root"`
	Proof tlog.TreeProof `json:"proof"`
}

// Leaves are the hashes of the entries that the trees of two checkpoints have at one
// index, and the proofs of that (RFC 6962, section 2.1.1).
type Leaves struct {
	Index  int64               `json:"index"`
	Hashes [2]tlog.Hash        `json:"hashes"`
	Proofs [2]tlog.RecordProof `json:"proofs"`
}

// ErrUnrelatedKeys is the error of [NewEvidence] if none of the keys leads to the keys that signed the checkpoints.
var ErrUnrelatedKeys = errors.New("no key leads to those that signed both checkpoints")

// NewEvidence returns the evidence that two signed checkpoints contradict each other, to a client that trusts the first of the
// verifier keys that has signed both, or from which changes lead to the keys that have. Without such a key the error is
// [ErrUnrelatedKeys]. tree reads the hashes of the larger tree; it is not used if both have the same size, and its errors are
// returned. Any other error says why a contradiction cannot be proven, such as that there is none.
func NewEvidence(keys []string, changes []KeyChange, one, other []byte, tree tlog.HashReader) (*Evidence, error) {
	e := &Evidence{Changes: changes, Heads: [2]string{string(one), string(other)}}
	var heads [2]logs.Checkpoint
	err := ErrUnrelatedKeys
	for _, e.Key = range keys {
		if heads, err = e.openHeads(e.Key); err == nil {
			break
		}
		err = fmt.Errorf("%w: %w", ErrUnrelatedKeys, err)
	}
	if err != nil {
		return nil, err
	}
	if heads[0].Size > heads[1].Size {
		slices.Reverse(heads[:])
		slices.Reverse(e.Heads[:])
	}
	if first, second := heads[0].Size, heads[1].Size; 0 < first && first < second {
		e.Prefix = new(Prefix)
		if e.Prefix.Root, err = tlog.TreeHash(first, tree); err != nil {
			return nil, err
		}
		if e.Prefix.Proof, err = tlog.ProveTree(second, first, tree); err != nil {
			return nil, err
		}
	}
	if _, err = e.Check(e.Key); err != nil {
		return nil, err
	}
	return e, nil
}

// A Fork is the fork that an Evidence proves.
type Fork struct {
	Key   string             `json:"key,omitempty"` // the verifier key of the log that was trusted
	Trees [2]logs.Checkpoint `json:"-"`             // the first is not larger
	Why   string             `json:"why,omitempty"` // says how they contradict each other
}

// Check verifies the evidence, and returns what it proves to a client that trusts a verifier key, or the key in the evidence
// if key is "". A nil error means that the log has forked; an error says why the evidence proves nothing.
func (e *Evidence) Check(key string) (Fork, error) {
	key = cmp.Or(key, e.Key)
	heads, err := e.openHeads(key)
	if err != nil {
		return Fork{}, err
	}
	f := Fork{Key: key, Trees: heads}
	first, second := heads[0], heads[1]
	switch {
	case first.Size > second.Size:
		return Fork{}, errors.New("its checkpoints are in the wrong order")
	case first.Size == second.Size && first.Root != second.Root:
		f.Why = fmt.Sprintf("two checkpoints of %d entries are signed, with different roots", first.Size)
		return f, nil
	case first.Size == second.Size:
		return Fork{}, errors.New("its two checkpoints are of one tree")
	case e.Leaves != nil:
		l := e.Leaves
		if l.Hashes[0] == l.Hashes[1] {
			return Fork{}, fmt.Errorf("its two checkpoints have the same entry %d", l.Index)
		}
		for i, head := range heads {
			if err := tlog.CheckRecord(l.Proofs[i], head.Size, head.Root, l.Index, l.Hashes[i]); err != nil {
				return Fork{}, fmt.Errorf("it does not prove which entry %d the checkpoint of %d entries has: %w", l.Index, head.Size, err)
			}
		}
		f.Why = fmt.Sprintf("the signed checkpoints of %d and of %d entries have different entries %d", first.Size, second.Size, l.Index)
		return f, nil
	case e.Prefix == nil || first.Size == 0:
		return Fork{}, fmt.Errorf("it does not prove that the checkpoint of %d entries is no part of the one of %d", first.Size, second.Size)
	case e.Prefix.Root == first.Root:
		return Fork{}, errors.New("its second checkpoint contains the first")
	}
	// The nodes of a proof that leads to the second root are nodes of its tree, so the tree
	// has this root over its first entries, and no other.
	if err := tlog.CheckTree(e.Prefix.Proof, second.Size, second.Root, first.Size, e.Prefix.Root); err != nil {
		return Fork{}, fmt.Errorf("it does not prove what the checkpoint of %d entries begins with: %w", second.Size, err)
	}
	f.Why = fmt.Sprintf("the signed checkpoint of %d entries begins with other %d entries than the signed checkpoint of %d entries has", second.Size, first.Size, first.Size)
	return f, nil
}

// openHeads verifies the signatures of the two checkpoints with the verifier key key, or any key to which the changes lead
// from it, and returns the checkpoints.
func (e *Evidence) openHeads(key string) (heads [2]logs.Checkpoint, err error) {
	trusted, err := note.NewVerifier(key)
	if err != nil {
		return heads, fmt.Errorf("%.200q is not a verifier key: %w", key, err)
	}
	for i, head := range e.Heads {
		signed, err := OpenWith([]byte(head), trusted, e.Changes)
		if err != nil {
			return heads, err
		}
		heads[i] = signed.Checkpoint
	}
	return heads, nil
}

// OpenWith verifies a signed checkpoint with the trusted key, or any key to which changes lead from it, and parses it. It
// needs a signature by one of these keys.
func OpenWith(data []byte, trusted note.Verifier, changes []KeyChange) (Signed, error) {
	n, err := note.Open(data, note.VerifierList(Follow(trusted, changes)...))
	var c logs.Checkpoint
	if err == nil {
		c, err = ParseText(n.Text, trusted.Name())
	}
	if err != nil {
		return Signed{}, fmt.Errorf("a checkpoint is not signed with the key %08x of %s, nor with one that it handed over to: %w", trusted.KeyHash(), trusted.Name(), err)
	}
	return Signed{c, data}, nil
}

// OpenWithAny verifies a signed checkpoint with any of several verifier keys, or any key to which changes lead from them.
// One signature is enough. Invalid keys are skipped; the error is about the last key.
func OpenWithAny(data []byte, keys []string, changes []KeyChange) (Signed, error) {
	err := errors.New("no key is given")
	for _, key := range keys {
		var v note.Verifier
		if v, err = note.NewVerifier(key); err != nil {
			continue
		}
		var signed Signed
		if signed, err = OpenWith(data, v, changes); err == nil {
			return signed, nil
		}
	}
	return Signed{}, err
}

// Encode sets the format, and returns the evidence of a fork as indented JSON, the content of an evidence file.
func (e *Evidence) Encode() ([]byte, error) {
	e.Format = evidenceFormat
	var b bytes.Buffer
	err := text.WriteJSON(&b, e)
	return b.Bytes(), err
}

// DecodeEvidence parses an evidence file, without verifying it; [Evidence.Check] does that. Another format, an unknown
// field, and over [MaxEvidence] bytes are errors.
func DecodeEvidence(data []byte) (*Evidence, error) {
	if len(data) > MaxEvidence {
		return nil, fmt.Errorf("signing: evidence has at most %d bytes", MaxEvidence)
	}
	e := new(Evidence)
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields() // a later release might need the field to prove something
	if err := decoder.Decode(e); err != nil {
		return nil, fmt.Errorf("signing: malformed evidence: %w", err)
	}
	if e.Format != evidenceFormat {
		return nil, fmt.Errorf("signing: evidence format %d is not known to this release of Larder, which writes format %d", e.Format, evidenceFormat)
	}
	return e, nil
}
