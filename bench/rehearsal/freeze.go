package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// staleAge is how old the newest cosignature of a mirror's source may become (docs/audit-log.md, Freshness), and staleLead how
	// long before that the replay starts.
	staleAge  = 24 * time.Hour
	staleLead = 10 * time.Second
	// mirrorStopped is how long the mirror's process is stopped, probeTimeout how long a probe of it may take.
	mirrorStopped = 10 * time.Second
	// caughtUpWithin is how long a mirror may take to have everything again after a freeze: its backoff, a poll, and the entries.
	caughtUpWithin = 30 * time.Second
)

// Where a freeze is noticed.
const (
	byMetric  = "larder_follow_stale"
	byProbe   = "/readyz"
	byStatus  = "larder status"
	byWatch   = "larder log watch"
	byVerify  = "larder verify --max-age"
	byLog     = "the log"
	byProblem = "larder status (an older checkpoint)"
	byTimeout = "/readyz (a stopped process)"
)

// noticedWithin is how soon after its cause each of them must report a freeze. The log is written once a minute.
var noticedWithin = map[string]time.Duration{
	byMetric: 5 * time.Second, byProbe: 5 * time.Second, byStatus: 10 * time.Second, byWatch: 20 * time.Second, byVerify: 20 * time.Second,
	byLog: 70 * time.Second, byProblem: 15 * time.Second, byTimeout: 5 * time.Second,
}

// What a mirror recovers from.
const (
	fromReplay  = "an old checkpoint"
	fromOlder   = "an older checkpoint than before"
	fromStopped = "a stopped process"
)

var recoveries = []string{fromReplay, fromOlder, fromStopped}

// A freeze is what was seen of a mirror whose source, and then whose process, is frozen.
type freeze struct {
	complete bool                     // all steps were taken
	noticed  map[string]time.Duration // by where, after the cause
	caughtUp map[string]time.Duration // by the cause, after its end

	mu        sync.Mutex
	wrong     []string
	responses int
	served    map[*release]bool // was served
	withdrawn map[*release]bool // was seen to be 410
	stopped   bool              // requests may time out
}

func newFreeze() *freeze {
	return &freeze{noticed: map[string]time.Duration{}, caughtUp: map[string]time.Duration{}, served: map[*release]bool{}, withdrawn: map[*release]bool{}}
}

func (f *freeze) report(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *freeze) setStopped(stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = stopped
}

// observe compares a response of the mirror for a file with what it may be. withdrawn says that the release was withdrawn at the
// source, which the mirror need not know, and may that the process was stopped when the request was sent.
func (f *freeze) observe(r *release, withdrawn, stopped bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.responses++
	var status errStatus
	problem := ""
	switch {
	case err == nil && r.poisoned:
		problem = "was served although its integrity is wrong"
	case err == nil && f.withdrawn[r]:
		problem = "was served again after its withdrawal"
	case err == nil:
		f.served[r] = true
	case errors.As(err, &status) && status == http.StatusGone:
		if f.withdrawn[r] = true; !withdrawn {
			problem = "is 410 and was not withdrawn"
		}
	case errors.As(err, &status) && status == http.StatusNotFound:
		if f.served[r] {
			problem = "is 404 and was served before"
		}
	case causeOf(err) == timedOut && (stopped || f.stopped):
	default:
		problem = err.Error()
	}
	if problem != "" {
		f.wrong = append(f.wrong, fmt.Sprintf("%v %s", r, problem))
	}
}

// judge returns what is wrong with a freeze.
func (f *freeze) judge() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	wrong := slices.Clone(f.wrong)
	if !f.complete {
		return wrong // the rehearsal ended meanwhile, or the event failed
	}
	if f.responses == 0 {
		wrong = append(wrong, "no response of the frozen mirror was compared")
	}
	for where, limit := range noticedWithin {
		if after, ok := f.noticed[where]; !ok {
			wrong = append(wrong, "not noticed by "+where)
		} else if after > limit {
			wrong = append(wrong, fmt.Sprintf("noticed by %s only after %v, and %v is the limit", where, after.Round(time.Second), limit))
		}
	}
	for _, cause := range recoveries {
		if after, ok := f.caughtUp[cause]; !ok {
			wrong = append(wrong, "not caught up after "+cause)
		} else if after > caughtUpWithin {
			wrong = append(wrong, fmt.Sprintf("caught up %v after %s, and %v is the limit", after.Round(time.Second), cause, caughtUpWithin))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// describe says when the freeze was noticed, and how long the mirror took to catch up.
func (f *freeze) describe() string {
	var parts []string
	for where, after := range f.noticed {
		parts = append(parts, fmt.Sprintf("%s %.1f s", where, after.Seconds()))
	}
	slices.Sort(parts)
	var caught []string
	for _, cause := range recoveries {
		if after, ok := f.caughtUp[cause]; ok {
			caught = append(caught, fmt.Sprintf("%.1f s after %s", after.Seconds(), cause))
		}
	}
	return fmt.Sprintf("noticed by %s; caught up %s; %d responses compared", strings.Join(parts, ", "), strings.Join(caught, ", "), f.responses)
}

// judgeFreezes checks what mirrors promise about sources that replay an old checkpoint, and about their own absence.
func (p *play) judgeFreezes() check {
	const name = "a frozen mirror is noticed, serves no wrong byte, and catches up"
	var wrong, said []string
	for _, f := range p.freezes {
		wrong = append(wrong, f.judge()...)
		if f.complete {
			said = append(said, f.describe())
		}
	}
	if said == nil {
		said = []string{"no mirror was frozen"}
	}
	return verdict(name, strings.Join(said, "; "), wrong)
}

// A frozenMirror is a mirror that is started for the event, with the proxy in front of its source.
type frozenMirror struct {
	*freeze
	play   *play
	actor  *actor
	source *replayProxy
	old    []byte // the checkpoint that was replayed
}

// freezeMirror starts a mirror and freezes first its source, then its process, while a client compares what it serves.
func (p *play) freezeMirror(ctx context.Context, e *event) (err error) {
	e.What = "a mirror follows a source that replays old checkpoints, and is stopped"
	m, err := p.startFrozenMirror(ctx)
	if err != nil {
		return err
	}
	defer func() { err = discardCopy(m.actor, nil, err) }()
	defer func() { _ = m.source.server.Close() }()
	p.freezes = append(p.freezes, m.freeze)
	reading, stopReading := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() { m.read(reading) })
	defer reader.Wait()
	defer stopReading()
	for _, step := range []func(context.Context) error{m.replayOld, m.replayOlder, m.stopProcess} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	stopReading()
	reader.Wait()
	if err := m.actor.end(syscall.SIGTERM); err != nil {
		return err
	}
	if _, err := m.actor.fsckHead(ctx); err != nil {
		return err
	}
	m.complete = true
	e.What += "; " + m.describe()
	return nil
}

// startFrozenMirror starts the mirror, and returns when it has all of its source.
func (p *play) startFrozenMirror(ctx context.Context) (*frozenMirror, error) {
	source, err := newReplayProxy(p.proxyEntrance().url)
	if err != nil {
		return nil, err
	}
	a, err := p.newCopy("of a frozen source", "mirror", source.url, "--key", filepath.Join(p.nodes[0].keys(), "log.pub"), "--rooms", "off")
	if err != nil {
		return nil, err
	}
	p.stops = append(p.stops, a.kill)
	m := &frozenMirror{freeze: newFreeze(), play: p, actor: a, source: source}
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	return m, eventually(ctx, "the frozen mirror is ready", func() bool { return a.ready(ctx) == nil })
}

// read requests files of the mirror until ctx ends, and compares each response.
func (m *frozenMirror) read(ctx context.Context) {
	random := rand.New(rand.NewPCG(m.play.seed, uint64(100+len(m.play.freezes))))
	t := m.play.transport(&entrance{})
	defer t.CloseIdleConnections()
	for sleep(ctx, pause) == nil {
		all := m.play.library.choose(func(*release, map[string]time.Time) bool { return true })
		r := all[random.IntN(len(all))]
		file := files[random.IntN(len(files))]
		m.mu.Lock()
		stopped := m.stopped
		m.mu.Unlock()
		err := (&question{path: r.path(file), want: content(r.pkg, r.version, file)}).ask(ctx, t, "http://"+m.actor.address)
		if ctx.Err() != nil {
			return
		}
		withdrawn, _ := m.play.library.state(r)
		m.observe(r, !withdrawn.IsZero(), stopped, err)
	}
}

// replayOld has the source replay a checkpoint that becomes a day old, while a release is withdrawn.
func (m *frozenMirror) replayOld(ctx context.Context) error {
	key, err := os.ReadFile(filepath.Join(m.play.nodes[0].keys(), "log.key"))
	if err != nil {
		return err
	}
	// The mirror keeps the newest cosignature of a checkpoint, so it must get one that it has not seen.
	have, err := m.play.checkpoint(ctx, directEntrance(m.actor))
	if err != nil {
		return err
	}
	head, err := parseHead(string(have))
	if err != nil {
		return err
	}
	m.source.replay(have)
	var next []byte
	var nextHead logHead
	if err := eventually(ctx, "the log has another entry", func() bool {
		if next, err = m.play.checkpoint(ctx, m.play.proxyEntrance()); err == nil {
			nextHead, err = parseHead(string(next))
		}
		return err == nil && nextHead.Size > head.Size
	}); err != nil {
		return errors.Join(err, ctx.Err())
	}
	limit := time.Now().Add(staleLead).Truncate(time.Second)
	if m.old, err = ageCheckpoint(next, key, limit.Add(-staleAge)); err != nil {
		return err
	}
	m.source.replay(m.old)
	if err := m.play.awaitSize(ctx, m.actor, nextHead.Size); err != nil {
		return err
	}
	if _, code := m.watch(ctx); code != 0 && time.Now().Before(limit) {
		m.report("larder log watch exits with %d before the checkpoint is a day old", code)
	}
	hidden, err := m.withdraw(ctx)
	if err != nil {
		return err
	}
	if err := m.awaitStale(ctx, limit); err != nil {
		return err
	}
	return m.recover(ctx, fromReplay, hidden)
}

// awaitStale notes when each place reports that the source's checkpoint is a day old, which it is at the time limit.
func (m *frozenMirror) awaitStale(ctx context.Context, limit time.Time) error {
	places := map[string]func() bool{
		byMetric: func() bool {
			_, text, err := m.actor.askPrivate(ctx, "/metrics")
			return err == nil && strings.Contains(text, "\nlarder_follow_stale 1\n")
		},
		byProbe: func() bool {
			status, text, err := m.actor.askPrivate(ctx, "/readyz")
			return err == nil && status == http.StatusOK && strings.Contains(text, "may be out of date")
		},
		byStatus: func() bool { s, err := m.status(ctx); return err == nil && s.Stale != "" },
		byLog: func() bool {
			text, err := os.ReadFile(filepath.Join(m.actor.folder, "log"))
			return err == nil && bytes.Contains(text, []byte("what is served may be out of date"))
		},
		byWatch: func() bool {
			if time.Now().Before(limit) { // it was tried
				return false
			}
			text, code := m.watch(ctx)
			return code == 8 && strings.Contains(text, `"expired"`)
		},
		byVerify: func() bool {
			if time.Now().Before(limit) {
				return false
			}
			_, code := m.verify(ctx)
			return code == 9
		},
	}
	_ = within(ctx, time.Until(limit)+2*noticedWithin[byLog], "a frozen source is noticed by all", func() bool {
		for where, noticed := range places {
			if !noticed() {
				continue
			}
			if after := time.Since(limit); after < 0 {
				m.report("%s reports a frozen source %v before its checkpoint is a day old", where, -after)
			} else {
				m.noticed[where] = after
			}
			delete(places, where)
		}
		return len(places) == 0
	}) // judge reports what is missing
	return ctx.Err()
}

// replayOlder has the source replay an older checkpoint than the mirror has seen.
func (m *frozenMirror) replayOlder(ctx context.Context) error {
	before, err := m.play.headAt(ctx, m.actor)
	if err != nil {
		return err
	}
	m.source.replay(m.old)
	began := time.Now()
	if err := within(ctx, 2*noticedWithin[byProblem], "the older checkpoint is noticed", func() bool {
		s, err := m.status(ctx)
		return err == nil && strings.Contains(s.Problem, "was signed and seen before")
	}); err == nil {
		m.noticed[byProblem] = time.Since(began)
	}
	hidden, err := m.withdraw(ctx)
	if err != nil {
		return err
	}
	after, err := m.play.headAt(ctx, m.actor)
	if err != nil {
		return err
	}
	if after.Size < before.Size {
		m.report("the mirror went back from %d log entries to %d", before.Size, after.Size)
	}
	return m.recover(ctx, fromOlder, hidden)
}

// stopProcess stops the mirror's process for a while, in which a release is withdrawn.
func (m *frozenMirror) stopProcess(ctx context.Context) error {
	m.setStopped(true)
	began := time.Now()
	if err := m.actor.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := within(ctx, 2*noticedWithin[byTimeout], "the stopped process is noticed", func() bool { return m.actor.ready(ctx) != nil }); err == nil {
		m.noticed[byTimeout] = time.Since(began)
	}
	hidden, err := m.withdraw(ctx)
	if err == nil {
		err = sleep(ctx, time.Until(began.Add(mirrorStopped)))
	}
	if err := errors.Join(err, m.actor.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	err = m.recover(ctx, fromStopped, hidden)
	m.setStopped(false)
	return err
}

// withdraw withdraws a release at the source, which the mirror does not learn, and returns when it is 410 everywhere else.
func (m *frozenMirror) withdraw(ctx context.Context) (*release, error) {
	p := m.play
	live := p.library.live(0, "one", "two", "three", "mirror")
	live = slices.DeleteFunc(live, func(r *release) bool { return r.version == "1.0.0" })
	if len(live) == 0 {
		return nil, errors.New("no release is left to withdraw")
	}
	r := live[len(live)-1-p.random.IntN(min(packages, len(live)))] // an old one, which the mirror has
	return r, p.withdrawThrough(ctx, &event{}, r, p.any(p.nodes))
}

// recover ends the freeze of the source, and awaits that the mirror has all of it, reports nothing, and has withdrawn a release.
func (m *frozenMirror) recover(ctx context.Context, cause string, hidden *release) error {
	began := time.Now()
	m.source.replay(nil)
	want, err := m.play.headOf(ctx, m.play.proxyEntrance())
	if err != nil {
		return err
	}
	if err := m.play.awaitSize(ctx, m.actor, want.Size); err != nil {
		return err
	}
	t := m.play.transport(&entrance{})
	defer t.CloseIdleConnections()
	var last error
	if err := eventually(ctx, fmt.Sprintf("%v is 410 at the mirror", hidden), func() bool {
		last = (&question{path: hidden.path(files[0]), want: content(hidden.pkg, hidden.version, files[0])}).ask(ctx, t, "http://"+m.actor.address)
		var status errStatus
		return errors.As(last, &status) && status == http.StatusGone
	}); err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	m.observe(hidden, true, true, last)
	var s followState
	if err := eventually(ctx, "the mirror reports nothing", func() bool {
		s, err = m.status(ctx)
		return err == nil && s.Stale == "" && s.Problem == "" && m.actor.ready(ctx) == nil
	}); err != nil {
		return fmt.Errorf("%w: %+v", err, s)
	}
	m.caughtUp[cause] = time.Since(began)
	return nil
}

// A followState is what `larder status --json` says about the mirror's source.
type followState struct {
	Stale   string `json:"stale"`
	Problem string `json:"problem"`
}

func (m *frozenMirror) status(ctx context.Context) (followState, error) {
	text, err := m.actor.larder(ctx, "status", "--json")
	var s struct {
		Following *followState `json:"following"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &s)
	}
	if err == nil && s.Following == nil {
		err = fmt.Errorf("larder status does not say what the mirror follows: %.200q", text)
	}
	if err != nil {
		return followState{}, err
	}
	return *s.Following, nil
}

// watch runs `larder log watch` once on the mirror, and returns what it prints and its exit code.
func (m *frozenMirror) watch(ctx context.Context) (string, int) {
	return m.run(ctx, "log", "watch", "--once", "--json", "--log", "http://"+m.actor.address, "--state", filepath.Join(m.actor.folder, "watched"), "--known-logs", filepath.Join(m.actor.folder, "known-to-watch"))
}

// verify verifies a file of the mirror against its log, which must not be older than a day.
func (m *frozenMirror) verify(ctx context.Context) (string, int) {
	live := m.play.library.live(0, "one", "mirror")
	if len(live) == 0 {
		return "", -1
	}
	return m.run(ctx, "verify", "--max-age", staleAge.String(), "--known-logs", filepath.Join(m.actor.folder, "known-to-verify"), "http://"+m.actor.address+live[len(live)-1].path(files[0]))
}

// run runs a command as a client of the mirror does, with the log's key.
func (m *frozenMirror) run(ctx context.Context, args ...string) (text string, code int) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args = append(args, "--key", filepath.Join(m.play.nodes[0].keys(), "log.pub"))
	c := exec.CommandContext(ctx, m.actor.program, args...)
	c.Env = append(os.Environ(), m.actor.env...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return string(out), 0
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	}
	return err.Error(), -1
}
