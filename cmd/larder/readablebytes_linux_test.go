package main

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServesReadableBytes takes from the real program what publishing needs and serving does not: it starts, serves its files, responds 200
// on /readyz with a note, and 503 on /readyz?publish.
func TestServesReadableBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	write := func(name string, data string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		damage       func(t *testing.T, dir string)
		unprivileged bool // the process runs without the right to pass over permissions
		args         []string
		publish      int
		contains     string
	}{
		"all is well":           {damage: func(*testing.T, string) {}, publish: 200},
		"read-only file system": {damage: mountReadOnly, publish: 503, contains: "read-only file system"},
		"folder of another user": {unprivileged: true, publish: 503, contains: "permission denied", damage: func(t *testing.T, dir string) {
			changeTree(t, dir, func(path string, d fs.DirEntry) error {
				if d.IsDir() {
					return os.Chmod(path, 0o555)
				}
				return os.Chmod(path, 0o400)
			})
		}},
		"full disk":     {damage: mountFull, publish: 503, contains: "cannot publish"},
		"truncated key": {damage: write("keys/log.key", "PRIVATE"), publish: 503, contains: "log.key"},
		"empty key":     {damage: write("keys/log.key", ""), publish: 503, contains: "log.key"},
		"missing key": {publish: 503, contains: "log.key", damage: func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "keys/log.key")); err != nil {
				t.Fatal(err)
			}
		}},
		"bucket that does not respond": {publish: 503, contains: "cannot be reached", damage: func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "keys")); err != nil {
				t.Fatal(err)
			}
		}, args: []string{"--bucket", "s3://larder", "--bucket-endpoint", "http://127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
				t.Fatal(err)
			}
			data := filepath.Join(dir, "data")
			files := stockNoise(t, data, 1, 1000)
			if !strings.HasPrefix(name, "bucket") { // signed once
				_, stop := startServing(t, exec.Command("larder", "serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "off"))
				stop()
			}
			tt.damage(t, dir)
			private := openSocket(t, privateSocket)
			cmd := larderOn([]given{private}, append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0"}, tt.args...)...)
			cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b", "AWS_REGION=c")
			if tt.unprivileged {
				setpriv, err := exec.LookPath("setpriv")
				if err != nil {
					t.Skip(err)
				}
				if os.Getuid() == 0 { // who may write anywhere otherwise
					cmd.Path, cmd.Args = setpriv, append([]string{setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override"}, cmd.Args...)
				}
			}
			url, _ := startServing(t, cmd)
			for path := range files {
				answer, err := http.Get(url + path)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				if answer.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", path, answer.Status)
				}
			}
			waitFor(t, "readiness", func() bool {
				answer, _ := over(t, private.at, "http://localhost/readyz")
				return answer.StatusCode == http.StatusOK
			})
			_, text := over(t, private.at, "http://localhost/readyz")
			answer, _ := over(t, private.at, "http://localhost/readyz?publish")
			if answer.StatusCode != tt.publish || !strings.Contains(text, tt.contains) {
				t.Errorf("/readyz?publish: %s, want %d; /readyz says %q, want %q", answer.Status, tt.publish, text, tt.contains)
			}
			for path, status := range map[string]int{"/libraries": 200, "/ajax/libs/noise/1.0.0/nothing": 404} {
				if answer, err := http.Get(url + path); err != nil || answer.StatusCode != status {
					t.Errorf("%s: %v, %v", path, answer, err)
				}
			}
		})
	}
}

// startServing starts a command that serves.
func startServing(t *testing.T, cmd *exec.Cmd) (url string, stop func()) {
	t.Helper()
	return startSaying(t, cmd, "Larder serves ")
}

func mountReadOnly(t *testing.T, dir string) {
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("nothing can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("nothing can be mounted read-only: %v", err)
	}
}

func changeTree(t *testing.T, dir string, change func(path string, d fs.DirEntry) error) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return change(path, d)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mountFull moves a folder to a disk that has no space left.
func mountFull(t *testing.T, dir string) {
	aside := t.TempDir()
	run := func(args ...string) {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	run("cp", "-a", dir+"/.", aside)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("no disk can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	run("cp", "-a", aside+"/.", dir)
	filler, err := os.Create(filepath.Join(dir, "of another program"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	if _, err := io.Copy(filler, zeros{}); err == nil {
		t.Fatal("the disk is not full")
	}
}
