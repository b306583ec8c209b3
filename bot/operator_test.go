package bot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages/archive"
)

func TestNewPackageStartsWithItsNewestReleases(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	for i := range 15 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": fmt.Sprint(i)})
	}
	r.open()
	if sum := r.once(); sum.Published != 10 {
		t.Errorf("%+v", sum)
	}
	if _, err := views.LookupVersion(r.store, "a", "1.4.0"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("1.4.0: %v", err)
	}
	// A gap is filled on demand, once.
	if err := r.bot.Add(context.Background(), "a", "1.3.0"); err != nil {
		t.Error(err)
	}
	if got := r.file("a", "1.3.0", "a.js"); got != "3" {
		t.Errorf("1.3.0 is %q", got)
	}
	for version, want := range map[string]string{"1.3.0": "never rewritten", "1.3.1": `did you mean "1.`, "..": "not a version"} {
		if err := r.bot.Add(context.Background(), "a", version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("add %s: %v, want %q", version, err, want)
		}
	}
	if err := r.bot.Add(context.Background(), "aa", ""); err == nil || !strings.Contains(err.Error(), `did you mean "a"?`) {
		t.Errorf("add of an unknown package: %v", err)
	}
	r.sound()
}

func TestImport(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.js"), []byte(library), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(folder, "b.js")); err != nil {
		t.Fatal(err)
	}
	r.open()
	if sum := r.once(); sum.Failed+sum.Refused+sum.Published > 0 {
		t.Errorf("a package without autoupdate: %+v", sum)
	}
	if err := r.importPath("a", "2.0", folder); err == nil || !strings.Contains(err.Error(), `"b.js" is selected and cannot be published: symbolic link`) {
		t.Errorf("imported with a link: %v", err)
	}
	if err := os.Remove(filepath.Join(folder, "b.js")); err != nil {
		t.Fatal(err)
	}
	if err := r.importPath("a", "2.0", folder); err != nil {
		t.Fatal(err)
	}
	if got, want := paths(r.manifest("a", "2.0")), "a.js a.min.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if err := r.importPath("a", "2.0", folder); err == nil || !strings.Contains(err.Error(), "never rewritten") {
		t.Errorf("imported twice: %v", err)
	}
	if err := r.importPath("a", "3.0", filepath.Join(folder, "nope")); err == nil {
		t.Error("imported what is not there")
	}
	if err := r.bot.Add(context.Background(), "a", ""); err == nil || !strings.Contains(err.Error(), "larder import a") {
		t.Errorf("add: %v", err)
	}
	r.sound()
}

func TestOperatorAndScheduleMeet(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	for i := range 6 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": fmt.Sprint("release ", i)})
	}
	r.open()
	var wg sync.WaitGroup
	wg.Go(func() { r.once() })
	for i := range 6 {
		wg.Go(func() {
			err := r.bot.Add(context.Background(), "a", fmt.Sprintf("1.%d.0", i))
			if err != nil && !strings.Contains(err.Error(), "published already") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := strings.Count(r.kinds(), "published a"); got != 6 {
		t.Errorf("%d publications of 6 versions:\n%s", got, r.kinds())
	}
	r.sound()
}

func TestImportedArchive(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "dist/*.js"))
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "a-1.0.0.tgz"), filepath.Join(dir, "bad.tgz")
	for name, data := range map[string][]byte{
		good: tarball(entry{"a-1.0.0/dist/a.js", "a"}, entry{"a-1.0.0/readme.md", "r"}),
		bad:  tarball(entry{"../a.js", "a"}),
	} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	if err := r.importPath("a", "1.0.0", good); err == nil || !strings.Contains(err.Error(), "--npm drops the first component") {
		t.Errorf("the top folder is not kept: %v", err)
	}
	source, err := archive.OpenFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := ingest.SendRelease(t.Context(), r.bot, "a", "1.0.0", "", source.StripRoot()); err != nil {
		t.Error(err)
	} else if got, want := paths(r.manifest("a", "1.0.0")), "dist/a.js dist/a.min.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if err := r.importPath("a", "2.0.0", bad); err == nil || !strings.Contains(err.Error(), `".."`) {
		t.Errorf("import: %v", err)
	}
	if _, err := views.LookupState(r.store, "a", "2.0.0"); !errors.Is(err, kvstore.ErrNotFound) || strings.Contains(r.kinds(), "2.0.0") {
		t.Errorf("the failed import left %v, log\n%s", err, r.kinds())
	}
	r.registry.Add("a", "2.0.0", hour(1), map[string]string{"dist/a.js": "upstream's"})
	r.once()
	if s := r.state("a", "2.0.0"); s.Kind != views.Published {
		t.Errorf("upstream's release after a failed import: %+v", s)
	}
	r.sound()
}

// TestAPublishedVersionNeverGetsOtherFiles has the rows of withdrawn releases lost, as after
// damage, so that only the log knows of them.
func TestAPublishedVersionNeverGetsOtherFiles(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	for i, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		r.registry.Add("a", version, hour(i), map[string]string{"a.js": "good " + version})
	}
	r.open()
	r.once()
	desk := bot.NewWithdrawalService(r.store, r.log, r.clock)
	before := map[string]kvstore.Hash{}
	manifest := func(version string) kvstore.Hash {
		v, err := views.LookupVersion(r.store, "a", version)
		if err != nil {
			t.Fatal(err)
		}
		return v.Manifest
	}
	batch := r.store.NewBatch()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		before[version] = manifest(version)
		if _, err := desk.Withdraw(t.Context(), "a", version, "malware"); err != nil {
			t.Fatal(err)
		}
		batch.Delete(kvstore.Versions, kvstore.Key("a", version))
		batch.Delete(kvstore.States, kvstore.Key("a", version))
	}
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.js"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.importPath("a", "1.0.0", folder); err == nil || !strings.Contains(err.Error(), "was published with other files") {
		t.Errorf("imported with other files: %v", err)
	}
	r.registry.Add("a", "1.1.0", hour(1), map[string]string{"a.js": "other"})
	for _, version := range []string{"1.1.0", "1.2.0"} {
		if err := r.bot.Add(t.Context(), "a", version); (err == nil) != (version == "1.2.0") {
			t.Errorf("%s again: %v", version, err)
		}
	}
	if s := r.state("a", "1.1.0"); s.Kind != views.Refused || !strings.Contains(s.Reason, "a version that was published never gets other files") {
		t.Errorf("it is %s: %s", s.Kind, s.Reason)
	}
	if kinds := r.kinds(); strings.Count(kinds, "published a 1.0.0") != 1 || strings.Count(kinds, "published a 1.1.0") != 1 || strings.Count(kinds, "refused a") != 1 {
		t.Errorf("the log is\n%s", kinds)
	}
	if s := r.state("a", "1.2.0"); s.Kind != views.Published || manifest("1.2.0") != before["1.2.0"] || strings.Count(r.kinds(), "published a 1.2.0") != 2 {
		t.Errorf("the same files: %+v\n%s", s, r.kinds())
	}
}
