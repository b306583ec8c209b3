package versitygw

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestBackup backs a data folder up to an object store that fails in between, adds what is new, and restores all of it.
func TestBackup(t *testing.T) {
	t.Parallel()
	var left atomic.Int64 // requests that are answered
	left.Store(1 << 40)
	store := front(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if left.Add(-1) < 0 {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			h.ServeHTTP(w, r)
		})
	}, newGateway(t, folder(t), false))
	c := newCrew(t, store.URL)
	const target = "s3://" + bucketName + "/saved"
	data, keys := filepath.Join(c.dir, "data"), filepath.Join(c.dir, "keys")
	larder := func(wanted string, args ...string) {
		t.Helper()
		cmd := exec.Command(c.larder, append(args, "--data", data)...)
		cmd.Env = append(environment(), "npm_config_registry=http://127.0.0.1:1/", "LARDER_KEYS="+keys)
		out, err := cmd.CombinedOutput()
		if fails := strings.HasPrefix(wanted, "larder: "); fails != (err != nil) || !strings.Contains(string(out), wanted) {
			t.Fatalf("larder %s: %v\n%swithout %q", args, err, out, wanted)
		}
	}
	catalogue := filepath.Join(c.dir, "catalogue")
	larder("larder: ", "bot", "--once", "--catalogue", catalogue, "--private-listen", "off") // it makes the key that signs, and reaches no registry
	larder("published", "import", "demo", "1.0.0", filepath.Join(c.dir, "source"), "--catalogue", catalogue)
	larder("larder: couldn't back up to "+target+": "+target+" needs --bucket-endpoint", "backup", target)
	left.Store(3)
	larder("larder: couldn't back up to "+target, "backup", target, "--bucket-endpoint", store.URL)
	left.Store(1 << 40)
	larder("It was restored to a temporary folder as a test.", "backup", target, "--bucket-endpoint", store.URL)
	larder("receives messages from now on", "webhook", "add", "http://127.0.0.1:9/hook")
	c.write("source/demo.js", "demo(2);\n")
	larder("published", "import", "demo", "2.0.0", filepath.Join(c.dir, "source"), "--catalogue", catalogue)
	// A process that was started without an object store uses that of the command.
	ready := filepath.Join(c.dir, "ready")
	process := exec.Command(c.larder, "serve", "--data", data, "--keys", keys, "--catalogue", catalogue, "--listen", "127.0.0.1:0", "--private-listen", "off", "--ready-file", ready)
	process.Env = environment()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Process.Kill() })
	c.eventually("the process serves", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	larder("It was last restored as a test at ", "backup", target, "--bucket-endpoint", store.URL)
	if err := errors.Join(process.Process.Signal(os.Interrupt), process.Wait(), os.RemoveAll(data)); err != nil {
		t.Fatal(err)
	}
	larder("Built a new store", "repair", "--from", target, "--bucket-endpoint", store.URL)
	larder("; 0 wrong", "fsck", "--all")
	larder("http://127.0.0.1:9/hook", "webhook", "list")
	larder("2.0.0", "info", "demo")
}
