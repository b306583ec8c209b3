package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	formats "github.com/transparency-dev/formats/note"
	tlogproof "github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// Trust says whose signatures count.
type Trust struct {
	// Key is the log's verifier key (https://c2sp.org/signed-note), or an earlier one
	// that led to it. Its name is the log's origin.
	Key string
	// Root, if set, is the verifier key of an offline root key. The keys that its signed list has count in place of Key.
	Root string
	// Witnesses are the verifier keys of different witnesses (https://c2sp.org/tlog-cosignature), of which Need must have signed
	// the checkpoint: see [ReadWitnessKeys].
	Witnesses []string
	Need      int
	// MaxAge is how old the newest cosignature may be; 0 for any age. An older checkpoint proves nothing.
	MaxAge time.Duration
	// Now is the clock by which that counts. Default [time.Now].
	Now func() time.Time
}

// CheckKey returns an error if text is not an Ed25519 verifier key (https://c2sp.org/signed-note), which logs, root keys
// and auditors have; that of a witness is none. The error for a private key does not contain it.
func CheckKey(text string) error {
	if isPrivateKey(text) {
		return errPrivate
	}
	if _, err := note.NewVerifier(text); err != nil {
		return fmt.Errorf("%q is not a verifier key such as cdn.example.com/log+1a2b3c4d+AZ…: %w", text, err)
	}
	return nil
}

// parseWitnessKey returns the verifier of a witness's cosignatures from its verifier key. Any other key is an error; the
// error for a private key does not contain it.
func parseWitnessKey(text string) (note.Verifier, error) {
	if isPrivateKey(text) {
		return nil, errPrivate
	}
	v, err := formats.NewVerifierForCosignatureV1(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not the verifier key of a witness, such as witness.example+1a2b3c4d+BZ…: %w", text, err)
	}
	return v, nil
}

// ReadKey returns the verifier key of a log, a root key or an auditor from an argument, which is the key or the path of a
// file with it. For "" it returns "". The errors never contain a private key.
func ReadKey(argument string) (string, error) { return readKeyArgument(argument, CheckKey) }

// ReadWitnessKeys returns the verifier keys of witnesses from arguments, in their order, each of which is a key or the path
// of a file with one. It returns each witness's key once. An argument "" is an error.
func ReadWitnessKeys(arguments []string) (keys []string, err error) {
	var witnesses []note.Verifier
	for _, argument := range arguments {
		key, err := readKeyArgument(argument, func(text string) error { _, err := parseWitnessKey(text); return err })
		if err != nil {
			return nil, err
		}
		witness, err := parseWitnessKey(key)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(witnesses, func(other note.Verifier) bool { return sameVerifier(other, witness) }) {
			keys, witnesses = append(keys, key), append(witnesses, witness)
		}
	}
	return keys, nil
}

// sameVerifier reports whether two verifiers of signatures have the same name and the same key hash, of 32 bits.
func sameVerifier(a, b note.Verifier) bool { return a.Name() == b.Name() && a.KeyHash() == b.KeyHash() }

// readKeyArgument returns the key that an argument is, or that is in the file whose path it is, without spaces around it,
// and "" for "". check returns an error for what is not a key. The error does not quote the file.
func readKeyArgument(argument string, check func(string) error) (string, error) {
	if argument == "" || check(argument) == nil {
		return argument, nil
	}
	data, err := os.ReadFile(argument)
	if err != nil {
		return "", fmt.Errorf("neither a file nor a key: %w", check(argument))
	}
	key := strings.TrimSpace(string(data))
	if check(key) != nil {
		// The message must not quote the file, which may contain a private key.
		return "", fmt.Errorf("the file %s does not contain a verifier key, which is one line such as cdn.example.com/log+1a2b3c4d+AZ…; a key folder has it in log.pub, and that of a root key in root.pub", argument)
	}
	return key, nil
}

// errPrivate does not contain the key, because others may read messages.
var errPrivate = errors.New("that is a private key; give the verifier key that goes with it, which a key folder has in log.pub")

// isPrivateKey reports whether text begins like a private key of signed notes, which must not be given in place of its
// verifier key.
func isPrivateKey(text string) bool { return strings.HasPrefix(text, "PRIVATE+KEY+") }

// A Cosignature is a witness's signature, by which it vouches that the checkpoint contains those that it has seen.
type Cosignature struct {
	Witness string    `json:"witness"` // its name
	Time    time.Time `json:"time"`    // when it signed
}

// A checkpoint is a signed checkpoint whose signatures were verified.
type checkpoint struct {
	tlog.Tree
	note         []byte
	key          string              // the verifier key that signed it
	used         []signing.KeyChange // the changes that led from the trusted key to that
	cosignatures []Cosignature
	cosigned     time.Time // as of when it is vouched to be the newest; zero if nothing says so
}

// openCheckpoint verifies that a checkpoint is signed by the log of the verifier key trusted. Those of the key changes that prove
// themselves lead from that to the one that must have signed it. It ignores signatures by unknown keys. A checkpoint of another log
// or key, or a wrong signature by a known one, is a [Difference]; a response that is no signed note, or an invalid key, is another
// error. Too few witnesses or too great an age are no error, see [Trust.checkCosignatures].
func (t Trust) openCheckpoint(trusted string, signed []byte, changes []signing.KeyChange) (checkpoint, error) {
	pinned, err := note.NewVerifier(trusted)
	if err != nil {
		return checkpoint{}, CheckKey(trusted)
	}
	present, key, used := pinned, trusted, signing.FollowedChanges(pinned, changes)
	if len(used) > 0 {
		key = used[len(used)-1].Key
		if present, err = note.NewVerifier(key); err != nil {
			return checkpoint{}, CheckKey(key)
		}
	}
	cosigner, err := formats.NewVerifierForCosignatureV1(key)
	if err != nil {
		return checkpoint{}, CheckKey(key)
	}
	verifiers := []note.Verifier{present, cosigner}
	for _, w := range t.Witnesses {
		v, err := parseWitnessKey(w)
		if err == nil && sameVerifier(v, cosigner) {
			err = fmt.Errorf("the key %s is the log's own, which does not count as that of a witness", w)
		}
		if err != nil {
			return checkpoint{}, err
		}
		verifiers = append(verifiers, v)
	}
	n, err := note.Open(signed, note.VerifierList(verifiers...))
	if err != nil {
		origin, _, _ := strings.Cut(string(signed), "\n")
		unsigned, wrong := errors.As(err, new(*note.UnverifiedNoteError)), errors.As(err, new(*note.InvalidSignatureError))
		switch {
		case !unsigned && !wrong: // such as the page of a proxy
			return checkpoint{}, fmt.Errorf("the response is not a signed checkpoint: %w", err)
		case unsigned && origin != pinned.Name():
			return checkpoint{}, differs("the checkpoint is that of the log %.200q, not of %q, whose key is pinned or was seen at this server first; if the server has another log on purpose, pin that log's key (--key, with log.pub of its key folder)", origin, pinned.Name())
		case unsigned:
			return checkpoint{}, differs("the checkpoint is not signed with %s", key)
		}
		return checkpoint{}, differs("the checkpoint is not signed with %s: %v", key, err)
	}
	c := checkpoint{note: signed, key: key, used: used}
	var own bool
	var times []time.Time // of the log's own cosignatures
	for _, s := range n.Sigs {
		if s.Name == present.Name() && s.Hash == present.KeyHash() {
			own = true
			continue
		}
		at, err := formats.CoSigV1Timestamp(s)
		if err != nil {
			return checkpoint{}, differs("the cosignature of %s has no time: %v", s.Name, err)
		}
		if s.Name == cosigner.Name() && s.Hash == cosigner.KeyHash() {
			times = append(times, at.UTC())
			continue
		}
		c.cosignatures = append(c.cosignatures, Cosignature{s.Name, at.UTC()})
	}
	if !own {
		return checkpoint{}, differs("the checkpoint is signed by witnesses, but not with %s", key)
	}
	body, err := signing.ParseText(n.Text, pinned.Name())
	if err != nil {
		return checkpoint{}, differs("the checkpoint is signed, but: %v", err)
	}
	c.Tree = tlog.Tree{N: body.Size, Hash: body.Root}
	c.cosigned = t.freshAsOf(times, c.cosignatures)
	return c, nil
}

// checkCosignatures returns why a verified checkpoint proves nothing: [Unproven] if too few witnesses have signed it, or
// [Expired] if t.MaxAge is set and [CheckAge] reports its age. It returns nil if neither is the case.
func (t Trust) checkCosignatures(c checkpoint) *UnverifiedError {
	if n := len(c.cosignatures); n < t.Need {
		return &UnverifiedError{Unproven, fmt.Sprintf("%d of the given witnesses have signed the checkpoint, and %d are required", n, t.Need)}
	}
	if t.MaxAge > 0 {
		if err := CheckAge(c.cosigned, t.now(), t.MaxAge); err != nil {
			return &UnverifiedError{Expired, err.Error()}
		}
	}
	return nil
}

// MaxProof bounds a file's proof, in bytes: a checkpoint with its signatures, an entry and some hundred hashes.
const MaxProof = 256 << 10

// VerifyProof verifies offline that data is a file that was published, by a proof as in https://c2sp.org/tlog-proof. t.Key
// itself must have signed the checkpoint in it: changes of keys and t.Root do not count. If name has a package, the file
// must have that whole name. The outcome is [Published] at best, because the release may have been withdrawn after the
// proof was made; any other one comes with a Problem.
func (t Trust) VerifyProof(proof, data []byte, name Name) Result {
	r := Result{Name: name}
	if err := t.checkProof(&r, proof, data); err != nil {
		return r.withError(err)
	}
	r.Outcome = Published
	return r
}

// checkProof verifies that file is what the proof in data is about, and fills in r, but not its outcome. The error is a
// [Difference], an [UnverifiedError], or says why nothing could be verified; then r may be filled in, with what is not
// proven.
func (t Trust) checkProof(r *Result, data, file []byte) error {
	var p tlogproof.TLogProof
	if len(data) > MaxProof {
		return fmt.Errorf("the proof has over %d bytes", MaxProof)
	}
	if err := p.Unmarshal(data); err != nil {
		return fmt.Errorf("not a proof as in https://c2sp.org/tlog-proof: %w", err)
	}
	if !bytes.Equal(p.Marshal(), data) || p.Index > logs.MaxSize {
		return errors.New("not a proof as in https://c2sp.org/tlog-proof: it is not in its canonical form, or its index is too large")
	}
	c, err := t.openCheckpoint(t.Key, p.Checkpoint, nil)
	if err != nil {
		return err
	}
	r.Cosigned = c.cosigned
	if problem := t.checkCosignatures(c); problem != nil {
		return problem
	}
	var extra logs.FileProof
	if err := json.Unmarshal(p.ExtraData, &extra); err != nil || extra.Format != logs.FileProofFormat {
		return errors.New("its extra data is not that of a file's proof, in a format that this larder knows")
	}
	inTree := tiles.ProvenEntry{Index: int64(p.Index), Entry: extra.Entry}
	for _, h := range p.Hashes {
		inTree.Proof = append(inTree.Proof, tlog.Hash(h))
	}
	if err := inTree.Check(c.Tree); err != nil {
		return differs("the proof's entry is not in the signed tree: %v", err)
	}
	e, err := logs.ParseEntry(inTree.Index, []byte(extra.Entry))
	if err != nil {
		return fmt.Errorf("%w; a newer larder may know it", err)
	}
	if !e.Kind.Publishes() {
		return differs("entry %d does not publish a release", e.Index)
	}
	proven := Name{e.Package, e.Version, extra.Path}
	if r.Package != "" && r.Name != proven {
		return differs("the proof is of %s, not of %s", proven, r.Name)
	}
	sums := newFileDigest()
	sums.Write(file)
	found := sums.asFile(extra.Path)
	r.Name, r.Size, r.SHA256, r.SRI, r.Published = proven, found.Size, found.SHA256, found.SRI, newEvent(e)
	r.Mirror = e.Mirror
	if err := extra.FilePlace.Check(e.Files, found); err != nil {
		return differs("the bytes are not those that were published as %s: they have the SHA-256 %s, which does not lead to the root of the release's files", proven, found.SHA256)
	}
	return nil
}

// Evidence is the result of verifying a file with the evidence of a fork.
type Evidence struct {
	Outcome Outcome `json:"outcome"` // [Forked] or [Unproven]
	File    string  `json:"file"`
	Pinned  bool    `json:"pinned"` // the caller gave the key, so it is not the one in the file
	signing.Fork
	Heads   []string `json:"heads,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

// VerifyEvidence verifies the evidence of a fork in a file with the log's verifier key, or with the one in the file if key
// is "". The error only says that the file cannot be read. Evidence that proves nothing, or has the wrong format, is no
// error: its outcome is [Unproven], and Problem says why.
func VerifyEvidence(path, key string) (Evidence, error) {
	found := Evidence{Outcome: Unproven, File: path, Pinned: key != ""}
	data, err := disk.ReadAtMost(path, signing.MaxEvidence)
	if err != nil {
		return found, err
	}
	evidence, err := signing.DecodeEvidence(data)
	if err == nil {
		found.Fork, err = evidence.Check(key)
	}
	if err != nil {
		found.Problem = err.Error()
		return found, nil
	}
	found.Outcome, found.Heads = Forked, evidence.Heads[:]
	return found, nil
}

// VerifyProofFile verifies offline that the file at the path file is one that was published, by the proof in the file at the
// path proof; see [Trust.VerifyProof]. The error says that one of them cannot be read; whether the proof holds is in the
// Result.
func (t Trust) VerifyProofFile(proof, file string, name Name) (Result, error) {
	p, err := disk.ReadAtMost(proof, MaxProof)
	if err != nil {
		return Result{}, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Result{}, err
	}
	return t.VerifyProof(p, data, name), nil
}
