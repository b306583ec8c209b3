package simulate

import (
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// streamLasts is how long an event stream lasts, after which the user opens another one.
const streamLasts = 2 * time.Minute

// openStream has the user with the number i open an event stream, if it waits. If the data centre refuses that or is down, the
// user requests the page a second later.
func (r *run) openStream(i int32) {
	u := &r.users[i]
	if u.state != waiting {
		return
	}
	s := r.findSite(u.site)
	ok := !s.down && r.now < u.gives
	if ok {
		delete(r.streams, u.ticket.ID)
		renewed, standing := s.dc.OpenStream(s.clock(r), u.ticket, 2*streamLasts)
		u.ticket, ok = renewed, standing == queue.InLine
		s.saveJournal()
	}
	if !ok {
		r.events.push(event{r.now + time.Second, userVisits, i, 0})
		return
	}
	u.site = int(r.indexOf(s))
	r.streams[u.ticket.ID] = i
	r.events.push(event{min(u.gives, r.now+streamLasts), streamOpens, i, 0})
}

// endStreams ends the event streams at a data centre, which goes down. Their users open other ones a second later.
func (r *run) endStreams(site int) {
	for i := range r.users {
		if u := &r.users[i]; u.state == waiting && u.site == site && r.streams[u.ticket.ID] == int32(i) {
			r.events.push(event{r.now + time.Second + time.Duration(r.rng.Int64N(int64(500*time.Millisecond))), streamOpens, int32(i), 0})
		}
	}
}

// deliverCalls schedules the requests of the users whom data centres have called over their event streams.
func (r *run) deliverCalls() {
	for k := range r.sites {
		for _, c := range r.sites[k].dc.TakeCalls() {
			i, ok := r.streams[c.ID]
			if u := &r.users[i]; ok && u.state == waiting && u.ticket.ID == c.ID {
				u.Called = r.now + max(0, c.At.Sub(r.sites[k].clock(r)))
				comes := time.Second
				if r.Slow > 0 && r.rng.Float64() < r.Slow {
					comes = queue.CallDuration - time.Second
				}
				r.events.push(event{u.Called + 100*time.Millisecond + time.Duration(r.rng.Int64N(int64(comes))), userVisits, i, 0})
			}
		}
	}
}
