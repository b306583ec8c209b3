package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
)

// A crew is the nodes of a cluster, as processes that share a folder.
type crew struct {
	*testing.T
	dir, bucket, catalogue string
	env                    []string // of processes; the test's own where it is nil
	imported               int
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	dir := t.TempDir()
	c := &crew{T: t, dir: dir, bucket: filepath.Join(dir, "bucket"), catalogue: filepath.Join(dir, "catalogue")}
	c.write("catalogue/packages/d/demo.json", `{"name": "demo", "description": "A test.", "keywords": ["test"], "filename": "demo.js",
		"repository": {"type": "git", "url": "https://example.com/demo.git"},
		"autoupdate": {"source": "npm", "target": "demo", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`)
	c.write("source/demo.js", "demo();\n")
	c.write("rooms.yaml", "- {name: shop, path: /statistics, total_active_users: 900, new_users_per_minute: 900, json_response_enabled: true}\n")
	return c
}

func (c *crew) write(path, text string) {
	c.Helper()
	path = filepath.Join(c.dir, path)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		c.Fatal(err)
	}
}

// A machine is one of them.
type machine struct {
	*crew
	name, data string
	kind       string // of process: larder serve where it is empty
	cmd        *exec.Cmd
	ended      chan struct{}
	url        string
}

// machine returns one that has these files of another's key folder.
func (c *crew) machine(name string, like *machine, files ...string) *machine {
	c.Helper()
	m := &machine{crew: c, name: name, data: filepath.Join(c.dir, name, "data")}
	c.copyKeys(like, m, files...)
	return m
}

// copyKeys copies files from one key folder into another.
func (c *crew) copyKeys(from, to *machine, files ...string) {
	c.Helper()
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(c.dir, from.name, "keys", file))
		if err != nil {
			c.Fatal(err)
		}
		c.write(filepath.Join(to.name, "keys", file), string(data))
	}
}

// What a machine needs to publish in the place of another, and to pass on commands.
var (
	candidateFiles = []string{"log.key", "log.pub", "checkpoint", "cluster.key"}
	followerFiles  = []string{"cluster.key"}
)

// three starts a node that publishes, and two more that have these of its keys.
func (c *crew) three(second, third []string) (one, two, three *machine) {
	c.Helper()
	one = c.machine("one", nil)
	one.start()
	one.writes()
	two, three = c.machine("two", one, second...), c.machine("three", one, third...)
	two.start()
	three.start()
	return one, two, three
}

func (m *machine) start() {
	m.Helper()
	ready := filepath.Join(m.dir, m.name, "ready")
	if err := errors.Join(os.RemoveAll(ready), os.MkdirAll(filepath.Dir(ready), 0o700)); err != nil {
		m.Fatal(err)
	}
	m.cmd = exec.Command("larder", cmp.Or(m.kind, "serve"), "--data", m.data, "--bucket", "file://"+m.bucket, "--node-url", "https://127.0.0.1:0", "--catalogue", m.catalogue,
		"--listen", "127.0.0.1:0", "--private-listen", "127.0.0.1:0", "--rooms", filepath.Join(m.dir, "rooms.yaml"), "--ready-file", ready)
	log, err := os.Create(m.log())
	if err != nil {
		m.Fatal(err)
	}
	defer log.Close()
	m.cmd.Env, m.cmd.Stdout, m.cmd.Stderr = m.env, log, log
	if err := m.cmd.Start(); err != nil {
		m.Fatal(err)
	}
	ended := make(chan struct{})
	m.ended = ended
	cmd := m.cmd
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // it is told to end
	}()
	m.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Kill()
		<-ended
		if m.Failed() {
			m.Logf("%s said:\n%s", m.name, m.said())
		}
	})
	m.eventually("it serves", func() bool {
		data, err := os.ReadFile(ready)
		m.url = strings.TrimSpace(string(data))
		select {
		case <-ended:
			m.Fatalf("%s has ended: %s", m.name, m.said())
		default:
		}
		return err == nil
	})
}

func (m *machine) log() string { return filepath.Join(m.dir, m.name, "log") }

// said is what the process has said since it started.
func (m *machine) said() string {
	m.Helper()
	text, err := os.ReadFile(m.log())
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}

func (m *machine) signal(s os.Signal) {
	m.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.Fatal(err)
	}
}

// end ends it, and returns when it has ended.
func (m *machine) end(s os.Signal) {
	m.Helper()
	m.signal(s)
	<-m.ended
}

// eventually waits far longer than anything takes.
func (c *crew) eventually(what string, is func() bool) {
	c.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !is(); {
		if time.Now().After(deadline) {
			c.Fatalf("it is not so that %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func fetched(url string) (status int, body string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

// asked asks with a size of the log.
func (m *machine) asked(path, size string) (status int, body string) {
	m.Helper()
	r, err := http.NewRequestWithContext(m.Context(), http.MethodGet, m.url+path, nil)
	if err != nil {
		m.Fatal(err)
	}
	r.Header.Set("Larder-Log-Size", size)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		m.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		m.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// answers waits until all the machines answer for a release with a status.
func (c *crew) answers(version string, status int, all ...*machine) {
	c.Helper()
	for _, m := range all {
		c.eventually(fmt.Sprintf("%s answers %d for %s", m.name, status, version), func() bool {
			got, _ := fetched(m.url + "/ajax/libs/demo/" + version + "/demo.js")
			return got == status
		})
	}
}

// command runs larder on the machine's folder, and returns what it says and its exit code.
func (m *machine) command(args ...string) (string, int) {
	m.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	code := run(ctx, append(args, "--data", m.data), os.Environ(), &out, &out)
	return out.String(), code
}

// publish imports a new release through the machine, however often it takes.
func (m *machine) publish() (version string) {
	m.Helper()
	m.eventually("a release can be published through "+m.name, func() bool {
		m.imported++
		version = fmt.Sprintf("1.0.%d", m.imported)
		_, code := m.command("import", "demo", version, filepath.Join(m.dir, "source"))
		return code == exitDone
	})
	return version
}

// nodes are what the machine knows of all.
func (m *machine) nodes() (all []app.Node) {
	m.Helper()
	text, code := m.command("nodes", "--json")
	if code != exitDone {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		m.Fatalf("larder nodes --json: %v: %s", err, text)
	}
	return all
}

// role is what the machine is by its own word.
func (m *machine) role() string {
	m.Helper()
	status := m.status()
	if status == nil || status.Node == nil {
		return ""
	}
	return status.Node.Role
}

func (m *machine) status() *app.Status {
	m.Helper()
	client, err := app.Dial(context.Background(), m.data)
	if err != nil {
		return nil
	}
	defer client.Close()
	status, err := app.OpStatus.Ask(context.Background(), client, app.StatusRequest{}, nil)
	if err != nil {
		return nil
	}
	return status
}

func (m *machine) writes() {
	m.Helper()
	m.eventually(m.name+" publishes", func() bool { return m.role() == "leader" })
}
