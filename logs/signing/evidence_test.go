package signing_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/signing"
)

const evidenceOrigin = "cdn.example.com/log"

// A forker is the holder of a key that signs trees of its own making.
type forker struct {
	*testing.T
	key    string
	signer note.Signer
}

func newForker(t *testing.T, name string) forker {
	t.Helper()
	private, public, err := note.GenerateKey(nil, name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return forker{t, public, s}
}

// tree hashes entries.
func (f forker) tree(entries ...string) tlog.HashReader {
	f.Helper()
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			out[i] = hashes[index]
		}
		return out, nil
	})
	for i, e := range entries {
		added, err := tlog.StoredHashes(int64(i), []byte(e), reader)
		if err != nil {
			f.Fatal(err)
		}
		hashes = append(hashes, added...)
	}
	return reader
}

func (f forker) head(size int64, tree tlog.HashReader) []byte {
	f.Helper()
	root, err := tlog.TreeHash(size, tree)
	if err != nil {
		f.Fatal(err)
	}
	return f.sign(size, root)
}

func (f forker) sign(size int64, root tlog.Hash) []byte {
	f.Helper()
	signed, err := note.Sign(&note.Note{Text: evidenceOrigin + "\n" + strconv.FormatInt(size, 10) + "\n" + root.String() + "\n"}, f.signer)
	if err != nil {
		f.Fatal(err)
	}
	return signed
}

func TestEvidence(t *testing.T) {
	f := newForker(t, evidenceOrigin)
	one, other := f.tree("a", "b", "c", "d", "e", "f", "g"), f.tree("a", "b", "x", "d", "e", "f", "g")
	for _, tt := range []struct{ first, second int64 }{{7, 7}, {3, 7}, {4, 7}, {6, 7}, {7, 4}} {
		e, err := signing.NewEvidence([]string{f.key}, nil, f.head(tt.first, one), f.head(tt.second, other), map[bool]tlog.HashReader{true: one, false: other}[tt.first > tt.second])
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := signing.DecodeEvidence(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"", f.key} {
			fork, err := again.Check(key)
			if err != nil || fork.Key != f.key || fork.Why == "" || fork.Trees[0].Size != min(tt.first, tt.second) || fork.Trees[1].Size != max(tt.first, tt.second) {
				t.Errorf("%+v: %+v, %v", tt, fork, err)
			}
		}
		if _, err := again.Check(newForker(t, evidenceOrigin).key); err == nil {
			t.Errorf("%+v: it proves something to a client with another key", tt)
		}
	}
	// What is of one log.
	for _, tt := range []struct{ first, second int64 }{{7, 7}, {3, 7}, {0, 7}, {2, 3}} {
		if e, err := signing.NewEvidence([]string{f.key}, nil, f.head(tt.first, one), f.head(tt.second, one), one); err == nil {
			t.Errorf("%+v of one log is evidence: %+v", tt, e)
		}
	}
	// Nor do the first two entries, which are the same, prove anything.
	if e, err := signing.NewEvidence([]string{f.key}, nil, f.head(2, one), f.head(7, other), other); err == nil {
		t.Errorf("two logs with the same beginning are evidence: %+v", e)
	}
}

// TestEvidenceOfLeaves has different entries at one index.
func TestEvidenceOfLeaves(t *testing.T) {
	f := newForker(t, evidenceOrigin)
	trees := [2]tlog.HashReader{f.tree("a", "b", "c"), f.tree("a", "x", "c", "d", "e")}
	sizes := [2]int64{3, 5}
	evidence := func(index int64) *signing.Evidence {
		e := &signing.Evidence{Key: f.key, Leaves: &signing.Leaves{Index: index}}
		for i, tree := range trees {
			e.Heads[i] = string(f.head(sizes[i], tree))
			proof, err := tlog.ProveRecord(sizes[i], index, tree)
			if err != nil {
				t.Fatal(err)
			}
			hash, err := tree.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
			if err != nil {
				t.Fatal(err)
			}
			e.Leaves.Proofs[i], e.Leaves.Hashes[i] = proof, hash[0]
		}
		return e
	}
	if fork, err := evidence(1).Check(f.key); err != nil || !strings.Contains(fork.Why, "different entries 1") {
		t.Errorf("%+v, %v", fork, err)
	}
	if _, err := evidence(2).Check(f.key); err == nil || !strings.Contains(err.Error(), "the same entry 2") {
		t.Errorf("the same entry: %v", err)
	}
	e := evidence(1)
	e.Leaves.Hashes[0][0] ^= 1
	if _, err := e.Check(f.key); err == nil {
		t.Error("an entry that is in neither tree is believed")
	}
	e = evidence(1)
	e.Leaves.Index = 99
	if _, err := e.Check(f.key); err == nil {
		t.Error("an entry that is beyond the tree is believed")
	}
}

// TestEvidenceThatProvesNothing frames an honest log.
func TestEvidenceThatProvesNothing(t *testing.T) {
	f := newForker(t, evidenceOrigin)
	tree, lie := f.tree("a", "b", "c", "d", "e", "f", "g"), f.tree("x", "b", "c", "d", "e", "f", "g")
	small, large := f.head(3, tree), f.head(7, tree)
	root, err := tlog.TreeHash(3, lie)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := tlog.ProveTree(7, 3, lie)
	if err != nil {
		t.Fatal(err)
	}
	honest, err := tlog.ProveTree(7, 3, tree)
	if err != nil {
		t.Fatal(err)
	}
	stranger := newForker(t, evidenceOrigin)
	for name, e := range map[string]signing.Evidence{
		"nothing":                   {},
		"no proof":                  {Heads: [2]string{string(small), string(large)}},
		"a proof of another tree":   {Heads: [2]string{string(small), string(large)}, Prefix: &signing.Prefix{Root: root, Proof: proof}},
		"a root that is not proven": {Heads: [2]string{string(small), string(large)}, Prefix: &signing.Prefix{Root: root, Proof: honest}},
		"the other order":           {Heads: [2]string{string(large), string(small)}, Prefix: &signing.Prefix{Root: root, Proof: proof}},
		"one checkpoint twice":      {Heads: [2]string{string(large), string(large)}},
		"a stranger's signature":    {Heads: [2]string{string(large), string(stranger.head(7, lie))}},
		"empty logs":                {Heads: [2]string{string(f.sign(0, tlog.Hash{})), string(large)}, Prefix: &signing.Prefix{}},
		"sizes without end":         {Heads: [2]string{string(f.sign(1<<62, root)), string(f.sign(1<<63-1, root))}, Prefix: &signing.Prefix{Root: root, Proof: slices.Repeat(proof, 20)}},
		"another log":               {Heads: [2]string{string(large), strings.Replace(string(large), evidenceOrigin+"\n", "other.example/log\n", 1)}},
	} {
		e.Key = f.key
		if fork, err := e.Check(""); err == nil {
			t.Errorf("%s: %+v", name, fork)
		}
	}
	for _, text := range []string{"", "{}", `{"format":2}`, `{"format":1,"more":1}`, strings.Repeat("[", 100_000), strings.Repeat(" ", signing.MaxEvidence+1)} {
		if _, err := signing.DecodeEvidence([]byte(text)); err == nil {
			t.Errorf("%.20q is evidence", text)
		}
	}
}

// TestEvidenceAfterAKeyChange has two checkpoints of which the second is signed with the
// key that the first one's key handed over to.
func TestEvidenceAfterAKeyChange(t *testing.T) {
	first, second := newForker(t, evidenceOrigin), newForker(t, evidenceOrigin)
	signed, err := note.Sign(&note.Note{Text: second.key + "\n"}, first.signer)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(signed), "\n\n")
	changes := []signing.KeyChange{{Index: 1, Key: second.key, Signature: strings.TrimSuffix(line, "\n")}}
	one, other := first.head(2, first.tree("a", "b")), second.head(2, first.tree("a", "x"))
	if _, err := signing.NewEvidence([]string{first.key}, nil, one, other, nil); err == nil {
		t.Error("keys that do not lead to each other prove a fork")
	}
	e, err := signing.NewEvidence([]string{first.key}, changes, one, other, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Check(first.key); err != nil {
		t.Error(err)
	}
	if _, err := e.Check(second.key); err == nil {
		t.Error("the later key answers for the earlier one")
	}
}

// FuzzEvidence holds that nothing frames a log that has not forked, and that checking ends.
func FuzzEvidence(f *testing.F) {
	private, public, err := note.GenerateKey(strings.NewReader(strings.Repeat("x", 32)), evidenceOrigin)
	if err != nil {
		f.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		f.Fatal(err)
	}
	honest := forker{new(testing.T), public, signer}
	tree := honest.tree("a", "b", "c", "d", "e")
	proof, err := tlog.ProveTree(5, 3, tree)
	if err != nil {
		f.Fatal(err)
	}
	root, err := tlog.TreeHash(3, tree)
	if err != nil {
		f.Fatal(err)
	}
	small, large := string(honest.head(3, tree)), string(honest.head(5, tree))
	for _, e := range []signing.Evidence{
		{Heads: [2]string{small, large}, Prefix: &signing.Prefix{Root: root, Proof: proof}},
		{Heads: [2]string{large, large}},
		{Heads: [2]string{small, large}, Leaves: &signing.Leaves{Index: 1}},
	} {
		e.Key = public
		data, err := e.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := signing.DecodeEvidence(data)
		if err != nil {
			return
		}
		if fork, err := e.Check(public); err == nil {
			t.Errorf("%s proves %+v", data, fork)
		}
		e.Check("")
	})
}
