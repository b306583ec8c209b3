package bot_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// TestMirroredReleaseThatCannotBeReplaced has a mirrored release change while npm's other bytes are downloaded: the release is not replaced,
// and the caller receives the error and tries again.
func TestMirroredReleaseThatCannotBeReplaced(t *testing.T) {
	r := newRig(t)
	var service *bot.WithdrawalService
	var change atomic.Bool
	var front *httptest.Server // a registry before which the release changes
	front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if change.CompareAndSwap(true, false) {
			_, err := service.Withdraw(req.Context(), "a", "2.0.0", "a mistake")
			if err == nil {
				_, err = service.Restore(req.Context(), "a", "2.0.0", "no mistake", nil)
			}
			if err != nil {
				t.Error(err)
			}
		}
		recorded := httptest.NewRecorder()
		r.registry.ServeHTTP(recorded, req)
		w.WriteHeader(recorded.Code)
		w.Write(bytes.ReplaceAll(recorded.Body.Bytes(), []byte(r.registry.URL), []byte(front.URL)))
	}))
	defer front.Close()
	r.useRegistry(front.URL)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": library})
	r.open()
	r.once()
	r.mirror("a", "2.0.0", "as it was")
	r.registry.Add("a", "2.0.0", hour(9), map[string]string{"a.js": "other bytes"})
	service = bot.NewWithdrawalService(r.store, r.log, func() time.Time { return r.now })
	change.Store(true)
	if resolved, err := r.bot.ReconcileWithNpm(t.Context(), "a", "2.0.0"); resolved || err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("resolved %v, error %v", resolved, err)
	}
	if resolved, err := r.bot.ReconcileWithNpm(t.Context(), "a", "2.0.0"); !resolved || err != nil {
		t.Errorf("again: resolved %v, error %v", resolved, err)
	}
}

// mirror publishes a release of one file a.js that another origin has.
func (r *rig) mirror(name, version, text string) {
	r.Helper()
	m, err := r.bot.StartMirroring(name, version)
	if err != nil {
		r.Fatal(err)
	}
	defer m.Close()
	hash, err := m.StoreFile(r.Context(), []byte(text))
	if err != nil {
		r.Fatal(err)
	}
	manifest := &logs.Manifest{
		Package: name, Version: version, Released: r.now, Source: logs.Source{Type: "cdnjs", Name: "https://cdn.example.com"},
		Files: []logs.File{{Path: "a.js", Size: int64(len(text)), SHA256: hash, SRI: logs.SumSRI([]byte(text)), Origin: logs.Taken}},
	}
	if _, err := m.Publish(r.Context(), manifest, logs.Mirror{Source: "cdnjs:https://cdn.example.com", Proof: logs.ProofSelfAsserted}); err != nil {
		r.Fatal(err)
	}
}

// Everything that can happen to a release and to the log happens, and what the log
// says of it is as the schema has it.
func TestEveryKindOfEntryIsAsTheSchemaHasIt(t *testing.T) {
	r := newRig(t)
	key := npmtest.NewKey(t)
	r.registry.PublishKeys(key)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": library, "broken.js": "var ="}, npmtest.Signed(key))
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.js": "module", "index.html": "x"})
	r.registry.Add("a", "1.2.0", hour(3), map[string]string{"b.css": "nothing selected"})
	r.registry.Add("a", "not/a version", hour(4), map[string]string{"a.js": "a"})
	r.open()
	r.once()
	r.register("a", fromNpm("a", "*.js", "*.html"))
	r.open()
	r.once()
	r.registry.Remove("a", "1.1.0")
	r.poll()
	r.poll()
	for _, version := range []string{"2.0.0", "2.1.0"} {
		r.mirror("a", version, "as it was")
		r.registry.Add("a", version, hour(9), map[string]string{"a.js": map[string]string{"2.0.0": "as it was", "2.1.0": "other bytes"}[version]})
		if settled, err := r.bot.ReconcileWithNpm(t.Context(), "a", version); err != nil || !settled {
			t.Fatalf("%s: %v, %v", version, settled, err)
		}
	}

	desk := bot.NewWithdrawalService(r.store, r.log, func() time.Time { return r.now })
	for _, do := range []func() error{
		func() error { _, err := desk.Withdraw(t.Context(), "a", "1.0.0", "malware"); return err },
		func() error { _, err := desk.Restore(t.Context(), "a", "1.0.0", "a mistake", nil); return err },
		func() error { _, err := desk.Withdraw(t.Context(), "a", "1.1.0", "malware"); return err },
		func() error { _, err := desk.Erase(t.Context(), "a", "1.1.0", "by order"); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	signer, err := signing.Open(signing.Options{Dir: filepath.Join(r.data, "keys"), Store: r.store, Log: r.log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer signer.Close()
	if _, err := signer.Rotate(r.now); err != nil {
		t.Fatal(err)
	}

	if err := os.Remove(filepath.Join(r.catalogue, "packages", "a", "a.json")); err != nil {
		t.Fatal(err)
	}
	r.register("b", "")
	r.setCatalogue()

	err = r.log.Update(func(tx *logs.Tx) error { // what a repair writes that accepts a loss
		_, err := tx.Append(logs.Entry{Kind: logs.LossAccepted, Time: r.now, Actor: "operator", Former: "example.com/log\n9\n", Lost: logs.Range{From: 7, To: 9}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	kinds := testkit.CheckEntries(t, r.store)
	for _, kind := range logs.Kinds {
		if kinds[kind] == 0 {
			t.Errorf("no entry is %s; the log is\n%s", kind, r.kinds())
		}
	}
	r.sound()
}
