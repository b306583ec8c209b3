package bot_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

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
		m, err := r.bot.StartMirroring("a", version)
		if err != nil {
			t.Fatal(err)
		}
		text := []byte("as it was")
		hash, err := m.StoreFile(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		manifest := &logs.Manifest{
			Package: "a", Version: version, Released: r.now, Source: logs.Source{Type: "cdnjs", Name: "https://cdn.example.com"},
			Files: []logs.File{{Path: "a.js", Size: int64(len(text)), SHA256: hash, SRI: logs.SumSRI(text), Origin: logs.Taken}},
		}
		if _, err := m.Publish(t.Context(), manifest, logs.Mirror{Source: "cdnjs:https://cdn.example.com", Proof: logs.ProofSelfAsserted}); err != nil {
			t.Fatal(err)
		}
		m.Close()
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
