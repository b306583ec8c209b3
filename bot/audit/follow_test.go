package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

// publish publishes what a claim says, with these contents.
func publish(t testing.TB, shelf *testkit.Shelf, c verify.Claim, contents ...string) {
	t.Helper()
	put := func(data []byte) kvstore.Hash {
		h := kvstore.Sum(data)
		if err := shelf.Store.PutContent(h, int64(len(data)), true, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, data := range contents {
		put([]byte(data))
	}
	encoded, err := c.Manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	c.Entry.Manifest, c.Entry.Time, c.Entry.Actor, c.Entry.Released = put(encoded), released, "bot", released
	if err := shelf.Log.Update(func(tx *logs.Tx) error {
		return views.Record(tx, views.Change{Entry: c.Entry, Manifest: c.Manifest})
	}); err != nil {
		t.Fatal(err)
	}
}

// addSimple publishes a version of the package left at the registry, and returns what a log says of it that has other bytes.
func (r *rig) addSimple(version, data, says string) verify.Claim {
	r.Helper()
	r.registry.Add("left", version, released, map[string]string{"left.js": data}, npmtest.Signed(r.key))
	return verify.Claim{Entry: logs.Entry{Kind: logs.Published, Package: "left", Version: version}, Manifest: &logs.Manifest{
		Package: "left", Version: version, Source: logs.Source{Type: "npm", Name: "left", Integrity: r.integrity("left", version)},
		Files: []logs.File{file("left.js", says, logs.Upstream, "")},
	}}
}

// integrity is what the registry states of a version.
func (r *rig) integrity(name, version string) string {
	r.Helper()
	packument, _, err := r.client.Packument(r.Context(), name, npm.Validators{})
	if err != nil {
		r.Fatal(err)
	}
	return packument.Versions[version].Hash()
}

// An audited is a Larder that is audited, and a client that trusts its log and the auditor.
type audited struct {
	*rig
	cdn    *lardertest.Larder
	folder string // of the auditor
	key    string // of the auditor
	web    *httptest.Server
}

func newAudited(t *testing.T) *audited {
	a := &audited{rig: newRig(t), cdn: lardertest.New(t), folder: t.TempDir()}
	a.cdn.Register("left", `{"name":"left"}`)
	a.web = httptest.NewServer(http.FileServer(http.Dir(filepath.Join(a.folder, audit.AuditPublicFolder))))
	t.Cleanup(a.web.Close)
	return a
}

// poll has an auditor that was just started audit the log that a server shows.
func (a *audited) poll(server string) audit.AuditResult {
	a.Helper()
	f := a.open(server, a.auditor)
	found, err := f.Poll(a.Context())
	if err != nil {
		a.Fatal(err)
	}
	a.key = f.Key()
	return found
}

// open starts an auditor that compares releases with an upstream.
func (a *audited) open(server string, upstream verify.Upstream) *audit.Follower {
	a.Helper()
	f, err := audit.OpenFollower(audit.FollowOptions{
		Server: server, Folder: a.folder, Name: "auditor.example.org/larder", Upstream: upstream,
		Verify: verify.Options{Trust: verify.Trust{Key: a.cdn.Signer.Key()}},
	})
	if err != nil {
		a.Fatal(err)
	}
	return f
}

func (a *audited) sign() {
	a.Helper()
	if err := a.cdn.Signer.Sign(); err != nil {
		a.Fatal(err)
	}
}

// check verifies a file as a client that requires all of these auditors.
func (a *audited) check(name string, auditors ...verify.Auditor) (*verify.SessionLog, verify.Result) {
	a.Helper()
	return a.checkNeeding(len(auditors), name, auditors...)
}

// checkNeeding verifies a file as a client that requires so many of these auditors.
func (a *audited) checkNeeding(need int, name string, auditors ...verify.Auditor) (*verify.SessionLog, verify.Result) {
	a.Helper()
	known, err := verify.ReadKnown(filepath.Join(a.TempDir(), "known"))
	if err != nil {
		a.Fatal(err)
	}
	s := verify.Session{Known: known, Timeout: time.Minute, Options: verify.Options{
		Trust: verify.Trust{Key: a.cdn.Signer.Key()}, Auditors: auditors, NeedAuditors: need,
	}}
	parsed, err := verify.ParseName(name)
	if err != nil {
		a.Fatal(err)
	}
	log, result, err := s.Verify(a.Context(), verify.Subject{Server: a.cdn.URL, Name: parsed, URL: a.cdn.URL + "/ajax/libs/" + name})
	if err != nil {
		a.Fatal(err)
	}
	return log, result
}

func (a *audited) trusted() verify.Auditor {
	return verify.Auditor{Key: a.key, Statement: a.web.URL + "/" + audit.AuditStatement}
}

func (a *audited) want(name string, outcome verify.Outcome, problem string, auditors ...verify.Auditor) {
	a.Helper()
	if _, got := a.check(name, auditors...); got.Outcome != outcome || !strings.Contains(got.Problem, problem) || len(got.Audits) != len(auditors) {
		a.Errorf("%s: %s, %q, %+v; want %s about %q", name, got.Outcome, got.Problem, got.Audits, outcome, problem)
	}
}

// A publisher that serves a changed byte in a release that it has signed is exposed to clients that trust one honest auditor.
func TestLyingPublisher(t *testing.T) {
	a := newAudited(t)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "left()"), "left()")
	publish(t, a.cdn.Shelf, a.addSimple("1.0.1", "left()", "lift()"), "lift()")
	a.cdn.Publish("left", "0.9.0", "left.js", map[string]string{"left.js": "imported"})
	a.sign()
	const honest, lie, imported = "left/1.0.0/left.js", "left/1.0.1/left.js", "left/0.9.0/left.js"
	a.want(lie, verify.Proven, "") // the log says so itself

	found := a.poll(a.cdn.URL)
	if found.Outcome != verify.Proven || found.Audited != 4 || found.Size != 4 || found.Compared != 1 || len(found.Differences) != 1 || len(found.Uncompared) != 1 {
		t.Fatalf("audited: %+v", found)
	}
	if d := found.Differences[0]; d.Entry != 2 || d.Version != "1.0.1" || !strings.Contains(d.Problem, "other bytes") {
		t.Errorf("the difference: %+v", d)
	}
	file := verify.Auditor{Key: a.key, Statement: filepath.Join(a.folder, audit.AuditPublicFolder, "4.txt")}
	for _, auditor := range []verify.Auditor{a.trusted(), file} {
		a.want(honest, verify.Proven, "", auditor)
		a.want(lie, verify.Differs, "the auditor auditor.example.org/larder says that it is not upstream's", auditor)
		a.want(imported, verify.Unproven, "0 of the given auditors", auditor)
	}

	// One honest auditor is enough, whatever another one says.
	dishonest := a.statement(func(s *verify.AuditStatement) { s.Differences = nil })
	a.want(lie, verify.Differs, "auditor.example.org", dishonest, a.trusted())
	a.want(lie, verify.Differs, "auditor.example.org", a.trusted(), dishonest)

	// What came after the statement is not audited, until the auditor was there again, after a restart.
	publish(t, a.cdn.Shelf, a.addSimple("1.0.2", "left(2)", "left(2)"), "left(2)")
	a.sign()
	a.want("left/1.0.2/left.js", verify.Unproven, "0 of the given auditors", a.trusted())
	key := a.key
	if found = a.poll(a.cdn.URL); found.Audited != 5 || found.Compared != 2 || len(found.Differences) != 1 || a.key != key {
		t.Errorf("audited: %+v with %s", found, a.key)
	}
	a.want("left/1.0.2/left.js", verify.Proven, "", a.trusted())
}

// What could not be compared because npm was not there is compared the next time.
func TestAuditRetries(t *testing.T) {
	a := newAudited(t)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "left()"), "left()")
	a.cdn.Publish("left", "0.9.0", "left.js", map[string]string{"left.js": "imported"})
	a.sign()
	a.registry.Fail(npmtest.Fault{Path: "/left", Status: 503})
	if found := a.poll(a.cdn.URL); found.Audited != 3 || found.Compared != 0 || len(found.Uncompared) != 2 {
		t.Errorf("audited without npm: %+v", found)
	}
	a.want("left/1.0.0/left.js", verify.Unproven, "", a.trusted())
	a.registry.ClearFaults()
	if found := a.poll(a.cdn.URL); found.Audited != 3 || found.Compared != 1 || len(found.Uncompared) != 1 || found.Uncompared[0].Version != "0.9.0" {
		t.Errorf("audited again: %+v", found)
	}
	a.want("left/1.0.0/left.js", verify.Proven, "", a.trusted())
}

// An interrupted retry leaves a release uncompared, so that no statement says that it was compared.
func TestRetryIsInterrupted(t *testing.T) {
	a := newAudited(t)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "lift()"), "lift()")
	a.sign()
	a.registry.Fail(npmtest.Fault{Path: "/left", Status: 503})
	a.poll(a.cdn.URL)
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := a.open(a.cdn.URL, upstreamFunc(func(context.Context, verify.Claim) verify.Comparison {
		cancel()
		return verify.Comparison{}
	}))
	if _, err := interrupted.Poll(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if found := a.poll(a.cdn.URL); len(found.Uncompared) != 1 {
		t.Errorf("audited: %+v", found)
	}
	a.want("left/1.0.0/left.js", verify.Unproven, "", a.trusted())
	a.registry.ClearFaults()
	a.poll(a.cdn.URL)
	a.want("left/1.0.0/left.js", verify.Differs, "", a.trusted())
}

// An auditor that has followed a thief's log until the root key ended the stolen key audits the other log from its first entry.
func TestAuditAfterTheft(t *testing.T) {
	s := lardertest.NewStolenKey(t, "left")
	s.Honest.Publish("left", "2.0.0", "a.js", map[string]string{"a.js": "2"})
	if err := s.Honest.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	s.Thief.Lie(lardertest.KeyListPath, s.Before())
	s.Honest.Lie(lardertest.KeyListPath, s.After())
	server := httptest.NewUnstartedServer(nil) // which the thief has, and then the operator
	var shown atomic.Pointer[lardertest.Larder]
	shown.Store(s.Thief)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { shown.Load().Config.Handler.ServeHTTP(w, r) })
	server.Start()
	t.Cleanup(server.Close)
	var compared []string
	folder := t.TempDir()
	poll := func() audit.AuditResult {
		t.Helper()
		f, err := audit.OpenFollower(audit.FollowOptions{
			Server: server.URL, Folder: folder, Name: "auditor.example.org/larder", Verify: verify.Options{Trust: verify.Trust{Root: s.Root}},
			Upstream: upstreamFunc(func(_ context.Context, c verify.Claim) verify.Comparison {
				compared = append(compared, c.Entry.Version)
				return verify.Comparison{Outcome: verify.Proven}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		found, err := f.Poll(t.Context())
		if err != nil || found.Outcome != verify.Proven {
			t.Fatalf("%+v, %v", found, err)
		}
		return found
	}
	poll()
	shown.Store(s.Honest)
	if found := poll(); fmt.Sprint(compared) != "[1.0.0 6.6.6 1.0.0 2.0.0]" || found.Compared != 2 {
		t.Errorf("compared %v: %+v", compared, found)
	}
	poll()
	if len(compared) != 4 {
		t.Errorf("compared again: %v", compared)
	}
}

// An upstreamFunc compares releases.
type upstreamFunc func(context.Context, verify.Claim) verify.Comparison

func (f upstreamFunc) Compare(ctx context.Context, c verify.Claim) verify.Comparison {
	return f(ctx, c)
}

// A publisher cannot make the statement too long to be signed, so that the auditor ends: it says up to where it has audited.
func TestStatementIsLimited(t *testing.T) {
	a := newAudited(t)
	const releases = 30
	for i := range releases {
		files := map[string]string{}
		for j := range 90 {
			files[fmt.Sprintf("%s/%d.js", strings.Repeat("\u2028", 300), j)] = "x"
		}
		a.cdn.Publish("left", fmt.Sprintf("1.%d.0", i), "", files)
	}
	a.sign()
	f := a.open(a.cdn.URL, upstreamFunc(func(context.Context, verify.Claim) verify.Comparison {
		return verify.Comparison{Outcome: verify.Proven, Unchecked: 90, At: func(string) (string, error) { return "", errors.New("not in the archive") }}
	}))
	found, err := f.Poll(t.Context())
	if err != nil || found.Outcome != verify.Proven || found.Audited != releases+1 {
		t.Errorf("%s, %d entries, %q, %v", found.Outcome, found.Audited, found.Problem, err)
	}
}

// The cost of auditing a release does not grow with the findings about others: they are encoded once for a poll.
func TestAuditCostPerRelease(t *testing.T) {
	a := newAudited(t)
	entries := 1
	upstream := upstreamFunc(func(context.Context, verify.Claim) verify.Comparison {
		return verify.Comparison{Outcome: verify.Unproven, Err: audit.ErrNoUpstream}
	})
	const releases = 40
	// poll publishes and audits releases, and returns how many bytes that allocates.
	poll := func() uint64 {
		for range releases {
			a.cdn.Publish("left", fmt.Sprintf("1.%d.0", entries), "a.js", map[string]string{"a.js": "a"})
			entries++
		}
		a.sign()
		var before, after runtime.MemStats
		f := a.open(a.cdn.URL, upstream)
		runtime.ReadMemStats(&before)
		found, err := f.Poll(t.Context())
		runtime.ReadMemStats(&after)
		if err != nil || found.Audited != int64(entries) {
			t.Fatalf("%+v, %v", found, err)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few := poll()
	path := filepath.Join(a.folder, "audit-state.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	findings := state["uncompared"].([]any)
	for i := range 900 {
		findings = append(findings, verify.AuditFinding{Entry: int64(i), Package: "left", Problem: strings.Repeat("x", 300)})
	}
	state["uncompared"] = findings
	if data, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if many := poll(); many > few+uint64(releases*len(data)) { // once for each release would be twice that, with copies
		t.Errorf("%d bytes with %d bytes of findings, %d without", many, len(data), few)
	} else {
		t.Logf("%d bytes with %d bytes of findings, %d without", many, len(data), few)
	}
}

// An auditor that is named twice counts once, whichever of its statements says that a file is upstream's.
func TestAuditorsCountOnce(t *testing.T) {
	a := newAudited(t)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "left()"), "left()")
	a.sign()
	a.poll(a.cdn.URL)
	const name = "left/1.0.0/left.js"
	one := a.trusted()
	copied := verify.Auditor{Key: one.Key, Statement: filepath.Join(a.folder, audit.AuditPublicFolder, audit.AuditStatement)}
	missing := verify.Auditor{Key: one.Key, Statement: copied.Statement + "-missing"}
	other := a.statement(func(*verify.AuditStatement) {})
	a.want(name, verify.Unproven, "1 of the given auditors", one, one)
	a.want(name, verify.Unproven, "1 of the given auditors", one, copied)
	a.want(name, verify.Proven, "", one, other)
	for _, tt := range []struct {
		auditors []verify.Auditor
		want     int
	}{{nil, 0}, {[]verify.Auditor{one, one, copied, missing}, 1}, {[]verify.Auditor{one, other, missing}, 2}} {
		count := verify.CountAuditors(tt.auditors)
		if _, got := a.checkNeeding(count, name, tt.auditors...); count != tt.want || got.Outcome != verify.Proven {
			t.Errorf("%d auditors, %s, %q; want %d", count, got.Outcome, got.Problem, tt.want)
		}
	}
}

// statement returns an auditor with a key of its own, whose statement is that of the honest one, changed.
func (a *audited) statement(change func(*verify.AuditStatement)) verify.Auditor {
	a.Helper()
	signed, err := os.ReadFile(filepath.Join(a.folder, audit.AuditPublicFolder, audit.AuditStatement))
	if err != nil {
		a.Fatal(err)
	}
	s, err := verify.OpenAuditStatement(signed, a.key)
	if err != nil {
		a.Fatal(err)
	}
	change(s)
	private, public, err := signing.NewKey("other.example.net/larder")
	if err != nil {
		a.Fatal(err)
	}
	key, _, err := signing.ParseKey([]byte(private))
	if err != nil {
		a.Fatal(err)
	}
	if signed, err = s.Sign(key); err != nil {
		a.Fatal(err)
	}
	path := filepath.Join(a.TempDir(), "statement")
	if err := os.WriteFile(path, signed, 0o644); err != nil {
		a.Fatal(err)
	}
	return verify.Auditor{Key: public, Statement: path}
}

// A statement that proves nothing counts for nothing.
func TestBadStatements(t *testing.T) {
	a := newAudited(t)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "left()"), "left()")
	a.sign()
	a.poll(a.cdn.URL)
	const name = "left/1.0.0/left.js"
	a.want(name, verify.Proven, "", a.statement(func(*verify.AuditStatement) {}))
	other := a.statement(func(*verify.AuditStatement) {})
	signed, err := os.ReadFile(other.Statement)
	if err != nil {
		t.Fatal(err)
	}
	altered := filepath.Join(t.TempDir(), "altered")
	if err := os.WriteFile(altered, []byte(strings.Replace(string(signed), `"compared":1`, `"compared":9`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	foreign := lardertest.New(t) // of the same name, with another key
	foreign.Register("left", `{"name":"left"}`)
	if err := foreign.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	signedForeign, err := http.Get(foreign.URL + "/log/checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	defer signedForeign.Body.Close()
	checkpoint, err := io.ReadAll(signedForeign.Body)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, problem string
		auditor       verify.Auditor
	}{
		{"by another key", "not a statement that is signed", verify.Auditor{Key: a.key, Statement: other.Statement}},
		{"altered", "not a statement that is signed", verify.Auditor{Key: other.Key, Statement: altered}},
		{"not there", "couldn't get", verify.Auditor{Key: a.key, Statement: a.web.URL + "/nothing"}},
		{"no such file", "couldn't get", verify.Auditor{Key: a.key, Statement: altered + "-not"}},
		{"of more than its checkpoint", "under a checkpoint of", a.statement(func(s *verify.AuditStatement) { s.To = 9 })},
		{"of no range", "range", a.statement(func(s *verify.AuditStatement) { s.From = 9 })},
		{"of another log", "has not signed", a.statement(func(s *verify.AuditStatement) { s.Checkpoint = string(checkpoint) })},
		{"of a log of another name", "is about the log", a.statement(func(s *verify.AuditStatement) { s.Checkpoint = "x" + s.Checkpoint })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := a.check(name, tt.auditor)
			if got.Outcome != verify.Unproven || len(got.Audits) != 1 || !strings.Contains(got.Audits[0].Problem, tt.problem) {
				t.Errorf("%s, %q, %+v; want %q", got.Outcome, got.Problem, got.Audits, tt.problem)
			}
		})
	}
}

// A publisher that shows its auditor another log than its clients has forked it, and the statement proves that.
func TestPublisherForksForTheAuditor(t *testing.T) {
	a := newAudited(t)
	keys := t.TempDir()
	a.cdn = lardertest.Serve(t, testkit.NewShelf(t), keys)
	same := t.TempDir()
	if err := os.CopyFS(same, os.DirFS(keys)); err != nil {
		t.Fatal(err)
	}
	a.cdn.Register("left", `{"name":"left"}`)
	publish(t, a.cdn.Shelf, a.addSimple("1.0.0", "left()", "lift()"), "lift()")
	a.sign()
	shown := lardertest.Serve(t, testkit.NewShelf(t), same)
	shown.Register("left", `{"name":"left"}`)
	publish(t, shown.Shelf, a.addSimple("1.0.0", "left()", "left()"), "left()")
	if err := shown.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	if found := a.poll(shown.URL); found.Compared != 1 || len(found.Differences) > 0 {
		t.Fatalf("audited: %+v", found)
	}
	log, got := a.check("left/1.0.0/left.js", a.trusted())
	if got.Outcome != verify.Forked || log.Evidence == "" {
		t.Errorf("%s, %q, evidence %q", got.Outcome, got.Problem, log.Evidence)
	}
}
