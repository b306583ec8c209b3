package tiles_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	tlogproof "github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// release appends an entry about a release with a few files.
func (r *rig) release(kind logs.Kind, pkg, version string) {
	r.Helper()
	m := &logs.Manifest{Package: pkg, Version: version}
	for _, path := range []string{"a.js", "dist/b c.js", "dist/d.js"} {
		data := []byte(pkg + version + path)
		m.Files = append(m.Files, logs.File{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream})
	}
	data, err := m.Encode()
	if err != nil {
		r.Fatal(err)
	}
	c := views.Change{Entry: logs.Entry{Kind: kind, Actor: "bot", Package: pkg, Version: version, Manifest: r.keep(string(data))}, Manifest: m}
	if err := r.log.Update(func(tx *logs.Tx) error { return views.Record(tx, c) }); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) sign() {
	r.Helper()
	if err := r.signer.Sign(); err != nil {
		r.Fatal(err)
	}
}

// live asks what is live, and checks the proof against the tree of that size.
func (r *rig) live(path string, pkg, version string, tree logs.Checkpoint) tiles.LiveProof {
	r.Helper()
	response, body := r.ask(r.server, http.MethodGet, path)
	if response.StatusCode != http.StatusOK || response.Header.Get("Cache-Control") != "no-store" {
		r.Fatalf("%s: %s %v %s", path, response.Status, response.Header, body)
	}
	var p tiles.LiveProof
	if err := json.Unmarshal(body, &p); err != nil {
		r.Fatal(err)
	}
	for _, e := range append(p.About, p.Last) {
		if err := e.Check(tlog.Tree{N: tree.Size, Hash: tree.Root}); err != nil {
			r.Errorf("%s: entry %d: %v", path, e.Index, err)
		}
	}
	last, err := logs.ParseEntry(p.Last.Index, []byte(p.Last.Entry))
	if err != nil || p.Size != tree.Size || last.Index != p.Size-1 {
		r.Errorf("%s: %d entries, the last one is %+v, %v", path, p.Size, last, err)
	}
	if err := p.Map.Check(last.Live, pkg, version); err != nil {
		r.Errorf("%s: %v", path, err)
	}
	return p
}

func TestLive(t *testing.T) {
	r := newRig(t)
	if response, _ := r.ask(r.server, http.MethodGet, "/log/live/vue/3.0.0"); response.StatusCode != http.StatusServiceUnavailable && response.StatusCode != http.StatusNotFound {
		t.Errorf("of an empty log: %s", response.Status)
	}
	r.release(logs.Published, "vue", "3.0.0")
	r.release(logs.Published, "@vue/core", "3.0.0")
	r.grow(300)
	first := r.log.Checkpoint()
	for _, path := range []string{"/log/live/vue/3.0.0", "/log/live/vue/3.0.0?size=300", "/log/live/%76ue/3.0.0"} {
		if p := r.live(path, "vue", "3.0.0", first); p.Map.Live == nil || p.Map.Live.Entry != 0 || len(p.About) != 1 || p.About[0].Index != 0 {
			t.Errorf("%s: %+v", path, p)
		}
	}
	for _, path := range []string{"/log/live/@vue/core/3.0.0", "/log/live/@vue%2Fcore/3.0.0", "/log/live/%40vue%2Fcore/3.0.0"} {
		if p := r.live(path, "@vue/core", "3.0.0", first); p.Map.Live == nil || p.Map.Live.Entry != 1 {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if p := r.live("/log/live/vue/9.9.9", "vue", "9.9.9", first); p.Map.Live != nil || len(p.About) > 0 {
		t.Errorf("%+v", p)
	}
	r.release(logs.Withdrawn, "vue", "3.0.0")
	if p := r.live("/log/live/vue/3.0.0", "vue", "3.0.0", first); p.Map.Live == nil {
		t.Errorf("what is not signed counts: %+v", p)
	}
	r.sign()
	if p := r.live("/log/live/vue/3.0.0", "vue", "3.0.0", r.log.Checkpoint()); p.Map.Live != nil || len(p.About) != 2 || p.About[1].Index != 300 {
		t.Errorf("%+v", p)
	}
	if p := r.live("/log/live/vue/3.0.0?size=300", "vue", "3.0.0", first); p.Map.Live == nil || len(p.About) != 1 {
		t.Errorf("%+v", p)
	}
	r.release(logs.Restored, "vue", "3.0.0")
	r.sign()
	if p := r.live("/log/live/vue/3.0.0", "vue", "3.0.0", r.log.Checkpoint()); p.Map.Live == nil || p.Map.Live.Entry != 301 || len(p.About) != 2 || p.About[1].Index != 301 {
		t.Errorf("%+v", p)
	}
	r.grow(9000)
	r.release(logs.Withdrawn, "vue", "3.0.0")
	r.grow(18_000)
	r.release(logs.Published, "vue", "4.0.0")
	r.sign()
	r.release(logs.Published, "vue", "4.1.0")
	r.sign()
	for path, status := range map[string]int{
		"/log/live/vue/3.0.0?size=302": http.StatusNotFound, // too long ago
		"/log/live/vue/3.0.0?size=0":   http.StatusNotFound, "/log/live/vue/3.0.0?size=-1": http.StatusNotFound, "/log/live/vue/3.0.0?size=x": http.StatusNotFound,
		"/log/live/vue/3.0.0?size=99999": http.StatusNotFound, "/log/live/vue": http.StatusNotFound, "/log/live/vue/": http.StatusNotFound, "/log/live//3.0.0": http.StatusNotFound,
		"/log/live/vue/3.0.0/": http.StatusNotFound, "/log/live/vue/3.0.0/x": http.StatusNotFound, "/log/live/vue/%00": http.StatusNotFound,
	} {
		if response, body := r.ask(r.server, http.MethodGet, path); response.StatusCode != status {
			t.Errorf("%s: %s %s", path, response.Status, body)
		}
	}
}

// TestFileProof reads a proof as another program would, with nothing of this one but the
// form of the extra data.
func TestFileProof(t *testing.T) {
	r := newRig(t)
	r.grow(20)
	r.release(logs.Published, "@vue/core", "3.0.0")
	r.grow(70)
	response, body := r.ask(r.server, http.MethodGet, "/log/proof/@vue/core/3.0.0/dist/b%20c.js.tlog-proof")
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Fatalf("%s %v %s", response.Status, response.Header, body)
	}
	var p tlogproof.TLogProof
	if err := p.Unmarshal(body); err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(r.signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Open(p.Checkpoint, note.VerifierList(verifier))
	if err != nil {
		t.Fatal(err)
	}
	var origin, root string
	var size int64
	if _, err := fmt.Sscan(signed.Text, &origin, &size, &root); err != nil {
		t.Fatal(err)
	}
	rootHash, err := base64.StdEncoding.DecodeString(root)
	if err != nil {
		t.Fatal(err)
	}
	var extra struct {
		Format    int
		Entry     string
		Path      string
		Index, Of int64
		Proof     []tlog.Hash
	}
	if err := json.Unmarshal(p.ExtraData, &extra); err != nil {
		t.Fatal(err)
	}
	var inTree tlog.RecordProof
	for _, h := range p.Hashes {
		inTree = append(inTree, h)
	}
	if err := tlog.CheckRecord(inTree, size, tlog.Hash(rootHash), int64(p.Index), tlog.RecordHash([]byte(extra.Entry))); err != nil {
		t.Error(err)
	}
	var e struct {
		Kind, Package string
		Files         kvstore.Hash
	}
	if err := json.Unmarshal([]byte(extra.Entry), &e); err != nil || e.Kind != "published" || e.Package != "@vue/core" {
		t.Errorf("%+v, %v", e, err)
	}
	data := []byte("@vue/core3.0.0dist/b c.js")
	sum, sri := kvstore.Sum(data), logs.SumSRI(data)
	record := append(append(append(sum[:], sri[:]...), 0, 0, 0, 0, 0, 0, 0, byte(len(data))), extra.Path...)
	if err := tlog.CheckRecord(extra.Proof, extra.Of, tlog.Hash(e.Files), extra.Index, tlog.RecordHash(record)); err != nil || extra.Format != 1 || extra.Path != "dist/b c.js" {
		t.Errorf("%+v: %v", extra, err)
	}

	r.release(logs.Published, "vue", "3.0.0")
	for path, status := range map[string]int{
		"/log/proof/vue/3.0.0/a.js.tlog-proof": http.StatusNotFound, // it is not signed yet
		"/log/proof/vue/3.0.0/.tlog-proof":     http.StatusNotFound, "/log/proof/@vue/core/3.0.0/a.js": http.StatusNotFound,
		"/log/proof/@vue/core/3.0.0/x.js.tlog-proof": http.StatusNotFound, "/log/proof/@vue/core/4.0.0/a.js.tlog-proof": http.StatusNotFound,
		"/log/proof/@vue/core/3.0.0/a.js.tlog-proof": http.StatusOK, "/log/proof/@vue%2Fcore/3.0.0/dist%2Fd.js.tlog-proof": http.StatusOK,
	} {
		if response, body := r.ask(r.server, http.MethodGet, path); response.StatusCode != status && !(status == http.StatusNotFound && response.StatusCode == http.StatusGone) {
			t.Errorf("%s: %s %s", path, response.Status, body)
		}
	}
	r.release(logs.Withdrawn, "@vue/core", "3.0.0")
	r.sign()
	if response, _ := r.ask(r.server, http.MethodGet, "/log/proof/@vue/core/3.0.0/a.js.tlog-proof"); response.StatusCode != http.StatusGone {
		t.Errorf("of a withdrawn release: %s", response.Status)
	}
	if response, _ := r.ask(r.server, http.MethodGet, "/log/proof/vue/3.0.0/a.js.tlog-proof"); response.StatusCode != http.StatusOK {
		t.Errorf("once it is signed: %s", response.Status)
	}
}

// elsewhere is a signer that is refused, and of which the store has another state.
type elsewhere struct {
	*signing.Signer
	held logs.Checkpoint
}

func (s elsewhere) Checkpoint() (signing.Signed, error) {
	signed, _ := s.Signer.Checkpoint()
	return signed, &signing.RefusedError{Reason: "there are two logs"}
}

func (s elsewhere) SignedInStore() logs.Checkpoint { return s.held }

// TestProofsOfWhatIsNotHere has signing be refused: what was signed and is here is proven.
func TestProofsOfWhatIsNotHere(t *testing.T) {
	r := newRig(t)
	r.release(logs.Published, "vue", "3.0.0")
	r.grow(10)
	signed := r.log.Checkpoint()
	for _, held := range []logs.Checkpoint{signed, {Size: 5, Root: tlog.Hash{1}}, {Size: 10, Root: tlog.Hash{1}}} {
		status := http.StatusServiceUnavailable
		if held == signed {
			status = http.StatusOK
		}
		server := r.serve(tiles.Options{Store: r.store, Signer: elsewhere{r.signer, held}, Logger: slog.New(slog.DiscardHandler)})
		for _, path := range []string{"/log/live/vue/3.0.0", "/log/proof/vue/3.0.0/a.js.tlog-proof"} {
			if response, body := r.ask(server, http.MethodGet, path); response.StatusCode != status {
				t.Errorf("%s: %s %s", path, response.Status, body)
			}
		}
	}
}

// damagedMap has rows of the map that cannot be read.
type damagedMap struct{ tiles.Store }

func (s damagedMap) Get(ns kvstore.Namespace, key []byte) ([]byte, error) {
	if ns == kvstore.LogLive {
		return nil, errors.New("it is damaged")
	}
	return s.Store.Get(ns, key)
}

func TestDamagedMap(t *testing.T) {
	r := newRig(t)
	r.release(logs.Published, "vue", "3.0.0")
	r.sign()
	server := r.serve(tiles.Options{Store: damagedMap{r.store}, Signer: r.signer, Logger: slog.New(slog.DiscardHandler)})
	for _, path := range []string{"/log/live/vue/3.0.0", "/log/proof/vue/3.0.0/a.js.tlog-proof"} {
		if response, body := r.ask(server, http.MethodGet, path); response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "cannot be read") {
			t.Errorf("%s: %s %s", path, response.Status, body)
		}
	}
}
