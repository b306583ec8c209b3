package bot_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// audit does what is due a day later, and returns how many releases were compared, by what came of it.
func (r *rig) audit() map[sources.EventKind]int {
	r.Helper()
	r.setNow(r.clock().Add(24*time.Hour + time.Minute))
	return r.auditNow()
}

func (r *rig) auditNow() map[sources.EventKind]int {
	r.Helper()
	r.mu.Lock()
	before := len(r.events)
	r.mu.Unlock()
	if _, err := r.bot.Audit(r.Context()); err != nil {
		r.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[sources.EventKind]int{}
	for _, e := range r.events[before:] {
		counts[e.Kind]++
	}
	return counts
}

func (r *rig) note(pkg, version string) (string, bool) {
	r.Helper()
	note, differs, err := sources.UpstreamNote(r.store, pkg, version)
	if err != nil {
		r.Fatal(err)
	}
	return note, differs
}

// Each day some releases are compared with upstream, file by file; what differs is told until it does so no more.
func TestAuditOfASample(t *testing.T) {
	r := newRig(t)
	for _, pkg := range []string{"a", "b"} {
		r.register(pkg, fromNpm(pkg, "*.js"))
		for _, version := range []string{"1.0.0", "1.1.0"} {
			r.registry.Add(pkg, version, hour(1), map[string]string{pkg + ".js": "let " + pkg + " = '" + version + "'"})
		}
	}
	r.open()
	r.once()
	if got := r.auditNow(); len(got) != 0 {
		t.Errorf("at once: %v", got)
	}
	if got := r.audit(); got[sources.Audited] != 4 || got[sources.Differing] != 0 {
		t.Errorf("after a day: %v", got)
	}
	if note, differs := r.note("a", "1.0.0"); !strings.Contains(note, "1 file byte for byte, and 1 file made again") || differs {
		t.Errorf("%q, %v", note, differs)
	}
	if s, err := bot.ReadStatus(r.store, ""); err != nil || s.Audited != 4 || len(s.Changed) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	requests := len(r.registry.Requests())
	if got := r.auditNow(); len(got) != 0 || len(r.registry.Requests()) != requests {
		t.Errorf("the same day: %v", got)
	}

	// The registry has no keys, so only the log says that the archive was another one.
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "let a = 'other'"})
	if got := r.audit(); got[sources.Audited] != 3 || got[sources.Differing] != 1 {
		t.Errorf("with another archive: %v", got)
	}
	if note, differs := r.note("a", "1.0.0"); !strings.Contains(note, "not what upstream has: the log has the integrity") || !differs {
		t.Errorf("%q, %v", note, differs)
	}
	if s, err := bot.ReadStatus(r.store, "a"); err != nil || s.Audited != 1 || len(s.Changed) != 1 || s.Changed[0].Version != "1.0.0" {
		t.Errorf("%+v, %v", s, err)
	}
	// The comparison of all integrities saw it too; when it sees it again, that is for the log, once.
	for range 40 {
		r.audit()
	}
	if got := r.entries(logs.UpstreamChanged); len(got) != 1 || got[0].Package != "a" || got[0].Version != "1.0.0" {
		t.Errorf("%d entries", len(got))
	}
	if note, differs := r.note("a", "1.0.0"); !strings.Contains(note, "another archive") || !differs {
		t.Errorf("%q, %v", note, differs)
	}
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "let a = '1.0.0'"})
	if got := r.audit(); got[sources.Differing] != 0 {
		t.Errorf("as it was: %v", got)
	}
	r.sound()
}

// A share is bounded, and what is left of it survives the end of the process, and upstreams that do not answer.
func TestAuditGoesOn(t *testing.T) {
	r := newRig(t)
	r.newest = 30
	r.register("a", fromNpm("a", "*.js"))
	for i := range 30 {
		r.registry.Add("a", "1.0."+string(rune('0'+i/10))+string(rune('0'+i%10)), hour(i), map[string]string{"a.min.js": "a"})
	}
	r.registry.Add("a", "1.1.0", hour(40), map[string]string{"a.min.js": "a"})
	r.open()
	r.once()
	published := len(r.entries(logs.Published))
	if published < 11 {
		t.Fatalf("%d releases", published)
	}
	r.auditNow()
	if got := r.audit(); got[sources.Audited] != 10 {
		t.Errorf("a day: %v", got)
	}

	// The process ends in the middle.
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	r.during = func(e sources.Event) {
		if e.Kind == sources.Audited {
			if done++; done == 4 {
				cancel()
			}
		}
	}
	r.setNow(r.clock().Add(25 * time.Hour))
	if _, err := r.bot.Audit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	r.during = nil
	r.open()
	if got := r.auditNow(); got[sources.Audited]+done < 10 || got[sources.Audited]+done > 11 {
		t.Errorf("%d before the restart, %v after it", done, got)
	}

	// The registry is away, and back.
	r.registry.Fail(npmtest.Fault{Path: "/a", Status: http.StatusServiceUnavailable})
	r.setNow(r.clock().Add(25 * time.Hour))
	next, err := r.bot.Audit(t.Context())
	if err != nil || next != r.clock().Add(time.Hour) {
		t.Errorf("next at %v, %v", next, err)
	}
	r.registry.ClearFaults()
	if got := r.auditNow(); got[sources.Audited] != 10 {
		t.Errorf("after an outage: %v", got)
	}
}

// A package whose upstream is broken holds up no other, and has its turn again when the others have had theirs.
func TestAuditOfABrokenUpstream(t *testing.T) {
	r := newRig(t)
	for _, pkg := range []string{"broken", "fine", "good"} {
		r.register(pkg, fromNpm(pkg, "*.js"))
		r.registry.Add(pkg, "1.0.0", hour(1), map[string]string{"a.min.js": pkg})
	}
	r.open()
	r.once()
	r.auditNow()
	r.registry.SetPackument("broken", []byte("<!doctype html>"))
	for range 3 * 4 { // three days, with the pauses of each
		r.setNow(r.clock().Add(6*time.Hour + time.Minute))
		r.auditNow()
	}
	for pkg, want := range map[string]bool{"broken": false, "fine": true, "good": true} {
		if o := r.origins(pkg); o.Compared.IsZero() == want || !want && o.Failed.IsZero() {
			t.Errorf("%s: %+v", pkg, o)
		}
	}
	if audits, err := sources.ReadAudits(r.store, ""); err != nil || len(audits) < 2 {
		t.Errorf("%+v, %v", audits, err)
	}
}

// Once a month everything is compared, also what no look at an upstream sees: the releases of packages that left the catalogue,
// and of those whose JSON names another upstream now.
func TestAuditOfAllIntegrities(t *testing.T) {
	r := newRig(t)
	for _, pkg := range []string{"kept", "left", "moved"} {
		r.register(pkg, fromNpm(pkg, "*.js"))
		r.registry.Add(pkg, "1.0.0", hour(1), map[string]string{"a.min.js": pkg})
	}
	r.open()
	r.once()
	r.auditNow()
	if err := os.Remove(filepath.Join(r.catalogue, "packages", "l", "left.json")); err != nil {
		t.Fatal(err)
	}
	r.registry.Add("elsewhere", "2.0.0", hour(2), map[string]string{"a.min.js": "elsewhere"})
	r.register("moved", fromNpm("elsewhere", "*.js"))
	r.open()
	r.once()
	for range 60 {
		r.audit()
	}
	if got := r.changes(); got != "" {
		t.Fatalf("nothing happened, and the log says\n%s", got)
	}
	before := r.registry.Count("/kept")
	for range 28 {
		r.audit()
	}
	// Two requests for each day's comparison of the release's files, and at least one that asks for the list whole.
	if n := r.registry.Count("/kept") - before; n < 28*2+1 || n > 28*2+12 {
		t.Errorf("%d requests in a month", n)
	}
	for _, pkg := range []string{"kept", "left", "moved", "elsewhere"} {
		for _, version := range []string{"1.0.0", "2.0.0"} {
			r.registry.Remove(pkg, version)
		}
	}
	for range 60 {
		r.audit()
	}
	var names []string
	for _, e := range r.entries(logs.UpstreamChanged) {
		if e.Upstream.New != "" || e.Upstream.Old == "" {
			t.Errorf("%s %s: %+v", e.Package, e.Version, e.Upstream)
		}
		names = append(names, e.Package+" "+e.Version)
	}
	if len(names) != 4 {
		t.Errorf("the log tells of %q", names)
	}
	for _, name := range []string{"kept 1.0.0", "left 1.0.0", "moved 1.0.0", "moved 2.0.0"} {
		if !strings.Contains(strings.Join(names, ","), name) {
			t.Errorf("the log tells of %q, and not of %s", names, name)
		}
	}
	audits, err := sources.ReadAudits(r.store, "left")
	if a := audits[sources.ReleaseName{Package: "left", Version: "1.0.0"}]; err != nil || a.Outcome != verify.Unproven || !strings.Contains(a.Problem, "has no version 1.0.0") {
		t.Errorf("%+v, %v", audits, err)
	}
	r.sound()
}
