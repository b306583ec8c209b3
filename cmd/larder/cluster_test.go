package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/larder-cdn/larder/internal/app"
)

// TestCluster has three nodes publish, withdraw, take over from one another, and begin with nothing. With LARDER_TEST_WHOLE,
// which `make cluster` sets, a node that writes is paused too.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes, and waits until one takes the place of another")
	}
	t.Parallel()
	whole := testVariable("WHOLE") != ""
	c := newCrew(t)
	one, two, three := c.three(candidateFiles, followerFiles)
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
		c.eventually(m.name+" lets a visitor in", func() bool {
			status, _ := fetched(m.url + "/statistics")
			return status == http.StatusOK
		})
	}
	limits := func(total, perMinute int, all ...*machine) {
		t.Helper()
		for _, m := range all {
			c.eventually(fmt.Sprintf("%s has a room for %d users, %d a minute", m.name, total, perMinute), func() bool {
				var rooms []struct {
					Total     int `json:"total_active_users"`
					PerMinute int `json:"new_users_per_minute"`
				}
				out, code := m.command("room", "status", "--json", "shop")
				return code == exitDone && json.Unmarshal([]byte(out), &rooms) == nil && rooms[0].Total == total && rooms[0].PerMinute == perMinute
			})
		}
	}
	if out, code := three.command("room", "set", "shop", "total_active_users=800", "new_users_per_minute=700"); code != exitDone {
		t.Fatal(out)
	}
	limits(800, 700, one, two, three)
	if out, code := two.command("room", "set", "shop", "new_users_per_minute=801"); code == exitDone {
		t.Error(out)
	}
	if out, code := two.command("room", "set", "shop", "new_users_per_minute=600"); code != exitDone {
		t.Fatal(out)
	}
	limits(800, 600, one, two, three)
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
		return slices.Equal(roles, []string{"leader", "candidate", "follower"})
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
	if out, code := three.command("room", "set", "shop", "total_active_users="); code != exitDone {
		t.Fatal(out)
	}
	limits(900, 600, two, three)
	c.eventually("the node that is lost is not listed as the one that publishes", func() bool {
		var roles []string
		for _, n := range three.nodes() {
			roles = append(roles, n.Role)
		}
		return slices.Equal(roles, []string{"leader", "follower", "former leader"})
	})
	one.start() // it was killed, and comes back
	c.answers(third, http.StatusOK, one)
	limits(900, 600, one, two, three)
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
		if out, code := m.command("fsck", "--all"); code != exitDone {
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
	t.Parallel()
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
	if said := two.said(); !strings.Contains(said, "yet to catch up") || strings.Contains(said, "Nothing is here yet") {
		t.Errorf("it says: %s", said)
	}
	if said, code := two.command("status"); code != exitDone || !strings.Contains(said, "comes here by itself") {
		t.Errorf("larder status says: %s", said)
	}
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
	c.eventually("the node is ready", func() bool {
		status, body := fetched(private + "/readyz")
		return status == http.StatusOK && strings.Contains(body, "cluster: follower")
	})
	if _, body := fetched(private + "/metrics"); !strings.Contains(body, "\nlarder_cluster_behind_entries 0\n") || !strings.Contains(body, "\nlarder_cluster_leader 0\n") {
		t.Error("the metrics lack how far the node is behind")
	}
	if status, body := fetched(private + "/nodes"); status != http.StatusOK || !strings.Contains(body, ">leader<") || !strings.Contains(body, ">follower<") {
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
	t.Parallel()
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

// The start reports an error of a bucket or a key folder.
func TestClusterMistakes(t *testing.T) {
	t.Parallel()
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
		{"an endpoint without a bucket", empty, []string{"--bucket-endpoint", "http://127.0.0.1:1"}, []string{"--bucket-endpoint has no effect without --bucket or --backup"}, exitUsage},
		{"an endpoint and a folder", empty, []string{"--bucket-endpoint", "http://127.0.0.1:1", "--backup", "file://" + c.dir}, []string{"--bucket-endpoint has no effect"}, exitUsage},
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

// A node that cannot fill, because its catalogue is empty, takes over once, and not again and again: each time is in the bucket
// for good. It says why it does not, and publishes when it can.
func TestClusterEmptyCatalogue(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process, and waits until it tries again")
	}
	t.Parallel()
	c := newCrew(t)
	pkg, aside := filepath.Join(c.catalogue, "packages", "d", "demo.json"), filepath.Join(c.dir, "aside")
	if err := os.Rename(pkg, aside); err != nil {
		t.Fatal(err)
	}
	one := c.machine("one", nil)
	one.kind = "up"
	one.start()
	c.eventually("it says why it does not publish", func() bool {
		return strings.Contains(one.said(), "this one cannot take over") && slices.ContainsFunc(one.nodes(), func(n app.Node) bool { return strings.Contains(n.Problem, "holds no package") })
	})
	epochs, err := os.ReadDir(filepath.Join(c.bucket, "epoch"))
	if err != nil || len(epochs) != 1 {
		t.Errorf("it took over %d times, %v", len(epochs), err)
	}
	if err := os.Rename(aside, pkg); err != nil {
		t.Fatal(err)
	}
	one.writes()
}

// The steps that docs/cluster.md has for lost data work. With LARDER_TEST_WHOLE, which `make cluster`
// sets, it does all of them.
func TestClusterLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	whole := testVariable("WHOLE") != ""
	c := newCrew(t)
	one, two, three := c.three(candidateFiles, []string{"cluster.key", "log.pub", "checkpoint"})
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

	// The bucket's newest objects are lost, because an old copy of it was restored. It is copied while no node writes: files that
	// are written have temporary names.
	stop()
	old := filepath.Join(c.dir, "old")
	if err := os.CopyFS(old, os.DirFS(c.bucket)); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		m.start()
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
			return s != nil && s.Node != nil && s.Node.Role != "leader" && strings.Contains(s.Node.Problem, "the bucket is behind") && strings.Contains(s.Node.Problem, "new, empty --bucket")
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
		if out, code := m.command("fsck", "--all"); code != exitDone {
			t.Errorf("fsck of %s: %s", m.name, out)
		}
	}
}
