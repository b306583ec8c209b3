package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server"
)

// formatSize returns a number of bytes as text with a unit, such as 1.5 GiB; "0 B" for a negative number.
func formatSize(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }

// The age at which a backup, a restore test and a deep check are reported as old.
const (
	backupMaxAge  = 8 * 24 * time.Hour
	restoreMaxAge = restoreTestAge + backupMaxAge
	fsckMaxAge    = 35 * 24 * time.Hour
)

// examineUpkeep adds findings about the work of the operator: a deep check, a backup or a restore test that failed, is old, or
// was never made, and keys that were never copied or have changed since. It expects a backup if the settings name one or the
// key folder has the log's key, a restore test only if the settings name a backup, and copies only of the log's key.
func (e *examination) examineUpkeep() {
	e.examineJob(upkeepFsck, "deep fsck", e.command("fsck --deep"), fsckMaxAge)
	if e.settings.Backup == "" && !signing.HasKey(e.settings.KeyFolder()) {
		return // a mirror or a follower, which fetches everything again
	}
	backUp := e.command("backup") + " " + quoteForShell(cmp.Or(e.settings.Backup, "DIR"))
	e.examineJob(upkeepBackup, "backup", backUp, backupMaxAge)
	if e.settings.Backup != "" {
		e.examineJob(upkeepRestore, "restore test", backUp, restoreMaxAge)
	}
	if !signing.HasKey(e.settings.KeyFolder()) {
		return
	}
	_, key, _ := signing.ReadFolder(e.settings.KeyFolder())
	fix := e.command("key backup") + " DIR"
	switch record, err := readUpkeep(e.settings.Data, upkeepKeys); {
	case err != nil:
		e.report("keys", fix, err.Error())
	case record.Succeeded.IsZero():
		e.report("keys", fix, "the keys in "+e.settings.KeyFolder()+" were never copied; without them the log cannot be continued")
	case record.Detail != key:
		e.report("keys", fix, "the keys have changed since they were copied at "+record.Succeeded.Format(time.DateTime))
	}
}

// examineJob adds a finding if the last run of the job failed, ended more than maxAge ago, or never was. name is the finding's
// check, and fix the command that runs the job.
func (e *examination) examineJob(job upkeepJob, name, fix string, maxAge time.Duration) {
	record, err := readUpkeep(e.settings.Data, job)
	switch age := e.now.Sub(record.Succeeded); {
	case err != nil:
		e.report(name, fix, "the record of the last one cannot be read: "+err.Error())
	case record.Problem != "":
		if job == upkeepFsck {
			fix = e.repairCommand() + " && " + fix
		}
		e.report(name, fix, "the last one, at "+record.Failed.Format(time.DateTime)+", failed: "+record.Problem)
	case record.Succeeded.IsZero():
		e.report(name, fix, "there was none yet")
	case age > maxAge:
		e.report(name, fix, fmt.Sprintf("the last one is %d days old", age/(24*time.Hour)))
	}
}

// examineFolders adds a finding if the log's key cannot be used. It adds one more if the data folder belongs to another user
// than this process, unless that is root's, or if the key folder, the store's folder or a file directly in them belongs to
// another user than the data folder. The folders may be missing.
func (e *examination) examineFolders() {
	keys := e.settings.KeyFolder()
	if err := signing.CheckKey(keys); err != nil {
		e.report("key", "cp /PATH/TO/COPY/log.key "+quoteForShell(keys), err.Error())
	}
	owner, ok := ownerOf(e.settings.Data)
	if !ok {
		return
	}
	fix := fmt.Sprintf("chown -R --reference=%s %s %s", e.data, e.data, quoteForShell(keys))
	if user := os.Geteuid(); user != 0 && user != owner {
		e.report("owner", fix, fmt.Sprintf("%s belongs to the user %d, and Larder runs as %d", e.settings.Data, owner, user))
		return
	}
	for _, folder := range []string{keys, storeDir(e.settings.Data)} {
		names, _ := filepath.Glob(filepath.Join(escapeGlob(folder), "*"))
		for _, file := range append([]string{folder}, names...) {
			if other, ok := ownerOf(file); ok && other != owner {
				e.report("owner", fix, fmt.Sprintf("%s belongs to the user %d, and the data folder to %d: a command was run as another user", file, other, owner))
				return
			}
		}
	}
}

// ownerOf returns the number of the user that the file at path belongs to. ok is false if the file cannot be found, or the system
// does not say.
func ownerOf(path string) (user int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// examineCertificateFiles adds a finding if the certificate file that the settings name cannot be read, has expired or expires
// soon. It does nothing if they name none.
func (e *examination) examineCertificateFiles() {
	s := e.settings
	if s.TLSCert == "" {
		return
	}
	pair, problem := server.ReadCertificate(s.TLSCert, s.TLSKey)
	e.examineStatus(&Status{Certificates: certificateState(s.TLSCert, pair.Leaf, problem)})
}

// examineSigned examines the signatures of a log that was signed before; it does nothing for another or an empty log. It adds a
// finding if the key folder has no verifier key, if the key or the last signed checkpoint cannot be read, or if newer entries
// are not signed.
func (e *examination) examineSigned(r *Reader) {
	signed, key, err := signing.ReadFolder(e.settings.KeyFolder())
	size := r.log.Checkpoint().Size
	switch before, _ := signing.SignedBy(r.store); {
	case before == "" || size == 0:
	case key == "" && errors.Is(err, fs.ErrNotExist):
		e.report("log", e.command("up --keys KEYS"), "the log was signed before, and there is no key in "+e.settings.KeyFolder())
	case err != nil:
		e.report("log", e.command("up"), err.Error())
	case signed.Size < size:
		e.report("log", e.command("up"), fmt.Sprintf("%d of its %d entries are not signed", size-signed.Size, size))
	}
}

const (
	// probeTimeout is how long `larder doctor` waits for an upstream or the bucket.
	probeTimeout = 10 * time.Second
	// clockTolerance is how far the clock may differ from that of others.
	clockTolerance = time.Minute
	// probedRegistries limits how many registries `larder doctor` requests.
	probedRegistries = 8
)

// examineUpstreams requests a package from each registry of the packages in status, at most probedRegistries, and GitHub's API
// if the settings have a token or a package is from there; without any of these it requests npm from its registry. It adds
// findings for those that do not respond or refuse the credentials, and for a clock that differs from a registry's. status has
// to list all packages.
func (e *examination) examineUpstreams(ctx context.Context, folder *Reader, status *Status) {
	o := bot.ClientOptions{OwnConfig: true}
	o.Fetch.Tries = 1
	c, err := openClients(e.settings, o, slog.New(slog.DiscardHandler))
	if err != nil {
		e.report("registry", e.command("reload")+" # after correcting .npmrc or the setting", err.Error())
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	packages := map[string]string{} // one of each registry
	atGitHub := e.settings.Token != ""
	for _, p := range status.Packages {
		u, err := sources.LookupUpstream(folder.store, p.Name)
		switch {
		case err != nil:
		case u.Source == "git":
			atGitHub = atGitHub || c.Git.AtGitHub(u.Target)
		case len(packages) < probedRegistries:
			packages[c.Npm.Registry(u.Target)] = u.Target
		}
	}
	if len(packages) == 0 && !atGitHub {
		packages[c.Npm.Registry("npm")] = "npm"
	}
	for _, registry := range slices.Sorted(maps.Keys(packages)) {
		e.probeRegistry(ctx, c, registry, packages[registry])
	}
	if !atGitHub {
		return
	}
	if _, _, err := git.API(c.GitHub).RateLimit.Get(ctx); err != nil {
		fix := "curl " + c.GitHub.BaseURL.String() + "rate_limit # if this network is closed, set github-url"
		if git.GitHubStatus(err) == http.StatusUnauthorized {
			fix = e.command("up") + " # after stopping the process and putting a valid token into " + e.settings.TokenFrom
		}
		e.report("GitHub", fix, git.DescribeGitHubError(err))
	}
}

// probeRegistry requests the npm package name from its registry, and adds a finding if that fails, or if the registry's clock
// differs from this machine's. registry is the URL for the texts.
func (e *examination) probeRegistry(ctx context.Context, c *bot.Clients, registry, name string) {
	clock, err := c.Npm.Probe(ctx, name)
	if err == nil {
		if ahead := e.now.Sub(clock); !clock.IsZero() && ahead.Abs() > clockTolerance+probeTimeout {
			e.report("clock", "timedatectl set-ntp true # then restart Larder", fmt.Sprintf("this machine's clock is %s from that of %s", ahead.Round(time.Second), registry))
		}
		return
	}
	fix := "npm config set registry URL # one that this network reaches; without any: larder import, or larder mirror FILE"
	failed := (*fetch.Error)(nil)
	switch {
	case errors.As(err, &failed) && (failed.Status == http.StatusUnauthorized || failed.Status == http.StatusForbidden):
		fix = "npm login --registry " + registry
	case errors.Is(err, fetch.ErrForbidden):
		fix = e.command("up --allow-host HOST") + " # after stopping the process"
	}
	e.report("registry", fix, registry+": "+err.Error())
}

// examineBucket requests the name of the log from the bucket of the settings, if they name one, and adds a finding if that
// fails. It is for a node whose process does not run.
func (e *examination) examineBucket(ctx context.Context) {
	if e.settings.Bucket == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	b, err := bucket.Open(e.settings.Bucket, e.settings.BucketEndpoint, e.settings.BucketRegion)
	if err == nil {
		_, err = cluster.Origin(ctx, b)
	}
	e.reportBucket(err)
}

// reportBucket adds a finding with err, an error of the bucket. It does nothing for nil.
func (e *examination) reportBucket(err error) {
	if err != nil {
		e.report("bucket", e.command("up --bucket BUCKET")+" # after correcting bucket, bucket-endpoint or AWS's variables", err.Error())
	}
}

// examineNodes adds findings to e about the nodes of the cluster, as the bucket lists them, and one if the bucket does not
// respond.
func (n *clusterNode) examineNodes(ctx context.Context, e *examination) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	all, err := n.cluster.Members(ctx)
	e.reportBucket(err)
	e.compareNodes(n.ownStatus(), all)
}

// compareNodes adds findings: the problem of own, the present status of this node, and for each other node in all that it is
// silent, or else that it has a problem, another version, or other settings.
func (e *examination) compareNodes(own Node, all []Node) {
	e.reportProblem("node", e.command("status"), "", own.Problem)
	for _, m := range all {
		if m.Name == own.Name {
			continue
		}
		if m.Silent(e.now) {
			e.report("node", "larder up # on that machine", fmt.Sprintf("the node %s has been silent since %s", m.Name, m.Heard.Format(time.DateTime)))
			continue
		}
		e.reportProblem("node", "larder doctor # on that machine", "the node "+m.Name+" reports: ", m.Problem)
		if m.Version != own.Version {
			e.report("node versions", "larder upgrade # on the node with the older version", fmt.Sprintf("the node %s is %s, this one is %s", m.Name, m.Version, own.Version))
		}
		var differ []string
		for name, digest := range own.Settings {
			if other, ok := m.Settings[name]; ok && other != digest {
				differ = append(differ, name)
			}
		}
		if differ != nil {
			slices.Sort(differ)
			e.report("node settings", "larder reload # on that node, after making the settings alike; flags need a restart", fmt.Sprintf("the node %s has other settings: %s", m.Name, strings.Join(differ, ", ")))
		}
	}
}
