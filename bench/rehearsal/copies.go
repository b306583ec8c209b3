package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A logHead identifies a state of the log: how many entries it has, and the root of their tree.
type logHead struct {
	Size int64  `json:"size"`
	Root string `json:"root"`
}

func (h logHead) String() string { return fmt.Sprintf("%d entries with the root %s", h.Size, h.Root) }

// parseHead reads the head from a checkpoint, whose first three lines are origin, size and root.
func parseHead(checkpoint string) (h logHead, err error) {
	lines := strings.Split(checkpoint, "\n")
	if len(lines) < 3 {
		return h, fmt.Errorf("not a checkpoint: %.100q", checkpoint)
	}
	h.Root = lines[2]
	h.Size, err = strconv.ParseInt(lines[1], 10, 64)
	return h, err
}

// A copyReport says what a copy of the published releases had when an event examined it.
type copyReport struct {
	kind     string // of the event
	what     string // names the copy
	want     logHead
	got      logHead
	live     logHead // of the cluster's log at the size of want
	least    int64   // that want.Size must have, because so many entries were signed before the copy was made
	compared int     // releases whose files were compared
	wrong    []string
}

// failures lists what is wrong with the copy.
func (r *copyReport) failures() (all []string) {
	fail := func(format string, args ...any) { all = append(all, r.what+": "+fmt.Sprintf(format, args...)) }
	if r.got != r.want {
		fail("it has %v, and must have %v", r.got, r.want)
	}
	if r.live != r.want {
		fail("it is of %v, and the cluster's log begins with %v", r.want, r.live)
	}
	if r.want.Size == 0 || r.want.Size < r.least {
		fail("it was made of %v, and %d entries were signed before", r.want, r.least)
	}
	if r.compared == 0 {
		fail("no release was compared")
	}
	for _, w := range r.wrong {
		fail("%s", w)
	}
	return all
}

// addCopy records the report of an event.
func (n *notes) addCopy(r *copyReport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.copies = append(n.copies, r)
}

// copyChecks are the promises about copies, by the kind of the event that examines them.
var copyChecks = []struct{ kind, name string }{
	{bundleKind, "a mirrored bundle has the log and the releases up to its checkpoint"},
	{backupKind, "a restored backup has every release acknowledged before it began"},
	{salvageKind, "a salvaged store has every entry and release, without a source"},
	{promoteKind, "a node promoted during a reload has every entry and release, and the reloaded settings"},
}

// judgeCopies returns a check for each kind of copy that the scenario made. An event that ended and examined no copy fails the check.
func (n *notes) judgeCopies() (checks []check) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range copyChecks {
		ended, copies, compared := 0, 0, 0
		var wrong []string
		for _, e := range n.events {
			if e.Kind == c.kind && !e.Skipped && !e.over && e.Failed == nil {
				ended++
			}
		}
		for _, r := range n.copies {
			if r.kind == c.kind {
				copies++
				compared += r.compared
				wrong = append(wrong, r.failures()...)
			}
		}
		if copies < ended {
			wrong = append(wrong, fmt.Sprintf("%d events examined only %d copies", ended, copies))
		}
		if ended+copies > 0 {
			checks = append(checks, verdict(c.name, fmt.Sprintf("%d copies, in which %d releases were compared", copies, compared), wrong))
		}
	}
	return checks
}

// newCopy returns an actor with an empty folder, which runs that command of Larder when it is started. The caller discards it.
func (p *play) newCopy(name, command string, args ...string) (*actor, error) {
	folder, err := os.MkdirTemp(p.folder, "copy-"+name+"-")
	if err != nil {
		return nil, err
	}
	a := &actor{name: "the copy " + name, folder: folder, program: filepath.Join(p.folder, "larder"), command: command, args: args, env: p.nodes[0].env}
	for _, address := range []*string{&a.address, &a.private} {
		if *address, err = freeAddress("127.0.1.6"); err != nil {
			return nil, err
		}
	}
	return a, os.MkdirAll(a.keys(), 0o700)
}

// discardCopy ends the copy's process and removes its folder. If the copy is wrong or the event failed with err, which it returns, the folder stays with
// the data of the rehearsal.
func discardCopy(a *actor, report *copyReport, err error) error {
	a.kill()
	if a.log != nil {
		err = errors.Join(err, a.log.Close())
	}
	if err != nil || report != nil && len(report.failures()) > 0 {
		return err
	}
	return os.RemoveAll(a.folder)
}

// fsckHead runs fsck --all on the actor's data folder and returns the head of the log there. A finding is an error.
func (a *actor) fsckHead(ctx context.Context) (logHead, error) {
	said, err := a.larder(ctx, "fsck", "--all", "--json", "--keys", a.keys())
	if err != nil {
		return logHead{}, err
	}
	return parseFsck(said)
}

// parseFsck reads the head from the output of fsck --json, and returns an error if fsck found anything.
func parseFsck(said string) (logHead, error) {
	var summary struct {
		Checkpoint logHead `json:"checkpoint"`
		Findings   int     `json:"findings"`
		Sound      bool    `json:"sound"`
	}
	if err := json.Unmarshal([]byte(said), &summary); err != nil {
		return logHead{}, fmt.Errorf("larder fsck --json: %w: %.300s", err, said)
	}
	if summary.Findings > 0 || !summary.Sound {
		return summary.Checkpoint, fmt.Errorf("larder fsck --all has %d findings: %.600s", summary.Findings, said)
	}
	return summary.Checkpoint, nil
}

// directEntrance is the address of one process.
func directEntrance(a *actor) *entrance {
	if a.secure {
		return &entrance{name: a.name, url: "https://" + a.address}
	}
	return &entrance{name: a.name, url: "http://" + a.address}
}

// proxyEntrance is the plain address of the proxy in front of the nodes.
func (p *play) proxyEntrance() *entrance { return &entrance{name: proxyName, url: "http://" + p.proxy} }

// headAt returns the head of the checkpoint that a process serves.
func (p *play) headAt(ctx context.Context, a *actor) (logHead, error) {
	return p.headOf(ctx, directEntrance(a))
}

// headOf returns the head of the checkpoint that an entrance serves.
func (p *play) headOf(ctx context.Context, e *entrance) (logHead, error) {
	checkpoint, err := p.checkpoint(ctx, e)
	if err != nil {
		return logHead{}, err
	}
	return parseHead(string(checkpoint))
}

// acknowledged returns the releases that were acknowledged until now. It leaves out those of a withdrawal that failed.
func (p *play) acknowledged() []*release {
	return p.library.choose(func(r *release, _ map[string]time.Time) bool {
		return !r.acknowledged.IsZero() && r.withdrawn.IsZero() == r.recalled.IsZero()
	})
}

// settle returns the releases acknowledged until now and the size of a signed log that has all of them, and waits until that node has so many
// entries. A release is served a moment before the log is signed; the mirror serves only what is signed.
func (p *play) settle(ctx context.Context, a *actor) (releases []*release, size int64, err error) {
	releases = p.acknowledged()
	if err := eventually(ctx, "the mirror has the acknowledged releases", func() bool { return p.mirrored(releases) }); err != nil {
		return nil, 0, err
	}
	signed, err := p.headAt(ctx, p.mirror)
	if err != nil {
		return nil, 0, err
	}
	return releases, signed.Size, p.awaitSize(ctx, a, signed.Size)
}

// mirrored reports whether the mirror was seen to serve each of the releases that is not withdrawn.
func (p *play) mirrored(releases []*release) bool {
	pending := map[*release]bool{}
	for _, r := range p.library.pending("mirror") {
		pending[r] = true
	}
	for _, r := range releases {
		if pending[r] {
			return false
		}
	}
	return true
}

// awaitSize waits until a process serves a log of at least that many entries.
func (p *play) awaitSize(ctx context.Context, a *actor, size int64) error {
	var have logHead
	var lastErr error
	err := eventually(ctx, fmt.Sprintf("%s has %d log entries", a.name, size), func() bool {
		have, lastErr = p.headAt(ctx, a)
		return lastErr == nil && have.Size >= size
	})
	if err != nil {
		return fmt.Errorf("%w: it has %v: %w", err, have, lastErr)
	}
	return nil
}

// compareLog reads from the mirror which root the cluster's log has at the size that the copy must have.
func (p *play) compareLog(ctx context.Context, report *copyReport) (err error) {
	report.live, err = p.headBefore(ctx, p.mirror, report.want.Size)
	return err
}

// compare requests every file of the releases from a process, and adds to the report what is missing or wrong. A withdrawn release must be 410.
func (p *play) compare(ctx context.Context, a *actor, releases []*release, report *copyReport) error {
	if err := eventually(ctx, a.name+" is ready", func() bool { return a.ready(ctx) == nil }); err != nil {
		return fmt.Errorf("%w: %w", err, a.ready(ctx))
	}
	e := directEntrance(a)
	t := p.transport(e)
	defer t.CloseIdleConnections()
	for _, r := range releases {
		if err := p.stillThere(ctx, t, e, r, time.Now()); err != nil {
			report.wrong = append(report.wrong, fmt.Sprintf("%v, acknowledged by %s at %s: %v", r, r.by, r.acknowledged.Format(time.TimeOnly), err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		report.compared++
	}
	return nil
}

// inspect ends the copy's process and reads the head of its log with fsck --all. Findings are added to the report.
func (p *play) inspect(ctx context.Context, a *actor, report *copyReport) error {
	if err := a.end(syscall.SIGTERM); err != nil {
		return err
	}
	head, err := a.fsckHead(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if report.got = head; err != nil {
		report.wrong = append(report.wrong, err.Error())
	}
	return nil
}

// importRelease publishes a release through a node, and returns when that has acknowledged it.
func (p *play) importRelease(ctx context.Context, a *actor, r *release, source string) error {
	err := os.RemoveAll(source)
	for file, text := range r.contents() {
		at := filepath.Join(source, file)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644))
	}
	if err != nil {
		return err
	}
	p.library.add(r)
	if _, err := a.larder(ctx, "import", r.pkg, r.version, source); err != nil {
		return err
	}
	p.library.acknowledge(r, "import through "+a.name)
	return nil
}

// hasFile reports whether there is a file in the folder or below.
func hasFile(folder string) bool {
	found := false
	_ = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}
