package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// promoteOne kills the leader, and reloads the configuration of the candidate before and while it takes over: each reload restarts its role. The new
// leader must have every entry of the old one, every acknowledged release, and the settings of the last reload that succeeded.
func (p *play) promoteOne(ctx context.Context, e *event) error {
	leader := p.writer(ctx)
	if leader == nil {
		return errors.New("no node leads")
	}
	candidate := p.nodes[0]
	if leader == candidate {
		candidate = p.nodes[1]
	}
	e.What = fmt.Sprintf("%s, which leads, is killed while %s reloads", leader.name, candidate.name)
	releases, least, err := p.settle(ctx, candidate)
	if err != nil {
		return err
	}
	r := &release{pkg: packageName(p.random.IntN(packages)), version: fmt.Sprintf("4.%d.0", len(p.notes.events))}
	if err := p.importRelease(ctx, leader, r, filepath.Join(p.folder, "import-promotion")); err != nil {
		return err
	}
	p.allowEnd(e, leader)
	if err := leader.end(syscall.SIGKILL); err != nil {
		return err
	}
	report := &copyReport{kind: promoteKind, what: candidate.name + " after " + leader.name, least: least}
	if report.want, err = leader.fsckHead(ctx); err != nil {
		return err
	}
	done, err := p.reloadUntilLeader(ctx, candidate)
	if err != nil {
		return err
	}
	report.wrong = done.wrong
	if err := leader.start(ctx); err != nil {
		return err
	}
	if report.got, err = p.headBefore(ctx, candidate, report.want.Size); err != nil {
		return err
	}
	if err := errors.Join(p.compare(ctx, candidate, append(releases, r), report), p.compareLog(ctx, report)); err != nil {
		return err
	}
	p.notes.addCopy(report)
	if e.What += fmt.Sprintf("; it leads %.1f s later, after %d reloads, %d of which were refused", done.took.Seconds(), done.reloads, done.refused); len(report.failures()) > 0 {
		e.What += ", and something is wrong"
	}
	return nil
}

// A reloadRun says what reloading a node until it led came to.
type reloadRun struct {
	took             time.Duration
	reloads, refused int
	accepted         string // the configuration of the last reload that succeeded
	wrong            []string
}

// reloadsBefore is how often a candidate is reloaded before it takes over: each reload restarts its role, which then waits anew for a heartbeat.
const reloadsBefore = 3

// takesOver is what the log of a candidate says when its promotion begins.
const takesOver = "this one takes over"

// reloadUntilLeader reloads the configuration of a node, with another store-cache each time: a few times before the node takes over, and then
// until it leads. Then it reloads once more the file that was last accepted, by which nothing may change.
func (p *play) reloadUntilLeader(ctx context.Context, a *actor) (done reloadRun, err error) {
	pid, begun := a.getPID(), time.Now()
	before := a.countInLog(takesOver)
	for done.reloads < reloadsBefore {
		done.reload(ctx, a)
	}
	if err := eventually(ctx, a.name+" takes over", func() bool { return a.countInLog(takesOver) > before }); err != nil {
		return done, err
	}
	if err := eventually(ctx, a.name+" leads", func() bool {
		done.reload(ctx, a)
		return a.publishes(ctx)
	}); err != nil {
		return done, err
	}
	done.took = time.Since(begun)
	if a.getPID() != pid || gone(pid) {
		return done, errors.New("the process has ended")
	}
	if done.accepted == "" {
		return done, errors.New("no reload succeeded")
	}
	var changed []string
	if err := eventually(ctx, a.name+" is ready", func() bool { return a.ready(ctx) == nil }); err != nil {
		return done, err
	}
	if changed, err = a.reload(ctx, done.accepted); len(changed) > 0 {
		done.wrong = append(done.wrong, fmt.Sprintf("settings of a reload that succeeded are not in force: %v", changed))
	}
	return done, err
}

// reload reloads a process with other settings than the last time, and records what came of it.
func (r *reloadRun) reload(ctx context.Context, a *actor) {
	config := strings.Replace(soundConfig, "store-cache: 16MiB", fmt.Sprintf("store-cache: %dMiB", 17+r.reloads%2), 1)
	_, err := a.reload(ctx, config)
	r.reloads++
	r.record(config, err)
}

// record keeps the settings of a reload that succeeded, and complains about an error that does not say that the reload can be tried again.
func (r *reloadRun) record(config string, err error) {
	if err == nil {
		r.accepted = config
		return
	}
	if r.refused++; !isClearRefusal(err) {
		r.wrong = append(r.wrong, err.Error())
	}
}

// countInLog returns how often the process has logged that text.
func (a *actor) countInLog(text string) int {
	log, _ := os.ReadFile(filepath.Join(a.folder, "log"))
	return strings.Count(string(log), text)
}

// isClearRefusal reports whether the error of a reload says that the process is between two roles, so that it can be tried again.
func isClearRefusal(err error) bool {
	return strings.Contains(err.Error(), "try again when it serves")
}

// reload writes the configuration of a process, has it reloaded, and returns the settings that have changed.
func (a *actor) reload(ctx context.Context, config string) (changed []string, err error) {
	if err := os.WriteFile(a.config(), []byte(config), 0o644); err != nil {
		return nil, err
	}
	said, err := a.larder(ctx, "reload", "--json")
	if err != nil {
		return nil, err
	}
	return parseReloaded(said)
}

// parseReloaded reads the changed settings from the output of reload --json.
func parseReloaded(said string) ([]string, error) {
	var done struct {
		Changed []string `json:"changed"`
	}
	if err := json.Unmarshal([]byte(said), &done); err != nil {
		return nil, fmt.Errorf("larder reload --json: %w: %.300s", err, said)
	}
	return done.Changed, nil
}
