package versitygw

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// built is the folder of the program, which is built once for all tests.
var built struct {
	sync.Once
	dir string
	err error
}

// programVariable names a larder that was built before; then the tests do not build it.
const programVariable = "BUILT_LARDER"

// program returns the path of larder itself.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(programVariable); path != "" {
		return path
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "larder"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-C", "../..", "-o", filepath.Join(built.dir, "larder"), "./cmd/larder")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "larder")
}

// A crew is nodes of a cluster, each a larder process, with an object store's endpoint.
type crew struct {
	*testing.T
	dir, larder, endpoint string
	published             int
}

func newCrew(t *testing.T, endpoint string) *crew {
	t.Helper()
	c := &crew{T: t, dir: t.TempDir(), larder: program(t), endpoint: endpoint}
	c.write("catalogue/packages/d/demo.json", `{"name": "demo", "description": "A test.", "keywords": ["test"], "filename": "demo.js",
		"repository": {"type": "git", "url": "https://example.com/demo.git"},
		"autoupdate": {"source": "npm", "target": "demo", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`)
	c.write("source/demo.js", "demo();\n")
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

// eventually waits far longer than anything takes.
func (c *crew) eventually(what string, is func() bool) {
	c.Helper()
	c.poll(what, 20*time.Millisecond, is)
}

// eventuallyByCommand is eventually for a condition that starts a process each time: polled as often, it would take a
// processor to itself, which the nodes need.
func (c *crew) eventuallyByCommand(what string, is func() bool) {
	c.Helper()
	c.poll(what, 200*time.Millisecond, is)
}

func (c *crew) poll(what string, interval time.Duration, is func() bool) {
	c.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); {
		if time.Now().After(deadline) {
			c.Fatalf("it is not so that %s", what)
		}
		time.Sleep(interval)
	}
}

// environment is the test's own without what larder would take for settings that it does not know.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LARDER_") })
}

// A node is one of them.
type node struct {
	*crew
	name, data string
	cmd        *exec.Cmd
	said       bytes.Buffer
	ended      chan struct{}
	url        string
}

// node returns one that has these files of another's key folder.
func (c *crew) node(name string, like *node, keys ...string) *node {
	c.Helper()
	n := &node{crew: c, name: name, data: filepath.Join(c.dir, name, "data")}
	n.takeKeys(like, keys...)
	return n
}

// takeKeys copies files of another's key folder.
func (n *node) takeKeys(like *node, keys ...string) {
	n.Helper()
	for _, file := range keys {
		data, err := os.ReadFile(filepath.Join(n.dir, like.name, "keys", file))
		if err != nil {
			n.Fatal(err)
		}
		n.write(filepath.Join(n.name, "keys", file), string(data))
	}
}

// serving is the command line of one that serves. What comes last counts.
func (n *node) serving(more ...string) []string {
	return append([]string{"serve", "--data", n.data, "--bucket", "s3://" + bucketName + "/cdn", "--bucket-endpoint", n.endpoint, "--catalogue", filepath.Join(n.dir, "catalogue"),
		"--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off"}, more...)
}

func (n *node) start(more ...string) {
	n.Helper()
	ready := filepath.Join(n.dir, n.name, "ready")
	if err := os.RemoveAll(ready); err != nil {
		n.Fatal(err)
	}
	n.said.Reset()
	cmd := exec.Command(n.larder, n.serving(append([]string{"--node-url", "https://127.0.0.1:0", "--ready-file", ready}, more...)...)...)
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = &n.said, &n.said
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	ended := make(chan struct{})
	n.cmd, n.ended = cmd, ended
	go func() {
		defer close(ended)
		cmd.Wait()
	}()
	n.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if n.Failed() {
			n.Logf("%s said:\n%s", n.name, &n.said)
		}
	})
	n.eventually(n.name+" serves", func() bool {
		data, err := os.ReadFile(ready)
		n.url = strings.TrimSpace(string(data))
		select {
		case <-ended:
			n.Fatalf("%s has ended: %s", n.name, &n.said)
		default:
		}
		return err == nil
	})
}

// end ends it, and returns when it has ended.
func (n *node) end(s os.Signal) {
	n.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.Fatal(err)
	}
	<-n.ended
}

// run runs larder to its end.
func (n *node) run(args []string, env ...string) (said string, ok bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.larder, args...)
	cmd.Env = append(environment(), env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		n.Fatalf("larder %q does not end: %s", args, out)
	}
	return string(out), err == nil
}

// command runs a command on the node's folder.
func (n *node) command(args ...string) (said string, ok bool) {
	n.Helper()
	return n.run(append(args, "--data", n.data))
}

// publish imports a new release through the node, however often it takes.
func (n *node) publish() (version string) {
	n.Helper()
	n.eventuallyByCommand("a release can be published through "+n.name, func() bool {
		n.published++
		version = fmt.Sprint("1.0.", n.published)
		_, ok := n.command("import", "demo", version, filepath.Join(n.dir, "source"))
		return ok
	})
	return version
}

// answers waits until nodes answer for a release with a status.
func (c *crew) answers(version string, status int, all ...*node) {
	c.Helper()
	for _, n := range all {
		c.eventually(fmt.Sprintf("%s answers %d for %s", n.name, status, version), func() bool {
			response, err := http.Get(n.url + "/ajax/libs/demo/" + version + "/demo.js")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			_, err = io.Copy(io.Discard, response.Body)
			return err == nil && response.StatusCode == status
		})
	}
}

// told is what a node tells of itself.
type told struct{ Role, Problem string }

func (n *node) told() (told told) {
	n.Helper()
	var status struct {
		Node *struct{ Role, Problem string }
	}
	if out, ok := n.command("status", "--json"); ok && json.Unmarshal([]byte(out), &status) == nil && status.Node != nil {
		told.Role, told.Problem = status.Node.Role, status.Node.Problem
	}
	return told
}

// Three nodes on an object store publish through one another, withdraw, outlive the one that publishes and a store that
// does not answer; and one whose format is older stays behind, says so and serves.
func TestProcesses(t *testing.T) {
	t.Parallel()
	g := newGateway(t, folder(t), false)
	c := newCrew(t, front(t, nil, g).URL)
	one := c.node("one", nil)
	one.start()
	c.eventuallyByCommand("one publishes", func() bool { return one.told().Role == "leader" })
	two := c.node("two", one, "log.key", "log.pub", "checkpoint", "cluster.key")
	three := c.node("three", one, "cluster.key", "log.pub", "checkpoint")
	two.start()
	three.start()
	first := three.publish()
	second := one.publish()
	c.answers(first, http.StatusOK, one, two, three)
	c.answers(second, http.StatusOK, one, two, three)
	if out, ok := three.command("withdraw", "demo", first, "--reason", "malware"); !ok {
		t.Fatal(out)
	}
	c.answers(first, http.StatusGone, one, two, three)

	one.end(syscall.SIGKILL)
	third := three.publish()
	c.answers(third, http.StatusOK, two, three)
	c.answers(first, http.StatusGone, two, three)

	g.kill() // the bucket is lost for a while
	if out, ok := three.command("import", "demo", "6.6.6", filepath.Join(c.dir, "source")); ok {
		t.Errorf("published without a bucket: %s", out)
	}
	c.answers(third, http.StatusOK, two, three)
	three.end(os.Interrupt)
	three.start() // and it serves what it has
	c.answers(third, http.StatusOK, three)
	g.start()
	c.answers(three.publish(), http.StatusOK, two, three)

	if err := os.RemoveAll(one.data); err != nil {
		t.Fatal(err)
	}
	if out, ok := one.command("repair", "--bucket", "s3://"+bucketName+"/cdn", "--bucket-endpoint", c.endpoint); !ok || !strings.Contains(out, "From s3://"+bucketName) {
		t.Errorf("from the bucket: %s", out)
	}
	if out, ok := one.command("fsck", "--all"); !ok {
		t.Errorf("what was repaired from the bucket: %s", out)
	}

	// A commit of a newer release of Larder.
	two.end(os.Interrupt)
	b := open(t, c.endpoint)
	var commits int
	for _, err := range b.List(t.Context(), "commit/", "") {
		if err != nil {
			t.Fatal(err)
		}
		commits++
	}
	if _, err := b.Create(t.Context(), fmt.Sprintf("commit/%020d", commits), []byte(`{"format": 2, "number": `+fmt.Sprint(commits)+`}`)); err != nil {
		t.Fatal(err)
	}
	c.eventuallyByCommand("three says that it is older", func() bool {
		return strings.Contains(three.told().Problem, fmt.Sprintf("commit %d has format 2, which this release of Larder does not know: update this node; it serves what it has until then", commits))
	})
	if out, ok := three.command("nodes"); !ok || !strings.Contains(out, "update this node") {
		t.Errorf("larder nodes: %s", out)
	}
	c.answers(third, http.StatusOK, three)
}

// What the operator has wrong is said at the start, by what it is and what to do, and nothing is served.
func TestProcessMistakes(t *testing.T) {
	t.Parallel()
	g := newGateway(t, folder(t), false)
	c := newCrew(t, front(t, nil, g).URL)
	founder, foreign := c.node("founder", nil), c.node("foreign", nil) // each has a log of its own
	founder.start()
	foreign.start("--bucket", "s3://"+bucketName+"/foreign")
	for _, n := range []*node{founder, foreign} {
		c.eventuallyByCommand(n.name+" publishes", func() bool { return n.told().Role == "leader" })
		n.end(os.Interrupt)
	}
	empty := c.node("empty", founder, "cluster.key")

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	website := httptest.NewServer(http.NotFoundHandler())
	defer website.Close()
	late := front(t, func(next http.Handler) http.Handler { // as if this machine's clock was an hour slow
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil {
				r.Header.Set("X-Amz-Date", at.Add(-time.Hour).Format("20060102T150405Z"))
			}
			next.ServeHTTP(w, r)
		})
	}, g)
	liar := front(t, func(next http.Handler) http.Handler { return heedless{next} }, g)
	newer := "newer"
	if err := openWith(t, bucket.S3Options{Endpoint: c.endpoint, Name: bucketName, Prefix: newer}).Put(t.Context(), "log", []byte(`{"format": 2}`)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		on   *node
		args []string
		env  []string
		want []string
	}{
		{"endpoint", empty, []string{"--bucket-endpoint", "http://" + closed.Addr().String()}, nil, []string{"is the store running, and is --bucket-endpoint its address"}},
		{"TLS", empty, []string{"--bucket-endpoint", strings.Replace(c.endpoint, "http:", "https:", 1)}, nil, []string{"begin --bucket-endpoint with http://"}},
		{"no store", empty, []string{"--bucket-endpoint", website.URL}, nil, []string{"not an object store", "--bucket-endpoint"}},
		{"bucket", empty, []string{"--bucket", "s3://none-such"}, nil, []string{`no bucket "none-such"; make it, or name another with --bucket`}},
		{"region", empty, nil, []string{"AWS_REGION=eu-central-1"}, []string{"another region; set AWS_REGION", "us-east-1"}},
		{"access key", empty, nil, []string{"AWS_ACCESS_KEY_ID=other"}, []string{"does not know the access key; check AWS_ACCESS_KEY_ID"}},
		{"secret key", empty, nil, []string{"AWS_SECRET_ACCESS_KEY=other"}, []string{"secret key is not that of the access key; check AWS_SECRET_ACCESS_KEY"}},
		{"no credentials", empty, nil, []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "HOME=/nonexistent"}, []string{"credentials", bucketName}},
		{"clock", empty, []string{"--bucket-endpoint", late.URL}, nil, []string{"set the clock"}},
		{"another log", foreign, nil, nil, []string{"has the log", "name the right bucket", "--bucket"}},
		{"no conditions", empty, []string{"--bucket-endpoint", liar.URL, "--bucket", "s3://" + bucketName + "/heedless"}, nil, []string{"s3://" + bucketName + "/heedless/", "cannot be used", "If-None-Match: * is ignored"}},
		{"newer", empty, []string{"--bucket", "s3://" + bucketName + "/" + newer}, nil, []string{"has format 2", "update this node"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			said, ok := test.on.run(test.on.serving(test.args...), test.env...)
			if ok {
				t.Error("it ends without an error")
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q: %s", want, said)
				}
			}
		})
	}
}

// heedless is a store that ignores the conditions of writes: what was refused for one is told as done.
type heedless struct{ store http.Handler }

func (h heedless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		w = &heedlessAnswer{ResponseWriter: w}
	}
	h.store.ServeHTTP(w, r)
}

type heedlessAnswer struct {
	http.ResponseWriter
	refused bool
}

func (a *heedlessAnswer) WriteHeader(status int) {
	if a.refused = status == http.StatusPreconditionFailed; a.refused {
		a.Header().Set("ETag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		a.Header().Set("Content-Length", "0")
		status = http.StatusOK
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *heedlessAnswer) Write(data []byte) (int, error) {
	if a.refused {
		return len(data), nil
	}
	return a.ResponseWriter.Write(data)
}

// Two gateways on one folder without the file that they lock are refused by name, whichever of the writers it is that
// wins twice.
func TestProcessWithoutLockFile(t *testing.T) {
	t.Parallel()
	needChance(t)
	dir := folder(t)
	c := newCrew(t, front(t, nil, newGateway(t, dir, true), newGateway(t, dir, true)).URL)
	n := c.node("one", nil)
	said, ok := n.run(n.serving())
	for _, want := range []string{"s3://" + bucketName + "/cdn/ at ", "cannot be used", "docs/cluster.md"} {
		if ok || !strings.Contains(said, want) {
			t.Errorf("it does not say %q: %s", want, said)
		}
	}
}
