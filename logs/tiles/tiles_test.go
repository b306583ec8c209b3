package tiles_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A rig is a signed log and the server of its tiles.
type rig struct {
	*testing.T
	dir    string
	store  *kvstore.Store
	log    *logs.Log
	signer *signing.Signer
	server *httptest.Server
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir()}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.Helper()
	var err error
	if r.store, err = kvstore.Open(filepath.Join(r.dir, "data"), kvstore.Options{}); err != nil {
		r.Fatal(err)
	}
	if r.log, err = logs.Open(r.store); err != nil {
		r.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	r.signer, err = signing.Open(signing.Options{Dir: filepath.Join(r.dir, "keys"), Origin: "cdn.example.com/log", Store: r.store, Log: r.log, Logger: logger})
	if err != nil {
		r.Fatal(err)
	}
	r.server = r.serve(tiles.Options{Store: r.store, Signer: r.signer, Logger: logger})
}

func (r *rig) close() {
	r.signer.Close()
	r.store.Close()
}

func (r *rig) serve(o tiles.Options) *httptest.Server {
	r.Helper()
	handler, err := tiles.New(o)
	if err != nil {
		r.Fatal(err)
	}
	server := httptest.NewServer(tiles.Route(handler, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	})))
	r.Cleanup(server.Close)
	return server
}

// grow makes the log have size entries, and signs it.
func (r *rig) grow(size int64) {
	r.Helper()
	r.append(size, "vue")
	if err := r.signer.Sign(); err != nil {
		r.Fatal(err)
	}
}

// append makes the log have size entries, the new ones about a package.
func (r *rig) append(size int64, pkg string) {
	r.Helper()
	for have := r.log.Checkpoint().Size; have < size; {
		err := r.log.Update(func(tx *logs.Tx) error {
			for range min(5000, size-have) {
				have++
				if _, err := tx.Append(logs.Entry{Kind: logs.Detected, Actor: "bot", Package: pkg, Version: fmt.Sprint(have)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
	}
}

// TestClientsOfOthers reads and verifies the log with the client of Tessera, which
// has its own code for tiles, proofs and hashes, while the log grows over the
// borders between tiles and levels.
func TestClientsOfOthers(t *testing.T) {
	sizes := []int64{0, 1, 2, 255, 256, 257, 511, 512, 700, 256*256 - 1, 256 * 256, 256*256 + 300}
	if testing.Short() {
		sizes = sizes[:9]
	}
	r := newRig(t)
	ctx := t.Context()
	root, err := url.Parse(r.server.URL + tiles.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	fetcher, err := client.NewHTTPFetcher(root, r.server.Client())
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(r.signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := client.NewLogStateTracker(ctx, fetcher.ReadTile, nil, verifier, "cdn.example.com/log", client.UnilateralConsensus(fetcher.ReadCheckpoint))
	if err != nil {
		t.Fatal(err)
	}
	roots := map[int64][]byte{}
	for _, size := range sizes {
		r.grow(size)
		// Update verifies the signature, and that the log has only grown.
		if _, _, _, err := tracker.Update(ctx); err != nil {
			t.Fatalf("at %d entries: %v", size, err)
		}
		latest := tracker.Latest()
		if int64(latest.Size) != size {
			t.Fatalf("the client sees %d entries, want %d", latest.Size, size)
		}
		if size == 0 {
			continue
		}
		builder, err := client.NewProofBuilder(ctx, latest.Size, fetcher.ReadTile)
		if err != nil {
			t.Fatal(err)
		}
		for _, index := range []int64{0, size / 2, size - 2, size - 1} {
			if index < 0 {
				continue
			}
			r.included(ctx, fetcher, builder, uint64(index), latest.Size, latest.Hash)
		}
		for before, root := range roots {
			path, err := builder.ConsistencyProof(ctx, uint64(before), latest.Size)
			if err == nil {
				err = proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(before), latest.Size, path, root, latest.Hash)
			}
			if err != nil {
				t.Errorf("no proof from %d to %d entries: %v", before, size, err)
			}
		}
		roots[size] = latest.Hash
	}
	r.everyEntry(ctx, fetcher, tracker.Latest().Size)
}

// included fetches an entry and proves that the tree has it.
func (r *rig) included(ctx context.Context, fetcher *client.HTTPFetcher, builder *client.ProofBuilder, index, size uint64, root []byte) {
	r.Helper()
	bundle, err := client.GetEntryBundle(ctx, fetcher.ReadEntryBundle, index/256, size)
	if err != nil {
		r.Fatal(err)
	}
	path, err := builder.InclusionProof(ctx, index)
	if err != nil {
		r.Fatal(err)
	}
	leaf := rfc6962.DefaultHasher.HashLeaf(bundle.Entries[index%256])
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, index, size, leaf, path, root); err != nil {
		r.Errorf("entry %d of %d: %v", index, size, err)
	}
}

// everyEntry reads the whole log through the client.
func (r *rig) everyEntry(ctx context.Context, fetcher *client.HTTPFetcher, size uint64) {
	r.Helper()
	bundles := client.EntryBundles(ctx, 2, func(context.Context) (uint64, error) { return size, nil }, fetcher.ReadEntryBundle, 0, size)
	unbundle := func(data []byte) ([][]byte, error) {
		var b api.EntryBundle
		err := b.UnmarshalText(data)
		return b.Entries, err
	}
	var n int64
	for got, err := range client.Entries(bundles, unbundle) {
		if err != nil {
			r.Fatal(err)
		}
		want, err := logs.ReadEntry(r.store, n)
		if err != nil {
			r.Fatal(err)
		}
		if !bytes.Equal(got.Entry, want.Raw) {
			r.Fatalf("entry %d is %s, want %s", n, got.Entry, want.Raw)
		}
		n++
	}
	if n != int64(size) {
		r.Errorf("the client read %d entries, want %d", n, size)
	}
}

// ask sends a request and returns the answer, whose body is as it came.
func (r *rig) ask(server *httptest.Server, method, path string, fields ...string) (*http.Response, []byte) {
	r.Helper()
	request, err := http.NewRequestWithContext(r.Context(), method, server.URL+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ":")
		request.Header.Add(name, value)
	}
	response, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		r.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.Fatal(err)
	}
	return response, body
}

func TestAnswers(t *testing.T) {
	r := newRig(t)
	r.grow(600)
	const forever, hour, never = "public, max-age=30672000, immutable", "public, max-age=3600, immutable", "no-store"
	for _, tt := range []struct {
		path   string
		status int
		size   int // of the body; 0 for any
		caches string
	}{
		{"/log/checkpoint", 200, 0, never},
		{"/log/key", 200, 0, never},
		{"/log/tile/0/000", 200, 8192, forever},
		{"/log/tile/0/001", 200, 8192, forever},
		{"/log/tile/0/002.p/88", 200, 88 * 32, hour},
		{"/log/tile/0/002.p/1", 200, 32, hour}, // of a checkpoint before
		{"/log/tile/0/000.p/255", 200, 255 * 32, hour},
		{"/log/tile/0/002", 404, 0, never},
		{"/log/tile/0/002.p/89", 404, 0, never},
		{"/log/tile/0/003.p/1", 404, 0, never},
		{"/log/tile/1/000.p/2", 200, 64, hour},
		{"/log/tile/1/000.p/3", 404, 0, never},
		{"/log/tile/2/000.p/1", 404, 0, never},
		{"/log/tile/7/000.p/1", 404, 0, never},
		{"/log/tile/8/000.p/1", 404, 0, never},
		{"/log/tile/63/000", 404, 0, never},
		{"/log/tile/63/x999/x999/x999/x999/x999/999", 404, 0, never},
		{"/log/tile/entries/000", 200, 0, forever},
		{"/log/tile/entries/002.p/88", 200, 0, hour},
		{"/log/tile/entries/002.p/89", 404, 0, never},
		{"/log/tile/entries/002", 404, 0, never},
		{"/log/tile/0/0", 404, 0, never},
		{"/log/tile/0/000.p/256", 404, 0, never},
		{"/log/tile/0/000.p/0", 404, 0, never},
		{"/log/tile/0/000.p/01", 404, 0, never},
		{"/log/tile/0/x000/000", 404, 0, never},
		{"/log/tile/00/000", 404, 0, never},
		{"/log/tile/-1/000", 404, 0, never},
		{"/log/tile/64/000", 404, 0, never},
		{"/log/tile/data/000", 404, 0, never},
		{"/log/tile/8/0/000", 404, 0, never},
		{"/log/tile/0/000/", 404, 0, never},
		{"/log/tile/0/%300", 404, 0, never},
		{"/log/tile", 404, 0, never},
		{"/log/", 404, 0, never},
		{"/log/checkpoint/", 404, 0, never},
		{"/log//checkpoint", 404, 0, never},
		{"/log/../log/checkpoint", 404, 0, never},
		{"/log", 418, 0, ""},
		{"/logs", 418, 0, ""},
		{"/", 418, 0, ""},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			response, body := r.ask(r.server, method, tt.path)
			if response.StatusCode != tt.status {
				t.Errorf("%s %s: status %d, want %d", method, tt.path, response.StatusCode, tt.status)
			}
			if got := response.Header.Get("Cache-Control"); got != tt.caches {
				t.Errorf("%s %s: Cache-Control: %s, want %s", method, tt.path, got, tt.caches)
			}
			if tt.status == 418 || method == http.MethodHead {
				continue
			}
			if tt.size > 0 && len(body) != tt.size {
				t.Errorf("%s: %d bytes, want %d", tt.path, len(body), tt.size)
			}
			if tt.status != 200 {
				var failure struct {
					Error   bool
					Status  int
					Message string
				}
				if err := json.Unmarshal(body, &failure); err != nil || !failure.Error || failure.Status != tt.status || failure.Message == "" {
					t.Errorf("%s: %s, %v", tt.path, body, err)
				}
			}
			want := "text/plain; charset=utf-8"
			switch {
			case tt.status == 404:
				want = "application/json"
			case strings.HasPrefix(tt.path, "/log/tile/"):
				want = "application/octet-stream"
			}
			if got := response.Header.Get("Content-Type"); got != want {
				t.Errorf("%s: Content-Type: %s, want %s", tt.path, got, want)
			}
			if response.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%s: scripts of others may not read it", tt.path)
			}
		}
	}
	if _, body := r.ask(r.server, http.MethodGet, "/log/key"); string(body) != r.signer.Key()+"\n" {
		t.Errorf("the key is %q", body)
	}
	if response, _ := r.ask(r.server, http.MethodPost, "/log/checkpoint"); response.StatusCode != 405 || response.Header.Get("Allow") != "GET, HEAD, OPTIONS" {
		t.Errorf("POST: %d, Allow: %s", response.StatusCode, response.Header.Get("Allow"))
	}
	if response, _ := r.ask(r.server, http.MethodOptions, "/log/checkpoint"); response.StatusCode != 204 || response.Header.Get("Access-Control-Allow-Methods") == "" {
		t.Errorf("OPTIONS: %d", response.StatusCode)
	}
}

// TestOnlyWhatIsSigned has entries in the store that no checkpoint covers.
func TestOnlyWhatIsSigned(t *testing.T) {
	r := newRig(t)
	r.grow(3)
	if err := r.log.Update(func(tx *logs.Tx) error {
		_, err := tx.Append(logs.Entry{Kind: logs.Detected, Package: "vue"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for path, status := range map[string]int{
		"/log/tile/0/000.p/3": 200, "/log/tile/0/000.p/4": 404, "/log/tile/entries/000.p/3": 200, "/log/tile/entries/000.p/4": 404,
	} {
		if response, _ := r.ask(r.server, http.MethodGet, path); response.StatusCode != status {
			t.Errorf("%s: status %d, want %d", path, response.StatusCode, status)
		}
	}
}

func TestEntriesAreCompressed(t *testing.T) {
	r := newRig(t)
	r.grow(256)
	_, plain := r.ask(r.server, http.MethodGet, "/log/tile/entries/000")
	response, coded := r.ask(r.server, http.MethodGet, "/log/tile/entries/000", "Accept-Encoding:gzip")
	if coding := response.Header.Get("Content-Encoding"); coding != "gzip" || len(coded) > len(plain)/4 {
		t.Errorf("%q, %d bytes of %d", coding, len(coded), len(plain))
	}
	if !slices.Contains(response.Header.Values("Vary"), "Accept-Encoding") {
		t.Errorf("Vary: %q", response.Header.Values("Vary"))
	}
	decoder, err := gzip.NewReader(bytes.NewReader(coded))
	if err != nil {
		t.Fatal(err)
	}
	if decoded, err := io.ReadAll(decoder); err != nil || !bytes.Equal(decoded, plain) {
		t.Errorf("what was compressed is something else, %v", err)
	}
	if response, _ := r.ask(r.server, http.MethodGet, "/log/tile/0/000", "Accept-Encoding:gzip"); response.Header.Get("Content-Encoding") != "" {
		t.Error("hashes are compressed")
	}
	n := 0
	for rest := plain; len(rest) > 0; n++ {
		rest = rest[2+binary.BigEndian.Uint16(rest):]
	}
	if n != 256 {
		t.Errorf("the bundle has %d entries", n)
	}
}

// TestNoCheckpoint has a signer that has lost its checkpoint, and knows of no other.
func TestNoCheckpoint(t *testing.T) {
	r := newRig(t)
	r.grow(3)
	server := r.serve(tiles.Options{Store: r.store, Signer: refusing{}, Logger: slog.New(slog.DiscardHandler)})
	for _, path := range []string{"/log/checkpoint", "/log/tile/0/000.p/1", "/log/tile/entries/000.p/1"} {
		response, body := r.ask(server, http.MethodGet, path)
		if response.StatusCode != 503 || !bytes.Contains(body, []byte("The log is not signed: bring a newer backup")) || bytes.Contains(body, []byte("/home")) {
			t.Errorf("%s: %d %s", path, response.StatusCode, body)
		}
	}
	if response, _ := r.ask(server, http.MethodGet, "/log/key"); response.StatusCode != 200 {
		t.Errorf("the key: %d", response.StatusCode)
	}
}

type refusing struct{}

func (refusing) Checkpoint() (signing.Signed, error) {
	return signing.Signed{}, &signing.RefusedError{Reason: "bring a newer backup", Cause: fmt.Errorf("in /home/larder: no")}
}
func (refusing) SignedInStore() logs.Checkpoint           { return logs.Checkpoint{} }
func (refusing) Key() string                              { return "key" }
func (refusing) KeyChanges() ([]signing.KeyChange, error) { return nil, nil }

// reopen closes store and signer, has change do something to the folders, and serves what
// is there then.
func (r *rig) reopen(change func(data, keys string)) {
	r.Helper()
	r.close()
	change(filepath.Join(r.dir, "data"), filepath.Join(r.dir, "keys"))
	r.open()
}

func replace(t *testing.T, dir, with string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(with))); err != nil {
		t.Fatal(err)
	}
}

// TestServingNeverWaitsForTrust takes the store back, lets it grow otherwise, damages it and
// loses the checkpoint: nothing new is signed then, but what was signed and is there stays
// served, and never anything else.
func TestServingNeverWaitsForTrust(t *testing.T) {
	r := newRig(t)
	r.grow(300)
	backup := filepath.Join(t.TempDir(), "old")
	r.reopen(func(data, _ string) { replace(t, backup, data) })
	r.grow(600)
	was := map[string][]byte{}
	read := func(path string) (int, []byte) {
		response, body := r.ask(r.server, http.MethodGet, path)
		return response.StatusCode, body
	}
	old := []string{"/log/tile/0/000", "/log/tile/0/001.p/44", "/log/tile/1/000.p/1", "/log/tile/entries/000", "/log/tile/entries/001.p/44", "/log/tile/entries/001.p/3"}
	young := []string{"/log/tile/0/001", "/log/tile/0/001.p/45", "/log/tile/0/002.p/88", "/log/tile/1/000.p/2", "/log/tile/entries/001", "/log/tile/entries/002.p/88"}
	for _, path := range slices.Concat([]string{"/log/checkpoint"}, old, young) {
		status, body := read(path)
		if status != 200 {
			t.Fatalf("%s: %d", path, status)
		}
		was[path] = body
	}
	stays := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if status, body := read(path); status != 200 || !bytes.Equal(body, was[path]) {
				t.Errorf("%s, %s: %d, %t", when, path, status, bytes.Equal(body, was[path]))
			}
		}
	}
	gone := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if status, _ := read(path); status != 503 {
				t.Errorf("%s, %s: %d, want 503", when, path, status)
			}
		}
		if status, _ := read("/log/tile/0/002.p/89"); status != 404 { // never was
			t.Errorf("%s, what never was: %d", when, status)
		}
	}
	refuses := func(when string) {
		t.Helper()
		if _, err := r.signer.Checkpoint(); !errors.As(err, new(*signing.RefusedError)) {
			t.Errorf("%s: %v", when, err)
		}
	}
	present := filepath.Join(t.TempDir(), "present")
	r.reopen(func(data, keys string) {
		replace(t, present, data)
		replace(t, data, backup)
	})
	refuses("taken back")
	stays("taken back", append(old, "/log/checkpoint")...)
	gone("taken back", young...)

	r.append(700, "other")
	stays("grown otherwise", append(old, "/log/checkpoint")...)
	gone("grown otherwise", young...)
	r.reopen(func(string, string) {})
	refuses("grown otherwise")
	stays("after a start", append(old, "/log/checkpoint")...)
	gone("after a start", young...)

	r.reopen(func(data, keys string) {
		replace(t, data, present)
		if err := os.Remove(filepath.Join(keys, "checkpoint")); err != nil {
			t.Fatal(err)
		}
	})
	stays("with the checkpoint restored from the store", slices.Concat([]string{"/log/checkpoint"}, old, young)...)

	b := r.store.NewBatch()
	for _, index := range []int64{tlog.StoredHashIndex(0, 5), tlog.StoredHashIndex(3, 74)} { // in a tile, and for the next root
		b.Set(kvstore.LogHashes, binary.BigEndian.AppendUint64(nil, uint64(index)), make([]byte, 32))
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.append(601, "vue")
	if err := r.signer.Sign(); err == nil {
		t.Error("a damaged tree was signed")
	}
	refuses("damaged")
	stays("damaged", slices.Concat([]string{"/log/checkpoint", "/log/tile/0/001.p/44", "/log/tile/entries/001.p/44"}, young)...)
	gone("damaged", "/log/tile/0/000", "/log/tile/entries/000")
}

// TestKeys leads who has pinned the first key to the third one, by what is served.
func TestKeys(t *testing.T) {
	r := newRig(t)
	first := r.signer.Key()
	verifier, err := note.NewVerifier(first)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		_, body := r.ask(r.server, http.MethodGet, "/log/keys")
		var keys tiles.Keys
		if err := json.Unmarshal(body, &keys); err != nil {
			t.Fatal(err)
		}
		if keys.Origin != "cdn.example.com/log" || keys.Key != r.signer.Key() || len(keys.Changes) != n || keys.Changes == nil {
			t.Errorf("after %d changes: %s", n, body)
		}
		chain := signing.Follow(verifier, keys.Changes)
		if len(chain) != n+1 {
			t.Fatalf("after %d changes the first key leads to %d others", n, len(chain)-1)
		}
		_, signed := r.ask(r.server, http.MethodGet, "/log/checkpoint")
		if _, err := note.Open(signed, note.VerifierList(chain[n])); err != nil {
			t.Errorf("after %d changes: %v", n, err)
		}
		if _, err := r.signer.Rotate(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDamage(t *testing.T) {
	r := newRig(t)
	r.grow(300)
	b := r.store.NewBatch()
	b.Delete(kvstore.LogHashes, []byte{0, 0, 0, 0, 0, 0, 0, 0})
	b.Delete(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 7})
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	var said bytes.Buffer
	server := r.serve(tiles.Options{Store: r.store, Signer: r.signer, Logger: slog.New(slog.NewTextHandler(&said, nil)), Registerer: registry})
	for _, path := range []string{"/log/tile/0/000", "/log/tile/entries/000"} {
		if response, _ := r.ask(server, http.MethodGet, path); response.StatusCode != 503 || response.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d, Cache-Control: %s", path, response.StatusCode, response.Header.Get("Cache-Control"))
		}
	}
	if !strings.Contains(said.String(), "entry 7 is missing") || !strings.Contains(said.String(), "tree hash 0") {
		t.Errorf("the operator reads %s", &said)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		counted[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
	}
	if want := map[string]float64{"503 tile": 1, "503 entries": 1}; families[0].GetName() != "larder_log_requests_total" || !maps.Equal(counted, want) {
		t.Errorf("%s: %v, want %v", families[0].GetName(), counted, want)
	}
}
