package signing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
)

func newWitness(t *testing.T, name string, log note.Verifier) *testkit.Witness {
	t.Helper()
	w, err := testkit.StartWitness(name, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func configured(t *testing.T, w *testkit.Witness) signing.Witness {
	t.Helper()
	parsed, err := signing.ParseWitness(w.URL() + "#" + w.Key())
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// cosigned reports which of the witnesses have signed what s shows, if that is the
// log as it is.
func (r *rig) cosigned(s *signing.Signer, witnesses ...*testkit.Witness) []bool {
	r.Helper()
	by := make([]bool, len(witnesses))
	signed, err := s.Checkpoint()
	if err != nil || signed.Checkpoint != r.log.Checkpoint() {
		return by
	}
	for i, w := range witnesses {
		v, err := cosignature.NewVerifierForCosignatureV1(w.Key())
		if err != nil {
			r.Fatal(err)
		}
		_, err = note.Open(signed.Note, note.VerifierList(v))
		by[i] = err == nil
	}
	return by
}

// run has s at work until the returned function is called.
func (r *rig) run(s *signing.Signer) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// witnessed returns a rig whose key is there, and that key.
func witnessed(t *testing.T) (*rig, note.Verifier) {
	t.Helper()
	r := newRig(t)
	r.next.Origin = "log.example"
	s := r.open()
	defer r.close(s)
	return r, verifier(t, s.Key())
}

func TestWitnesses(t *testing.T) {
	r, key := witnessed(t)
	one, two := newWitness(t, "one.example", key), newWitness(t, "two.example/w", key)
	r.grow(5, "vue")
	r.next.Policy = signing.Majority(configured(t, one), configured(t, two))
	s := r.open()
	stop := r.run(s)
	for range 6 {
		eventually(t, "both sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
		r.holds(s)
		r.grow(3, "vue")
	}
	eventually(t, "both sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
	if one.Conflicts()+two.Conflicts() > 0 {
		t.Errorf("what they had seen was guessed wrong %d times", one.Conflicts()+two.Conflicts())
	}
	signed, _ := s.Checkpoint()
	if got := r.readFile("published"); got != string(signed.Note) {
		t.Errorf("on the disk is %s, want %s", got, signed.Note)
	}
	if got := r.readFile("checkpoint"); !strings.HasPrefix(string(signed.Note), got) {
		t.Errorf("on the disk is %s, want the beginning of %s", got, signed.Note)
	}
	stop()
	r.close(s)

	// After a start what they signed is still there, and they say what they have seen.
	s = r.open()
	if by := r.cosigned(s, one, two); !by[0] || !by[1] {
		t.Errorf("after a start %v have signed", by)
	}
	r.grow(1, "vue")
	stop = r.run(s)
	eventually(t, "both sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
	if one.Conflicts() != 1 || two.Conflicts() != 1 {
		t.Errorf("%d and %d conflicts, want one each", one.Conflicts(), two.Conflicts())
	}

	// They trust the first key, which goes on signing.
	if _, err := s.Rotate(noon); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
	r.holds(s)
	stop()
	r.close(s)
}

// TestAWitnessThatIsAway does not keep the others' signatures from being shown, and
// is asked again without the log having to grow.
func TestAWitnessThatIsAway(t *testing.T) {
	r, key := witnessed(t)
	here, also, away := newWitness(t, "here.example", key), newWitness(t, "also.example", key), newWitness(t, "away.example", key)
	away.Instead(func(w http.ResponseWriter) bool {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return true
	})
	r.next.Policy = signing.Majority(configured(t, away), configured(t, here), configured(t, also))
	r.grow(2, "vue")
	s := r.open()
	stop := r.run(s)
	for range 3 {
		eventually(t, "those that are here sign", func() bool { by := r.cosigned(s, here, also); return by[0] && by[1] })
		if r.cosigned(s, away)[0] {
			t.Error("the other has signed too")
		}
		r.grow(1, "vue")
	}
	away.Instead(nil)
	eventually(t, "the one that was away signs", func() bool { by := r.cosigned(s, here, also, away); return by[0] && by[1] && by[2] })
	stop()
	r.close(s)
}

// TestASlowWitness does not hold up those that the policy asks for.
func TestASlowWitness(t *testing.T) {
	r, key := witnessed(t)
	fast, slow := newWitness(t, "fast.example", key), newWitness(t, "slow.example", key)
	answer := make(chan struct{})
	slow.Instead(func(http.ResponseWriter) bool { <-answer; return false })
	r.next.Policy = parsed(t, witnessLines(fast, slow)+"group g any w0 w1\nquorum g\n")
	s := r.open()
	stop := r.run(s)
	for range 3 {
		r.grow(1, "vue")
		eventually(t, "the fast one signs", func() bool { return r.cosigned(s, fast)[0] })
	}
	close(answer)
	eventually(t, "both sign", func() bool { by := r.cosigned(s, fast, slow); return by[0] && by[1] })
	stop()
	r.close(s)
}

// TestNothingIsShownBeforeTheWitnesses asks for the checkpoint while a witness has
// not answered.
func TestNothingIsShownBeforeTheWitnesses(t *testing.T) {
	r, key := witnessed(t)
	w := newWitness(t, "witness.example", key)
	asked, answer := make(chan struct{}), make(chan struct{})
	w.Instead(func(http.ResponseWriter) bool {
		asked <- struct{}{}
		<-answer
		return false
	})
	r.next.Policy = signing.Majority(configured(t, w))
	s := r.open()
	before, _ := s.Checkpoint()
	r.grow(2, "vue")
	stop := r.run(s)
	<-asked
	if now, err := s.Checkpoint(); err != nil || now.Checkpoint != before.Checkpoint {
		t.Errorf("%v is shown, %v; want what was before, %v", now.Checkpoint, err, before.Checkpoint)
	}
	if got := r.readFile("checkpoint"); !strings.HasPrefix(got, "log.example\n2\n") {
		t.Errorf("a witness saw what is not on the disk, which has %s", got)
	}
	answer <- struct{}{}
	eventually(t, "it is shown", func() bool { return r.cosigned(s, w)[0] })
	stop()
	r.close(s)
}

// An oldBackup is a rig whose store and key folder are from one backup of 2 entries, which
// the guard beside the key cannot notice. The witness has cosigned 5 since.
func oldBackup(t *testing.T) (r *rig, w *testkit.Witness, key note.Verifier) {
	r, key = witnessed(t)
	w = newWitness(t, "witness.example", key)
	r.next.Policy = signing.Majority(configured(t, w))
	cosign := func(n int) {
		r.grow(n, "vue")
		s := r.open()
		stop := r.run(s)
		eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
		stop()
		r.close(s)
	}
	cosign(2)
	data, keys := r.backup(), filepath.Join(t.TempDir(), "keys")
	if err := os.CopyFS(keys, os.DirFS(r.next.Dir)); err != nil {
		t.Fatal(err)
	}
	cosign(3)
	r.restore(data)
	r.next.Dir = keys
	return r, w, key
}

// signedAre checks that what is on the disk and what s shows has that many entries.
func (r *rig) signedAre(s *signing.Signer, size int64) {
	r.Helper()
	if got := r.readFile("checkpoint"); !strings.HasPrefix(got, fmt.Sprintf("log.example\n%d\n", size)) {
		r.Errorf("%d entries should be signed, not %s", size, got)
	}
	if signed, _ := s.Checkpoint(); signed.Size != size {
		r.Errorf("%d entries are shown, not %d", signed.Size, size)
	}
}

// TestWitnessesKnowOfAFork restores store and key folder from one backup, and has the log
// grow otherwise before the witnesses are asked.
func TestWitnessesKnowOfAFork(t *testing.T) {
	for _, grow := range []int{0, 1, 3, 6} { // to less than the witness has cosigned, as much, more
		for _, proves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %v", grow, proves), func(t *testing.T) {
				r, w, key := oldBackup(t)
				r.grow(grow, "react")
				if !proves { // as a witness without a monitoring prefix
					w.Forget()
				}
				// One that knows nothing is no help to a fork.
				later := newWitness(t, "later.example", key)
				r.next.Policy = signing.Majority(configured(t, w), configured(t, later))
				s := r.open()
				stop := r.run(s)
				eventually(t, "the operator is told", func() bool {
					err := s.Problem()
					return err != nil && strings.Contains(err.Error(), "witness.example (") && !strings.Contains(err.Error(), "no request yet")
				})
				eventually(t, "the other one has signed", func() bool { return later.Size() == 2 })
				if err := s.Sign(); err == nil || !strings.Contains(err.Error(), "of 2 entries") {
					t.Errorf("signing: %v", err)
				}
				if _, err := s.Rotate(noon); err == nil {
					t.Error("the key was changed")
				}
				if got := len(s.Disputes()); proves != (got > 0) {
					t.Errorf("%d disputes", got)
				}
				stop()
				r.close(s)
				r.signedAre(s, 2)
				if later.Size() > 2 {
					t.Errorf("another witness was shown %d entries", later.Size())
				}
				if r.next.Policy = nil; !proves { // without it the operator has their way
					s = r.open()
					r.signedAre(s, 2) // a command that asks no witness is none
					r.close(s)
					r.signedAre(s, 2)
					s = r.open()
					stop = r.run(s)
					eventually(t, "the log is signed", func() bool { signed, _ := s.Checkpoint(); return signed.Checkpoint == r.log.Checkpoint() })
					stop()
					r.holds(s)
					r.close(s)
				}
			})
		}
	}
}

// TestNothingIsSignedWithoutTheQuorum has an old backup come up while the witnesses are
// away: neither Run nor Close nor an operator's command may sign what they would not.
func TestNothingIsSignedWithoutTheQuorum(t *testing.T) {
	r, w, _ := oldBackup(t)
	r.grow(1, "react")
	away := func(rw http.ResponseWriter) bool { http.Error(rw, "away", http.StatusServiceUnavailable); return true }
	w.Instead(away)
	s := r.open()
	r.close(s) // as a command that appends to the log
	r.signedAre(s, 2)
	s = r.open()
	stop := r.run(s)
	eventually(t, "it is told", func() bool {
		err := s.Problem()
		return err != nil && strings.Contains(err.Error(), "503 Service Unavailable")
	})
	r.grow(1, "react")
	if err := s.Sign(); err == nil {
		t.Error("it was signed")
	}
	stop()
	r.close(s)
	r.signedAre(s, 2)

	// The same log as before has nothing to fear, once they are back.
	s = r.open()
	stop = r.run(s)
	w.Instead(nil)
	w.Forget()
	w.Reset()
	eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
	w.Instead(away) // from now on nothing else is confirmed, but nothing else can have been signed either
	r.grow(2, "react")
	eventually(t, "it is told", func() bool { return s.Problem() != nil })
	r.grow(2, "react")
	stop()
	r.close(s)
	if got := r.readFile("checkpoint"); !strings.HasPrefix(got, fmt.Sprintf("log.example\n%d\n", r.log.Checkpoint().Size)) {
		t.Errorf("what was appended last is not signed: %s", got)
	}
	// What is shown is still what had its cosignatures, also after the next start: the log's signature and cosignature, and the witness's.
	s = r.open()
	if signed, err := s.Checkpoint(); err != nil || signed.Size != 4 || bytes.Count(signed.Note, []byte("\n— ")) != 3 {
		t.Errorf("shown is %s, %v", signed.Note, err)
	}
	stop = r.run(s)
	w.Instead(nil)
	eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
	stop()
	r.close(s)
}

// TestADispute has a witness that proves, with this log's signature, that it knows another
// log. That is kept and told. The other witnesses decide, unless the proof has what
// the policy asks for.
func TestADispute(t *testing.T) {
	r, key := witnessed(t)
	r.grow(2, "vue")
	other := newWitness(t, "other.example", key)
	thief := newRig(t) // signs with the same key
	if err := os.CopyFS(thief.next.Dir, os.DirFS(r.next.Dir)); err != nil {
		t.Fatal(err)
	}
	thief.grow(3, "malware")
	thief.next.Policy = signing.Majority(configured(t, other))
	s := thief.open()
	stop := thief.run(s)
	eventually(t, "it signs", func() bool { return thief.cosigned(s, other)[0] })
	forged, _ := s.Checkpoint()
	stop()
	thief.close(s)

	one, two := newWitness(t, "one.example", key), newWitness(t, "two.example", key)
	lines := witnessLines(one, two, other)
	r.next.Policy = parsed(t, lines+"group g 2 w0 w1 w2\nquorum g\n")
	registry := prometheus.NewPedanticRegistry()
	r.next.Registerer = registry
	var said lockedBuffer
	r.next.Logger = slog.New(slog.NewTextHandler(&said, nil))
	s = r.open()
	stop = r.run(s)
	for range 3 {
		eventually(t, "the others sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
		r.grow(2, "vue")
	}
	eventually(t, "it is told", func() bool { return len(s.Disputes()) == 1 })
	if what := s.Disputes()[0]; !strings.Contains(what, "a checkpoint of 3 entries is signed with this log's key and is not part of this log") {
		t.Errorf("the operator reads %s", what)
	}
	if got := gauge(t, registry, "larder_log_disputes"); got != 1 {
		t.Errorf("larder_log_disputes is %v", got)
	}
	if strings.Count(said.String(), "the log is disputed") != 1 {
		t.Errorf("the operator reads\n%s", said.String())
	}
	eventually(t, "the others sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
	if err := s.Problem(); err != nil {
		t.Errorf("there is a problem: %v", err)
	}
	stop()
	r.close(s)
	files, err := filepath.Glob(r.file("dispute-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("evidence: %v, %v", files, err)
	}
	// While this log's checkpoint is the smaller one, the file has both notes, and proves nothing by itself.
	kept, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if ours, ok := bytes.CutPrefix(kept, append(forged.Note, '\n')); ok {
		if n, err := note.Open(ours, note.VerifierList(key)); err != nil || strings.HasPrefix(n.Text, "log.example\n3\n") {
			t.Errorf("beside it there is %s, %v", ours, err)
		}
	} else if _, err := signing.DecodeEvidence(kept); err != nil {
		t.Fatalf("the evidence is %s, %v", kept, err)
	}

	// The next start knows of it, and decides alike.
	r.next.Registerer = nil
	s = r.open()
	if len(s.Disputes()) != 1 {
		t.Errorf("after a start there are %q", s.Disputes())
	}
	// By now the log is larger than the forged one, so the file proves the fork to anyone.
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	evidence, err := signing.DecodeEvidence(data)
	if err != nil {
		t.Fatalf("the evidence is %s, %v", data, err)
	}
	fork, err := evidence.Check(s.Key())
	if err != nil || fork.Trees[0] != forged.Checkpoint || evidence.Heads[0] != string(forged.Note) {
		t.Errorf("it proves %+v, %v: %q", fork, err, evidence.Heads)
	}
	if n, err := note.Open([]byte(evidence.Heads[1]), note.VerifierList(key)); err != nil || strings.HasPrefix(n.Text, "log.example\n3\n") {
		t.Errorf("beside it there is %s, %v", evidence.Heads[1], err)
	}
	r.grow(1, "vue")
	stop = r.run(s)
	eventually(t, "the others sign", func() bool { by := r.cosigned(s, one, two); return by[0] && by[1] })
	stop()
	r.close(s)

	// Where the other log would do for clients, nothing is signed any more; what was stays.
	before := r.log.Checkpoint()
	r.grow(1, "vue")
	for _, policy := range []string{"group g any w0 w1 w2\nquorum g\n", "quorum none\n", ""} {
		if r.next.Policy = nil; policy != "" {
			r.next.Policy = parsed(t, lines+policy)
		}
		s = r.open()
		s.Run(t.Context()) // ends
		if signed, err := s.Checkpoint(); !errors.As(err, new(*signing.RefusedError)) || signed.Checkpoint != before {
			t.Errorf("%q: %d entries are shown, %v", policy, signed.Size, err)
		}
		r.close(s)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	r.next.Policy = parsed(t, lines+"group g any w0 w1\nquorum g\n")
	s = r.open()
	stop = r.run(s)
	eventually(t, "the others sign", func() bool { return r.cosigned(s, one)[0] })
	stop()
	r.close(s)
}

// TestAFreshKeyOverOldEntries shows nothing that the witnesses have not signed.
func TestAFreshKeyOverOldEntries(t *testing.T) {
	r := newRig(t)
	r.grow(3, "vue")
	r.next.Origin = "log.example"
	w := newWitness(t, "witness.example", nil)
	r.next.Policy = signing.Majority(configured(t, w))
	s := r.open()
	if signed, err := s.Checkpoint(); err != nil || signed.Note != nil {
		t.Errorf("shown is %s, %v", signed.Note, err)
	}
	w.Trust(verifier(t, s.Key()))
	stop := r.run(s)
	eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
	stop()
	// A damaged copy of what was shown takes nothing away.
	r.close(s)
	r.writeFile("published", "damaged")
	s = r.open()
	r.signedAre(s, 3)
	r.close(s)
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// TestWitnessBesideAnOldKeyFolder has a witness that knows more than the key folder, and
// nothing that the store does not have.
func TestWitnessBesideAnOldKeyFolder(t *testing.T) {
	for _, proves := range []bool{false, true} {
		r, key := witnessed(t)
		w := newWitness(t, "witness.example", key)
		r.next.Policy = signing.Majority(configured(t, w))
		keys := filepath.Join(t.TempDir(), "keys")
		if err := os.CopyFS(keys, os.DirFS(r.next.Dir)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.grow(3, "vue")
			s := r.open()
			stop := r.run(s)
			eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
			stop()
			r.close(s)
			r.next.Dir = keys
			if !proves {
				w.Forget()
				continue
			}
			// Without what the store knows, the witness has to prove it.
			b := r.store.NewBatch()
			b.Delete(kvstore.LogState, kvstore.Key("signed"))
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// witnessLines are those of a policy that calls them w0, w1 and so on.
func witnessLines(witnesses ...*testkit.Witness) string {
	var lines string
	for i, w := range witnesses {
		lines += fmt.Sprintf("witness w%d %s %s\n", i, w.Key(), w.URL())
	}
	return lines
}

func parsed(t *testing.T, policy string) *signing.Policy {
	t.Helper()
	p, err := signing.ParsePolicy([]byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
