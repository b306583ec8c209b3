package verify_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

func TestKnown(t *testing.T) {
	r := stocked(t)
	path := filepath.Join(t.TempDir(), "larder", "known-logs")
	known, err := verify.ReadKnown(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := known.ByServer(r.server.URL); ok {
		t.Error("it is known before anybody has seen it")
	}
	small := r.open(r.options())
	key := small.Key()
	if err := known.RecordLog(r.server.URL, key, small, now); err != nil {
		t.Fatal(err)
	}
	r.append(1, logs.Entry{Kind: logs.Detected, Actor: "bot", Package: "react", Version: "1"})
	r.sign()
	large := r.open(r.options())
	if err := known.RecordLog("https://mirror.example", key, large, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// Another process that was slower.
	if err := known.RecordLog(r.server.URL, key, small, now.Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if known, err = verify.ReadKnown(path); err != nil {
		t.Fatal(err)
	}
	want := verify.KnownLog{Key: key, Servers: []string{r.server.URL, "https://mirror.example"}, Checkpoint: string(large.Note()), Seen: now.Add(2 * time.Hour)}
	for _, server := range want.Servers {
		if got, ok := known.ByServer(server); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("of %s: %+v, want %+v", server, got, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	// Its key changes.
	if _, err := r.signer.Rotate(now); err != nil {
		t.Fatal(err)
	}
	o := r.options()
	o.Trust.Key = key
	o.Known = seen([]byte(want.Checkpoint))
	led := r.open(o)
	if err := known.RecordLog(r.server.URL, key, led, now); err != nil {
		t.Fatal(err)
	}
	if len(known.Logs) != 1 || known.Logs[0].Key != led.Key() {
		t.Errorf("the old key is still there: %+v", known.Logs)
	}
	for _, key := range []string{key, led.Key()} { // who asks by the old one must not miss anything
		if got, ok := known.ByKey(key); !ok || got.Checkpoint != string(led.Note()) {
			t.Errorf("of %s: %+v", key, got)
		}
	}

	// The server gets another log.
	other := stocked(t)
	if err := known.RecordLog(r.server.URL, other.signer.Key(), other.open(other.options()), now); err != nil {
		t.Fatal(err)
	}
	if got, ok := known.ByServer(r.server.URL); !ok || got.Key != other.signer.Key() {
		t.Errorf("%+v", got)
	}
	if got, ok := known.ByServer("https://mirror.example"); !ok || got.Key != led.Key() {
		t.Errorf("%+v", got)
	}
}

func TestKnownByManyAtOnce(t *testing.T) {
	r := stocked(t)
	path := filepath.Join(t.TempDir(), "known-logs")
	l := r.open(r.options())
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			known, err := verify.ReadKnown(path)
			if err == nil {
				err = known.RecordLog("https://"+itoa(int64(n))+".example", l.Key(), l, now)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	known, err := verify.ReadKnown(path)
	if err != nil || len(known.Logs) != 1 || len(known.Logs[0].Servers) != 20 {
		t.Errorf("%+v, %v", known, err)
	}
}

func TestKnownIsNotOverwritten(t *testing.T) {
	r := stocked(t)
	for _, text := range []string{"", "{}", "nonsense", `{"format":2,"logs":[]}`, `{"format":1,"logs":[{"key":"x"}]}`} {
		path := filepath.Join(t.TempDir(), "known-logs")
		known, err := verify.ReadKnown(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := verify.ReadKnown(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
		if err := known.RecordLog("https://cdn.example", r.signer.Key(), r.open(r.options()), now); err == nil {
			t.Errorf("%q was overwritten", text)
		}
	}
}
