package app

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/fallback"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// TestDoctorNamesFaults injects faults that scripts cannot, and checks that each is one finding with a command. The script
// doctor.txtar has the others.
func TestDoctorNamesFaults(t *testing.T) {
	for name, test := range map[string]struct {
		status Status
		fault  func(*examination)
		want   []string // the check, a part of the cause, and a part of the fix
	}{
		"healthy":             {want: nil},
		"damaged store":       {Status{Degraded: "a table is damaged"}, nil, []string{"store", "a table is damaged", "larder repair"}},
		"unusable key":        {Status{Degraded: "publishing is off: the log's key cannot be used"}, nil, []string{"store", "the log's key", "cp /PATH/TO/COPY/log.key"}},
		"lost changes":        {Status{Behind: "2 batches"}, nil, []string{"store", "2 batches", "larder fsck --deep"}},
		"failed reload":       {Status{Process: &Process{Failed: "larder.yaml:1: no"}}, nil, []string{"configuration", "larder.yaml:1", "larder reload"}},
		"unsigned log":        {Status{LogStatus: LogStatus{Unsigned: "1 of 2 witnesses is missing"}}, nil, []string{"log", "1 of 2 witnesses", "larder reload --data"}},
		"unreadable key":      {Status{LogStatus: LogStatus{Unsigned: "no log.key"}}, nil, []string{"log", "no log.key", "larder log rotate-key"}},
		"forked log":          {Status{LogStatus: LogStatus{Disputes: []string{"w has seen another tree"}}}, nil, []string{"log", "another tree", "larder fsck --all"}},
		"no sandbox":          {Status{Unprotected: []string{"Landlock"}}, nil, []string{"sandbox", "Landlock", "uname -r"}},
		"no catalogue":        {Status{Catalogue: &bot.CatalogueState{Source: "x", Problem: "no such folder"}}, nil, []string{"catalogue", "no such folder", "larder reload"}},
		"refused package":     {Status{Catalogue: &bot.CatalogueState{Refused: []bot.RefusedFile{{File: "a.json", Reason: "no name"}}}}, nil, []string{"catalogue", "no name", "larder lint a.json"}},
		"feed away":           {Status{Feed: &discovery.FeedState{Problem: "503"}}, nil, []string{"feed", "503", "larder reload"}},
		"polls that fail":     {Status{Status: bot.Status{Problems: []bot.Problem{{Kind: bot.UpstreamProblem, Count: 2, Packages: []string{"a", "b"}, Cause: "refused"}}}}, nil, []string{"upstream", "2 packages", "larder status"}},
		"other repository":    {Status{Status: bot.Status{Problems: []bot.Problem{{Kind: bot.ReplacedProblem, Count: 1, Packages: []string{"a"}, Cause: "replaced"}}}}, nil, []string{"repository", "replaced", "larder status a"}},
		"origin away":         {Status{Fallback: &fallback.State{Origins: []fallback.OriginState{{Origin: "larder:x", Problem: "refused"}}}}, nil, []string{"fallback", "refused", "larder status"}},
		"failing purges":      {Status{Purges: []notify.Purge{{Withdrawal: notify.Withdrawal{Package: "a", Version: "1"}, Problem: "500"}, {}}}, nil, []string{"purge hook", "500", "larder reload"}},
		"failing push":        {Status{LogStatus: LogStatus{LogPush: &LogPush{Repository: "a/b", PushState: gitlog.PushState{Problem: "401"}}}}, nil, []string{"log push", "401", "larder up"}},
		"stale source":        {Status{Following: &FollowState{Source: "https://x.example", Stale: "30 hours old"}}, nil, []string{"source", "30 hours", "larder doctor"}},
		"unusable files":      {Status{Certificates: certificateState("c.pem", nil, errors.New("no PEM"))}, nil, []string{"certificate", "no PEM", "openssl x509"}},
		"expiring":            {Status{Certificates: certificateState("c.pem", &x509.Certificate{NotBefore: time.Now().Add(-90 * 24 * time.Hour), NotAfter: time.Now().Add(5 * 24 * time.Hour)}, nil)}, nil, []string{"certificate", "it expires at", "larder reload"}},
		"owner":               {fault: changeOwner, want: []string{"owner", "belongs to the user 12345", "chown -R"}},
		"silent node":         {fault: nodesWith(Node{Name: "b", Heard: time.Now().Add(-time.Hour)}), want: []string{"node", "silent since", "larder up"}},
		"node with a problem": {fault: nodesWith(Node{Name: "b", Version: "1", Heard: time.Now(), Problem: "behind"}), want: []string{"node", "behind", "larder doctor"}},
		"node versions":       {fault: nodesWith(Node{Name: "b", Version: "2", Heard: time.Now()}), want: []string{"node versions", "the node b is 2, this one is 1", "larder upgrade"}},
		"node settings":       {fault: nodesWith(Node{Name: "b", Version: "1", Heard: time.Now(), Settings: otherSettings(t)}), want: []string{"node settings", "other settings: asset-base", "larder reload"}},
	} {
		s := settings.New()
		s.Data, s.Keys = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "keys")
		e := newExamination(s)
		e.examineStatus(&test.status)
		if test.fault != nil {
			test.fault(e)
		}
		checkFindings(t, name, e.findings, test.want)
	}
}

// checkFindings checks that there is one finding with the parts in want, or none if want is nil.
func checkFindings(t *testing.T, name string, findings []Finding, want []string) {
	t.Helper()
	if len(findings) != min(len(want), 1) {
		t.Errorf("%s: %d findings: %+v", name, len(findings), findings)
		return
	}
	for _, f := range findings {
		if f.Check != want[0] || !strings.Contains(f.Cause, want[1]) || !strings.Contains(f.Fix, want[2]) || strings.Contains(f.Cause, "\n") {
			t.Errorf("%s: %+v, want %q", name, f, want)
		}
	}
}

// nodesWith returns the fault of another node.
func nodesWith(other Node) func(*examination) {
	return func(e *examination) {
		own := Node{Name: "a", Version: "1", Heard: time.Now(), Settings: settings.New().Digests()}
		e.compareNodes(own, []Node{own, other, {Name: "c", Version: "1", Heard: time.Now(), Settings: own.Settings}})
	}
}

// otherSettings returns the digests of settings with another asset-base.
func otherSettings(t *testing.T) map[string]string {
	s := settings.New()
	if err := s.Load([]string{"LARDER_ASSET_BASE=https://other.example"}); err != nil {
		t.Fatal(err)
	}
	return s.Digests()
}

// changeOwner has a file of the key folder belong to another user than the data folder. Without the permission for that, it adds the
// finding itself.
func changeOwner(e *examination) {
	file := filepath.Join(e.settings.Keys, "log.pub")
	if errors.Join(os.MkdirAll(e.settings.Data, 0o700), os.MkdirAll(e.settings.Keys, 0o700), os.WriteFile(file, nil, 0o600), os.Chown(file, 12345, -1)) != nil {
		e.report("owner", "chown -R", "belongs to the user 12345")
		return
	}
	e.examineFolders()
}

// A diskWith is a file system on a disk of 1 TiB with so many bytes free.
type diskWith struct {
	vfs.FS
	free uint64
}

func (d diskWith) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.free, TotalBytes: 1 << 40, UsedBytes: 1<<40 - d.free}, nil
}

// TestDoctorExaminesProcess injects faults of the machine: a full disk and a small memory limit.
func TestDoctorExaminesProcess(t *testing.T) {
	s := settings.New()
	s.Data, s.Keys = t.TempDir(), t.TempDir()
	open := func(fs vfs.FS) *Reader {
		s.Data = t.TempDir()
		r, err := openFolder(s, openOptions{store: kvstore.Options{FS: fs}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	ample := open(diskWith{vfs.NewMem(), 1 << 39})
	r := &roleRun{settings: s, logger: slog.New(slog.DiscardHandler)}
	checkFindings(t, "healthy", r.examineProcess(t.Context(), ample, &Status{}), nil)
	s.MemoryLimit, s.MemoryLacking = 64<<20, 100<<20
	checkFindings(t, "memory", r.examineProcess(t.Context(), ample, &Status{}), []string{"memory", "64 MiB is 100 MiB less", "larder up --cache"})
	s.MemoryLacking = 0
	r.console.addExamination(func(_ context.Context, e *examination) { e.report("witness", "fix", "silent") })
	checkFindings(t, "part", r.examineProcess(t.Context(), ample, &Status{}), []string{"witness", "silent", "fix"})
	r.console.examinations = nil
	checkFindings(t, "disk", r.examineProcess(t.Context(), open(diskWith{vfs.NewMem(), 1 << 20}), &Status{}), []string{"disk", "disk low", "df -h"})
}

// TestDoctorProbesUpstreams injects faults of the registry and of GitHub: refused credentials, another clock.
func TestDoctorProbesUpstreams(t *testing.T) {
	answer := http.StatusOK
	clock := time.Now()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer)
		_, _ = w.Write([]byte("{}"))
	}))
	defer upstream.Close()
	t.Setenv("npm_config_registry", upstream.URL)
	t.Setenv("HOME", t.TempDir())
	s := settings.New()
	examine := func() []Finding {
		e := newExamination(s)
		e.examineUpstreams(t.Context(), nil, &Status{})
		return e.findings
	}
	checkFindings(t, "healthy", examine(), nil)
	answer = http.StatusUnauthorized
	checkFindings(t, "credentials", examine(), []string{"registry", "401", "npm login --registry " + upstream.URL})
	answer = http.StatusNotFound
	checkFindings(t, "no such package", examine(), nil)
	clock = clock.Add(-time.Hour)
	answer = http.StatusOK
	checkFindings(t, "clock", examine(), []string{"clock", "this machine's clock is 1h0m", "timedatectl set-ntp true"})
	s.GitHubURL, s.Token, s.TokenFrom, answer = upstream.URL, "ghp_x", "GITHUB_TOKEN", http.StatusUnauthorized
	checkFindings(t, "token", examine(), []string{"GitHub", "401", "putting a valid token into GITHUB_TOKEN"})
	upstream.Close()
	s.Token = ""
	checkFindings(t, "unreachable", examine(), []string{"registry", "connection refused", "npm config set registry URL"})
}

// TestQuoteForShell has a shell print each text.
func TestQuoteForShell(t *testing.T) {
	for text, want := range map[string]string{
		"/srv/larder/data":      "/srv/larder/data",
		"s3://bucket/a?b=c":     "'s3://bucket/a?b=c'",
		"/srv/my data":          "'/srv/my data'",
		"/srv/it's $HOME; `ls`": `'/srv/it'\''s $HOME; ` + "`ls`'",
		"":                      "''",
	} {
		got := quoteForShell(text)
		if got != want {
			t.Errorf("%q is quoted as %s, want %s", text, got, want)
		}
		if said, err := exec.Command("sh", "-c", "printf %s "+got).Output(); err != nil || string(said) != text {
			t.Errorf("a shell reads %s as %q, %v", got, said, err)
		}
	}
}
