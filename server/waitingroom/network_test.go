package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

var errLost = errors.New("the network lost it")

// A network carries messages late, or not at all.
type network struct {
	to func() *Leader

	mu    sync.Mutex
	rng   *rand.Rand
	delay time.Duration // at most, each way
	loss  float64       // of messages and of answers
	down  atomic.Bool   // nothing comes through
	lost  int
}

func (n *network) roll() (delay time.Duration, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	lost = n.rng.Float64() < n.loss || n.down.Load()
	if lost {
		n.lost++
	}
	return time.Duration(n.rng.Int64N(int64(n.delay) + 1)), lost
}

func (n *network) carry(ctx context.Context, q LeaderRequest) (LeaderResponse, error) {
	delay, lost := n.roll()
	if lost {
		return LeaderResponse{}, errLost
	}
	if err := sleep(ctx, delay); err != nil {
		return LeaderResponse{}, err
	}
	a := n.to().Respond(q)
	delay, lost = n.roll()
	if lost {
		return LeaderResponse{}, errLost
	}
	return a, sleep(ctx, delay)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A world is the nodes of a cluster in one process. The owner is a node without visitors.
type world struct {
	*testing.T
	*clock
	owner   *Leader
	began   time.Time
	centres []*house
	nets    []*network
	members []*Member
}

type worldOptions struct {
	yaml    string
	centres int
	apart   time.Duration // the nodes' own clocks are up to so far from the owner's
	delay   time.Duration
	loss    float64
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := &world{T: t, clock: newClock()}
	w.began = w.Now()
	for i := range o.centres {
		n := &network{to: func() *Leader { return w.owner }, rng: rand.New(rand.NewPCG(1, uint64(i))), delay: o.delay, loss: o.loss}
		m := NewMember(fmt.Sprintf("node-%d", i), NewClock(w.elapsed, w.Now().Add(o.apart*time.Duration(i*2-o.centres+1)/time.Duration(max(1, o.centres-1)))))
		w.nets, w.members = append(w.nets, n), append(w.members, m)
		w.centres = append(w.centres, openWith(t, houseOptions{yaml: o.yaml, clock: w.clock, cluster: &Cluster{m, n.carry}}))
	}
	w.own(1)
	return w
}

func (w *world) elapsed() time.Duration { return w.Now().Sub(w.began) }

// own has a new owner, and the nodes learn of it.
func (w *world) own(epoch int64) {
	w.Helper()
	rooms := w.centres[0].rooms
	w.owner = NewLeader(epoch, NewClock(w.elapsed, w.Now()), rooms.EffectiveRoom)
	w.owner.ConfirmEpoch(w.elapsed(), epoch)
	listed := map[string][]string{}
	for _, m := range w.members {
		m.LearnEpoch(epoch)
		listed[m.Name] = rooms.SharedRooms()
	}
	w.owner.SetMembers(listed)
}

// ask has a node ask for the time.
func (w *world) ask(i int) {
	q := w.members[i].NewRequest()
	if a, err := w.nets[i].carry(w.Context(), q.LeaderRequest); err == nil {
		w.members[i].AcceptResponse(q, a) //nolint:errcheck // it asks again
	}
}

// pass moves the clock; every data centre that is not dead reports.
func (w *world) pass(d time.Duration) {
	w.Helper()
	const step = 2 * time.Second
	for d > 0 {
		w.add(min(d, step))
		d -= step
		w.owner.ConfirmEpoch(w.elapsed(), 0)
		var all sync.WaitGroup
		for i, h := range w.centres {
			if _, follows := w.members[i].Epoch(); !follows {
				w.ask(i)
			}
			for _, room := range h.rooms.currentRooms().rooms {
				all.Go(func() {
					if !room.isReady() {
						return
					}
					if _, err := room.report(w.Context()); err != nil {
						w.Error(err)
					}
				})
			}
		}
		all.Wait()
	}
}

// A crowd comes to a world through real HTTP, and notes how many are in at once.
type crowd struct {
	*world
	users []*visitorOf

	mostActive, mostAdmitted int
	admitted                 map[int64]int // by the minute of the true clock
	errors                   atomic.Int64
}

type visitorOf struct {
	*user
	in    bool
	left  bool
	until time.Time // leaves then
}

// visit has everybody who is there check in once, several at a time.
func (c *crowd) visit(stay time.Duration) {
	c.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, 16)
	now := c.Now()
	for _, v := range c.users {
		if v.left {
			continue
		}
		if v.in && now.After(v.until) {
			v.left = true
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			r := v.get("/")
			if r.StatusCode != http.StatusOK {
				c.errors.Add(1)
			}
			if r.in() && !v.in {
				mu.Lock()
				c.admitted[now.Unix()/60]++
				mu.Unlock()
				v.in, v.until = true, now.Add(stay)
			}
			if v.in && !r.in() {
				c.Error("who is in and comes back is thrown out")
			}
		})
	}
	all.Wait()
	active := 0
	for _, v := range c.users {
		if v.in && !v.left {
			active++
		}
	}
	c.mostActive = max(c.mostActive, active)
	for _, n := range c.admitted {
		c.mostAdmitted = max(c.mostAdmitted, n)
	}
}

const crowded = "- name: shop\n  total_active_users: 40\n  new_users_per_minute: 15\n  session_duration: 1\n"

// TestLoad sends a crowd through three data centres whose clocks differ, over a network
// that delays and loses messages. The limits hold all the same, and everybody comes in.
func TestLoad(t *testing.T) {
	w := newWorld(t, worldOptions{yaml: strings.NewReplacer("40", "15", "15", "10").Replace(crowded), centres: 3, apart: 30 * time.Second, delay: 3 * time.Millisecond, loss: 0.2})
	c := &crowd{world: w, admitted: map[int64]int{}}
	w.pass(4 * time.Second)
	for step := range 220 {
		if step < 15 { // uneven: most through the first
			for i := range 3 {
				h := w.centres[min(i, step%3)]
				c.users = append(c.users, &visitorOf{user: h.user()})
			}
		}
		c.visit(60 * time.Second)
		w.pass(4 * time.Second)
	}
	if c.mostActive > 15 || c.mostAdmitted > 10 {
		t.Errorf("%d were active of 15, %d admitted in a minute of 10", c.mostActive, c.mostAdmitted)
	}
	in := 0
	for _, v := range c.users {
		if v.in {
			in++
		}
	}
	if in != len(c.users) || c.errors.Load() > 0 {
		t.Errorf("%d of %d came in, with %d errors", in, len(c.users), c.errors.Load())
	}
	lost := 0
	for _, n := range w.nets {
		lost += n.lost
	}
	if lost == 0 {
		t.Error("the network lost nothing")
	}
	t.Logf("%d users: at most %d active of 15, %d admitted a minute of 10; %d messages lost", len(c.users), c.mostActive, c.mostAdmitted, lost)
}

// TestDeadCentre has one of two data centres lose its connection with grants in hand:
// the other gets the slots once they have expired, and nobody sees an error.
func TestDeadCentre(t *testing.T) {
	w := newWorld(t, worldOptions{yaml: crowded, centres: 2, apart: 30 * time.Second})
	c := &crowd{world: w, admitted: map[int64]int{}}
	w.pass(4 * time.Second)
	for range 5 {
		c.users = append(c.users, &visitorOf{user: w.centres[0].user()})
	}
	c.visit(20 * time.Second)
	w.pass(10 * time.Second)
	w.nets[0].down.Store(true)
	for range 10 { // it goes on with what it was granted, then makes people wait
		c.users = append(c.users, &visitorOf{user: w.centres[0].user()})
	}
	for range 60 {
		c.users = append(c.users, &visitorOf{user: w.centres[1].user()})
	}
	for range 120 {
		c.visit(20 * time.Second)
		w.pass(5 * time.Second)
	}
	here := 0
	for _, v := range c.users[15:] {
		if v.in {
			here++
		}
	}
	if c.mostActive > 40 || c.mostAdmitted > 15 || c.errors.Load() > 0 {
		t.Errorf("%d were active of 40, %d admitted in a minute of 15, %d errors", c.mostActive, c.mostAdmitted, c.errors.Load())
	}
	if here != 60 {
		t.Errorf("of 60 at the living data centre %d came in", here)
	}
	for i, want := range []bool{true, false} {
		if s, _ := w.centres[i].rooms.Status("shop"); s.CutOff != want || s.Recovering {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	if r := w.centres[0].user().get("/"); r.StatusCode != http.StatusOK || r.in() || r.refresh() == 0 {
		t.Errorf("at the one that is cut off: %d %v", r.StatusCode, r.Header)
	}
}

// TestUnreadyNode has a node start while none has the rooms: no visitor passes or sees an error, and tickets stay as they are. Once it
// knows what time it is, a user of another node passes.
func TestUnreadyNode(t *testing.T) {
	w := newWorld(t, worldOptions{yaml: crowded, centres: 2, apart: 30 * time.Second})
	w.pass(4 * time.Second)
	u := w.centres[0].user()
	u.get("/")
	if !u.get("/").in() {
		t.Fatal("there is room, but the user waits")
	}
	m := NewMember("node-9", NewClock(w.elapsed, w.Now().Add(-20*time.Second)))
	m.LearnEpoch(1)
	late := &network{to: func() *Leader { return w.owner }, rng: rand.New(rand.NewPCG(1, 9))}
	h := openWith(t, houseOptions{yaml: crowded, clock: w.clock, cluster: &Cluster{m, late.carry}})
	value := mustCookie(t, u, w.centres[0])
	u.house = h
	u.set(value)
	if r := u.get("/"); r.in() || r.StatusCode != http.StatusOK || r.refresh() != unready || u.cookie() != value {
		t.Errorf("before the time is known: %d, %v", r.StatusCode, r.Header)
	}
	if s, _ := h.rooms.Status("shop"); !s.CutOff {
		t.Errorf("%+v", s)
	}
	w.owner.SetMembers(map[string][]string{"node-0": {"shop"}, "node-1": {"shop"}, "node-9": {"shop"}})
	// A form is not dropped: it waits for the time, and is refused if that does not come.
	if r := u.do(http.MethodPost, "/"); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "5" {
		t.Errorf("a form, before the time is known: %d, %v", r.StatusCode, r.Header)
	}
	sent := make(chan *reply)
	go func() { sent <- u.do(http.MethodPost, "/") }()
	q := m.NewRequest()
	if _, err := m.AcceptResponse(q, w.owner.Respond(q.LeaderRequest)); err != nil {
		t.Fatal(err)
	}
	if !(<-sent).in() {
		t.Error("a form with a ticket of another node does not pass once the time is known")
	}
	if !u.get("/").in() {
		t.Error("a ticket of another node does not pass")
	}
}

// TestRevokedElsewhere has the site end a session at one node: it is over on the others with their next report.
func TestRevokedElsewhere(t *testing.T) {
	w := newWorld(t, worldOptions{yaml: crowded + "  enabled_origin_commands: [revoke]\n", centres: 2})
	w.pass(4 * time.Second)
	u := w.centres[0].user()
	if !u.get("/").in() {
		t.Fatal("there is room, but the user waits")
	}
	value := mustCookie(t, u, w.centres[0])
	w.centres[0].origin = func(h http.ResponseWriter, _ *http.Request) { h.Header().Set("Cf-Waiting-Room-Command", "revoke") }
	u.get("/")
	w.pass(4 * time.Second)
	u.house = w.centres[1]
	u.set(value)
	u.get("/")
	if u.cookie() == value {
		t.Error("the session goes on at the other node")
	}
	w.own(2) // which knows nothing
	w.pass(6 * time.Second)
	third := Revocation{}
	for _, one := range w.owner.Respond(func() LeaderRequest {
		q := w.members[1].NewRequest()
		q.AddReport("shop", queue.Report{DataCentre: "node-1"})
		return q.LeaderRequest
	}()).Revoked {
		third = one
	}
	if third.Until.IsZero() {
		t.Error("the next owner does not hear of it")
	}
}

// TestLostState has the global object lose its state while people are inside: nobody new
// comes in until all of them must be gone, and then they do.
func TestLostState(t *testing.T) {
	const yaml = "- name: shop\n  total_active_users: 4\n  new_users_per_minute: 4\n  session_duration: 1\n"
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: yaml, dir: dir})
	var inside []*user
	for range 4 {
		u := h.user()
		if !u.get("/").in() {
			t.Fatal("there is room, but somebody waits")
		}
		inside = append(inside, u)
	}
	h.close()
	again := openWith(t, houseOptions{yaml: yaml, known: true, clock: h.clock}) // an empty store
	for _, u := range inside {
		u.house = again
		u.set(mustCookie(t, u, h))
		if r := u.get("/"); !r.in() {
			t.Errorf("who is in does not stay in: %.100s", r.body)
		}
	}
	newcomer := again.user()
	if r := newcomer.get("/"); r.in() || r.StatusCode != http.StatusOK {
		t.Fatalf("a newcomer before it is known who is inside: %d", r.StatusCode)
	}
	if got, _ := again.rooms.Status("shop"); !got.Recovering {
		t.Errorf("%+v", got)
	}
	again.pass(50 * time.Second) // less than a session
	if newcomer.get("/").in() {
		t.Error("a newcomer comes in while those of before may be inside")
	}
	in := false
	for range 60 {
		again.pass(5 * time.Second)
		in = in || newcomer.get("/").in()
	}
	if !in {
		t.Error("the room never recovers")
	}
}

func mustCookie(t *testing.T, u *user, from *house) string {
	t.Helper()
	now := u.house
	u.house = from
	defer func() { u.house = now }()
	value := u.cookie()
	if value == "" {
		t.Fatal("no ticket")
	}
	return value
}

// TestRestart has the process end and begin again: sessions go on, places are kept, and
// the limits hold.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(2), dir: dir})
	a, b, waits := h.user(), h.user(), h.user()
	a.get("/")
	b.get("/")
	waits.get("/")
	values := []string{a.cookie(), b.cookie(), waits.cookie()}
	h.close()
	h.add(5 * time.Second)
	again := openWith(t, houseOptions{yaml: small(2), dir: dir, known: true, clock: h.clock})
	for i, u := range []*user{a, b, waits} {
		u.house = again
		u.set(values[i])
		if r := u.get("/"); r.in() != (i < 2) {
			t.Errorf("user %d: in is %v", i, r.in())
		}
	}
	codec := testKeys(t).codec("shop", "")
	before, _ := codec.open(values[2])
	after, _ := codec.open(waits.cookie())
	if !before.Since.Equal(after.Since) || before.ID != after.ID {
		t.Errorf("the place is lost: %+v, then %+v", before, after)
	}
	if again.user().get("/").in() {
		t.Error("after a restart there is room for one more than before")
	}
}

// TestStop has a process stop in order, and the next one continue: nobody is counted twice.
func TestStop(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(4), dir: dir})
	users := []*user{h.user(), h.user(), h.user()}
	for _, u := range users {
		u.get("/")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.rooms.Run(ended)
	if h.user().get("/").in() {
		t.Error("somebody was let in after the end")
	}
	if !users[0].get("/").in() || strings.Contains(h.log.String(), "level=ERROR") {
		t.Errorf("who is in is thrown out, or somebody is alarmed: %s", h.log)
	}
	values := []string{users[0].cookie(), users[1].cookie(), users[2].cookie()}
	h.close()
	h.add(5 * time.Second)
	again := openWith(t, houseOptions{yaml: small(4), dir: dir, known: true, clock: h.clock})
	for i, u := range users {
		u.house = again
		u.set(values[i])
	}
	again.pass(time.Minute) // so that all of them are renewed
	for i, u := range users {
		if !u.get("/").in() {
			t.Errorf("user %d is thrown out", i)
		}
	}
	again.pass(4 * time.Second)
	if s, _ := again.rooms.Status("shop"); s.Active != 3 {
		t.Errorf("%d are in, want 3", s.Active)
	}
	if !again.user().get("/").in() || again.user().get("/").in() {
		t.Error("there is not room for one more exactly")
	}
	// It continues once: who crashes next has nothing to continue from.
	again.close()
	third := openWith(t, houseOptions{yaml: small(4), dir: dir, known: true, clock: h.clock})
	if third.user().get("/").in() {
		t.Error("there is room in a full room")
	}
}

// TestUnreachable has the data centre itself fail: everybody waits, nobody sees an error, and who is in stays in.
func TestUnreachable(t *testing.T) {
	h := open(t, small(5))
	u := h.user()
	u.get("/")
	waiting := h.user()
	h.rooms.currentRooms().byName["shop"].centre = h.rooms.centres.Object("nobody") // which cannot be woken
	r := waiting.get("/")
	if r.StatusCode != http.StatusOK || r.in() || r.refresh() == 0 || waiting.cookie() == "" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	place := waiting.cookie()
	h.add(30 * time.Second)
	if r := waiting.get("/"); r.in() || r.StatusCode != http.StatusOK || waiting.cookie() != place {
		t.Errorf("the place is not kept: %v", r.Header)
	}
	h.add(25 * time.Second) // the next minute, in which the session would be renewed
	if !u.get("/").in() {
		t.Error("who is in is thrown out")
	}
}
