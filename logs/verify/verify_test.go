package verify_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
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
	return verify.OutcomeOf(err) == verify.Differs
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
	if got := l.VerifyBytes(t.Context(), []byte(alert), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Proven {
		t.Errorf("local bytes: %+v", got)
	}
	if got := l.VerifyBytes(t.Context(), []byte(alert+"\n"), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Differs {
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
		}), verify.Unproven, `the encoding "zstd"`},
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
		{"the checkpoint", at("/log/checkpoint"), always(inSize), verify.Differs, "the checkpoint is not signed with " + origin},
		{"a signature that is none", at("/log/checkpoint"), always(cut), verify.Unproven, "malformed note"},
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

// inSize changes the number of entries. A bit anywhere else may make a note that cannot be read.
func inSize(status int, _ http.Header, body []byte) (int, []byte) {
	return status, bytes.Replace(body, []byte("\n5\n"), []byte("\n4\n"), 1)
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
	if got := l.VerifyBytes(t.Context(), []byte(alert), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}); got.Outcome != verify.Proven || got.Withdrawn != nil {
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

// TestPublishedAgain has a withdrawn release come back with the same files, and with others.
func TestPublishedAgain(t *testing.T) {
	r := stocked(t)
	for _, tt := range []struct{ content, problem string }{{alert, ""}, {"evil()", "publishes vue 3.0.0 again, which entry"}} {
		r.Withdraw("vue", "3.0.0", "it had a virus")
		r.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": tt.content, "dist/a b.min.js": "alert(2)"})
		r.sign()
		l := r.open(r.options())
		got := l.VerifyBytes(t.Context(), []byte(tt.content), verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"})
		if (got.Outcome == verify.Proven) != (tt.problem == "") || !strings.Contains(got.Problem, tt.problem) {
			t.Errorf("%s: %+v", tt.content, got)
		}
	}
}

// TestForks has the owner of the key sign logs that contradict each other.
func TestForks(t *testing.T) {
	r := stocked(t)
	first := r.open(r.options()).Note()
	before := r.Log.Checkpoint()
	o := r.options()
	o.Known = seen(first)
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Errorf("the same again: %+v", got)
	}
	r.append(300, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.sign()
	l := r.open(o)
	if seen, _ := l.Seen(); l.Size() != 305 || seen != 5 {
		t.Errorf("grown to %d from %d", l.Size(), seen)
	}

	// Of the same size, larger, and smaller, with the tiles of the larger one.
	for _, tt := range []struct{ seen, shown int64 }{{305, 305}, {5, 305}, {305, 5}} {
		honest := map[int64]logs.Checkpoint{5: before, 305: r.Log.Checkpoint()}
		lie := logs.Checkpoint{Size: min(tt.seen, tt.shown), Root: tlog.Hash{1}}
		seenNote, shown := r.checkpoint(origin, lie, r.key()), r.checkpoint(origin, honest[tt.shown], r.key())
		if tt.seen > tt.shown {
			seenNote, shown = r.checkpoint(origin, honest[tt.seen], r.key()), r.checkpoint(origin, lie, r.key())
		}
		other := r.options()
		other.Known = seen(seenNote)
		r.lies["/log/checkpoint"] = instead(shown)
		_, err := verify.Open(t.Context(), other)
		var fork *verify.ForkError
		if !errors.As(err, &fork) || verify.OutcomeOf(err) != verify.Forked || !strings.Contains(err.Error(), "the log has forked: ") {
			t.Errorf("%d after %d: %v", tt.shown, tt.seen, err)
			continue
		}
		if heads := fork.Evidence.Heads; !slices.Contains(heads[:], string(seenNote)) || !slices.Contains(heads[:], string(shown)) {
			t.Errorf("%d after %d: the evidence has %q", tt.shown, tt.seen, heads)
		}
		data, err := fork.Evidence.Encode()
		if err != nil {
			t.Fatal(err)
		}
		evidence, err := signing.DecodeEvidence(data)
		if err != nil {
			t.Fatal(err)
		}
		if proven, err := evidence.Check(r.signer.Key()); err != nil || proven != fork.Fork {
			t.Errorf("%d after %d: the evidence proves %+v, %v", tt.shown, tt.seen, proven, err)
		}
	}
}

// TestStale has a server that goes on from an older state, as after a backup was restored.
func TestStale(t *testing.T) {
	r := stocked(t)
	older := r.Log.Checkpoint()
	old := instead(r.checkpoint(origin, older, r.key()))
	r.append(1, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.sign()
	newer := r.open(r.options())
	path := filepath.Join(t.TempDir(), "known-logs")
	known, err := verify.ReadKnown(path)
	if err != nil {
		t.Fatal(err)
	}
	remember := func(l *verify.Log) verify.KnownLog {
		t.Helper()
		if err := known.RecordLog(r.server.URL, l.Key(), l, now); err != nil {
			t.Fatal(err)
		}
		remembered, _ := known.ByServer(r.server.URL)
		return remembered
	}
	remember(newer)
	o := r.options()
	o.Known = known.ByKey
	r.lies["/log/checkpoint"] = old

	// Its tiles show that it is part of what was seen.
	l := r.open(o)
	if d := l.Unverified(); d == nil || d.Outcome != verify.Stale || !strings.Contains(d.Problem, "a log of 5 entries, and one of 6 was signed and seen before, which contains it") {
		t.Errorf("%+v", d)
	}
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Stale {
		t.Errorf("%+v", got)
	}
	if k := remember(l); len(k.Deferred) > 0 || k.Checkpoint != string(newer.Note()) {
		t.Errorf("%+v", k)
	}
	if got := r.url(o, "vue/9.9.9/vue.js"); got.Outcome != verify.Stale || !strings.Contains(got.Problem, "the log does not say that it was published") {
		t.Errorf("what a newer state may have: %+v", got)
	}
	r.lies["/ajax/libs/vue/3.0.0/vue.js"] = flip
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Differs {
		t.Errorf("with a wrong file: %+v", got)
	}

	// They are missing: it is kept, and compared later.
	r.lies["/log/tile/0/000.p/6"], r.lies["/log/tile/0/000"] = gone, gone
	l = r.open(o)
	if d := l.Unverified(); d == nil || d.Outcome != verify.Stale || !strings.Contains(d.Problem, "a later run compares the two") {
		t.Errorf("without tiles: %+v", d)
	}
	if k := remember(l); len(k.Deferred) != 1 || k.Checkpoint != string(newer.Note()) {
		t.Errorf("without tiles: %+v", k)
	}
	// Wrong tiles prove nothing either.
	r.lies["/log/tile/0/000.p/6"] = flip
	if d := r.open(o).Unverified(); d == nil || d.Outcome != verify.Stale {
		t.Errorf("with wrong tiles: %+v", d)
	}
	// Another one of its size contradicts what is kept.
	r.lies["/log/tile/0/000.p/6"] = gone
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, logs.Checkpoint{Size: 5, Root: tlog.Hash{1}}, r.key()))
	if _, err := verify.Open(t.Context(), o); verify.OutcomeOf(err) != verify.Forked {
		t.Errorf("two small ones: %v", err)
	}
	delete(r.lies, "/log/checkpoint")
	delete(r.lies, "/log/tile/0/000.p/6")
	if k := remember(r.open(o)); len(k.Deferred) > 0 {
		t.Errorf("the log contains what is kept: %+v", k)
	}

	// A small one that turns out to be of another log.
	r.lies["/log/tile/0/000.p/6"] = gone
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, logs.Checkpoint{Size: 5, Root: tlog.Hash{1}}, r.key()))
	remember(r.open(o))
	delete(r.lies, "/log/checkpoint")
	delete(r.lies, "/log/tile/0/000.p/6")
	if _, err := verify.Open(t.Context(), o); verify.OutcomeOf(err) != verify.Forked {
		t.Errorf("what is kept contradicts the log: %v", err)
	}
}

// TestStaleFromBeforeAKeyChange is an older state that only an older key has signed.
func TestStaleFromBeforeAKeyChange(t *testing.T) {
	r := stocked(t)
	first := r.open(r.options())
	if _, err := r.signer.Rotate(now); err != nil {
		t.Fatal(err)
	}
	second := r.open(r.options())
	o := r.options()
	o.Known = func(string) (verify.KnownLog, bool) {
		return verify.KnownLog{Key: second.Key(), Former: []string{first.Key()}, Checkpoint: string(second.Note())}, true
	}
	r.lies["/log/keys"] = instead([]byte(`{"changes":[]}`))
	r.lies["/log/checkpoint"] = instead(first.Note())
	l := r.open(o)
	if d := l.Unverified(); d == nil || d.Outcome != verify.Stale {
		t.Errorf("%+v", d)
	}
	known, err := verify.ReadKnown(filepath.Join(t.TempDir(), "known-logs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*verify.Log{second, l} {
		if err := known.RecordLog(r.server.URL, second.Key(), l, now); err != nil {
			t.Fatal(err)
		}
	}
	if k, _ := known.ByServer(r.server.URL); k.Key != second.Key() {
		t.Errorf("an older key is gone by: %+v", k)
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
		o.Known = func(asked string) (verify.KnownLog, bool) {
			return verify.KnownLog{Checkpoint: string(r.checkpoint(origin, logs.Checkpoint{Size: 2, Root: tlog.Hash{1}}, stolen))}, asked == key
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

// TestKeyChangesMeanwhile has the key change between two requests.
func TestKeyChangesMeanwhile(t *testing.T) {
	r := stocked(t)
	o := r.options()
	r.lies["/log/keys"] = func(status int, _ http.Header, body []byte) (int, []byte) {
		if _, err := r.signer.Rotate(now); err != nil {
			t.Error(err)
		}
		return status, body
	}
	if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Errorf("%+v", got)
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
	var keys, plain []string // plain are the same keys in the form of a log's
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
		plain = append(plain, public)
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
		l := r.open(o)
		if need > 2 {
			if d := l.Unverified(); d == nil || d.Outcome != verify.Unproven || !strings.Contains(d.Problem, "2 of the given witnesses have signed the checkpoint, and 3 are required") {
				t.Errorf("3 needed: %+v", d)
			}
			if got := r.url(o, "vue/3.0.0/vue.js"); got.Outcome != verify.Unproven {
				t.Errorf("3 needed: %+v", got)
			}
			continue
		}
		if d := l.Unverified(); d != nil {
			t.Errorf("%d needed: %+v", need, d)
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
	if d := r.open(o).Unverified(); d == nil || d.Outcome != verify.Unproven {
		t.Errorf("one witness twice: %+v", d)
	}
	// A witness that is given twice counts once, and the log is not its own witness.
	file := filepath.Join(t.TempDir(), "one.key")
	if err := os.WriteFile(file, []byte(keys[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if o.Trust.Witnesses, err = verify.ReadWitnessKeys([]string{keys[0], keys[1], file, keys[0], plain[0]}); err != nil || len(o.Trust.Witnesses) != 2 {
		t.Fatal(o.Trust.Witnesses, err)
	}
	r.lies["/log/checkpoint"] = instead(r.checkpoint(origin, r.Log.Checkpoint(), both...))
	if d := r.open(o).Unverified(); d != nil {
		t.Errorf("two witnesses, one of which is given four times: %+v", d)
	}
	o.Trust.Witnesses = []string{keys[0], o.Trust.Key}
	if _, err := verify.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is the log's own") {
		t.Errorf("the log as its own witness: %v", err)
	}
}
