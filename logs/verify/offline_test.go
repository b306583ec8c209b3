package verify_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	tlogproof "github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// proofOf gets the proof of a file.
func (r *rig) proofOf(name string) []byte {
	r.Helper()
	response, err := http.Get(r.server.URL + "/log/proof/" + name + ".tlog-proof")
	if err != nil {
		r.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		r.Fatal(response.Status, string(data), err)
	}
	return data
}

// edited is a proof with changes.
func edited(t *testing.T, data []byte, change func(p *tlogproof.TLogProof, extra *logs.FileProof)) []byte {
	t.Helper()
	var p tlogproof.TLogProof
	var extra logs.FileProof
	if err := p.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(p.ExtraData, &extra); err != nil {
		t.Fatal(err)
	}
	change(&p, &extra)
	var err error
	if p.ExtraData, err = json.Marshal(extra); err != nil {
		t.Fatal(err)
	}
	return p.Marshal()
}

func TestOfflineProof(t *testing.T) {
	r := stocked(t)
	r.append(40, detected)
	r.sign()
	name := verify.Name{Package: "vue", Version: "3.0.0", Path: "vue.js"}
	proof := r.proofOf("vue/3.0.0/vue.js")
	trust := verify.Trust{Key: r.signer.Key()}
	r.server.Close() // there is no network
	got := trust.VerifyProof(proof, []byte(alert), verify.Name{})
	if got.Outcome != verify.Published || got.Problem != "" || got.Name != name || got.Published.Entry != 1 || got.SRI != logs.SumSRI([]byte(alert)) || got.Size != int64(len(alert)) {
		t.Errorf("%+v", got)
	}
	if got := trust.VerifyProof(proof, []byte(alert), name); got.Outcome != verify.Published {
		t.Errorf("%+v", got)
	}
	_, other := r.newSigner(origin)
	for _, tt := range []struct {
		name    string
		trust   verify.Trust
		proof   []byte
		file    string
		as      verify.Name
		outcome verify.Outcome
		problem string
	}{
		{"other bytes", trust, proof, alert + "\n", name, verify.Differs, "the bytes are not those that were published as vue/3.0.0/vue.js"},
		{"another name", trust, proof, alert, verify.Name{Package: "vue", Version: "3.0.0", Path: "x.js"}, verify.Differs, "the proof is of vue/3.0.0/vue.js"},
		{"another key", verify.Trust{Key: other}, proof, alert, name, verify.Differs, "the checkpoint is not signed with"},
		{"no witness", verify.Trust{Key: trust.Key, Witnesses: []string{"witness.example+c04a116e+BGh1tZDLlagdSci1RuPwMVpdGndgWKwIsx6y5PXbOr01"}, Need: 1}, proof, alert, name, verify.Unproven, "0 of the given witnesses have signed the checkpoint"},
		{"nothing", trust, nil, alert, name, verify.Unproven, "not a proof as in"},
		{"too much", trust, append(bytes.Clone(proof), make([]byte, verify.MaxProof)...), alert, name, verify.Unproven, "the proof has over"},
		{"another way to write it", trust, bytes.ReplaceAll(proof, []byte("\n"), []byte("\r\n")), alert, name, verify.Unproven, "it is not in its canonical form"},
		{"no checkpoint", trust, proof[:bytes.Index(proof, []byte("\n\n"))+2], alert, name, verify.Unproven, "not a signed checkpoint"},
		{"another index", trust, edited(t, proof, func(p *tlogproof.TLogProof, _ *logs.FileProof) { p.Index = 2 }), alert, name, verify.Differs, "the proof's entry is not in the signed tree"},
		{"an index beyond", trust, edited(t, proof, func(p *tlogproof.TLogProof, _ *logs.FileProof) { p.Index = 1 << 63 }), alert, name, verify.Unproven, "its index is too large"},
		{"a longer proof", trust, edited(t, proof, func(p *tlogproof.TLogProof, _ *logs.FileProof) { p.Hashes = append(p.Hashes, [32]byte{}) }), alert, name, verify.Differs, "the proof's entry is not in the signed tree"},
		{"another format", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) { e.Format = 2 }), alert, name, verify.Unproven, "in a format that this larder knows"},
		{"a changed entry", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) {
			e.Entry = strings.Replace(e.Entry, "3.0.0", "3.0.1", 1)
		}), alert, name, verify.Differs, "the proof's entry is not in the signed tree"},
		{"another path", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) { e.Path = "evil.js" }), alert, verify.Name{}, verify.Differs, "the bytes are not those that were published as vue/3.0.0/evil.js"},
		{"another place", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) { e.Index = 1 - e.Index }), alert, name, verify.Differs, "the bytes are not those"},
		{"a place below 0", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) { e.Index = -1 }), alert, name, verify.Differs, "the bytes are not those"},
		{"a huge tree of files", trust, edited(t, proof, func(_ *tlogproof.TLogProof, e *logs.FileProof) { e.Of = 1<<63 - 1 }), alert, name, verify.Differs, "the bytes are not those"},
		{"an entry that publishes nothing", trust, edited(t, proof, func(p *tlogproof.TLogProof, e *logs.FileProof) {
			entry, err := logs.ReadEntry(r.Store, 0)
			if err != nil {
				t.Fatal(err)
			}
			hashes := r.recordProof(0)
			e.Entry, p.Index, p.Hashes = string(entry.Raw), 0, hashes
		}), alert, verify.Name{}, verify.Differs, "entry 0 does not publish a release"},
	} {
		if got := tt.trust.VerifyProof(tt.proof, []byte(tt.file), tt.as); got.Outcome != tt.outcome || !strings.Contains(got.Problem, tt.problem) {
			t.Errorf("%s: %s: %s", tt.name, got.Outcome, got.Problem)
		}
	}
}

// FuzzOfflineProof holds that nothing but the bytes that were published is published.
func FuzzOfflineProof(f *testing.F) {
	private, public, err := note.GenerateKey(strings.NewReader(strings.Repeat("x", 32)), origin)
	if err != nil {
		f.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		f.Fatal(err)
	}
	data := []byte("alert(1)")
	file := logs.File{Path: "a.js", Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data)}
	m := logs.Manifest{Files: []logs.File{file}}
	entry, err := json.Marshal(logs.Entry{Format: 1, Kind: logs.Published, Package: "a", Version: "1", Files: m.Root(), Live: kvstore.Sum(nil)})
	if err != nil {
		f.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: origin + "\n1\n" + recordHash(entry) + "\n"}, signer)
	if err != nil {
		f.Fatal(err)
	}
	extra, err := json.Marshal(logs.FileProof{Format: 1, Entry: string(entry), Path: "a.js", FilePlace: logs.FilePlace{Of: 1}})
	if err != nil {
		f.Fatal(err)
	}
	proof := tlogproof.TLogProof{Checkpoint: signed, ExtraData: extra}.Marshal()
	trust := verify.Trust{Key: public}
	if got := trust.VerifyProof(proof, data, verify.Name{}); got.Outcome != verify.Published {
		f.Fatalf("%+v", got)
	}
	f.Add(proof, data)
	f.Add([]byte("c2sp.org/tlog-proof@v1\nindex 0\n\n"), data)
	f.Fuzz(func(t *testing.T, proof, file []byte) {
		got := trust.VerifyProof(proof, file, verify.Name{})
		if got.Outcome == verify.Published && (!bytes.Equal(file, data) || got.Path != "a.js") {
			t.Errorf("%q is %+v", file, got)
		}
	})
}

func recordHash(data []byte) string { return tlog.RecordHash(data).String() }

// recordProof proves that an entry is in the log.
func (r *rig) recordProof(index int64) (hashes [][32]byte) {
	r.Helper()
	proof, err := tlog.ProveRecord(r.Log.Checkpoint().Size, index, logs.Hashes(r.Store))
	if err != nil {
		r.Fatal(err)
	}
	for _, h := range proof {
		hashes = append(hashes, h)
	}
	return hashes
}
