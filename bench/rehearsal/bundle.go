package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// bundleOne writes a bundle on one node and mirrors it into an empty folder. Then it replaces the bundle with the next one, of any node,
// under the mirror that serves.
func (p *play) bundleOne(ctx context.Context, e *event) (err error) {
	first, next := p.any(p.nodes), p.any(p.nodes)
	e.What = fmt.Sprintf("a bundle of %s is mirrored, and then the next one, of %s", first.name, next.name)
	c, err := p.newCopy("bundle", "mirror")
	if err != nil {
		return err
	}
	var report *copyReport
	var releases []*release
	defer func() { err = discardCopy(c, report, err) }()
	file := filepath.Join(c.folder, "larder.tar")
	c.args = []string{file, "--key", filepath.Join(p.nodes[0].keys(), "log.pub"), "--rooms", "off"}
	if releases, report, err = p.writeBundle(ctx, first, file, 0); err != nil {
		return err
	}
	if _, err := c.larder(ctx, "mirror", file, "--once", "--key", c.args[2], "--keys", c.keys(), "--private-listen", "off"); err != nil {
		return err
	}
	if err := p.inspect(ctx, c, report); err != nil {
		return err
	}
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := errors.Join(p.compare(ctx, c, releases, report), p.compareLog(ctx, report)); err != nil {
		return err
	}
	p.notes.addCopy(report)
	since := report.want.Size
	if err := p.awaitSize(ctx, next, since+1); err != nil {
		return err
	}
	if releases, report, err = p.writeBundle(ctx, next, file+".next", since); err != nil {
		return err
	}
	if err := os.Rename(file+".next", file); err != nil {
		return err
	}
	if err := p.awaitSize(ctx, c, report.want.Size); err != nil {
		return err
	}
	if err := errors.Join(p.compare(ctx, c, releases, report), p.inspect(ctx, c, report), p.compareLog(ctx, report)); err != nil {
		return err
	}
	p.notes.addCopy(report)
	e.What += fmt.Sprintf(": %d and %d entries", since, report.want.Size-since)
	if len(report.failures()) > 0 {
		e.What += "; the copy is wrong"
	}
	return nil
}

// writeBundle has a node write what follows the first log entries into a file, and returns the releases that were acknowledged before, and a
// report that says what a mirror of the bundle must have.
func (p *play) writeBundle(ctx context.Context, a *actor, file string, since int64) ([]*release, *copyReport, error) {
	releases, least, err := p.settle(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	if _, err := a.larder(ctx, "bundle", file, "--keys", a.keys(), "--since", strconv.FormatInt(since, 10)); err != nil {
		return nil, nil, err
	}
	head, err := bundleHead(file)
	what := fmt.Sprintf("the bundle of %s from entry %d on", a.name, since)
	return releases, &copyReport{kind: bundleKind, what: what, want: head, least: max(least, since+1)}, err
}

// bundleHead reads the head of the log from the checkpoint in a bundle.
func bundleHead(file string) (logHead, error) {
	f, err := os.Open(file)
	if err != nil {
		return logHead{}, err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		member, err := r.Next()
		if err != nil {
			return logHead{}, fmt.Errorf("couldn't find the checkpoint in %s: %w", file, err)
		}
		if member.Name == "log/checkpoint" {
			checkpoint, err := io.ReadAll(r)
			if err != nil {
				return logHead{}, err
			}
			return parseHead(string(checkpoint))
		}
	}
}
