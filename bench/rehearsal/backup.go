package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// backUpOne makes a backup while nodes are killed: first the node that makes it, which interrupts it, then another one, the leader if possible.
// The second run must end well, and what is restored from the backup alone must have everything acknowledged before that run.
func (p *play) backUpOne(ctx context.Context, e *event) (err error) {
	a := p.any(p.nodes)
	e.What = a.name + " makes a backup"
	c, err := p.newCopy("backup", "serve", "--rooms", "off")
	if err != nil {
		return err
	}
	report := &copyReport{kind: backupKind, what: "the backup of " + a.name}
	defer func() { err = discardCopy(c, report, err) }()
	// A node's store is served with a bucket, here with a new one, as after the loss of all nodes and of theirs.
	c.args = append(c.args, "--bucket", "file://"+filepath.Join(c.folder, "bucket"), "--node-url", "https://127.0.1.6:0")
	target := filepath.Join(c.folder, "backup")
	if err := p.interruptBackup(ctx, e, a, target); err != nil {
		return err
	}
	other := p.otherNode(ctx, a)
	releases, least, err := p.settle(ctx, a)
	if err != nil {
		return err
	}
	// What a command has acknowledged is in a backup that begins at once, or the backup says that it is not.
	r := &release{pkg: packageName(p.random.IntN(packages)), version: fmt.Sprintf("3.%d.0", len(p.notes.events))}
	if err := p.importRelease(ctx, a, r, filepath.Join(c.folder, "import")); err != nil {
		return err
	}
	releases = append(releases, r)
	e.What += "; while " + other.name + " is killed, it is completed"
	p.allowEnd(e, other)
	if err := other.end(syscall.SIGKILL); err != nil {
		return err
	}
	err = p.completeBackup(ctx, e, a, target)
	if err = errors.Join(err, other.start(ctx)); err != nil {
		return err
	}
	report.least = least
	if err := p.restore(ctx, a, c, target, report); err != nil {
		return err
	}
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := errors.Join(p.compare(ctx, c, releases, report), p.inspect(ctx, c, report), p.compareLog(ctx, report)); err != nil {
		return err
	}
	p.notes.addCopy(report)
	if e.What += fmt.Sprintf(" and restored: %d entries, %d releases", report.got.Size, report.compared); len(report.failures()) > 0 {
		e.What += "; the copy is wrong"
	}
	return nil
}

// interruptBackup starts a backup on a node, and kills the node once the target has the first file. If the command fails, its message must say
// that the process ended. Then the node is started again.
func (p *play) interruptBackup(ctx context.Context, e *event, a *actor, target string) error {
	done := make(chan error, 1)
	go func() {
		_, err := a.larder(ctx, "backup", target, "--keys", a.keys())
		done <- err
	}()
	ended := false
	var said error
	if err := eventually(ctx, "the backup has begun", func() bool {
		select {
		case said = <-done:
			ended = true
		default:
		}
		return ended || hasFile(target)
	}); err != nil {
		return err
	}
	p.allowEnd(e, a)
	led := a == p.writer(ctx)
	if err := a.end(syscall.SIGKILL); err != nil {
		return err
	}
	if !ended {
		said = <-done
	}
	switch {
	case said == nil:
		e.What += ", is killed after it"
	case !strings.Contains(said.Error(), "process"):
		return fmt.Errorf("the message does not say that the process ended: %w", said)
	default:
		e.What += ", is killed meanwhile"
	}
	if led {
		if _, err := p.successor(ctx, a); err != nil {
			return err
		}
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return p.recovers(ctx)
}

// completeBackup makes the backup on a node. It runs the command once more if the promotion of that node interrupts it, or if the command says that
// the backup lacks entries that the lost leader has not signed.
func (p *play) completeBackup(ctx context.Context, e *event, a *actor, target string) error {
	led := a.publishes(ctx)
	said, err := a.larder(ctx, "backup", target, "--keys", a.keys())
	switch {
	case err == nil && !lacksUnsigned(said):
		return nil
	case err == nil:
		e.What += " on the second run, because the first lacks what was not signed,"
	case !led && strings.Contains(err.Error(), "restarted its role, before it was done"):
		e.What += " on the second run, because the promotion of " + a.name + " interrupts the first,"
	default:
		return err
	}
	if err := eventually(ctx, "a node leads", func() bool { return p.writer(ctx) != nil && a.ready(ctx) == nil }); err != nil {
		return err
	}
	if _, _, err := p.settle(ctx, a); err != nil {
		return err
	}
	_, err = a.larder(ctx, "backup", target, "--keys", a.keys())
	return err
}

// lacksUnsigned reports whether the output of larder backup says that the backup lacks entries that are not signed.
func lacksUnsigned(said string) bool { return strings.Contains(said, "not signed yet; run this again") }

// otherNode returns the leader, or, if the node itself leads, another node that it draws.
func (p *play) otherNode(ctx context.Context, a *actor) *actor {
	if leader := p.writer(ctx); leader != nil && leader != a {
		return leader
	}
	var others []*actor
	for _, node := range p.nodes {
		if node != a {
			others = append(others, node)
		}
	}
	return p.any(others)
}

// restore builds the copy's data folder from the backup of a node. With the node's last checkpoint, which is newer than the backup, it must
// refuse and build nothing, because signed entries would be lost; without it the checkpoint of the backup counts.
func (p *play) restore(ctx context.Context, a, c *actor, target string, report *copyReport) (err error) {
	if report.want, err = fileHead(filepath.Join(target, "public", "log", "checkpoint")); err != nil {
		return err
	}
	checkpoint := filepath.Join(a.keys(), "checkpoint")
	if err := eventually(ctx, "more is signed than the backup has", func() bool {
		signed, err := fileHead(checkpoint)
		return err == nil && signed.Size > report.want.Size
	}); err != nil {
		return err
	}
	keys, err := filepath.Glob(filepath.Join(a.keys(), "*.key"))
	for _, file := range append(keys, checkpoint, filepath.Join(a.keys(), "log.pub"), filepath.Join(p.nodes[0].keys(), "log.key")) {
		err = errors.Join(err, copyFile(file, filepath.Join(c.keys(), filepath.Base(file))))
	}
	if err != nil {
		return err
	}
	if _, err := c.larder(ctx, "repair", "--keys", c.keys(), "--from", target); err == nil || !strings.Contains(err.Error(), "no source has them") {
		report.wrong = append(report.wrong, fmt.Sprintf("a restore that lacks signed entries does not refuse: %v", err))
	} else if _, err := os.Stat(filepath.Join(c.data(), "store")); err == nil {
		report.wrong = append(report.wrong, "a restore that refuses leaves a store")
	}
	if err := os.Remove(filepath.Join(c.keys(), "checkpoint")); err != nil {
		return err
	}
	_, err = c.larder(ctx, "repair", "--keys", c.keys(), "--from", target)
	return err
}

// fileHead reads the head of the log from a file with a checkpoint.
func fileHead(file string) (logHead, error) {
	checkpoint, err := os.ReadFile(file)
	if err != nil {
		return logHead{}, err
	}
	return parseHead(string(checkpoint))
}
