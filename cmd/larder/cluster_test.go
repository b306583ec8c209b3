package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
)

// A crew is the nodes of a cluster, as processes that share a folder.
type crew struct {
	*testing.T
	dir, bucket, catalogue, larder string
	imported                       int
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	dir := t.TempDir()
	c := &crew{T: t, dir: dir, bucket: filepath.Join(dir, "bucket"), catalogue: filepath.Join(dir, "catalogue"), larder: filepath.Join(dir, "larder")}
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, c.larder) // TestMain makes larder of the test program where that is its name
	}
	if err != nil {
		t.Fatal(err)
	}
	c.write("catalogue/packages/d/demo.json", `{"name": "demo", "description": "A test.", "keywords": ["test"], "filename": "demo.js",
		"repository": {"type": "git", "url": "https://example.com/demo.git"},
		"autoupdate": {"source": "npm", "target": "demo", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`)
	c.write("source/demo.js", "demo();\n")
	c.write("rooms.yaml", "- {name: shop, path: /statistics, total_active_users: 2, new_users_per_minute: 2, json_response_enabled: true}\n")
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
	cmd        *exec.Cmd
	said       bytes.Buffer
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

func (m *machine) start() {
	m.Helper()
	ready := filepath.Join(m.dir, m.name, "ready")
	if err := os.RemoveAll(ready); err != nil {
		m.Fatal(err)
	}
	m.cmd = exec.Command(m.larder, "serve", "--data", m.data, "--bucket", "file://"+m.bucket, "--node-url", "https://127.0.0.1:0", "--catalogue", m.catalogue,
		"--listen", "127.0.0.1:0", "--private-listen", "127.0.0.1:0", "--rooms", filepath.Join(m.dir, "rooms.yaml"), "--ready-file", ready)
	m.said.Reset()
	m.cmd.Stdout, m.cmd.Stderr = &m.said, &m.said
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
			m.Logf("%s said:\n%s", m.name, &m.said)
		}
	})
	m.eventually("it serves", func() bool {
		data, err := os.ReadFile(ready)
		m.url = strings.TrimSpace(string(data))
		select {
		case <-ended:
			m.Fatalf("%s has ended: %s", m.name, &m.said)
		default:
		}
		return err == nil
	})
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
	for deadline := time.Now().Add(2 * time.Minute); !is(); {
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
	m.eventually(m.name+" publishes", func() bool { return m.role() == "writer" })
}

// TestCluster has three nodes publish, withdraw, take over from one another, and begin with nothing. With LARDER_TEST_WHOLE,
// which `make cluster` sets, a node that writes is paused too.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes, and waits until one takes the place of another")
	}
	whole := os.Getenv("LARDER_TEST_WHOLE") != ""
	t.Setenv("LARDER_TEST_WHOLE", "") // and gone, because larder refuses a variable that is no setting
	os.Unsetenv("LARDER_TEST_WHOLE")
	c := newCrew(t)
	one := c.machine("one", nil)
	one.start()
	one.writes()
	two, three := c.machine("two", one, candidateFiles...), c.machine("three", one, followerFiles...)
	two.start()
	three.start()
	first := three.publish()
	second := one.publish()
	c.answers(first, http.StatusOK, one, two, three)
	c.answers(second, http.StatusOK, one, two, three)
	for _, m := range []*machine{one, two, three} { // so that it is in memory too
		for range 3 {
			fetched(m.url + "/ajax/libs/demo/" + first + "/demo.js")
		}
	}
	out, code := three.command("withdraw", "demo", first, "--reason", "malware", "--json")
	var withdrawn app.Withdrawn
	if err := json.Unmarshal([]byte(out), &withdrawn); err != nil || code != exitDone || withdrawn.LogSize == 0 {
		t.Fatal(out)
	}
	for _, m := range []*machine{one, two, three} { // whichever node is asked for an answer by that entry, it never gives an older one
		c.eventually(m.name+" answers by the withdrawal", func() bool {
			status, body := m.asked("/ajax/libs/demo/"+first+"/demo.js", fmt.Sprint(withdrawn.LogSize))
			if status != http.StatusGone && (status != http.StatusServiceUnavailable || !strings.Contains(body, "log entries so far")) {
				t.Errorf("%s answers %d by %d entries: %s", m.name, status, withdrawn.LogSize, body)
			}
			return status == http.StatusGone
		})
		for size, want := range map[string]int{"99999": http.StatusServiceUnavailable, "x": http.StatusBadRequest} {
			if status, _ := m.asked("/libraries", size); status != want {
				t.Errorf("%s answers %d for a log of %s entries", m.name, status, size)
			}
		}
	}
	if out, code := two.command("webhook", "add", "https://hook.example/"); code != exitDone {
		t.Fatal(out)
	}
	for _, m := range []*machine{one, two, three} { // through its waiting room
		if status, body := fetched(m.url + "/statistics"); status != http.StatusOK {
			t.Errorf("%s answers %d in its room: %s", m.name, status, body)
		}
	}
	c.eventually("all show one signed log", func() bool {
		_, want := fetched(one.url + "/log/checkpoint")
		for _, m := range []*machine{two, three} {
			if status, got := fetched(m.url + "/log/checkpoint"); status != http.StatusOK || got != want {
				return false
			}
		}
		return true
	})
	c.eventually("larder nodes lists all", func() bool {
		var roles []string
		for _, n := range three.nodes() {
			if n.Behind >= 0 && n.Entries > 3 {
				roles = append(roles, n.Role)
			}
		}
		return slices.Equal(roles, []string{"writer", "candidate", "follower"})
	})

	one.end(syscall.SIGKILL)
	third := three.publish()
	two.writes()
	c.answers(third, http.StatusOK, two, three)
	c.answers(second, http.StatusOK, two, three)
	c.answers(first, http.StatusGone, two, three)
	if out, code := three.command("webhook", "list"); code != exitDone || !strings.Contains(out, "https://hook.example/") {
		t.Errorf("the webhook is gone with the node that published: %s", out)
	}
	one.start() // it was killed, and comes back
	c.answers(third, http.StatusOK, one)
	if role := one.role(); role != "candidate" {
		t.Errorf("the node that is back is a %s", role)
	}

	if whole { // a writer that is paused for longer than every time limit
		two.signal(syscall.SIGSTOP)
		fourth := three.publish()
		one.writes()
		two.signal(syscall.SIGCONT)
		c.eventually("the node that was paused follows", func() bool { return two.role() == "candidate" })
		c.answers(fourth, http.StatusOK, one, two, three)
		c.answers(two.publish(), http.StatusOK, one, two, three)
	}

	// A node's disk is lost, but for its keys.
	three.end(os.Interrupt)
	if err := os.RemoveAll(three.data); err != nil {
		t.Fatal(err)
	}
	three.start()
	c.answers(third, http.StatusOK, three)
	c.answers(first, http.StatusGone, three)
	for _, m := range []*machine{one, two, three} {
		m.end(os.Interrupt)
		if out, code := m.command("fsck", "--deep"); code != exitDone {
			t.Errorf("fsck of %s: %s", m.name, out)
		}
	}
	if out, code := one.command("import", "demo", "6.6.6", filepath.Join(c.dir, "source"), "--catalogue", c.catalogue); code == exitDone || !strings.Contains(out, "--bucket") {
		t.Errorf("the log of a node grows by itself: %s", out)
	}
}

// A node that has yet to catch up answers 503 and says why, and then serves.
func TestClusterBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	c := newCrew(t)
	one := c.machine("one", nil)
	one.start()
	one.writes()
	version := one.publish()
	c.answers(version, http.StatusOK, one)
	packs, aside := filepath.Join(c.bucket, "pack"), filepath.Join(c.dir, "pack")
	if err := os.Rename(packs, aside); err != nil {
		t.Fatal(err)
	}
	two := c.machine("two", one, followerFiles...)
	two.start()
	c.eventually("the node knows why", func() bool {
		s := two.status()
		return s != nil && s.Node != nil && strings.Contains(s.Node.Problem, "pack/")
	})
	for _, path := range []string{"/ajax/libs/demo/" + version + "/demo.js", "/", "/log/checkpoint", "/libraries"} {
		if status, body := fetched(two.url + path); status != http.StatusServiceUnavailable || !strings.Contains(body, "behind") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	private := "http://" + two.status().Process.Private
	if status, body := fetched(private + "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "behind: this node has yet to catch up") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if err := os.Rename(aside, packs); err != nil {
		t.Fatal(err)
	}
	c.answers(version, http.StatusOK, two)
	if status, body := fetched(private + "/readyz"); status != http.StatusOK || !strings.Contains(body, "cluster: follower") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if _, body := fetched(private + "/metrics"); !strings.Contains(body, "\nlarder_cluster_behind_entries 0\n") || !strings.Contains(body, "\nlarder_cluster_writer 0\n") {
		t.Error("the metrics lack how far the node is behind")
	}
	if status, body := fetched(private + "/nodes"); status != http.StatusOK || !strings.Contains(body, ">writer<") || !strings.Contains(body, ">follower<") {
		t.Errorf("/nodes for the operator: %d %s", status, body)
	}
	if status, body := fetched(two.url + "/nodes"); status != http.StatusNotFound || !strings.Contains(body, "private address") {
		t.Errorf("/nodes for everybody: %d %s", status, body)
	}

	// The bucket does not answer: what is here is served, also after a new start; nothing is published.
	for _, kind := range []string{"commit", "pack"} {
		if err := os.Rename(filepath.Join(c.bucket, kind), filepath.Join(c.dir, kind)); err != nil {
			t.Fatal(err)
		}
		c.write("bucket/"+kind, "in the way")
	}
	two.end(os.Interrupt)
	two.start()
	c.answers(version, http.StatusOK, two)
	if out, code := one.command("import", "demo", "6.6.6", filepath.Join(c.dir, "source")); code == exitDone || !strings.Contains(out, "the bucket does not answer") {
		t.Errorf("published without a bucket: %s", out)
	}
	for _, kind := range []string{"commit", "pack"} {
		if err := os.Remove(filepath.Join(c.bucket, kind)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(c.dir, kind), filepath.Join(c.bucket, kind)); err != nil {
			t.Fatal(err)
		}
	}
	c.answers(one.publish(), http.StatusOK, one, two)
}

// A machine that was alone becomes the first node, with its webhooks, and another one follows.
func TestClusterFounding(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	c := newCrew(t)
	one := c.machine("one", nil)
	for _, version := range []string{"1.0.0", "1.0.1"} {
		if out, code := one.command("import", "demo", version, filepath.Join(c.dir, "source"), "--catalogue", c.catalogue); code != exitDone {
			t.Fatal(out)
		}
	}
	if out, code := one.command("webhook", "add", "https://hook.example/"); code != exitDone {
		t.Fatal(out)
	}
	if out, code := one.command("withdraw", "demo", "1.0.0", "--reason", "malware"); code != exitDone {
		t.Fatal(out)
	}
	one.start()
	one.writes()
	two := c.machine("two", one, followerFiles...)
	two.start()
	c.answers("1.0.1", http.StatusOK, one, two)
	c.answers("1.0.0", http.StatusGone, one, two)
	if out, code := two.command("webhook", "list"); code != exitDone || !strings.Contains(out, "https://hook.example/") {
		t.Errorf("the webhook is gone: %s", out)
	}
}

// What is wrong with a bucket, or a key folder, is said at the start.
func TestClusterMistakes(t *testing.T) {
	c := newCrew(t)
	serve := func(m *machine, args ...string) (string, int) {
		return m.command(append([]string{"serve", "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off", "--catalogue", c.catalogue}, args...)...)
	}
	mine, foreign := c.machine("mine", nil), c.machine("foreign", nil)
	for _, m := range []*machine{mine, foreign} { // each has a log of its own
		if out, code := m.command("import", "demo", "1.0.0", filepath.Join(c.dir, "source"), "--catalogue", c.catalogue); code != exitDone {
			t.Fatal(out)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		ready := filepath.Join(c.dir, m.name, "ready")
		ended := make(chan int)
		go func() {
			ended <- run(ctx, []string{"serve", "--data", m.data, "--bucket", "file://" + filepath.Join(c.dir, "bucket-"+m.name), "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off",
				"--catalogue", c.catalogue, "--ready-file", ready}, os.Environ(), io.Discard, &out)
		}()
		m.writes()
		cancel()
		if code := <-ended; code != exitDone {
			t.Fatal(out.String())
		}
	}
	copied := c.machine("copied", mine, "log.key", "log.pub", "checkpoint")
	empty := c.machine("empty", nil)
	for _, test := range []struct {
		name string
		on   *machine
		args []string
		want []string
		code int
	}{
		{"no store there", empty, []string{"--bucket", "s3://larder", "--bucket-endpoint", "http://127.0.0.1:1"}, []string{"cannot be reached", "--bucket-endpoint"}, exitFailed},
		{"no endpoint", empty, []string{"--bucket", "s3://larder"}, []string{"--bucket-endpoint"}, exitUsage},
		{"no bucket", empty, []string{"--node-url", "https://10.0.0.1:8443"}, []string{"--bucket"}, exitUsage},
		{"another log", foreign, []string{"--bucket", "file://" + filepath.Join(c.dir, "bucket-mine")}, []string{"has the log", "--bucket"}, exitFailed},
		{"no key of the cluster", copied, []string{"--bucket", "file://" + filepath.Join(c.dir, "bucket-mine")}, []string{"copy cluster.key"}, exitFailed},
		{"no key of the cluster for a URL", empty, []string{"--bucket", "file://" + filepath.Join(c.dir, "bucket-mine"), "--node-url", "https://127.0.0.1:0"}, []string{"copy cluster.key"}, exitUsage},
		{"without its bucket", mine, nil, []string{"--bucket"}, exitUsage},
	} {
		out, code := serve(test.on, test.args...)
		if code != test.code {
			t.Errorf("%s: exit code %d: %s", test.name, code, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the message does not say %q: %s", test.name, want, out)
			}
		}
	}
}

// What docs/cluster.md says to do when something is lost is done here, and works. With LARDER_TEST_WHOLE, which `make cluster`
// sets, it is all of it.
func TestClusterLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	whole := os.Getenv("LARDER_TEST_WHOLE") != ""
	t.Setenv("LARDER_TEST_WHOLE", "") // and gone, because larder refuses a variable that is no setting
	os.Unsetenv("LARDER_TEST_WHOLE")
	c := newCrew(t)
	one := c.machine("one", nil)
	one.start()
	one.writes()
	two, three := c.machine("two", one, candidateFiles...), c.machine("three", one, "cluster.key", "log.pub", "checkpoint")
	two.start()
	three.start()
	all := []*machine{one, two, three}
	stop := func() {
		t.Helper()
		for _, m := range slices.Backward(all) {
			m.end(os.Interrupt)
		}
	}
	var versions []string
	publishes := func() { // through any node, and every node serves everything
		t.Helper()
		versions = append(versions, three.publish())
		for _, version := range versions {
			c.answers(version, http.StatusOK, all...)
		}
	}
	refused := func(m *machine, want string) {
		t.Helper()
		if out, code := m.command("import", "demo", "6.6.6", filepath.Join(c.dir, "source")); code == exitDone || !strings.Contains(out, want) {
			t.Errorf("published at %s: %s", m.name, out)
		}
	}
	key := func(m *machine, name string) string { return filepath.Join(c.dir, m.name, "keys", name) }
	newBucket := func(name string) { c.bucket = filepath.Join(c.dir, name) }
	if out, code := two.command("webhook", "add", "https://hook.example/"); code != exitDone {
		t.Fatal(out)
	}
	publishes()

	// The bucket's newest objects are lost, because an old copy of it was restored.
	old := filepath.Join(c.dir, "old")
	if err := os.CopyFS(old, os.DirFS(c.bucket)); err != nil {
		t.Fatal(err)
	}
	publishes()
	stop()
	was := c.bucket
	c.bucket = old
	for _, m := range all {
		m.start()
	}
	for _, m := range all {
		c.eventually(m.name+" says that the bucket is behind", func() bool {
			s := m.status()
			return s != nil && s.Node != nil && s.Node.Role != "writer" && strings.Contains(s.Node.Problem, "the bucket is behind") && strings.Contains(s.Node.Problem, "new, empty --bucket")
		})
	}
	for _, version := range versions {
		c.answers(version, http.StatusOK, all...)
	}
	refused(one, "")
	stop()

	// The bucket is lost for good.
	if err := os.RemoveAll(was); err != nil {
		t.Fatal(err)
	}
	newBucket("second")
	one.start()
	one.writes()
	two.start()
	three.start()
	publishes()
	if out, code := three.command("webhook", "list"); code != exitDone || !strings.Contains(out, "https://hook.example/") {
		t.Errorf("the webhook is gone with the bucket: %s", out)
	}

	// The cluster's key is lost everywhere.
	stop()
	for _, m := range all {
		if err := os.Remove(key(m, "cluster.key")); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := one.command("serve", "--bucket", "file://"+c.bucket, "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off", "--catalogue", c.catalogue); code != exitFailed || !strings.Contains(out, "copy cluster.key") {
		t.Errorf("without the cluster's key: %d %s", code, out)
	}
	newBucket("third")
	one.start()
	one.writes()
	for _, m := range []*machine{two, three} {
		c.copyKeys(one, m, "cluster.key")
		m.start()
	}
	publishes()
	if !whole {
		return
	}

	// A node's store is damaged.
	three.end(os.Interrupt)
	tables, err := filepath.Glob(filepath.Join(three.data, "store", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal("the store has no tables", err)
	}
	for _, table := range tables {
		if err := os.Truncate(table, 10); err != nil {
			t.Fatal(err)
		}
	}
	three.start()
	publishes()
	if aside, err := filepath.Glob(three.data + "/store.lost-*"); err != nil || len(aside) != 1 {
		t.Errorf("the damaged store is put aside as %q, %v", aside, err)
	}

	// The log's key is lost on one node, and then on all.
	two.end(os.Interrupt)
	saved, err := os.ReadFile(key(one, "log.key"))
	if err == nil {
		err = os.Remove(key(two, "log.key"))
	}
	if err != nil {
		t.Fatal(err)
	}
	two.start()
	c.eventually("the node without the log's key follows", func() bool { return two.role() == "follower" })
	publishes()
	stop()
	if err := os.Remove(key(one, "log.key")); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		m.start()
	}
	for _, version := range versions {
		c.answers(version, http.StatusOK, all...)
	}
	refused(three, "another node that has the log's key takes its place")
	stop()
	c.write("one/keys/log.key", string(saved))
	c.write("two/keys/log.key", string(saved))
	one.start()
	one.writes()
	two.start()
	three.start()
	publishes()

	// The log's key is in wrong hands.
	if out, code := three.command("log", "rotate-key"); code == exitDone || !strings.Contains(out, "run larder log rotate-key on the node that publishes, the one at https://127.0.0.1:") {
		t.Errorf("a node that does not sign changes the key: %s", out)
	}
	if out, code := one.command("log", "rotate-key"); code != exitDone {
		t.Fatal(out)
	}
	two.end(os.Interrupt)
	olds, err := filepath.Glob(key(one, "old-*.key"))
	if err != nil || len(olds) != 1 {
		t.Fatalf("the old key is in %q, %v", olds, err)
	}
	c.copyKeys(one, two, "log.key", "log.pub", filepath.Base(olds[0]))
	two.start()
	publishes()
	one.end(os.Interrupt)
	all = []*machine{two, three}
	publishes()
	two.writes()

	// A tree is not sent from node to node; what to do is said.
	if out, code := three.command("import", "--tree", filepath.Join(c.dir, "source")); code == exitDone || !strings.Contains(out, "larder import --tree there") {
		t.Errorf("a tree through a node that does not publish: %s", out)
	}
	if out, code := three.command("squeeze"); code != exitDone || !strings.Contains(out, "Squeezed") {
		t.Errorf("squeezing through a node that does not publish: %s", out)
	}
	stop()
	for _, m := range all {
		if out, code := m.command("fsck", "--deep"); code != exitDone {
			t.Errorf("fsck of %s: %s", m.name, out)
		}
	}
}
