package verify_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/verify"
)

// withoutCosignatures removes the lines that anyone can remove from a checkpoint: all but the signature of the log.
func withoutCosignatures(note []byte) []byte {
	text, signatures, _ := bytes.Cut(note, []byte("\n\n"))
	first, _, _ := bytes.Cut(signatures, []byte("\n"))
	return fmt.Appendf(nil, "%s\n\n%s\n", text, first)
}

func (r *rig) note() []byte {
	r.Helper()
	signed, err := r.signer.Checkpoint()
	if err != nil {
		r.Fatal(err)
	}
	return signed.Note
}

// at returns the trust of a client that begins so much later than the log was signed.
func (r *rig) at(later, maxAge time.Duration) verify.Options {
	o := r.options()
	signed := time.Now()
	o.Trust.MaxAge, o.Trust.Now = maxAge, func() time.Time { return signed.Add(later) }
	return o
}

// TestReplay: a server that goes on showing an old checkpoint hides a withdrawal, until that is too old.
func TestReplay(t *testing.T) {
	r := stocked(t)
	r.lies["/log/checkpoint"] = instead(r.note())
	r.lies["/ajax/libs/vue/3.0.0/vue.js"] = instead([]byte(alert))
	r.Withdraw("vue", "3.0.0", "malware")
	r.sign()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name       string
		later, max time.Duration
		want       verify.Outcome
		problem    string
	}{
		{"within the limit", 7*day - time.Minute, 7 * day, verify.Proven, ""},
		{"beyond it", 7*day + time.Minute, 7 * day, verify.Expired, "is 7 days old, and 7 days is the limit"},
		{"a strict client", 2 * time.Hour, time.Hour, verify.Expired, "is 2 hours old, and 60 minutes is the limit"},
		{"any age", 365 * day, 0, verify.Proven, ""},
		{"a clock that differs a little", -4 * time.Minute, 7 * day, verify.Proven, ""},
		{"a clock that is wrong", -time.Hour, 7 * day, verify.Expired, "in the future"},
	} {
		got := r.url(r.at(tt.later, tt.max), "vue/3.0.0/vue.js")
		if got.Outcome != tt.want || !strings.Contains(got.Problem, tt.problem) {
			t.Errorf("%s: %s: %s; want %s: %s", tt.name, got.Outcome, got.Problem, tt.want, tt.problem)
		}
	}
	clear(r.lies)
	if got := r.url(r.at(30*day, 7*day), "vue/3.0.0/vue.js"); got.Outcome != verify.Withdrawn {
		t.Errorf("what is withdrawn is so at any age, and it is %s: %s", got.Outcome, got.Problem)
	}
}

// TestAgeUnknown: whoever can replay a checkpoint can remove its cosignatures, so one without them is not fresh.
func TestAgeUnknown(t *testing.T) {
	r := stocked(t)
	plain := withoutCosignatures(r.note())
	r.lies["/log/checkpoint"] = instead(plain)
	if got := r.url(r.at(0, verify.DefaultMaxAge), "vue/3.0.0/vue.js"); got.Outcome != verify.Expired || !strings.Contains(got.Problem, "unknown") {
		t.Errorf("%s: %s", got.Outcome, got.Problem)
	}
	if got := r.url(r.at(0, 0), "vue/3.0.0/vue.js"); got.Outcome != verify.Proven || !got.Cosigned.IsZero() {
		t.Errorf("%+v", got)
	}
	// A cosignature of the log's key that is none is no accident.
	fields := strings.Fields(string(r.note()[len(plain):]))
	raw, err := base64.StdEncoding.DecodeString(fields[2])
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(raw[4:], uint64(time.Now().Add(time.Hour).Unix()))
	r.lies["/log/checkpoint"] = instead(fmt.Appendf(plain, "— %s %s\n", fields[1], base64.StdEncoding.EncodeToString(raw)))
	if _, err := verify.Open(t.Context(), r.at(0, 0)); verify.OutcomeOf(err) != verify.Differs {
		t.Errorf("%v", err)
	}
}

// TestWitnessesVouchForAge: a log that renews an old checkpoint itself does not pass for fresh where witnesses are required.
func TestWitnessesVouchForAge(t *testing.T) {
	r := stocked(t)
	signer, err := r.signer.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := bytes.Cut(signer.Note, []byte("\n\n"))
	now := time.Now()
	cosign := func(name string, at time.Time) (line, key string) {
		w, err := testkit.StartWitness(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w.Cosign(string(text)+"\n", uint64(at.Unix())), w.Key()
	}
	fresh, freshKey := cosign("fresh.example", now)
	old, oldKey := cosign("old.example", now.Add(-30*24*time.Hour))
	future, futureKey := cosign("future.example", now.Add(30*24*time.Hour))
	r.lies["/log/checkpoint"] = instead([]byte(string(signer.Note) + fresh + old + future))
	for _, tt := range []struct {
		keys []string
		need int
		want verify.Outcome
	}{
		{nil, 0, verify.Proven},
		{[]string{oldKey}, 0, verify.Proven}, // given, and not required: the log's own counts
		{[]string{oldKey}, 1, verify.Expired},
		{[]string{freshKey, oldKey}, 1, verify.Proven},
		{[]string{freshKey, oldKey}, 2, verify.Expired},
		{[]string{freshKey, futureKey}, 1, verify.Proven},
		{[]string{freshKey, futureKey}, 2, verify.Expired},
		{[]string{futureKey}, 1, verify.Expired},
	} {
		o := r.at(0, verify.DefaultMaxAge)
		o.Trust.Witnesses, o.Trust.Need = tt.keys, tt.need
		if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != tt.want {
			t.Errorf("%d of %d: %s: %s; want %s", tt.need, len(tt.keys), got.Outcome, got.Problem, tt.want)
		}
	}
}

// TestExpiredIsRemembered: an expired checkpoint is not gone by, but what is seen later has to contain it.
func TestExpiredIsRemembered(t *testing.T) {
	r := stocked(t)
	known, err := verify.ReadKnown(filepath.Join(t.TempDir(), "known"))
	if err != nil {
		t.Fatal(err)
	}
	late := r.at(8*24*time.Hour, verify.DefaultMaxAge)
	s := &verify.Session{Options: late, Known: known, Timeout: time.Minute}
	l, log, err := s.OpenLog(t.Context(), r.server.URL)
	if err != nil || log == nil || l.Outcome != verify.Expired || l.Age == nil || *l.Age < 8*24*3600 {
		t.Fatalf("%+v, %v", l, err)
	}
	if before, ok := known.ByServer(r.server.URL); !ok || before.Checkpoint != "" || len(before.Deferred) != 1 {
		t.Errorf("%+v", before)
	}
}

// TestProofAge: a file's proof reports its age, and fails by it only where a limit is given.
func TestProofAge(t *testing.T) {
	r := stocked(t)
	proof := r.proofOf("vue/3.0.0/vue.js")
	name := verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}
	o := r.at(30*24*time.Hour, 0)
	if got := o.Trust.VerifyProof(proof, []byte(alert), name); got.Outcome != verify.Published || got.Cosigned.IsZero() {
		t.Errorf("%+v", got)
	}
	o.Trust.MaxAge = verify.DefaultMaxAge
	if got := o.Trust.VerifyProof(proof, []byte(alert), name); got.Outcome != verify.Expired {
		t.Errorf("%+v", got)
	}
}

// TestCosignatureWithoutTime: one of ML-DSA may have none, and says nothing of the age then.
func TestCosignatureWithoutTime(t *testing.T) {
	r := stocked(t)
	text, _, _ := bytes.Cut(r.note(), []byte("\n\n"))
	w, err := testkit.StartWitness("witness.example", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	line := w.Cosign(string(text)+"\n", 0)
	raw, err := base64.StdEncoding.DecodeString(strings.Fields(line)[2])
	if err != nil || binary.BigEndian.Uint64(raw[4:]) != 0 {
		t.Fatal(line, err)
	}
	r.lies["/log/checkpoint"] = instead([]byte(string(r.note()) + line))
	o := r.at(0, verify.DefaultMaxAge)
	o.Trust.Witnesses, o.Trust.Need = []string{w.Key()}, 1
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Expired || !strings.Contains(got.Problem, "unknown") {
		t.Errorf("%s: %s", got.Outcome, got.Problem)
	}
}
