package verify_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
)

var detected = logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"}

func d3(r *rig, o verify.Options) verify.Result {
	r.Helper()
	l := r.open(o)
	return l.VerifyBytes(r.Context(), []byte("d3"), verify.Name{Package: "d3", Version: "7.0.0", Path: "d3.js"})
}

// TestLargeLog goes by the map of live releases, and reads everything only where that is
// wished.
func TestLargeLog(t *testing.T) {
	r := stocked(t)
	r.append(5000, detected)
	r.Publish("@vue/core", "3.0.0", "core.js", map[string]string{"core.js": "core"})
	r.sign()
	before := r.open(r.options()) // with a checkpoint that is soon behind
	r.Withdraw("d3", "7.0.0", "a mistake")
	r.sign()
	clear(r.asked)
	got := r.url(r.options(), "vue/3.0.0/vue.js")
	if got.Outcome != verify.Proven || got.Complete || got.Published.Entry != 1 {
		t.Errorf("%+v", got)
	}
	for path := range r.asked {
		if strings.HasPrefix(path, "/log/tile/") {
			t.Errorf("the client asked for %s", path)
		}
	}
	all := r.options()
	all.All = true
	var read int64
	all.Progress = func(entries, _ int64) { read = entries }
	if got := r.url(all, "vue/3.0.0/vue.js"); got.Outcome != verify.Proven || !got.Complete || read != 5007 {
		t.Errorf("%d entries read: %+v", read, got)
	}
	scoped := r.open(r.options()).VerifyBytes(t.Context(), []byte("core"), verify.Name{Package: "@vue/core", Version: "3.0.0", Path: "core.js"})
	if scoped.Outcome != verify.Proven {
		t.Errorf("%+v", scoped)
	}
	if got := d3(r, r.options()); got.Outcome != verify.Withdrawn || got.Withdrawn == nil || got.Withdrawn.Entry != 5006 || got.Withdrawn.Reason != "a mistake" {
		t.Errorf("%+v", got)
	}
	if got := before.VerifyBytes(t.Context(), []byte("d3"), verify.Name{Package: "d3", Version: "7.0.0", Path: "d3.js"}); got.Outcome != verify.Proven {
		t.Errorf("by the checkpoint before: %+v", got)
	}
	if got := d3(r, all); got.Outcome != verify.Withdrawn || !got.Complete {
		t.Errorf("with everything read: %+v", got)
	}
	r.restore("d3", "7.0.0")
	r.sign()
	if got := d3(r, r.options()); got.Outcome != verify.Proven || got.Withdrawn != nil || got.Published.Entry != 4 {
		t.Errorf("restored: %+v", got)
	}
	// What a partial tile had is in the full one later, and a server need not keep both.
	r.lies["/log/tile/entries/019.p/144"] = gone
	r.append(200, detected)
	old := r.open(r.options())
	r.append(1, detected)
	r.sign()
	if e, err := old.Entry(t.Context(), 5006); err != nil || e.Kind != logs.Withdrawn {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestLiesAboutWhatIsLive has a server that would like a withdrawn release to be live, and a
// live one to be withdrawn.
func TestLiesAboutWhatIsLive(t *testing.T) {
	r := stocked(t)
	r.append(5000, detected)
	r.sign()
	const liveD3 = "/log/live/d3/7.0.0"
	var old tiles.LiveProof // from before the withdrawal
	r.lies[liveD3] = changed(func(p *tiles.LiveProof) { old = *p })
	if got := d3(r, r.options()); got.Outcome != verify.Proven {
		t.Fatalf("%+v", got)
	}
	r.Withdraw("d3", "7.0.0", "a mistake")
	r.sign()
	var other tiles.LiveProof // of a live release
	r.lies[liveVue] = changed(func(p *tiles.LiveProof) { other = *p })
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Proven {
		t.Fatalf("%+v", got)
	}
	for _, tt := range []struct {
		name    string
		lie     lie
		outcome verify.Outcome
		problem string
	}{
		{"says the truth", changed(func(*tiles.LiveProof) {}), verify.Withdrawn, "the release was withdrawn: a mistake"},
		{"keeps the withdrawal back", changed(func(p *tiles.LiveProof) { p.About = p.About[:1] }), verify.Withdrawn, "does not say which entry withdrew it"},
		{"keeps everything back", changed(func(p *tiles.LiveProof) { p.About = nil }), verify.Unproven, "the log does not say that it was published, as far as the server says; it is not among the live ones"},
		{"gives an old proof", changed(func(p *tiles.LiveProof) { *p = old }), verify.Differs, "what is live after 5006 entries, and the response is about 5005"},
		{"gives an old proof with the new size", changed(func(p *tiles.LiveProof) { *p = old; p.Size, p.Last.Index = 5006, 5005 }), verify.Differs, "entry 5005 is not in the signed tree"},
		{"gives the old map", changed(func(p *tiles.LiveProof) { p.Map = old.Map }), verify.Differs, "the proof leads to the root"},
		{"gives another release's place", changed(func(p *tiles.LiveProof) { p.Map = other.Map }), verify.Differs, "the proof leads to the root"},
		{"has it be its own neighbour", changed(func(p *tiles.LiveProof) {
			p.Map.Live, p.Map.Other = nil, &logs.OtherRelease{Key: logs.LiveKey("d3", "7.0.0"), LiveRelease: *old.Map.Live}
		}), verify.Differs, "belongs to another place"},
		{"has it live and not", changed(func(p *tiles.LiveProof) { p.Map.Live, p.Map.Other = old.Map.Live, &logs.OtherRelease{} }), verify.Differs, "two releases in one place"},
		{"tells of another release", changed(func(p *tiles.LiveProof) { p.About = other.About }), verify.Differs, "is not the next one about it"},
		{"tells twice", changed(func(p *tiles.LiveProof) { p.About = append(p.About, p.About...) }), verify.Differs, "is not the next one about it"},
		{"tells of the future", changed(func(p *tiles.LiveProof) { p.About[1].Index = 9999 }), verify.Differs, "entry 9999 is not in the signed tree"},
		{"changes an entry", changed(func(p *tiles.LiveProof) {
			p.About[1].Entry = strings.Replace(p.About[1].Entry, "withdrawn", "detected", 1)
		}), verify.Differs, "entry 5005 is not in the signed tree"},
		{"cuts a proof", changed(func(p *tiles.LiveProof) { p.Last.Proof = p.Last.Proof[1:] }), verify.Differs, "entry 5005 is not in the signed tree"},
		{"flips a bit", flip, verify.Unproven, ""},
		{"tells nonsense", instead([]byte("[]")), verify.Unproven, liveD3},
		{"has no proof", gone, verify.Unproven, "try again"},
	} {
		r.lies[liveD3] = tt.lie
		got := d3(r, r.options())
		if got.Outcome != tt.outcome && !(tt.problem == "" && got.Outcome == verify.Differs) || got.Complete || !strings.Contains(got.Problem, tt.problem) {
			t.Errorf("%s: %s: %s", tt.name, got.Outcome, got.Problem)
		}
	}
	r.lies[liveVue] = changed(func(p *tiles.LiveProof) { p.Map.Live = nil })
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Differs {
		t.Errorf("a live release that is told to be withdrawn: %+v", got)
	}
	r.lies[liveVue] = changed(func(p *tiles.LiveProof) { p.About = nil })
	if got := r.url(r.options(), "vue/3.0.0/vue.js"); got.Outcome != verify.Proven || got.Published.Entry != 1 {
		t.Errorf("an entry that the client has to fetch: %+v", got)
	}
}

// TestLyingSigner has a signer withdraw a release and leave it in the map. The proof alone
// cannot tell; reading the log does, which is what small logs and --all are for.
func TestLyingSigner(t *testing.T) {
	for _, entries := range []int{10, 5000} {
		shelf := testkit.NewShelf(t)
		stock(shelf)
		appendTo(t, shelf, entries, detected)
		last, err := logs.ReadEntry(shelf.Store, shelf.Log.Checkpoint().Size-1)
		if err != nil {
			t.Fatal(err)
		}
		publication, err := logs.LastPublication(shelf.Store, "d3", "7.0.0")
		if err != nil {
			t.Fatal(err)
		}
		if err := testkit.TamperLog(shelf.Store, logs.Entry{
			Kind: logs.Withdrawn, Time: now, Actor: "operator", Package: "d3", Version: "7.0.0", Reason: "a virus", Manifest: publication.Manifest, Live: last.Live,
		}); err != nil {
			t.Fatal(err)
		}
		if shelf.Log, err = logs.Open(shelf.Store); err != nil {
			t.Fatal(err)
		}
		r := newRigOf(t, shelf)
		r.sign()
		hidden := changed(func(p *tiles.LiveProof) { p.About = p.About[:1] })
		r.lies["/log/live/d3/7.0.0"] = hidden
		large := entries > 4096
		if got := d3(r, r.options()); large != (got.Outcome == verify.Proven) || !large && !strings.Contains(got.Problem, "says that the map of live releases has the root") {
			t.Errorf("%d entries: %+v", entries, got)
		}
		delete(r.lies, "/log/live/d3/7.0.0")
		if got := d3(r, r.options()); got.Outcome != verify.Differs {
			t.Errorf("%d entries, the withdrawal is shown: %+v", entries, got)
		}
		all := r.options()
		all.All = true
		if got := d3(r, all); got.Outcome != verify.Differs || !strings.Contains(got.Problem, "says that the map of live releases has the root") {
			t.Errorf("%d entries, all of them read: %+v", entries, got)
		}
	}
}

// TestHiddenWithdrawal finds the withdrawal whose rows a hostile server has removed, in a log
// of 222,000 entries where LARDER_TEST_WHOLE is set.
func TestHiddenWithdrawal(t *testing.T) {
	releases := 3000
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		releases = 74_000
	}
	shelf := testkit.NewShelf(t)
	stock(shelf)
	for n := 0; n < releases; {
		err := shelf.Log.Update(func(tx *logs.Tx) error {
			for range min(2000, releases-n) {
				e := logs.Entry{Time: now, Actor: "bot", Package: fmt.Sprintf("package%d", n%1000), Version: fmt.Sprint(n)}
				for _, e.Kind = range []logs.Kind{logs.Detected, logs.Processed, logs.Published} {
					if e.Kind != logs.Detected {
						e.Manifest = kvstore.Sum(fmt.Append(nil, n))
					}
					if _, err := tx.Append(e); err != nil {
						return err
					}
				}
				n++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	shelf.Withdraw("d3", "7.0.0", "it had a virus")
	hideWithdrawals(t, shelf.Store)
	r := newRigOf(t, shelf)
	r.raw["/ajax/libs/d3/7.0.0/d3.js"] = func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("d3")) }
	r.sign()
	got := r.url(r.options(), "d3/7.0.0/d3.js")
	requests := 0
	for _, n := range r.asked {
		requests += n
	}
	if got.Outcome != verify.Withdrawn || got.Withdrawn != nil || !strings.Contains(got.Problem, "does not say which entry withdrew it") {
		t.Errorf("%+v", got)
	}
	if bytes := r.sent.Load(); requests > 10 || bytes > 16<<10 {
		t.Errorf("of %d entries, %d requests for %d bytes", r.Log.Checkpoint().Size, requests, bytes)
	}
}

// hideWithdrawals removes the rows by which withdrawals are found.
func hideWithdrawals(t *testing.T, store *kvstore.Store) {
	t.Helper()
	b := store.NewBatch()
	defer b.Close()
	for item, err := range store.Scan(kvstore.LogIndex, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(item.Key), string(logs.Withdrawn)) {
			b.Delete(kvstore.LogIndex, item.Key)
		}
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}
