package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A check is something that must be so at the end.
type check struct {
	Name string
	Said string
	OK   bool
}

// roomRests is how long the room may let no visitor in after the node that publishes was lost: the next one waits until all
// sessions are over that the lost one may have promised.
const roomRests = 4 * time.Minute

// judge looks at what was seen, and then at everything that is there.
func (p *play) judge(ctx context.Context) []check {
	p.registry.ClearFaults()
	var failed []string
	for _, e := range p.notes.events {
		if e.Failed != nil {
			failed = append(failed, e.Kind+": "+e.Failed.Error())
		}
	}
	checks := append(p.notes.judgeRequests(), verdict("each event came to its end", "", failed))
	wrong := nonEmpty(p.doorman.exceeded())
	if p.doorman.came > 0 && p.doorman.let == 0 && p.length > roomRests {
		wrong = append(wrong, "the room let no visitor in")
	}
	checks = append(checks, verdict("the room's limits held at the site behind it", fmt.Sprintf("%d visitors came, %d were let in, who got %d archives; at most %d may be in, and %d come in a minute",
		p.doorman.came, p.doorman.let, p.doorman.archives, p.doorman.limit, p.doorman.perMinute), wrong))
	checks = append(checks, p.judgeBotnet(), p.judgeFreezes())
	if err := p.recovers(ctx); err != nil {
		checks = append(checks, verdict("everything runs at the end", "", []string{err.Error()}))
	}
	checks = append(checks, p.judgeReleases(ctx), p.judgeLog(ctx))
	checks = append(checks, p.judgeStreams(ctx), p.judgeDictionaries(ctx), p.judgePages(ctx), p.judgeModules(ctx), p.notes.judgeMemory())
	checks = append(checks, p.notes.judgeCopies()...)
	for _, use := range uses {
		checks = append(checks, p.notes.judgeUse(use))
	}
	var unsound []string
	for _, a := range p.actors() {
		if err := a.end(syscall.SIGTERM); err != nil {
			unsound = append(unsound, err.Error())
			continue
		}
		if said, err := a.larder(ctx, "fsck", "--all", "--keys", a.keys()); err != nil {
			unsound = append(unsound, err.Error()+said)
		}
	}
	return append(checks, verdict("larder fsck --all finds nothing on any node", fmt.Sprintf("%d data folders", len(p.actors())), unsound))
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// What is told of what is wrong.
const (
	mostWrongs = 8
	mostText   = 800
)

// verdict makes a check of what is wrong.
func verdict(name, said string, wrong []string) check {
	if len(wrong) == 0 {
		return check{name, said, true}
	}
	var short []string
	for _, w := range wrong[:min(len(wrong), mostWrongs)] {
		if len(w) > mostText {
			w = w[:mostText] + "…"
		}
		short = append(short, w)
	}
	text := strings.Join(short, "\n")
	if len(wrong) > mostWrongs {
		text += fmt.Sprintf("\nand %d more", len(wrong)-mostWrongs)
	}
	return check{name, text, false}
}

// judgeRequests looks at what clients got.
func (n *notes) judgeRequests() []check {
	allowed, others := n.explained()
	asked, excused := 0, 0
	for _, seconds := range n.seconds {
		for _, s := range seconds {
			asked += s.ok + s.failed
		}
	}
	for _, counts := range allowed {
		for _, count := range counts {
			excused += count
		}
	}
	var wrong, failed []string
	for _, f := range others {
		line := fmt.Sprintf("%s, %s: %s: %s", f.at.Sub(n.begin).Round(time.Second), f.entrance, f.cause, f.detail)
		if slices.Contains(unforgivable[:3], f.cause) {
			wrong = append(wrong, line)
		} else {
			failed = append(failed, line)
		}
	}
	var none []string
	if asked == 0 {
		none = append(none, "no client asked anything")
	}
	return []check{
		verdict("no wrong byte, and nothing that must not be served", fmt.Sprintf("%d answers were compared", asked-excused-len(failed)), wrong),
		verdict("no request fails but those that the contracts allow", fmt.Sprintf("%d of %d failed as they may, and %d were told to come again by the fallback", excused, asked, n.waited), append(none, failed...)),
	}
}

// judgeReleases asks every node and the mirror for every file that was acknowledged, and that each withdrawal is everywhere.
func (p *play) judgeReleases(ctx context.Context) check {
	acknowledged := p.library.choose(func(r *release, _ map[string]time.Time) bool { return !r.acknowledged.IsZero() })
	never := p.library.choose(func(r *release, _ map[string]time.Time) bool { return r.poisoned })
	unpublished := len(p.library.choose(func(r *release, _ map[string]time.Time) bool { return !r.poisoned && r.acknowledged.IsZero() }))
	var wrong []string
	withdrawn := 0
	deadline := time.Now().Add(comesWithin)
	for _, e := range p.entrances {
		if e.h2 {
			continue
		}
		t := p.transport(e)
		for _, r := range acknowledged {
			if !r.withdrawn.IsZero() {
				withdrawn++
			}
			if err := p.stillThere(ctx, t, e, r, deadline); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v, acknowledged by %s at %s: %v", e.name, r, r.by, r.acknowledged.Format(time.TimeOnly), err))
			}
		}
		for _, r := range never {
			q := &question{path: r.path(files[0])}
			if err := q.ask(ctx, t, e.url); !errors.As(err, new(errStatus)) {
				wrong = append(wrong, fmt.Sprintf("%s: %v, whose integrity is wrong: %v", e.name, r, err))
			}
		}
		t.CloseIdleConnections()
	}
	if len(acknowledged) == 0 {
		wrong = append(wrong, "nothing was published")
	}
	return verdict("every acknowledged publication is there, and no withdrawn one", fmt.Sprintf("%d releases at %d entrances; %d times 410; %d are still to be published, and %d never may be", len(acknowledged), len(p.entrances)-len(p.nodes), withdrawn, unpublished, len(never)), wrong)
}

// comesWithin is how long the last publications and withdrawals may take to be everywhere; the fallback looks for those of its
// origin once a minute.
const comesWithin = 90 * time.Second

// stillThere is whether an entrance has all files of a release, or answers 410 for one that is withdrawn.
func (p *play) stillThere(ctx context.Context, t http.RoundTripper, e *entrance, r *release, deadline time.Time) (err error) {
	for {
		err = nil
		for _, file := range r.files() {
			q := &question{path: r.path(file), want: content(r.pkg, r.version, file)}
			err = q.ask(ctx, t, e.url)
			var status errStatus
			gone := errors.As(err, &status) && (status == http.StatusGone || e.fallback && status == http.StatusNotFound)
			switch {
			case !r.withdrawn.IsZero() && gone:
				err = nil
			case !r.withdrawn.IsZero():
				err = fmt.Errorf("it is withdrawn, and not 410: %v", err) //nolint:errorlint // it may be nil
			}
			if err != nil {
				break
			}
		}
		if err == nil || causeOf(err) == wrongBytes || time.Now().After(deadline) || sleep(ctx, looks) != nil {
			return err
		}
	}
}

// judgeLog is whether every node and the mirror show the same signed log.
func (p *play) judgeLog(ctx context.Context) check {
	const name = "one log, with the same root everywhere"
	roots := map[string]string{}
	alike := func() bool {
		for _, e := range p.entrances {
			if e.fallback || e.h2 {
				continue
			}
			root, err := p.root(ctx, e)
			if err != nil {
				root = err.Error()
			}
			roots[e.name] = root
		}
		one := roots[p.entrances[0].name]
		for _, root := range roots {
			if root != one || !strings.Contains(root, "\n") {
				return false
			}
		}
		return true
	}
	if err := eventually(ctx, "all show one log", alike); err != nil {
		return verdict(name, "", []string{fmt.Sprint(roots)})
	}
	lines := strings.Split(roots[p.entrances[0].name], "\n")
	return verdict(name, fmt.Sprintf("%s entries with the root %s at %d entrances", lines[1], lines[2], len(roots)), nil)
}

// root is the first three lines of the checkpoint: origin, size and root.
func (p *play) root(ctx context.Context, e *entrance) (string, error) {
	checkpoint, err := p.checkpoint(ctx, e)
	if err != nil {
		return "", err
	}
	return strings.Join(strings.SplitN(string(checkpoint), "\n", 4)[:3], "\n"), nil
}

// checkpoint returns the signed checkpoint that an entrance serves.
func (p *play) checkpoint(ctx context.Context, e *entrance) ([]byte, error) {
	t := p.transport(e)
	defer t.CloseIdleConnections()
	response, body, err := get(ctx, t, e.url+"/log/checkpoint", nil)
	if err == nil && (response.StatusCode != http.StatusOK || bytes.Count(body, []byte("\n")) < 3) {
		err = fmt.Errorf("%s: %s: %.100q", e.name, response.Status, body)
	}
	return body, err
}

// A use is something that a process uses, and by how much that may grow from the first to the last of the time.
type use struct {
	name, unit string
	of         func(sample) float64
	least      float64 // that it may grow by, however little it was
	share      float64 // of its mean that it may grow by
}

// fills is what the settings of a process let it fill in the course of its life, in bytes: both caches, and 128 MiB of writes
// that are not in tables yet (docs/configuration.md, Memory). As much garbage again may lie in its resident memory.
// Without cgo, as make builds it, Go manages all of that.
const fills = (48 + 16 + 128) << 20

var uses = []use{
	{"memory in use", "MB", func(s sample) float64 { return float64(s.inUse) / 1e6 }, fills / 1e6, 0},
	{"resident memory", "MB", func(s sample) float64 { return float64(s.Memory) / 1e6 }, 2 * fills / 1e6, 0},
	{"descriptors", "open files", func(s sample) float64 { return float64(s.Files) }, 60, 0.5},
	// A store has more tables and blob files the more it publishes, and Pebble keeps as many open.
	{"open tables of stores", "open files", func(s sample) float64 { return float64(s.Tables) }, 1000, 0},
}

const (
	// warming is how long after its start a process is left to fill its caches.
	warming = 30 * time.Second
	// fewSamples are too few for a slope.
	fewSamples = 20
)

// judgeUse is whether what each process uses stays as it is. A process that began anew is another one: its time counts from its
// start, so that a leak shows however often it does, in the longest of its lives.
func (n *notes) judgeUse(u use) check {
	var grown, said []string
	for process, samples := range n.samples {
		told := slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return u.of(s) == 0 }) // one that is stopped tells nothing
		if len(told) == 0 && len(samples) >= fewSamples {
			grown = append(grown, process+" never told")
		}
		life := longest(told)
		if len(life) < fewSamples {
			continue
		}
		grows, mean := growth(life, u.of)
		said = append(said, fmt.Sprintf("%s %.0f (%+.0f)", process, mean, grows))
		if bound := max(u.least, u.share*mean); grows > bound {
			grown = append(grown, fmt.Sprintf("%s grows by %.0f %s in %v, and may by %.0f", process, grows, u.unit, life[len(life)-1].At.Sub(life[0].At).Round(time.Second), bound))
		}
	}
	if said == nil {
		said = []string{"not judged, because no process lived long enough"}
	}
	slices.Sort(said)
	slices.Sort(grown)
	return verdict("bounded growth of "+u.name, u.unit+": "+strings.Join(said, ", "), grown)
}

// longest is the longest life of a process, without its first time.
func longest(samples []sample) (life []sample) {
	for len(samples) > 0 {
		end := slices.IndexFunc(samples, func(s sample) bool { return s.pid != samples[0].pid })
		if end < 0 {
			end = len(samples)
		}
		warm := slices.IndexFunc(samples[:end], func(s sample) bool { return s.At.Sub(samples[0].At) > warming })
		if warm >= 0 && end-warm > len(life) {
			life = samples[warm:end]
		}
		samples = samples[end:]
	}
	return life
}

// growth is by how much a value grows over the time of the samples, and its mean. Medians of the first and the last third
// tell, so that an attack's connections do not count, which are there for a moment.
func growth(samples []sample, of func(sample) float64) (grows, mean float64) {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
		mean += values[i] / float64(len(samples))
	}
	third := len(values) / 3
	median := func(some []float64) float64 {
		slices.Sort(some)
		return some[len(some)/2]
	}
	last := median(values[len(values)-third:])
	return (last - median(values[:third])) * 3 / 2, mean // between their middles are two thirds of the time
}
