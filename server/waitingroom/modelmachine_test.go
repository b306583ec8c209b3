package waitingroom

import (
	"container/heap"
	"fmt"
	"maps"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A machine is a node: what dies with its process, and what does not.
type machine struct {
	*model
	index int
	name  string
	wall  time.Duration // its clock is so far from the true one

	alive  bool
	paused bool
	life   int
	inbox  []letter // while it is paused

	started time.Duration
	clock   *Clock
	member  *Member
	owner   *Leader
	dc      *queue.DataCentre
	first   bool
	flying  *SentRequest
	pending []*visitor
	late    []*visitor
	calls   redemptions
	due     time.Duration // the next report
	looked  time.Duration
	beat    time.Duration
	heard   time.Duration // when the writer's sign changed
	sign    string

	journal map[queue.TicketID][]byte
	head    []byte
	lives   int64
	had     bool // the bucket listed it before it had a life
}

func (m *machine) start() {
	m.life++
	m.alive, m.paused, m.started = true, false, m.now
	w, began := m.model, m.now
	m.clock = NewClock(func() time.Duration { return w.now - began }, w.begin.Add(w.now+m.wall))
	m.member = NewMember(m.name, m.clock)
	m.owner, m.dc, m.flying, m.pending, m.late, m.calls = nil, nil, nil, nil, nil, redemptions{}
	m.inbox, m.looked, m.sign, m.heard = nil, -time.Hour, "", m.now
}

// open begins or continues the data centre, once it is known what time it is.
func (m *machine) open(s queue.Settings) {
	if m.dc != nil || !m.clock.Known() {
		return
	}
	if m.head != nil {
		dc, err := queue.ContinueDataCentre(m.name, m.head, maps.All(m.journal), s, m.rng.Uint64(), m.clock.Now())
		if err != nil {
			m.Fatal(err)
		}
		m.dc = dc
	} else {
		m.first = m.lives == 0 && !m.had
		m.lives = max(m.lives+1, m.clock.Now().UnixNano())
		m.dc = queue.NewDataCentre(m.name, m.lives, s, m.rng.Uint64(), m.clock.Now())
		m.dc.StartJournal()
		m.journal = map[queue.TicketID][]byte{}
	}
	m.note()
	m.due = m.now
}

func (m *machine) note() {
	for _, c := range m.dc.TakeCalls() {
		m.calls.AddCalled(m.clock.Now(), c.ID)
		m.due = m.now
		for _, v := range m.users {
			if v.ticket.ID == c.ID && v.stream { // it comes, perhaps to another node, and perhaps in the next minute
				v.next, v.at = m.now+m.span(modelStep, []time.Duration{2 * time.Second, queue.CallDuration}[m.rng.IntN(2)]), m.rng.IntN(len(m.all))
			}
		}
	}
	rows, head := m.dc.TakeChanges()
	for _, c := range rows {
		if c.Row == nil {
			delete(m.journal, c.ID)
		} else {
			m.journal[c.ID] = c.Row
		}
	}
	if head != nil {
		m.head = head
	}
}

// look reads the bucket, as the process does each second.
func (m *machine) look() {
	if m.cut[[2]int{m.index, -1}] || m.now-m.looked < time.Second {
		return
	}
	m.looked = m.now
	if m.listed[m.name] == nil {
		m.listed[m.name] = []string{modelRoom}
	} else if m.lives == 0 && m.dc == nil && m.life > 1 {
		m.had = true
	}
	began, highest := m.clock.elapsed(), int64(len(m.owners))
	heap.Push(&m.mail, letter{m.now + m.delay()/3, m.index, m.life, func(m *machine) { m.learn(began, highest) }})
	m.vie()
}

func (m *machine) learn(began time.Duration, highest int64) {
	if before, _ := m.member.Epoch(); highest > before && m.flying != nil { // harsher than the process, which waits for the answer
		m.settle()
	}
	m.member.LearnEpoch(highest)
	if m.owner != nil {
		m.owner.ConfirmEpoch(began, highest)
		if m.owner.NeedsList() {
			m.owner.SetMembers(maps.Clone(m.listed))
		}
	}
	if _, follows := m.member.Epoch(); !follows && highest > 0 {
		m.ask()
	}
}

// vie has the machine take the place of a writer that has not been heard of.
func (m *machine) vie() {
	latest := int64(len(m.owners))
	if m.owner != nil && m.owner.Epoch() == latest {
		if m.now-m.beat >= 2*time.Second {
			m.beat, m.beats[latest] = m.now, m.now
		}
		return
	}
	if sign := fmt.Sprint(latest, m.beats[latest]); sign != m.sign {
		m.sign, m.heard = sign, m.now
	}
	hasty := m.now < modelQuiet && m.rng.IntN(200) == 0 // like a leader that is asked to end, or a candidate that has read too little
	if latest > 0 && m.now-m.heard < 6*time.Second && !hasty {
		return
	}
	m.owners = append(m.owners, m.index)
	m.takeovers++
	epoch := latest + 1
	m.beats[epoch], m.beat = m.now, m.now
	// The process restarts; its data centre continues.
	m.dc, m.flying, m.pending, m.late, m.owner, m.calls = nil, nil, nil, nil, nil, redemptions{}
	m.life++
	heap.Push(&m.mail, letter{m.now + m.span(0, 2*time.Second), m.index, m.life, func(m *machine) {
		s := modelSettings(m.T)
		m.member = NewMember(m.name, m.clock)
		m.member.LearnEpoch(epoch)
		m.owner = NewLeader(epoch, m.clock, func(string, *OriginResponses) (SharedRoom, bool) {
			return SharedRoom{Settings: s, Longest: s.SessionDuration}, true
		})
		listed := maps.Clone(m.listed)
		if m.mutant == neverWaiting {
			listed = map[string][]string{m.name: {modelRoom}}
		}
		m.owner.SetMembers(listed)
	}})
}

// ask puts a question: a report, where there is a data centre.
func (m *machine) ask() {
	epoch, _ := m.member.Epoch()
	if epoch == 0 || m.flying != nil && m.now-m.started-m.flying.at < responseTimeout {
		return
	}
	q := m.member.NewRequest()
	if m.dc != nil {
		r := m.dc.Report(m.clock.Now())
		m.dc.AddAccount(&r, m.first)
		if m.mutant == forgettingGrants {
			r.Account.Grants, r.Minutes = nil, nil // the charges would say how many grants there are at least
		}
		m.note()
		q.AddReport(modelRoom, r)
		m.calls.AddTo(m.clock.Now(), &q.LeaderRequest)
		m.due = m.now + max(m.dc.NextReport(m.clock.Now()).Sub(m.clock.Now()), time.Millisecond)
		if m.dc.HasCalled(m.clock.Now()) {
			m.due = min(m.due, m.now+250*time.Millisecond)
		}
	}
	m.flying, m.pending, m.late = q, append(m.pending, m.late...), nil
	from := m.index
	to := m.owners[epoch-1]
	m.send(from, to, func(owner *machine) {
		if owner.owner == nil {
			return
		}
		if owner.mutant == alwaysSure {
			owner.owner.ConfirmEpoch(owner.clock.elapsed(), 0)
		}
		a := owner.owner.Respond(q.LeaderRequest)
		owner.send(owner.index, from, func(m *machine) { m.take(q, a) })
	})
}

func (m *machine) take(q *SentRequest, a LeaderResponse) {
	st, err := m.member.AcceptResponse(q, a)
	m.open(modelSettings(m.T))
	if err == nil && st != nil && m.dc != nil {
		m.dc.Apply(m.clock.Now(), *st)
	}
	if q == m.flying {
		again := err == nil && st == nil
		if err == nil && m.dc != nil && q.Report != nil {
			again = m.calls.Apply(m.clock.Now(), m.dc, &q.LeaderRequest, &a) || again
			m.note()
		}
		m.settle()
		if again {
			m.ask()
		}
	}
}

// settle answers the visitors who have waited for a question.
func (m *machine) settle() {
	pending := m.pending
	m.flying, m.pending = nil, nil
	for _, v := range pending {
		switch wanted := v.wanted; {
		case wanted != nil && wanted.Session == nil && wanted.Pending && m.dc != nil: // asks again
			m.late = append(m.late, v)
			continue
		case wanted != nil:
			v.wanted = nil
			m.calls.Done(wanted)
			if m.dc != nil && wanted.Session != nil {
				if d, ok := m.dc.PassRedeemed(m.clock.Now(), *wanted.Session); ok {
					m.redeemed++
					m.decided(v, d, true)
					continue
				}
			}
		}
		if m.dc != nil {
			m.decided(v, m.dc.Settle(m.clock.Now(), v.ticket), false)
		}
	}
	if len(m.late) > 0 {
		m.ask()
	}
}

func (m *machine) visit(v *visitor) {
	v.next = m.now + m.span(3*time.Second, 15*time.Second)
	if v.held != nil && v.held.dc != nil && !v.held.paused {
		v.held.dc.CloseStream(v.held.clock.Now(), v.ticket.ID)
		v.held.note()
	}
	v.held = nil
	if m.now >= v.leaves {
		v.gone = true
		return
	}
	if !m.alive || m.paused || m.dc == nil {
		return
	}
	s := modelSettings(m.T)
	if !v.ticket.Waiting() {
		switch s.Session(m.clock.Now(), &v.ticket) {
		case queue.SessionPasses:
			return
		case queue.SessionOver:
			m.fresh(v)
		}
	}
	if v.wanted != nil {
		m.calls.Done(v.wanted)
		v.wanted = nil
	}
	if m.dc.MayBeCalledElsewhere(&v.ticket) {
		v.wanted = m.calls.Want(v.ticket)
	}
	d := queue.Decision{Outcome: queue.Draw}
	if v.wanted == nil {
		d = m.dc.Visit(m.clock.Now(), v.ticket)
	}
	if d.Outcome == queue.Draw {
		m.late = append(m.late, v)
		if m.flying == nil {
			m.ask()
		}
		return
	}
	m.decided(v, d, false)
}

func (m *machine) decided(v *visitor, d queue.Decision, redeemed bool) {
	m.note()
	switch d.Outcome {
	case queue.Reissue:
		m.fresh(v)
	case queue.Wait:
		v.ticket = d.Ticket
		v.next = max(m.now+modelStep, m.now+d.Ticket.LastCheckIn.Add(d.Ticket.RefreshInterval).Sub(m.clock.Now()))
		if v.stream {
			var standing queue.Standing
			v.ticket, standing = m.dc.OpenStream(m.clock.Now(), v.ticket, 4*time.Minute)
			m.note()
			if standing == queue.InLine { // until it is called, or the stream ends
				v.next, v.held = m.now+m.span(20*time.Second, 2*time.Minute), m
			}
		}
	case queue.Pass:
		if !v.inside {
			v.inside, v.leaves = true, m.now+m.span(20*time.Second, 4*time.Minute)
			m.admitted++
			if m.now > modelQuiet+modelAway {
				m.afterwards++
			}
			minute := queue.MinuteOf(m.clock.Now())
			if !redeemed && d.Ticket.AcceptedAt.Before(m.clock.Now()) {
				m.lost++ // the node admitted the visitor for another one, where the session did not arrive
			}
			m.inMinute[minute]++
			m.rate = max(m.rate, m.inMinute[minute])
		}
		v.ticket = d.Ticket
		if d.Ticket.Ends.After(m.ends[d.Ticket.ID]) {
			m.ends[d.Ticket.ID] = d.Ticket.Ends
		}
	}
}
