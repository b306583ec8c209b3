package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
)

const (
	// probeTimeout is how long `larder doctor` waits for an upstream or the bucket.
	probeTimeout = 10 * time.Second
	// clockTolerance is how far the clock may differ from that of others.
	clockTolerance = time.Minute
	// probedRegistries limits how many registries `larder doctor` requests.
	probedRegistries = 8
)

// examineUpstreams requests each registry of the packages in status, at most probedRegistries, and GitHub's API if the settings
// have a token or a package is from there. It adds findings for those that do not respond or refuse the credentials, and for a
// clock that differs from theirs.
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

// examineBucket requests the bucket of the settings, if they name one, and adds a finding if it does not respond. It is for a
// node whose process does not run.
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

// compareNodes adds findings about the nodes in all: the problem that own, this node, has, and of the others those that are
// silent, have a problem, or differ in version or settings.
func (e *examination) compareNodes(own Node, all []Node) {
	if own.Problem != "" {
		e.report("node", e.command("status"), own.Problem)
	}
	for _, m := range all {
		if m.Name == own.Name {
			continue
		}
		if m.Silent(e.now) {
			e.report("node", "larder up # on that machine", fmt.Sprintf("the node %s has been silent since %s", m.Name, m.Heard.Format(time.DateTime)))
			continue
		}
		if m.Problem != "" {
			e.report("node", "larder doctor # on that machine", "the node "+m.Name+" reports: "+m.Problem)
		}
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
