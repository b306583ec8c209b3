package witness_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cosignature "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/witness"
)

const origin = "log.example/one"

// A history is a log of a test, in memory.
type history struct {
	t      *testing.T
	signer note.Signer
	key    string
	hashes []tlog.Hash
	size   int64
}

func newHistory(t *testing.T, name string) *history {
	t.Helper()
	private, key, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return &history{t: t, signer: signer, key: key}
}

// fork returns another history of the same log, up to here.
func (h *history) fork() *history {
	other := *h
	other.hashes = append([]tlog.Hash(nil), h.hashes...)
	return &other
}

func (h *history) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	list := make([]tlog.Hash, len(indexes))
	for i, x := range indexes {
		list[i] = h.hashes[x]
	}
	return list, nil
}

func (h *history) grow(entries ...string) {
	h.t.Helper()
	for _, e := range entries {
		more, err := tlog.StoredHashes(h.size, []byte(e), h)
		if err != nil {
			h.t.Fatal(err)
		}
		h.hashes = append(h.hashes, more...)
		h.size++
	}
}

// checkpoint is the signed one of the log as it is.
func (h *history) checkpoint() []byte {
	h.t.Helper()
	root, err := tlog.TreeHash(h.size, h)
	if err != nil {
		h.t.Fatal(err)
	}
	data, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", h.signer.Name(), h.size, root)}, h.signer)
	if err != nil {
		h.t.Fatal(err)
	}
	return data
}

// request is what the log tells a witness that has cosigned old entries.
func (h *history) request(old int64) string {
	h.t.Helper()
	text := fmt.Sprintf("old %d\n", old)
	if 0 < old && old < h.size {
		proof, err := tlog.ProveTree(h.size, old, h)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, p := range proof {
			text += p.String() + "\n"
		}
	}
	return text + "\n" + string(h.checkpoint())
}

func open(t *testing.T, dir string, logs ...string) *witness.Witness {
	t.Helper()
	w, err := witness.Open(witness.Options{Folder: dir, Name: "witness.example", Logs: logs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func tell(w http.Handler, body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/add-checkpoint", strings.NewReader(body)))
	return answer
}

// verifiers are those of a witness's keys.
func verifiers(t *testing.T, w *witness.Witness) []note.Verifier {
	t.Helper()
	var list []note.Verifier
	for i, key := range w.Keys() {
		var v note.Verifier
		var err error
		if i == 0 {
			v, err = cosignature.NewVerifierForCosignatureV1(key)
		} else {
			v, err = cosignature.NewMLDSAVerifier(key)
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
	}
	return list
}

// What a witness answers is as https://c2sp.org/tlog-witness has it.
func TestAddCheckpoint(t *testing.T) {
	log, stranger := newHistory(t, origin), newHistory(t, "log.example/two")
	imposter := newHistory(t, origin)
	dir := t.TempDir()
	w := open(t, dir, log.key)
	log.grow("a", "b", "c")
	for _, h := range []*history{stranger, imposter} {
		h.grow("a")
	}
	for body, status := range map[string]int{
		"":                                      400,
		"old\n\n":                               400,
		"old 00\n\n" + string(log.checkpoint()): 400,
		"old -1\n\n" + string(log.checkpoint()): 400,
		"old 0\nnothing\n\n" + string(log.checkpoint()):      400,
		"old 0\n" + strings.Repeat("x", 70<<10):              400,
		"old 0\n\n" + strings.Repeat("x", 70<<10):            413,
		"old 4\n\n" + string(log.checkpoint()):               400,
		"old 0\n\nlog.example/one\nnot a note":               400,
		stranger.request(0):                                  404,
		imposter.request(0):                                  403,
		strings.Replace(log.request(0), "\n3\n", "\n4\n", 1): 403,
		log.request(2):                                       409,
		"old 0\n" + strings.Repeat("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", 64) + "\n": 400,
		"old 0\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n" + string(log.checkpoint()):    422,
	} {
		if got := tell(w, body); got.Code != status {
			t.Errorf("%.60q: %d, want %d: %s", body, got.Code, status, got.Body)
		}
	}
	if got := tell(w, log.request(2)); got.Header().Get("Content-Type") != "text/x.tlog.size" || got.Body.String() != "0\n" {
		t.Errorf("an outdated log is told %q as %s", got.Body, got.Header().Get("Content-Type"))
	}

	first := log.checkpoint()
	got := tell(w, log.request(0))
	n, err := note.Open(append(bytes.Clone(first), got.Body.Bytes()...), note.VerifierList(verifiers(t, w)...))
	if err != nil || len(n.Sigs) != 2 {
		t.Fatalf("the answer %d is no cosignature of each kind: %v\n%s", got.Code, err, got.Body)
	}
	if got := tell(w, log.request(3)); got.Code != 200 {
		t.Errorf("the same again: %d, %s", got.Code, got.Body)
	}

	fork := log.fork()
	fork.grow("d")
	log.grow("x", "y")
	if got := tell(w, log.request(3)); got.Code != 200 {
		t.Fatalf("a log that has grown: %d, %s", got.Code, got.Body)
	}
	if got := tell(w, fork.request(3)); got.Code != 409 || got.Body.String() != "5\n" {
		t.Errorf("a smaller fork: %d, %s", got.Code, got.Body)
	}
	fork.grow("e")
	if got := tell(w, fork.request(5)); got.Code != 409 || got.Header().Get("Content-Type") == "text/x.tlog.size" {
		t.Errorf("a fork of the same size: %d, %s", got.Code, got.Body)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "fork-*.json"))
	if len(kept) != 1 || err != nil {
		t.Fatalf("%d forks are kept, %v", len(kept), err)
	}
	// What is kept proves itself to those who have the log's key, and to no others.
	if found, err := verify.VerifyEvidence(kept[0], log.key); err != nil || found.Outcome != verify.Forked || !strings.Contains(found.Why, "two checkpoints of 5 entries are signed") {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := verify.VerifyEvidence(kept[0], stranger.key); err != nil || found.Outcome != verify.Unproven {
		t.Errorf("%+v, %v", found, err)
	}
	fork.grow("f", "g")
	if got := tell(w, fork.request(5)); got.Code != 422 {
		t.Errorf("a larger fork: %d, %s", got.Code, got.Body)
	}

	// What was cosigned is remembered, and shown.
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = open(t, dir, log.key)
	if got := tell(w, fork.request(5)); got.Code != 422 {
		t.Errorf("a larger fork after a restart: %d, %s", got.Code, got.Body)
	}
	shown := httptest.NewRecorder()
	w.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin))), nil))
	if n, err := note.Open(shown.Body.Bytes(), note.VerifierList(verifiers(t, w)...)); err != nil || len(n.Sigs) != 2 || !strings.HasPrefix(n.Text, origin+"\n5\n") {
		t.Errorf("what is shown: %v\n%s", err, shown.Body)
	}
}

// A witness without what it has signed would sign another history.
func TestDamagedFolder(t *testing.T) {
	log := newHistory(t, origin)
	log.grow("a")
	for name, damage := range map[string]func(dir string) error{
		"another's name": func(string) error { return nil },
		"no keys":        func(dir string) error { return os.Remove(filepath.Join(dir, "witness.key")) },
		"damaged keys": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "witness.key"), []byte("a b c d"), 0o600)
		},
		"a damaged checkpoint": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%x.checkpoint", sha256.Sum256([]byte(origin)))), []byte("x"), 0o600)
		},
	} {
		dir := t.TempDir()
		w := open(t, dir, log.key)
		if got := tell(w, log.request(0)); got.Code != 200 {
			t.Fatalf("%d: %s", got.Code, got.Body)
		}
		if _, err := witness.Open(witness.Options{Folder: dir, Name: "witness.example"}); err == nil {
			t.Error("two witnesses have one folder")
		}
		w.Close()
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		o := witness.Options{Folder: dir, Name: "witness.example", Logs: []string{log.key}}
		if name == "another's name" {
			o.Name = "other.example"
		}
		if w, err := witness.Open(o); err == nil {
			w.Close()
			t.Errorf("%s: it opens", name)
		}
	}
	if _, err := witness.Open(witness.Options{Folder: t.TempDir()}); err == nil {
		t.Error("keys without a name")
	}
}

// Tessera's own client has its log cosigned, again and again as it grows.
func TestTesseraIsWitnessed(t *testing.T) {
	private, key, err := note.GenerateKey(rand.Reader, "tessera.example")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	w := open(t, t.TempDir(), key)
	site := httptest.NewServer(w)
	defer site.Close()
	group, err := tessera.NewWitnessGroupFromPolicy(fmt.Appendf(nil, "witness one %s %s\nquorum one\n", w.Keys()[0], site.URL))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	driver, err := posix.New(ctx, posix.Config{Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).WithCheckpointInterval(100*time.Millisecond).WithBatching(1, 10*time.Millisecond).WithWitnesses(group, nil))
	if err != nil {
		t.Fatal(err)
	}
	awaiter := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 20*time.Millisecond)
	for i := range 3 {
		_, checkpoint, err := awaiter.Await(ctx, appender.Add(ctx, tessera.NewEntry(fmt.Appendf(nil, "entry %d", i))))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := note.Open(checkpoint, note.VerifierList(verifiers(t, w)[0])); err != nil || len(n.Sigs) != 1 {
			t.Errorf("what Tessera publishes isn't cosigned: %v\n%s", err, checkpoint)
		}
	}
	if err := shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	log := newHistory(&testing.T{}, origin)
	log.grow("a", "b")
	f.Add([]byte(log.request(0)))
	f.Add([]byte(log.request(1)))
	f.Add([]byte("old 1\n\n"))
	w, err := witness.Open(witness.Options{Folder: f.TempDir(), Name: "witness.example", Logs: []string{log.key}})
	if err != nil {
		f.Fatal(err)
	}
	defer w.Close()
	f.Fuzz(func(t *testing.T, body []byte) {
		switch got := tell(w, string(body)); got.Code {
		case 400, 403, 404, 409, 413, 422:
		case 200:
			if !bytes.HasSuffix(body, log.checkpoint()) && !bytes.Contains(body, log.checkpoint()) {
				t.Errorf("cosigned %q", body)
			}
		default:
			t.Errorf("%d for %q", got.Code, body)
		}
	})
}

// The tree of no entries has one root, and a log's first checkpoint may be of that.
func TestEmptyTree(t *testing.T) {
	log := newHistory(t, origin)
	w := open(t, t.TempDir(), log.key)
	emptyRoot, err := tlog.TreeHash(0, log)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		root   tlog.Hash
		status int
	}{{tlog.Hash{1}, 409}, {emptyRoot, 200}, {tlog.Hash{1}, 409}, {emptyRoot, 200}} {
		checkpoint, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n0\n%s\n", origin, tt.root)}, log.signer)
		if err != nil {
			t.Fatal(err)
		}
		if got := tell(w, "old 0\n\n"+string(checkpoint)); got.Code != tt.status {
			t.Errorf("the root %v: %d, want %d: %s", tt.root, got.Code, tt.status, got.Body)
		}
	}
}

// TestConformance has the cases of https://c2sp.org/tlog-witness, each sent to a witness that has cosigned three entries.
func TestConformance(t *testing.T) {
	log := newHistory(t, origin)
	log.grow("a", "b", "c")
	three := log.request(0)
	grown := log.fork()
	grown.grow("d", "e")
	signed := func(h *history, extension string) string {
		root, err := tlog.TreeHash(h.size, h)
		if err != nil {
			t.Fatal(err)
		}
		data, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n%s", origin, h.size, root, extension)}, h.signer)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	proof, _, _ := strings.Cut(grown.request(3), "\n\n")
	const example = "old 20852014\nPlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\njrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n" +
		"/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n\nexample.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n" +
		"— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n" +
		"— example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n"
	sofa := newHistory(t, "example.com/behind-the-sofa")
	for _, tt := range []struct {
		name, body string
		status     int
		answer     string // "" for any
	}{
		{"the example of the text, of an unknown log", strings.ReplaceAll(example, "example.com", "example.org"), 404, ""},
		{"the example of the text, by another key", example, 403, ""},
		{"an old size above the checkpoint's", "old 6\n\n" + signed(grown, ""), 400, ""},
		{"an old size that is not the last one", "old 0\n\n" + signed(grown, ""), 409, "3\n"},
		{"an empty proof", "old 3\n\n" + signed(grown, ""), 422, ""},
		{"a proof that is too long", proof + "\n" + strings.Repeat("A", 43) + "=\n\n" + signed(grown, ""), 422, ""},
		{"a proof of the same size", "old 3\n" + strings.Repeat("A", 43) + "=\n\n" + signed(log, ""), 422, ""},
		{"too many lines", "old 3\n" + strings.Repeat(strings.Repeat("A", 43)+"=\n", 64) + "\n" + signed(grown, ""), 400, ""},
		{"the same size", "old 3\n\n" + signed(log, ""), 200, ""},
		{"extension lines", proof + "\n\n" + signed(grown, "time 1\n— or anything\n"), 200, ""},
		{"an unknown signature beside", proof + "\n\n" + signed(grown, "") + "— other.example AAAAAAAAAAAA\n", 200, ""},
		{"a carriage return", "old 3\r\n\n" + signed(log, ""), 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := open(t, t.TempDir(), log.key, sofa.key)
			if got := tell(w, three); got.Code != 200 {
				t.Fatal(got.Code, got.Body)
			}
			got := tell(w, tt.body)
			if got.Code != tt.status || tt.answer != "" && (got.Body.String() != tt.answer || got.Header().Get("Content-Type") != "text/x.tlog.size") {
				t.Errorf("%d, %q; want %d, %q", got.Code, got.Body, tt.status, tt.answer)
			}
			if tt.status != 200 {
				return
			}
			_, checkpoint, _ := strings.Cut(tt.body, "\n\n")
			if n, err := note.Open([]byte(checkpoint+got.Body.String()), note.VerifierList(verifiers(t, w)...)); err != nil || len(n.Sigs) != 2 {
				t.Errorf("what it answers is no cosignature of the checkpoint with all of its lines: %v\n%s", err, got.Body)
			}
		})
	}
}
