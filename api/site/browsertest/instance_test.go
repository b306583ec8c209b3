package browsertest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// An instance is the real program, serving a data folder of its own.
type instance struct {
	address string // such as http://127.0.0.1:34567
	private string // the operator's, likewise

	binary, data string

	command *exec.Cmd
	said    *testkit.Buffer
	ended   chan struct{}
}

// What testdata/releases does not hold.
const (
	manyFiles = 450 // in pantry 1.0.0: more than a page shows

	refused         = "empty-jar 1.0.0" // a folder without files
	withdrawn       = "jam 1.0.0"
	withdrawnReason = "It was spoilt."
)

// build compiles the program. Unlike go build, go run leaves out what only debuggers read, and caches the executable, so
// that an unchanged program is linked once and not by each run of the tests.
func build(folder string) (binary string, err error) {
	if err := dependOnSources("../../.."); err != nil {
		return "", err
	}
	binary = filepath.Join(folder, "larder")
	command := exec.Command("go", "run", "-exec", "cp", "./cmd/larder", binary)
	command.Dir = "../../.."
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// serve starts the program on a data folder and waits until it answers.
func serve(binary, data string, settings ...string) (*instance, error) {
	ready := data + ".ready"
	i := &instance{binary: binary, data: data, said: &testkit.Buffer{}, ended: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File() // handed over as the service manager does, so that its address is known
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	i.private = "http://" + l.Addr().String()
	i.command = larder(binary, data, append([]string{"up", "--listen", "127.0.0.1:0", "--ready-file", ready}, settings...)...)
	i.command.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=private exec "$@"`, "larder"}, i.command.Args...)
	if i.command.Path, err = exec.LookPath("sh"); err != nil {
		return nil, err
	}
	i.command.ExtraFiles = []*os.File{socket}
	i.command.Stdout, i.command.Stderr = i.said, i.said
	if err := i.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = i.command.Wait() // that it ended is what matters
		close(i.ended)
	}()
	if i.address, err = i.readiness(ready); err != nil {
		i.stop()
		return nil, err
	}
	return i, nil
}

// serveOnly starts an instance for one test, with one release of testdata.
func serveOnly(t *testing.T, name, version string) *instance {
	t.Helper()
	other, _ := open(t)
	data := filepath.Join(t.TempDir(), "data")
	if out, err := larder(other.binary, data, "import", name, version, filepath.Join("testdata/releases", name, version)).CombinedOutput(); err != nil {
		t.Fatalf("larder import: %v\n%s", err, out)
	}
	i, err := serve(other.binary, data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.stop)
	return i
}

// dependOnSources opens every folder of the module, which makes them inputs of the
// test: go test would otherwise show a result that it remembers, whatever has changed
// in the program.
func dependOnSources(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // another test's, and gone
			}
			return err
		}
		if !d.IsDir() || path == root {
			return nil
		}
		if slices.Contains([]string{".git", "bin", "data", "node_modules"}, d.Name()) {
			return filepath.SkipDir
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// larder returns a command on the data folder that knows the test's catalogue, if the arguments
// name no other, and nothing of the settings of the user who runs the test. Its registry refuses connections, so the bot
// sends no request to other machines.
func larder(binary, data string, args ...string) *exec.Cmd {
	args = append([]string{args[0], "--data", data, "--catalogue", "testdata/catalogue"}, args[1:]...)
	command := exec.Command(binary, args...)
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LARDER_") })
	command.Env = append(command.Env, "npm_config_registry=http://127.0.0.1:1")
	return command
}

// stock fills the data folder.
func stock(binary, data, folder string) error {
	releases, err := filepath.Glob("testdata/releases/*/*")
	if err != nil {
		return err
	}
	pantry, err := bigRelease(filepath.Join(folder, "pantry", "1.0.0"))
	if err != nil {
		return err
	}
	empty := filepath.Join(folder, filepath.FromSlash(strings.ReplaceAll(refused, " ", "/")))
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return err
	}
	for _, source := range append(releases, pantry, empty) {
		version, name := filepath.Base(source), filepath.Base(filepath.Dir(source))
		out, err := larder(binary, data, "import", name, version, source).CombinedOutput()
		if err == nil && source == empty {
			return fmt.Errorf("larder import published %s, which has no files", refused)
		}
		if err != nil && source != empty {
			return fmt.Errorf("larder import %s %s: %w\n%s", name, version, err, out)
		}
	}
	return record(data)
}

// bigRelease writes a release of many small files.
func bigRelease(folder string) (string, error) {
	files := map[string]string{"pantry.js": "globalThis.pantry = true;\n"}
	for n := len(files); n < manyFiles; n++ {
		files[fmt.Sprintf("shelf/jar-%03d.json", n)] = fmt.Sprintf("{\"jar\": %d}\n", n)
	}
	return folder, writeFiles(folder, files)
}

func writeFiles(folder string, files map[string]string) error {
	for name, text := range files {
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// record writes what the bot would of a release without files, and a withdrawal.
func record(data string) (err error) {
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	name, version, _ := strings.Cut(withdrawn, " ")
	published, err := views.LookupVersion(store, name, version)
	if err != nil {
		return err
	}
	manifest, err := logs.ReadManifest(store, published.Manifest)
	if err != nil {
		return err
	}
	return log.Update(func(tx *logs.Tx) error {
		hollow, release, _ := strings.Cut(refused, " ")
		err := views.Record(tx, views.Change{Entry: logs.Entry{
			Kind: logs.Refused, Time: time.Now(), Actor: "bot", Package: hollow, Version: release,
			Reason: "the package JSON's fileMap selects none of the release's 0 files; `basePath` or `files` does not fit this release",
		}})
		if err != nil {
			return err
		}
		return views.Record(tx, views.Change{
			Entry: logs.Entry{
				Kind: logs.Withdrawn, Time: time.Now(), Actor: "operator",
				Package: name, Version: version, Manifest: published.Manifest, Reason: withdrawnReason,
			},
			Manifest: manifest,
		})
	})
}

// readiness waits for the ready file and returns what it says.
func (i *instance) readiness(file string) (string, error) {
	deadline := time.After(timeout)
	for {
		text, err := os.ReadFile(file)
		if err == nil {
			return strings.TrimSpace(string(text)), nil
		}
		select {
		case <-i.ended:
			return "", fmt.Errorf("larder up ended before it served:\n%s", i.said)
		case <-deadline:
			return "", fmt.Errorf("larder up did not serve within %v:\n%s", timeout, i.said)
		case <-time.After(checkInterval):
		}
	}
}

func (i *instance) stop() {
	_ = i.command.Process.Signal(os.Interrupt) // unless it has ended by itself
	select {
	case <-i.ended:
	case <-time.After(timeout):
		_ = i.command.Process.Kill()
		<-i.ended
	}
}
