package waitingroom

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A bench has two nodes and leaders in one process, whose messages the test carries.
type bench struct {
	*testing.T
	now      time.Duration
	settings queue.Settings
	nodes    []*bencher
}

type bencher struct {
	*bench
	*Member
	dc       *queue.DataCentre
	admitted int
}

var benchBegin = time.Date(2027, 1, 1, 12, 0, 20, 0, time.UTC)

func newBench(t *testing.T) *bench {
	s := queue.Settings{TotalActiveUsers: 10, NewUsersPerMinute: 10, SessionDuration: time.Minute, Skew: clockSkew}.WithDefaults()
	b := &bench{T: t, settings: s}
	for _, name := range []string{"a", "b"} {
		b.nodes = append(b.nodes, &bencher{bench: b, Member: NewMember(name, b.clock(0))})
	}
	return b
}

func (b *bench) clock(apart time.Duration) *Clock {
	return NewClock(func() time.Duration { return b.now }, benchBegin.Add(apart))
}

func (b *bench) owner(epoch int64, apart time.Duration) *Leader {
	o := NewLeader(epoch, b.clock(apart), func(string, *OriginResponses) (SharedRoom, bool) {
		return SharedRoom{Settings: b.settings, Longest: time.Minute}, true
	})
	o.ConfirmEpoch(b.now, epoch)
	o.SetMembers(map[string][]string{"a": {"shop"}, "b": {"shop"}})
	return o
}

func (n *bencher) ask(want int) *SentRequest {
	q := n.NewRequest()
	if n.dc == nil && n.Clock.Known() {
		n.dc = queue.NewDataCentre(n.Name, 1, n.settings, 1, n.Clock.Now())
	}
	if n.dc != nil {
		r := n.dc.Report(n.Clock.Now())
		r.Want = want
		n.dc.AddAccount(&r, true)
		q.AddReport("shop", r)
	}
	return q
}

// exchange has a node ask a leader, and take the answer.
func (n *bencher) exchange(o *Leader, want int) *queue.State {
	n.Helper()
	q := n.ask(want)
	return n.take(q, o.Respond(q.LeaderRequest))
}

func (n *bencher) take(q *SentRequest, a LeaderResponse) *queue.State {
	n.Helper()
	st, err := n.AcceptResponse(q, a)
	if err != nil {
		n.Fatal(err)
	}
	if st != nil {
		n.dc.Apply(n.Clock.Now(), *st)
	}
	return st
}

// come has visitors come to a node until one of them waits.
func (n *bencher) come() {
	for range 30 {
		n.admitted++
		if n.dc.Settle(n.Clock.Now(), queue.Ticket{ID: queue.TicketID{n.Name[0], byte(n.admitted)}}).Outcome != queue.Pass {
			n.admitted--
			return
		}
	}
}

// TestEarlierEpoch has the response of a leader arrive after its node has reported to the next leader. If the node accepted it, both
// nodes would admit as many visitors as the room takes.
func TestEarlierEpoch(t *testing.T) {
	b := newBench(t)
	one := b.owner(1, 0)
	x, y := b.nodes[0], b.nodes[1]
	for _, n := range b.nodes {
		n.LearnEpoch(1)
		n.exchange(one, 0) // the time
		n.exchange(one, 0)
	}
	asked := x.ask(10)
	late := one.Respond(asked.LeaderRequest) // all ten
	two := b.owner(2, 0)
	for _, n := range b.nodes {
		n.LearnEpoch(2)
		n.exchange(two, 0)
		n.exchange(two, 0)
	}
	y.exchange(two, 10)
	y.come()
	if y.admitted != 10 {
		t.Fatalf("%d came in of 10", y.admitted)
	}
	st, err := x.AcceptResponse(asked, late)
	if st != nil {
		x.dc.Apply(x.Clock.Now(), *st)
	}
	x.come()
	if x.admitted > 0 || !errors.Is(err, errOld) {
		t.Errorf("%d more came in than the limit (%v)", x.admitted, err)
	}
}

// TestLateAnswer has an answer come long after its question. If it counted, the node's clock would be far behind, and
// sessions pass there that the others count no more.
func TestLateAnswer(t *testing.T) {
	b := newBench(t)
	o := b.owner(1, 30*time.Second)
	n := b.nodes[0]
	n.LearnEpoch(1)
	q := n.ask(0)
	a := o.Respond(q.LeaderRequest)
	b.now += responseTimeout
	if _, err := n.AcceptResponse(q, a); !errors.Is(err, errLate) || n.Clock.Known() {
		t.Errorf("%v", err)
	}
	q = n.ask(0)
	a = o.Respond(q.LeaderRequest)
	b.now += responseTimeout - time.Millisecond
	n.take(q, a)
	if apart := o.clock.Now().Sub(n.Clock.Now()).Abs(); apart > responseTimeout/2 {
		t.Errorf("the clocks are %v apart", apart)
	}
	for range 3 { // faster answers: the clock does not get worse
		n.exchange(o, 0)
	}
	if apart := o.clock.Now().Sub(n.Clock.Now()).Abs(); apart > time.Millisecond {
		t.Errorf("the clocks are %v apart after fast answers", apart)
	}
}

// TestClockStands has a node's clock be ahead of the leader's: it never goes back, and its node takes nothing meanwhile.
func TestClockStands(t *testing.T) {
	b := newBench(t)
	n := b.nodes[0]
	one := b.owner(1, 10*time.Second)
	n.LearnEpoch(1)
	n.exchange(one, 0)
	shown := n.Clock.Now()
	two := b.owner(2, 0)
	n.LearnEpoch(2)
	refused := 0
	for range 12 {
		b.now += time.Second
		two.ConfirmEpoch(b.now, 2)
		q := n.ask(0)
		if _, err := n.AcceptResponse(q, two.Respond(q.LeaderRequest)); errors.Is(err, errAhead) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
		if now := n.Clock.Now(); now.Before(shown) {
			t.Fatalf("the clock went back from %v to %v", shown, now)
		} else {
			shown = now
		}
	}
	if apart := shown.Sub(two.clock.Now()).Abs(); refused < 9 || refused > 10 || apart > clockAhead {
		t.Errorf("it took no answers %d times, and is %v apart", refused, apart)
	}
}

// TestOwnerRefuses has a leader that has not read for long, is not the last one, or does not know the node.
func TestOwnerRefuses(t *testing.T) {
	b := newBench(t)
	o := b.owner(1, 0)
	n := b.nodes[0]
	n.LearnEpoch(1)
	n.exchange(o, 0)
	b.now += epochTimeout - time.Millisecond
	n.exchange(o, 0)
	refused := func(want refusal) {
		t.Helper()
		if got := o.Respond(n.ask(0).LeaderRequest).Refused; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	b.now += time.Millisecond
	refused(refusedUnsure)
	o.ConfirmEpoch(b.now, 1)
	refused("")
	o.RemoveNode(n.Name)
	refused(refusedUnlisted)
	if !o.NeedsList() {
		t.Error("it does not look for the node")
	}
	o.SetMembers(map[string][]string{"a": {"shop"}})
	refused("")
	o.SetMembers(map[string][]string{"a": {"other"}})
	refused(refusedUnlisted)
	o.SetMembers(map[string][]string{"a": {"shop"}})
	b.now += 2 * time.Hour
	if silent := o.SilentNodes(time.Hour); len(silent) != 1 || silent[0] != "a" {
		t.Errorf("silent: %v", silent)
	}
	o.ConfirmEpoch(b.now, 2)
	refused(refusedNotLeader)
	o.ConfirmEpoch(b.now, 1) // a read that was under way
	refused(refusedNotLeader)
}

// TestRevoked has one node end a session. The other receives that with its next response, from each leader.
func TestRevoked(t *testing.T) {
	b := newBench(t)
	x, y := b.nodes[0], b.nodes[1]
	gone := Revocation{queue.TicketID{1}, benchBegin.Add(3 * time.Minute)}
	for epoch := int64(1); epoch < 3; epoch++ {
		o := b.owner(epoch, 0)
		for _, n := range b.nodes {
			n.LearnEpoch(epoch)
			n.exchange(o, 0)
			n.exchange(o, 0)
		}
		for range 2 { // told twice, it counts once
			q := x.ask(0)
			q.Revoked = []Revocation{gone}
			x.take(q, o.Respond(q.LeaderRequest))
		}
		q := y.ask(0)
		a := o.Respond(q.LeaderRequest)
		if len(a.Revoked) != 1 || a.Revoked[0] != gone || a.Next != 1 {
			t.Errorf("epoch %d: %+v, next %d", epoch, a.Revoked, a.Next)
		}
		q.After = a.Next
		if a := o.Respond(q.LeaderRequest); len(a.Revoked) != 0 {
			t.Errorf("epoch %d: told again: %+v", epoch, a.Revoked)
		}
		if epoch == 2 {
			b.now += 4 * time.Minute
			o.ConfirmEpoch(b.now, 2)
			q = y.ask(0)
			if a := o.Respond(q.LeaderRequest); len(a.Revoked) != 0 || a.Next != 1 {
				t.Errorf("told of one that is over: %+v, next %d", a.Revoked, a.Next)
			}
		}
	}
}

// TestRevokedForEver has a node revoke for longer than any session lasts: the leader forgets it in time, and so does each node.
func TestRevokedForEver(t *testing.T) {
	b := newBench(t)
	o := b.owner(1, 0)
	x, y := b.nodes[0], b.nodes[1]
	for _, n := range b.nodes {
		n.LearnEpoch(1)
		n.exchange(o, 0)
	}
	q := x.ask(0)
	q.Revoked = []Revocation{{queue.TicketID{1}, benchBegin.AddDate(1000, 0, 0)}}
	o.Respond(q.LeaderRequest)
	a := o.Respond(y.ask(0).LeaderRequest)
	if len(a.Revoked) != 1 || a.Revoked[0].Until.Sub(a.Now) > time.Hour {
		t.Errorf("%+v at %v", a.Revoked, a.Now)
	}
	b.now += time.Hour + time.Second
	o.ConfirmEpoch(b.now, 1)
	if o.Respond(y.ask(0).LeaderRequest); len(o.revoked["shop"].all) > 0 {
		t.Error("it is kept for ever")
	}
}

// TestLists holds a leader to reading the bucket's list again when a node may have come, and not for a question that no list answers.
func TestLists(t *testing.T) {
	b := newBench(t)
	o := b.owner(1, 0)
	has := SharedRoom{Settings: b.settings, Longest: time.Minute}
	o.settings = func(room string, _ *OriginResponses) (SharedRoom, bool) { return has, room == "shop" }
	listed := map[string][]string{"a": {"shop", "bar"}}
	o.SetMembers(listed)
	ask := func(node, centre, room string) (lists int, refused refusal) {
		for range 200 {
			refused = o.Respond(LeaderRequest{Node: node, Epoch: 1, Room: room, Report: &queue.Report{DataCentre: centre}}).Refused
			if o.NeedsList() {
				lists++
				o.SetMembers(listed)
			}
		}
		return lists, refused
	}
	for _, test := range []struct {
		node, centre, room string
		lists              int
		refused            refusal
	}{
		{"a", "a", "shop", 0, ""},
		{"a", "a", "bar", 0, refusedNoRoom},             // of which the owner has no room
		{"a", "a", "cafe", 0, refusedNoRoom},            // nor the list
		{"a", "b", "shop", 0, refusedUnlisted},          // in the name of another node
		{"b", "b", "shop", mostInVain, refusedUnlisted}, // which the list never has
	} {
		if lists, refused := ask(test.node, test.centre, test.room); lists != test.lists || refused != test.refused {
			t.Errorf("%v: the list was read %d times, and the answer is %q", test, lists, refused)
		}
	}
	listed["b"] = []string{}
	o.SetMembers(listed)
	if lists, refused := ask("b", "b", "shop"); lists != mostInVain || refused != refusedUnlisted {
		t.Errorf("a room that the node has not: the list was read %d times, and the answer is %q", lists, refused)
	}
	listed["b"] = []string{"shop"}
	o.SetMembers(listed)
	if lists, refused := ask("b", "b", "shop"); lists != 0 || refused != "" {
		t.Errorf("a node that is listed later is answered %q, and the list was read %d times", refused, lists)
	}
	delete(listed, "b")
	o.SetMembers(listed)
	if lists, _ := ask("b", "b", "shop"); lists != mostInVain {
		t.Errorf("when the bucket has lost the node, the list is read %d times", lists)
	}
	for i := range 2 * mostLacked {
		o.Respond(LeaderRequest{Node: fmt.Sprint(i), Epoch: 1})
		o.SetMembers(listed)
	}
	if len(o.vain) > mostLacked {
		t.Errorf("%d questions are remembered", len(o.vain))
	}
}

// TestCallsOutliveTheLeader has another node become the leader after a node has called visitors: it learns of the calls, so a visitor who
// comes to another node is redeemed. More tickets than one request has room for are asked about in the order in which they came.
func TestCallsOutliveTheLeader(t *testing.T) {
	now := benchBegin
	ids := func(n int) (all []queue.TicketID) {
		for i := range n {
			all = append(all, queue.TicketID{byte(i), byte(i >> 8), 1})
		}
		return all
	}
	const n = mostRedeemed + 100
	var home, away redemptions
	for _, id := range ids(n) {
		home.AddCalled(now, id)
		away.Want(queue.Ticket{ID: id})
	}
	request := func(r *redemptions, owner *calls, epoch int64, node string) (*LeaderRequest, *LeaderResponse) {
		q, a := &LeaderRequest{Node: node, Epoch: epoch}, &LeaderResponse{Now: now}
		r.AddTo(now, q)
		owner.exchange(q, a)
		return q, a
	}
	dc := queue.NewDataCentre("home", 1, newBench(t).settings, 1, now)
	for epoch := int64(1); epoch <= 2; epoch++ {
		leader := &calls{}
		for range 2 {
			q, a := request(&home, leader, epoch, "home")
			home.Apply(now, dc, q, a)
		}
		if len(leader.byTicket) != n {
			t.Errorf("leader %d knows %d calls of %d", epoch, len(leader.byTicket), n)
		}
		if q, a := request(&away, leader, epoch, "away"); len(a.Pending) != mostRedeemed || q.Redeem[0].ID != ids(1)[0] || q.Redeem[mostRedeemed-1].ID != ids(mostRedeemed)[mostRedeemed-1] {
			t.Errorf("leader %d has %d tickets that came elsewhere, want the first %d", epoch, len(a.Pending), mostRedeemed)
		}
		if _, a := request(&home, leader, epoch, "home"); len(a.Redeem) != mostRedeemed {
			t.Errorf("leader %d has %d tickets redeemed, want %d", epoch, len(a.Redeem), mostRedeemed)
		}
	}
	now = now.Add(callKept + time.Second)
	home.AddTo(now, &LeaderRequest{Epoch: 3})
	if len(home.called) != 0 {
		t.Errorf("%d calls are remembered that are over", len(home.called))
	}
}
