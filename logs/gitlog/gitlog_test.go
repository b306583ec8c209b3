package gitlog

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
)

func TestMain(m *testing.M) {
	unsynced.UseMemory()
	os.Exit(m.Run())
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// gitSays runs the real git, which reads what we write.
func gitSays(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git here")
	}
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "safe.directory=*"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func open(t *testing.T, dir string) *Repository {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// change is what the tests add as entry i.
func change(i int64, path string) Change {
	return Change{
		Index: i, Hash: fmt.Sprintf("hash%d", i), Time: noon.Add(time.Duration(i) * time.Hour), Path: path,
		Subject: fmt.Sprintf("entry %d", i), Text: fmt.Sprintf("text %d\n", i),
	}
}

func add(t *testing.T, r *Repository, changes ...Change) {
	t.Helper()
	for _, c := range changes {
		if err := r.Add(c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGitReadsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := open(t, dir)
	if got := r.Position(); got.Index != -1 {
		t.Errorf("a new one is at %+v", got)
	}
	// Names among which git's order is not that of strings.
	add(t, r,
		change(0, "packages/v/vue/3.0.0/publish.log"), change(1, "packages/v/vue.js/3.0.0/publish.log"), change(2, "packages/v/vue-x/1/publish.log"),
		change(3, "packages/v/vue/3.0.0/publish.log"), change(4, "log/key-changed.log"))
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir)
	if got := r.Position(); got != (Position{4, "hash4"}) {
		t.Errorf("opened again it is at %+v", got)
	}
	add(t, r, change(7, "packages/v/vue/3.0.0/publish.log"), change(8, "packages/a/a/1/withdrawn.log"))
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := r.Flush(); err != nil {
		t.Errorf("with nothing to flush: %v", err)
	}
	want := ""
	for _, i := range []int64{0, 1, 2, 3, 4, 7, 8} {
		when := change(i, "").Time.Unix()
		want = fmt.Sprintf("Larder <larder@localhost> %d %d entry %d\n", when, when, i) + want
	}
	if got := gitSays(t, dir, "log", "--format=%an <%ae> %at %ct %s"); got != want {
		t.Errorf("git log:\n%s\nwant\n%s", got, want)
	}
	if got := gitSays(t, dir, "show", "main:packages/v/vue/3.0.0/publish.log"); got != "text 0\n\ntext 3\n\ntext 7\n" {
		t.Errorf("the file is %q", got)
	}
	if got := gitSays(t, dir, "log", "--format=%s", "--", "packages/v/vue-x"); got != "entry 2\n" {
		t.Errorf("about vue-x: %q", got)
	}
	if got := gitSays(t, dir, "ls-tree", "-r", "--name-only", "main"); got != "log/key-changed.log\npackages/a/a/1/withdrawn.log\npackages/v/vue-x/1/publish.log\npackages/v/vue.js/3.0.0/publish.log\npackages/v/vue/3.0.0/publish.log\n" {
		t.Errorf("files: %s", got)
	}
	gitSays(t, dir, "fsck", "--strict")
	clone := filepath.Join(t.TempDir(), "clone")
	gitSays(t, dir, "clone", "--quiet", "--config", "transfer.fsckObjects=true", dir, clone)
	if text, err := os.ReadFile(filepath.Join(clone, "packages/a/a/1/withdrawn.log")); err != nil || string(text) != "text 8\n" {
		t.Errorf("cloned: %q, %v", text, err)
	}
}

// More commits than a flush has.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir)
	const n = changesPerFlush + 50
	for i := range int64(n) {
		add(t, r, change(i, fmt.Sprintf("packages/%c/p%d/1.%d.0/publish.log", 'a'+rune(i%3), i%20, i)))
	}
	if got := open(t, dir).Position().Index; got != changesPerFlush-1 {
		t.Errorf("without a Flush the repository is at %d", got)
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(gitSays(t, dir, "rev-list", "--count", "main")); got != fmt.Sprint(n) {
		t.Errorf("%s commits, want %d", got, n)
	}
	gitSays(t, dir, "fsck", "--strict")
}

func TestRefusals(t *testing.T) {
	r := open(t, t.TempDir())
	add(t, r, change(5, "a/b.log"))
	for _, path := range []string{"", "a", "a/b.log/c.log"} {
		if path == "a" {
			if err := r.Add(change(6, path)); err == nil || !strings.Contains(err.Error(), "folder") {
				t.Errorf("a file where a folder is: %v", err)
			}
			continue
		}
		if err := r.Add(change(6, path)); err == nil {
			t.Errorf("%q was taken", path)
		}
	}
	for _, path := range []string{"../x", "a//b", ".git/config", "a/.git/x", "a/./b", "/a", "a/", "a/git~1", "a\\b", "a\x00", "c:x"} {
		if err := r.Add(change(6, path)); err == nil {
			t.Errorf("%q was taken", path)
		}
	}
	if err := r.Add(change(5, "a/c.log")); err == nil {
		t.Error("an entry was taken twice")
	}

	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(full); err == nil || !strings.Contains(err.Error(), "new folder") {
		t.Errorf("a folder with other things: %v", err)
	}
	work := t.TempDir()
	gitSays(t, work, "init", "--quiet")
	if _, err := Open(work); err == nil || !strings.Contains(err.Error(), "--bare") {
		t.Errorf("a repository with files checked out: %v", err)
	}
	gitSays(t, work, "-c", "user.name=A", "-c", "user.email=a@localhost", "commit", "--quiet", "--allow-empty", "-m", "mine")
	gitSays(t, work, "branch", "-M", Branch)
	bare := filepath.Join(t.TempDir(), "bare")
	gitSays(t, work, "clone", "--quiet", "--bare", work, bare)
	if _, err := Open(bare); err == nil || !strings.Contains(err.Error(), "not made by an export") {
		t.Errorf("somebody else's repository: %v", err)
	}
}

// Two that write to the same repository do not overwrite each other.
func TestTwoWriters(t *testing.T) {
	dir := t.TempDir()
	one, two := open(t, dir), open(t, dir)
	add(t, one, change(0, "a/x.log"))
	add(t, two, change(0, "a/y.log"))
	if err := one.Flush(); err != nil {
		t.Fatal(err)
	}
	one, two = open(t, dir), open(t, dir)
	add(t, one, change(1, "a/x.log"))
	add(t, two, change(1, "a/y.log"))
	if err := one.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := two.Flush(); err == nil {
		t.Error("the second moved the branch too")
	}
	if got := gitSays(t, dir, "log", "--format=%s"); got != "entry 1\nentry 0\n" {
		t.Errorf("git log: %q", got)
	}
}

// TestUnreadableFolder: a folder that cannot be read stays unread, so that a second attempt does not take it for an empty one.
func TestUnreadableFolder(t *testing.T) {
	r, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lost := &entry{mode: filemode.Dir, hash: plumbing.NewHash("00000000000000000000000000000000000000ff")}
	for range 2 {
		if err := r.readFolder(lost); err == nil || lost.entries != nil {
			t.Errorf("%v, %v", lost.entries, err)
		}
	}
}
