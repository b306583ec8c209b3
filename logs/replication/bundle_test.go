package replication_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
)

func openBundle(t *testing.T, path string) replication.Source {
	t.Helper()
	b, err := replication.OpenBundle(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// Bundles that follow one another bring a mirror up to date, also where they overlap; one that leaves a gap does not.
func TestBundlesInARow(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	first := bundleOf(t, u, 0)
	size := u.Log.Checkpoint().Size
	for range 300 { // over the border of a tile
		u.Register("vue", `{"name":"vue"}`)
	}
	u.Restore("evil", "1.0.0", "it was a joke")
	u.signNow(t)
	second, late := bundleOf(t, u, size), u.Log.Checkpoint().Size
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	third, overlapping := bundleOf(t, u, late), bundleOf(t, u, size+3)
	m := newMirror(t, "", func(o *replication.Options) { o.Source = openBundle(t, first) })
	m.catchUp(t)
	take := func(path string) error {
		m.again(t, "", func(o *replication.Options) { o.Source = openBundle(t, path) })
		return m.CatchUp(t.Context())
	}
	if err := take(third); err == nil || !strings.Contains(err.Error(), "larder bundle --since 9`") {
		t.Errorf("a gap: %v", err)
	}
	for _, path := range []string{second, overlapping, overlapping, third} {
		if err := take(path); err != nil {
			t.Fatal(err)
		}
	}
	m.same(t, u)
	if err := take(second); !errors.As(err, new(*replication.RefusedError)) {
		t.Errorf("an older one: %v", err)
	}
	m.same(t, u)
}

// Whichever byte of a bundle is changed, it is refused, and what is here afterwards is a sound beginning of the log.
func TestChangedByte(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	u.publishVersions(t)
	path := bundleOf(t, u, 0)
	honest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	step := 1009 // a prime, so that it hits headers, data and padding
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		step = 37
	}
	places := []int{bytes.LastIndex(honest, []byte("delta/")) + 512 + 20} // in a delta
	for at := 0; at < len(honest); at += step {
		places = append(places, at)
	}
	for _, at := range places {
		data := bytes.Clone(honest)
		data[at] ^= 0x20
		changed := filepath.Join(t.TempDir(), "changed.tar")
		if err := os.WriteFile(changed, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := replication.OpenBundle(changed)
		if err != nil {
			continue // nothing of it is taken
		}
		m := newMirror(t, "", func(o *replication.Options) { o.Source, o.Trust.Key = b, u.signer.Key() })
		if err := m.CatchUp(t.Context()); err == nil {
			t.Errorf("byte %d (%q) is changed, and all was taken", at, honest[max(0, at-20):at+20])
		}
		b.Close()
		m.soundSoFar(t)
		m.again(t, "", func(o *replication.Options) { o.Source, o.Trust.Key = openBundle(t, path), u.signer.Key() })
		m.catchUp(t)
		m.same(t, u)
	}
	for _, size := range []int{0, 1, 511, 512, len(honest) / 2, len(honest) - 1024, len(honest) - 1} {
		if err := os.WriteFile(path, honest[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := replication.OpenBundle(path); err == nil {
			t.Errorf("%d of %d bytes are a bundle", size, len(honest))
		}
	}
}

// A bundle of some packages has the whole log, and the files of those; another one brings the others.
func TestBundleOfPackages(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, "", func(o *replication.Options) { o.Source = openBundle(t, bundleOf(t, u, 0, "vue@3.1.*")) })
	m.catchUp(t)
	m.sound(t)
	has := func(data string) bool {
		_, err := m.Store.Content(kvstore.Sum([]byte(data)))
		return err == nil
	}
	if !has("vue three point one") || has("vue three") || has("back") {
		t.Error("it does not have the files of the named releases alone")
	}
	if s := m.State(); len(s.Packages) != 1 || !s.Ready {
		t.Errorf("%+v", s)
	}
	u.Publish("next", "1.0.0", "n.js", map[string]string{"n.js": "n"})
	u.signNow(t)
	m.again(t, "", func(o *replication.Options) {
		o.Source = openBundle(t, bundleOf(t, u, u.Log.Checkpoint().Size-1))
	})
	m.catchUp(t)
	if m.sound(t); !has("n") || has("back") {
		t.Error("it does not have the files of the new release alone")
	}
	m.again(t, "", func(o *replication.Options) { o.Source = openBundle(t, bundleOf(t, u, 0)) })
	m.catchUp(t)
	m.same(t, u)
}

// A bundle whose writing was interrupted is completed with the checkpoint that it began with, and is as if it had been written at once.
func TestBundleIsResumed(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	want, err := os.ReadFile(bundleOf(t, u, 0))
	if err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < len(want); cut += len(want) / 9 {
		path := filepath.Join(t.TempDir(), "bundle.tar")
		part := bytes.Clone(want[:cut])
		if cut > len(want)/2 { // what a power failure leaves
			clear(part[cut-100:])
		}
		if err := os.WriteFile(path+replication.UnfinishedSuffix, part, 0o600); err != nil {
			t.Fatal(err)
		}
		result := writeBundle(t, u, path, 0)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) || result.Bytes != int64(len(want)) {
			t.Errorf("after %d of %d bytes: %+v, %v", cut, len(want), result, err)
		}
		if cut > len(want)-len(want)/9 && result.Resumed == 0 {
			t.Error("it began at its beginning")
		}
	}
	path := filepath.Join(t.TempDir(), "bundle.tar")
	if err := os.WriteFile(path+replication.UnfinishedSuffix, want[:len(want)-2000], 0o600); err != nil {
		t.Fatal(err)
	}
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	writeBundle(t, u, path, 0)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the log has grown: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	o := replication.BundleOptions{Source: replication.FromStore(u.Store, "upstream"), Trust: verify.Trust{Key: u.signer.Key()}}
	if _, err := replication.WriteBundle(cancelled, path+"2", o); err == nil {
		t.Error("it was cancelled, and is complete")
	}
	if _, err := replication.WriteBundle(t.Context(), path, o); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("over another one: %v", err)
	}
	o.Since = 1000
	if _, err := replication.WriteBundle(t.Context(), path+"3", o); err == nil || !strings.Contains(err.Error(), "nothing follows the first 1000") {
		t.Errorf("more than there is: %v", err)
	}
}

// A run that waited for another one of the same name returns an error, and leaves the bundle as the other one completed it.
func TestBundleCompletedMeanwhile(t *testing.T) {
	const opened = "/proc/self/fd"
	if _, err := os.ReadDir(opened); err != nil {
		t.Skip("the system does not list open files")
	}
	u := newUpstream(t)
	u.stock(t)
	path := filepath.Join(t.TempDir(), "bundle.tar")
	unfinished := path + replication.UnfinishedSuffix
	first, err := lockedfile.Create(unfinished)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := replication.WriteBundle(t.Context(), path, replication.BundleOptions{
			Source: replication.FromStore(u.Store, "upstream"), Trust: verify.Trust{Key: u.signer.Key()},
		})
		second <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		count := 0
		files, err := os.ReadDir(opened)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name, err := os.Readlink(filepath.Join(opened, f.Name())); err == nil && name == unfinished {
				count++
			}
		}
		if count == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second run did not open the unfinished bundle within a minute")
		}
	}
	_, err = first.WriteString("what the first run wrote")
	if err := errors.Join(err, os.Rename(unfinished, path), first.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("the second run: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "what the first run wrote" {
		t.Errorf("the bundle is %d bytes that the second run wrote, %v", len(data), err)
	}
	if _, err := os.Lstat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is an unfinished bundle again: %v", err)
	}
}
