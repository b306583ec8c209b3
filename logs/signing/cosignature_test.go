package signing_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
)

// A clock that the test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

// cosignedAt returns the times of a key's cosignatures of a note, as any client reads them.
func cosignedAt(t *testing.T, data []byte, key string) (times []time.Time) {
	t.Helper()
	v, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open(data, note.VerifierList(v))
	if err != nil {
		return nil
	}
	for _, s := range n.Sigs {
		at, err := cosignature.CoSigV1Timestamp(s)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, at.UTC())
	}
	return times
}

func (r *rig) isCosignedAt(s *signing.Signer, key string, want time.Time) {
	r.Helper()
	signed, err := s.Checkpoint()
	if err != nil {
		r.Fatal(err)
	}
	got := cosignedAt(r.T, signed.Note, key)
	if len(got) != 1 || !got[0].Equal(want) {
		r.Errorf("cosigned at %v, want %v:\n%s", got, want, signed.Note)
	}
}

// TestHourlyCosignature: the signed text stays, and the key's line has the time of its last hour, also after a restart.
func TestHourlyCosignature(t *testing.T) {
	r, c := newRig(t), newClock()
	r.next.Now = c.Now
	first := c.Now()
	r.grow(3, "vue")
	s := r.open()
	r.sign(s)
	r.isCosignedAt(s, s.Key(), first)
	before, _ := s.Checkpoint()

	c.add(time.Hour - time.Second)
	r.sign(s)
	r.isCosignedAt(s, s.Key(), first)
	renewed := c.add(time.Second)
	r.sign(s)
	r.isCosignedAt(s, s.Key(), renewed)
	after, _ := s.Checkpoint()
	text := func(note []byte) []byte { text, _, _ := bytes.Cut(note, []byte("\n\n")); return text }
	if !bytes.Equal(text(before.Note), text(after.Note)) {
		t.Errorf("the text was %s, and is %s", before.Note, after.Note)
	}
	r.holds(s)
	r.close(s)

	c.add(time.Minute)
	s = r.open()
	r.isCosignedAt(s, s.Key(), renewed)
	grown := c.add(time.Minute)
	r.grow(1, "vue")
	r.sign(s)
	r.isCosignedAt(s, s.Key(), grown)
	stored, err := signing.StoredNote(r.store)
	if signed, _ := s.Checkpoint(); err != nil || !bytes.Equal(stored, signed.Note) {
		t.Errorf("in the store is %s, %v; want %s", stored, err, signed.Note)
	}
	r.close(s)
}

// TestRunCosigns: a signer that runs renews without the log growing, and after its clock was wrong.
func TestRunCosigns(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"an hour later": -time.Hour, "the clock was ahead": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, c := newRig(t), newClock()
			r.next.Now = c.Now
			r.grow(3, "vue")
			c.add(wrong)
			s := r.open()
			r.sign(s)
			now := c.add(-wrong)
			stop := r.run(s)
			eventually(t, "it cosigns", func() bool {
				signed, _ := s.Checkpoint()
				got := cosignedAt(t, signed.Note, s.Key())
				return len(got) == 1 && got[0].Equal(now)
			})
			stop()
			r.close(s)
		})
	}
}

// TestOldCheckpointIsCosigned: a store of a version without cosignatures gets one when it is signed next, without a new entry.
func TestOldCheckpointIsCosigned(t *testing.T) {
	r, c := newRig(t), newClock()
	r.next.Now = c.Now
	r.grow(3, "vue")
	s := r.open()
	r.sign(s)
	r.close(s)
	// What that version left: the checkpoint with its signature alone, in both places.
	text, signatures, _ := strings.Cut(r.readFile("checkpoint"), "\n\n")
	first, _, _ := strings.Cut(signatures, "\n")
	plain := []byte(text + "\n\n" + first + "\n")
	if err := os.WriteFile(filepath.Join(r.next.Dir, "checkpoint"), plain, 0o600); err != nil {
		t.Fatal(err)
	}
	b := r.store.NewBatch()
	b.Set(kvstore.LogState, kvstore.Key("signed"), plain)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	b.Close()
	s = r.open()
	if signed, err := s.Checkpoint(); err != nil || !bytes.Equal(signed.Note, plain) {
		t.Errorf("shown is %s, %v; want %s", signed.Note, err, plain)
	}
	r.sign(s)
	r.isCosignedAt(s, s.Key(), c.Now())
	r.close(s)
}

// TestRotationCosigns: clients of the old key and of the new one get a time, and it is no later than what was signed.
func TestRotationCosigns(t *testing.T) {
	r, c := newRig(t), newClock()
	r.next.Now = c.Now
	r.grow(3, "vue")
	s := r.open()
	r.sign(s)
	old := s.Key()
	now := c.add(time.Minute)
	if _, err := s.Rotate(noon); err != nil {
		t.Fatal(err)
	}
	r.isCosignedAt(s, old, now)
	r.isCosignedAt(s, s.Key(), now)
	r.close(s)
}

// TestWitnessesCosignHourly: witnesses cosign an unchanged log again. One that is away takes nothing from what is shown.
func TestWitnessesCosignHourly(t *testing.T) {
	r, key := witnessed(t)
	c := newClock()
	r.next.Now = c.Now
	w := newWitness(t, "one.example", key)
	r.grow(5, "vue")
	r.next.Policy = signing.Majority(configured(t, w))
	s := r.open()
	stop := r.run(s)
	eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
	stop()

	asked := w.Requests()
	later := c.add(time.Hour)
	stop = r.run(s)
	eventually(t, "it is asked again", func() bool { return w.Requests() > asked && r.cosigned(s, w)[0] })
	r.isCosignedAt(s, s.Key(), later)
	stop()

	w.Instead(func(rw http.ResponseWriter) bool { http.Error(rw, "away", http.StatusServiceUnavailable); return true })
	later = c.add(time.Hour)
	stop = r.run(s)
	eventually(t, "the log cosigns", func() bool {
		signed, _ := s.Checkpoint()
		got := cosignedAt(t, signed.Note, s.Key())
		return len(got) == 1 && got[0].Equal(later)
	})
	if by := r.cosigned(s, w); !by[0] {
		t.Error("the witness's cosignature was lost")
	}
	if err := s.Problem(); err != nil {
		t.Error(err)
	}
	stop()
	r.close(s)
}

// TestNothingIsCosignedBeforeTheWitnesses: after a start from an old backup, an old checkpoint must not get a new time.
func TestNothingIsCosignedBeforeTheWitnesses(t *testing.T) {
	r, key := witnessed(t)
	c := newClock()
	r.next.Now = c.Now
	w := newWitness(t, "one.example", key)
	r.grow(5, "vue")
	r.next.Policy = signing.Majority(configured(t, w))
	s := r.open()
	stop := r.run(s)
	eventually(t, "it signs", func() bool { return r.cosigned(s, w)[0] })
	stop()
	r.close(s)
	before := c.Now()

	c.add(100 * time.Hour)
	asked := make(chan struct{}, 100)
	w.Instead(func(rw http.ResponseWriter) bool {
		asked <- struct{}{}
		http.Error(rw, "away", http.StatusServiceUnavailable)
		return true
	})
	s = r.open()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	<-asked
	<-asked
	r.isCosignedAt(s, s.Key(), before)
	cancel()
	<-done
	r.close(s)
	s = r.open()
	r.isCosignedAt(s, s.Key(), before)
	r.close(s)
}
