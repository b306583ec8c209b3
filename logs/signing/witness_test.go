package signing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/signing/witnesstest"
)

func newWitness(t *testing.T, name string, log note.Verifier) *witnesstest.Witness {
	t.Helper()
	w, err := witnesstest.Start(name, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func configured(t *testing.T, w *witnesstest.Witness) signing.Witness {
	t.Helper()
	parsed, err := signing.ParseWitness(w.URL() + "#" + w.Key())
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// cosigned reports which of the witnesses have signed what s shows, if that is the
// log as it is.
func (r *rig) cosigned(s *signing.Signer, witnesses ...*witnesstest.Witness) []bool {
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
	r.next.Witnesses = []signing.Witness{configured(t, one), configured(t, two)}
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
	if got := r.readFile("checkpoint"); got != string(signed.Note) {
		t.Errorf("on the disk is %s, want %s", got, signed.Note)
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
	here, away := newWitness(t, "here.example", key), newWitness(t, "away.example", key)
	away.Instead(func(w http.ResponseWriter) bool {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return true
	})
	r.next.Witnesses = []signing.Witness{configured(t, away), configured(t, here)}
	r.grow(2, "vue")
	s := r.open()
	stop := r.run(s)
	eventually(t, "the one that is here signs", func() bool { return r.cosigned(s, here)[0] })
	if r.cosigned(s, away)[0] {
		t.Error("the other has signed too")
	}
	away.Instead(nil)
	eventually(t, "the one that was away signs", func() bool { by := r.cosigned(s, here, away); return by[0] && by[1] })
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
	r.next.Witnesses = []signing.Witness{configured(t, w)}
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

// TestWitnessesThatLie add nothing to what is shown.
func TestWitnessesThatLie(t *testing.T) {
	const text = "log.example\n2\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	for _, tt := range []struct {
		name   string
		status int
		kind   string
		answer func(w *witnesstest.Witness) string
		says   string
	}{
		{"of something else", 200, "", func(w *witnesstest.Witness) string { return w.Cosign(text, 1) }, "no cosignature"},
		{"nothing", 200, "", func(*witnesstest.Witness) string { return "" }, "no cosignature"},
		{"of somebody else", 200, "", func(*witnesstest.Witness) string { return "— other.example AAAAAAAAAAAA\n" }, "no cosignature"},
		{"garbage", 200, "", func(*witnesstest.Witness) string { return "\x00\xff\n\n" }, "no cosignature"},
		{"a lot", 200, "", func(*witnesstest.Witness) string { return strings.Repeat("x", 100<<10) }, "over 65536 bytes"},
		{"elsewhere", 302, "", func(*witnesstest.Witness) string { return "" }, "302 Found"},
		{"not at home", 404, "", func(*witnesstest.Witness) string { return "no\nsuch log" }, `404 Not Found: \"no\\nsuch log\"`},
		{"what it was told", 409, "Text/X.tlog.size; a=b", func(*witnesstest.Witness) string { return "0\n" }, "it has seen 0 entries, which is what it was told"},
		{"no proof where there is none", 422, "", func(*witnesstest.Witness) string { return "" }, "422 Unprocessable Entity"},
		{"no size", 409, "text/x.tlog.size", func(*witnesstest.Witness) string { return "-1\n" }, "entries"},
		{"no size at all", 409, "text/x.tlog.size", func(*witnesstest.Witness) string { return "" }, "entries"},
		{"a conflict", 409, "text/plain", func(*witnesstest.Witness) string { return "1" }, "409 Conflict"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, key := witnessed(t)
			w := newWitness(t, "witness.example", key)
			w.Instead(func(rw http.ResponseWriter) bool {
				if tt.kind != "" {
					rw.Header().Set("Content-Type", tt.kind)
				}
				if tt.status == 302 {
					rw.Header().Set("Location", w.URL())
				}
				rw.WriteHeader(tt.status)
				io.WriteString(rw, tt.answer(w))
				return true
			})
			var said lockedBuffer
			r.next.Logger = slog.New(slog.NewTextHandler(&said, nil))
			r.next.Witnesses = []signing.Witness{configured(t, w)}
			s := r.open()
			r.grow(2, "vue")
			stop := r.run(s)
			eventually(t, "the operator is told "+tt.says, func() bool { return strings.Contains(said.String(), tt.says) })
			eventually(t, "it is shown all the same", func() bool { signed, _ := s.Checkpoint(); return signed.Size == 2 })
			stop()
			r.holds(s)
			if signed, _ := s.Checkpoint(); bytes.Count(signed.Note, []byte("\n— ")) != 1 {
				t.Errorf("what is shown has more than the log's signature:\n%s", signed.Note)
			}
			r.close(s)
		})
	}
}

// TestWitnessesKnowOfAFork restores store and key folder from one backup, which the
// guard beside the key cannot notice.
func TestWitnessesKnowOfAFork(t *testing.T) {
	for _, tt := range []struct {
		name     string
		grow     int
		says     string
		onDisk   int64
		conflict bool
	}{
		{"ahead", 0, "it has cosigned 5 entries, and here are 2", 2, false},
		{"ahead of what would be signed", 1, "it has cosigned 5 entries, and here are 3", 2, false},
		{"as large", 3, "it has cosigned another log of 5 entries", 5, true},
		{"behind", 6, "it says that this log does not continue the one of which it has cosigned 5 entries", 8, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, key := witnessed(t)
			w, later := newWitness(t, "witness.example", key), newWitness(t, "later.example", key)
			r.next.Witnesses = []signing.Witness{configured(t, w)}
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
			r.grow(tt.grow, "react")
			// One that knows nothing is no help to a fork.
			r.next.Witnesses = append(r.next.Witnesses, configured(t, later))
			s := r.open()
			s.Run(t.Context()) // ends
			_, err := s.Checkpoint()
			if refused := (*signing.RefusedError)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "the witness witness.example contradicts") {
				t.Errorf("shown with %v", err)
			}
			if err := s.Sign(); err == nil {
				t.Error("signed all the same")
			}
			r.close(s)
			if got := r.readFile("checkpoint"); !strings.HasPrefix(got, fmt.Sprintf("log.example\n%d\n", tt.onDisk)) {
				t.Errorf("on the disk is %s", got)
			}
			if !tt.conflict && later.Size() > 2 {
				t.Errorf("another witness was shown %d entries", later.Size())
			}

			// Without it the operator has their way.
			r.next.Witnesses = nil
			s = r.open()
			r.sign(s)
			r.holds(s)
			r.close(s)
		})
	}
}

// TestWitnessBesideAnOldKeyFolder has a witness that knows more than the last signed
// checkpoint, and nothing that the store does not have.
func TestWitnessBesideAnOldKeyFolder(t *testing.T) {
	r, key := witnessed(t)
	w := newWitness(t, "witness.example", key)
	r.next.Witnesses = []signing.Witness{configured(t, w)}
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

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestParseWitness(t *testing.T) {
	key := newWitness(t, "witness.example", nil).Key()
	ordinary := "log.example+cae7438d+AWJY8NjnXhthBWAcFrCjbVGGfs03Ez5rpU8VPPvHyhzv"
	for s, want := range map[string]string{
		"https://witness.example#" + key:                                      "https://witness.example",
		"https://witness.example/a/b/#" + key:                                 "https://witness.example/a/b",
		"http://127.0.0.1:8000/#" + ordinary:                                  "http://127.0.0.1:8000",
		"https://witness.example":                                             "",
		"#" + key:                                                             "",
		"witness.example#" + key:                                              "",
		"ftp://witness.example#" + key:                                        "",
		"https://witness.example?a#" + key:                                    "",
		"https://witness.example#":                                            "",
		"https://witness.example#" + strings.Replace(key, "+", "+0", 1):       "",
		"https://witness.example#" + strings.Replace(key, "wit", "tiw", 1):    "",
		"https://witness.example#" + strings.Replace(ordinary, "ca", "ac", 1): "",
		"https://witness.example#" + key + "AAAA":                             "",
	} {
		w, err := signing.ParseWitness(s)
		if (err == nil) != (want != "") || w.URL != want {
			t.Errorf("%s: %q, %v; want %q", s, w.URL, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "must be a URL, # and a witness's verifier key") {
			t.Errorf("%s: %v", s, err)
		}
	}
}
