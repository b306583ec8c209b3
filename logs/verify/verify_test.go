package verify_test

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	formats "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func isDifference(err error) bool {
	return errors.As(err, new(*verify.Difference)) || errors.As(err, new(*verify.ForkError))
}

func TestProven(t *testing.T) {
	r := stocked(t)
	got := r.url(r.options(), "vue/3.0.0/vue.js")
	if got.Outcome != verify.Proven || got.Problem != "" || got.Size != int64(len(alert)) || got.SRI != logs.SumSRI([]byte(alert)) || !got.Complete {
		t.Errorf("%+v", got)
	}
	if got.Published == nil || got.Published.Entry != 1 || got.Source == nil || got.Source.Type != "import" || got.Withdrawn != nil {
		t.Errorf("published %+v from %+v, withdrawn %+v", got.Published, got.Source, got.Withdrawn)
	}
	if want := []string{"br", "gzip", "identity"}; !slices.Equal(got.Codings, want) {
		t.Errorf("codings %q, want %q", got.Codings, want)
	}
	if got := r.url(r.options(), "vue/3.0.0/dist/a%20b.min.js"); got.Outcome != verify.Proven || !slices.Equal(got.Codings, []string{"identity"}) {
		t.Errorf("a small file: %+v", got)
	}
	l := r.open(r.options())
	if got := l.Bytes(t.Context(), []byte(alert), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Proven {
		t.Errorf("local bytes: %+v", got)
	}
	if got := l.Bytes(t.Context(), []byte(alert+"\n"), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Differs {
		t.Errorf("other local bytes: %+v", got)
	}
	if l.Origin() != origin || l.Size() != r.Log.Checkpoint().Size || l.Root() != r.Log.Checkpoint().Root {
		t.Errorf("%s, %d entries, %v", l.Origin(), l.Size(), l.Root())
	}
}

// TestLies has a server lie about each thing that it serves.
func TestLies(t *testing.T) {
	const file = "/ajax/libs/vue/3.0.0/vue.js"
	for _, tt := range []struct {
		name    string
		path    func(*rig) string
		lie     func(*rig) lie
		outcome verify.Outcome
		problem string
	}{
		{"a file's bytes", at(file), always(in("", flip)), verify.Differs, "in identity: the SHA-256 of the bytes is"},
		{"in Brotli only", at(file), always(in("br", flip)), verify.Differs, "in br: "},
		{"in gzip only", at(file), always(in("gzip", flip)), verify.Differs, "in gzip: "},
		{"cut short", at(file), always(in("", cut)), verify.Differs, "in identity: there are 1519 bytes, the manifest says 1520"},
		{"cut short in gzip", at(file), always(in("gzip", cut)), verify.Differs, "in gzip: it does not decode"},
		{"endless", at(file), always(instead(make([]byte, 1<<20))), verify.Differs, "there are over 68576 bytes"},
		{"a coding that nobody asked for", at(file), always(func(status int, h http.Header, body []byte) (int, []byte) {
			h.Set("Content-Encoding", "zstd")
			return status, body
		}), verify.Unproven, `in the coding "zstd"`},
		{"not there", at(file), always(gone), verify.Unproven, "the server answered 404"},
		{"the manifest", func(r *rig) string { return r.manifestPath(1) }, always(flip), verify.Differs, "the manifest of vue 3.0.0 has the hash"},
		{"another release's manifest", func(r *rig) string { return r.manifestPath(1) }, func(r *rig) lie {
			e, _ := logs.ReadEntry(r.Store, 2)
			data, _ := r.Store.Identity(e.Manifest)
			return instead(data)
		}, verify.Differs, "the manifest of vue 3.0.0 has the hash"},
		{"no manifest", func(r *rig) string { return r.manifestPath(1) }, always(gone), verify.Unproven, "couldn't get the manifest of vue 3.0.0"},
		{"an entry", at("/log/tile/entries/000.p/5"), always(flip), verify.Differs, "is not the one in the signed tree"},
		{"too few entries", at("/log/tile/entries/000.p/5"), always(cut), verify.Differs, "ends before entry 4"},
		{"a hash of the tree", at("/log/tile/0/000.p/5"), always(flip), verify.Differs, "the log's tiles do not belong to the tree of 5 entries that is signed"},
		{"a short tile", at("/log/tile/0/000.p/5"), always(cut), verify.Differs, "has 159 bytes, not 160"},
		{"the checkpoint", at("/log/checkpoint"), always(flip), verify.Differs, "the checkpoint is not signed with " + origin},
		{"no checkpoint", at("/log/checkpoint"), always(gone), verify.Unproven, "couldn't get the log's checkpoint"},
		{"somebody else's signature", at("/log/checkpoint"), func(r *rig) lie {
			s, _ := r.newSigner(origin)
			return instead(r.checkpoint(origin, r.Log.Checkpoint(), s))
		}, verify.Differs, "the checkpoint is not signed with " + origin},
		{"somebody else's log", at("/log/checkpoint"), func(r *rig) lie {
			s, _ := r.newSigner("other.example/log")
			return instead(r.checkpoint("other.example/log", r.Log.Checkpoint(), s))
		}, verify.Differs, `the checkpoint is that of the log "other.example/log"`},
		{"another log with the right key", at("/log/checkpoint"), func(r *rig) lie {
			return instead(r.checkpoint("other.example/log", r.Log.Checkpoint(), r.key()))
		}, verify.Differs, `it is that of the log "other.example/log"`},
		{"a tree that nobody has", at("/log/checkpoint"), func(r *rig) lie {
			return instead(r.checkpoint(origin, logs.Checkpoint{Size: 5, Root: tlog.Hash{1}}, r.key()))
		}, verify.Differs, "the log's tiles do not belong to the tree of 5 entries"},
		{"keys that are none", at("/log/keys"), always(instead([]byte("{"))), verify.Unproven, "/log/keys"},
		{"no keys", at("/log/keys"), always(gone), verify.Proven, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := stocked(t)
			r.lies[tt.path(r)] = tt.lie(r)
			got := r.url(r.options(), "vue/3.0.0/vue.js")
			if got.Outcome != tt.outcome || !strings.Contains(got.Problem, tt.problem) || len(got.Problem) > 1000 {
				t.Errorf("%s: %s, want %s: …%s…", got.Outcome, got.Problem, tt.outcome, tt.problem)
			}
			if len(r.asked) == 0 || r.asked[tt.path(r)] == 0 {
				t.Errorf("nobody asked for %s, but for %v", tt.path(r), r.asked)
			}
		})
	}
}

func at(path string) func(*rig) string { return func(*rig) string { return path } }

func always(l lie) func(*rig) lie { return func(*rig) lie { return l } }

func TestWhatTheReleaseDoesNotHave(t *testing.T) {
	r := stocked(t)
	if got := r.url(r.options(), "vue/3.0.0/missing.js"); got.Outcome != verify.Unproven || !strings.Contains(got.Problem, "the release has no such file; the server answered 404") {
		t.Errorf("%+v", got)
	}
	r.lies["/ajax/libs/vue/3.0.0/missing.js"] = instead([]byte("evil()"))
	if got := r.url(r.options(), "vue/3.0.0/missing.js"); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "the server has a file there, and the release has none") {
		t.Errorf("%+v", got)
	}
	if got := r.url(r.options(), "vue/6.6.6/vue.js"); got.Outcome != verify.Unproven || !strings.Contains(got.Problem, "the log does not say that it was published") {
		t.Errorf("%+v", got)
	}
}

func TestWithdrawn(t *testing.T) {
	r := stocked(t)
	r.Withdraw("vue", "3.0.0", "it had a virus")
	r.sign()
	got := r.url(r.options(), "vue/3.0.0/vue.js")
	if got.Outcome != verify.Withdrawn || got.Withdrawn == nil || got.Withdrawn.Entry != 5 || got.Withdrawn.Reason != "it had a virus" {
		t.Errorf("%+v", got)
	}
	// A cache may go on serving it.
	r.lies["/ajax/libs/vue/3.0.0/vue.js"] = instead([]byte(alert))
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Withdrawn || !slices.Equal(got.Codings, []string{"identity"}) {
		t.Errorf("%+v", got)
	}
	delete(r.lies, "/ajax/libs/vue/3.0.0/vue.js")
	r.restore("vue", "3.0.0")
	r.sign()
	l := r.open(r.options())
	if got := l.Bytes(t.Context(), []byte(alert), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Proven || got.Withdrawn != nil {
		t.Errorf("restored: %+v", got)
	}
}

func TestPublishedTwice(t *testing.T) {
	r := stocked(t)
	r.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": "evil()"})
	r.sign()
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "entry 5 publishes vue 3.0.0 again") {
		t.Errorf("%+v", got)
	}
}

// TestLargeLog reads what the server tells of, and all of it only where that is wished.
func TestLargeLog(t *testing.T) {
	r := stocked(t)
	r.append(5000, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.Withdraw("d3", "7.0.0", "a mistake")
	r.sign()
	got := r.url(r.options(), "vue/3.0.0/vue.js")
	if got.Outcome != verify.Proven || got.Complete || r.asked["/log/tile/entries/005"] > 0 {
		t.Errorf("%+v", got)
	}
	all := r.options()
	all.All = true
	var read int64
	all.Progress = func(entries, of int64) { read = entries }
	if got := r.url(all, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven || !got.Complete || read != 5006 {
		t.Errorf("%d entries read: %+v", read, got)
	}
	if got := r.url(r.options(), "d3/7.0.0/d3.js"); got.Outcome != verify.Withdrawn {
		t.Errorf("%+v", got)
	}
	for _, tt := range []struct {
		name, told, problem string
		outcome             verify.Outcome
	}{
		{"keeps the withdrawal back", `[{"index":4}]`, "", verify.Proven},
		{"tells of another release", `[{"index":1}]`, "entry 1 is about d3 7.0.0, and it is about vue 3.0.0", verify.Differs},
		{"tells of the future", `[{"index":9999},{"index":4}]`, "", verify.Proven},
		{"tells of the past", `[{"index":-1}]`, "entry -1 is not among them", verify.Unproven},
		{"tells nothing", `[]`, "as far as the server tells; reading all 5006 entries (--all)", verify.Unproven},
		{"tells nonsense", `{}`, "/logs/d3/7.0.0", verify.Unproven},
	} {
		r.lies["/logs/d3/7.0.0"] = instead([]byte(tt.told))
		l := r.open(r.options())
		if got := l.Bytes(t.Context(), []byte("d3"), verify.Name{Package: "d3", Version: "7.0.0", Path: "d3.js"}); got.Outcome != tt.outcome || got.Complete || !strings.Contains(got.Problem, tt.problem) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	l := r.open(all)
	if got := l.Bytes(t.Context(), []byte("d3"), verify.Name{Package: "d3", Version: "7.0.0", Path: "d3.js"}); got.Outcome != verify.Withdrawn || !got.Complete {
		t.Errorf("with everything read: %+v", got)
	}
	// What a partial tile had is in the full one later, and a server need not keep both.
	r.lies["/log/tile/entries/019.p/142"] = gone
	r.append(200, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	old := r.open(r.options())
	r.append(1, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.sign()
	if e, err := old.Entry(t.Context(), 5005); err != nil || e.Kind != logs.Withdrawn {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestForks has the owner of the key sign logs that contradict each other.
func TestForks(t *testing.T) {
	r := stocked(t)
	seen := r.open(r.options()).Note()
	before := r.Log.Checkpoint()
	o := r.options()
	o.Seen = func(string) []byte { return seen }
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Errorf("the same again: %+v", got)
	}
	r.append(300, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.sign()
	l := r.open(o)
	if l.Size() != 305 || l.Seen() != 5 {
		t.Errorf("grown to %d from %d", l.Size(), l.Seen())
	}
	var fork *verify.ForkError

	// An older one than what was seen.
	later := r.options()
	later.Seen = func(string) []byte { return l.Note() }
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, before, r.key()))
	if _, err := verify.Open(t.Context(), later); !errors.As(err, &fork) || !strings.Contains(err.Error(), "the server shows a log of 5 entries, and one of 305 was signed") {
		t.Errorf("taken back: %v", err)
	}
	delete(r.lies, "/log/checkpoint")

	// Another one, as large and larger.
	other := r.options()
	for _, size := range []int64{5, 305} {
		seen := r.checkpoint(origin, logs.Checkpoint{Size: size, Root: tlog.Hash{1}}, r.key())
		other.Seen = func(string) []byte { return seen }
		if _, err := verify.Open(t.Context(), other); !errors.As(err, &fork) || !strings.Contains(err.Error(), "the log has forked") {
			t.Errorf("of %d entries: %v", size, err)
		} else if string(fork.Seen) != string(seen) || string(fork.Shown) != string(l.Note()) {
			t.Errorf("the proof is %s and %s", fork.Seen, fork.Shown)
		}
	}
}

// TestKeyChanges leads who has pinned an old key to the new one.
func TestKeyChanges(t *testing.T) {
	r := stocked(t)
	first, stolen := r.options(), r.key()
	for range 2 {
		if _, err := r.signer.Rotate(now); err != nil {
			t.Fatal(err)
		}
	}
	l := r.open(first)
	if l.Key() != r.signer.Key() || l.Key() == first.Trust.Key {
		t.Errorf("led to %s, want %s", l.Key(), r.signer.Key())
	}
	for _, key := range []string{first.Trust.Key, l.Key()} { // what was seen counts, by whichever key
		o := first
		o.Seen = func(asked string) []byte {
			if asked != key {
				return nil
			}
			return r.checkpoint(origin, logs.Checkpoint{Size: 2, Root: tlog.Hash{1}}, stolen)
		}
		if _, err := verify.Open(t.Context(), o); !errors.As(err, new(*verify.ForkError)) {
			t.Errorf("a fork of what was seen with %s: %v", key, err)
		}
	}
	if got := r.url(first, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Errorf("%+v", got)
	}
	// Who was led to the new key goes by that alone: the old one may be stolen by then.
	r.lies["/log/keys"] = gone
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), stolen))
	led := r.options()
	led.Trust.Key = l.Key()
	if _, err := verify.Open(t.Context(), led); !isDifference(err) {
		t.Errorf("signed with the old key alone: %v", err)
	}
	delete(r.lies, "/log/keys")
	delete(r.lies, "/log/checkpoint")

	// A change that is signed, and not in the log.
	old, public := r.newSigner(origin)
	_, next := r.newSigner(origin)
	signed, err := note.Sign(&note.Note{Text: next + "\n"}, old)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(signed), "\n\n")
	change := signing.KeyChange{Index: 2, Key: next, Signature: strings.TrimSpace(line)}
	r.lies["/log/keys"] = instead([]byte(`{"changes":[{"index":2,"key":` + strconv.Quote(change.Key) + `,"signature":` + strconv.Quote(change.Signature) + `}]}`))
	o := r.options()
	o.Trust.Key = public
	if _, err := verify.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not signed with "+next) {
		t.Errorf("got %v", err)
	}
	// Nor does it lead anybody who has pinned another key.
	if l := r.open(r.options()); l.Key() != r.signer.Key() {
		t.Errorf("led to %s", l.Key())
	}
}

// TestUnloggedKeyChange is told by a server whose key signs another one in private.
func TestUnloggedKeyChange(t *testing.T) {
	r := stocked(t)
	next, public := r.newSigner(origin)
	signed, err := note.Sign(&note.Note{Text: public + "\n"}, r.key())
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(signed), "\n\n")
	for _, index := range []string{"2", "77"} {
		r.lies["/log/keys"] = instead([]byte(`{"changes":[{"index":` + index + `,"key":` + strconv.Quote(public) + `,"signature":` + strconv.Quote(strings.TrimSpace(line)) + `}]}`))
		r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), next))
		if _, err := verify.Open(t.Context(), r.options()); err == nil {
			t.Errorf("a change of the key that entry %s does not announce is believed", index)
		}
	}
}

func TestWitnesses(t *testing.T) {
	r := stocked(t)
	var keys []string
	var cosigners []note.Signer
	for _, name := range []string{"one.example", "two.example", "three.example"} {
		private, public, err := note.GenerateKey(nil, name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := formats.NewSignerForCosignatureV1(private)
		if err != nil {
			t.Fatal(err)
		}
		if public, err = formats.VKeyToCosignatureV1(public); err != nil {
			t.Fatal(err)
		}
		keys, cosigners = append(keys, public), append(cosigners, s)
	}
	begun := time.Now().Add(-time.Second)
	both := append([]note.Signer{r.key()}, cosigners[:2]...)
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), both...))
	o := r.options()
	o.Trust.Witnesses = keys
	for need := range 4 {
		o.Trust.Need = need
		l, err := verify.Open(t.Context(), o)
		if need > 2 {
			if !isDifference(err) || !strings.Contains(err.Error(), "2 of the given witnesses have signed the checkpoint, and 3 are required") {
				t.Errorf("3 needed: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got := l.Cosignatures()
		if len(got) != 2 || got[0].Witness != "one.example" || got[1].Witness != "two.example" || got[0].Time.Before(begun) {
			t.Errorf("%+v", got)
		}
	}
	// The log's own key does not count as a witness, nor witnesses as the log.
	o.Trust.Need = 2
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), cosigners...))
	if _, err := verify.Open(t.Context(), o); !isDifference(err) || !strings.Contains(err.Error(), "signed by witnesses, but not with") {
		t.Errorf("without the log: %v", err)
	}
	twice := []note.Signer{r.key(), cosigners[0], cosigners[0]}
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), twice...))
	if _, err := verify.Open(t.Context(), o); !isDifference(err) {
		t.Errorf("one witness twice: %v", err)
	}
}
