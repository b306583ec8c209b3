package waitingroom

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// unready is when a visitor comes back to a node that has yet to learn what time it is in the rooms. Visitors keep the
// tickets that they have.
const unready = 5 * time.Second

// Handler returns a handler that puts the rooms in front of next. It reads the path as the client sent it, so a router in front
// must neither clean the path nor redirect.
func (r *Rooms) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, next) })
}

// serve passes a request to next, or to its room if there is one.
func (r *Rooms) serve(w http.ResponseWriter, req *http.Request, next http.Handler) {
	raw := requests.RawPath(req.URL)
	rooms := r.currentRooms()
	covering, canonical := rooms.table.Find(req.Host, raw)
	if canonical != "" {
		redirectToCanonical(w, req, canonical)
		return
	}
	if covering == nil {
		next.ServeHTTP(w, req)
		return
	}
	room := rooms.byName[covering.Name]
	if room.upstream != nil {
		next = room.upstream
	}
	now := room.now()
	m := room.settingsAt(now)
	if m.Settings.Suspended {
		next.ServeHTTP(w, req)
		return
	}
	if covering.Rules != nil {
		if bypasses, everybody := covering.Bypassed(req, raw, clientAddress(req)); bypasses {
			room.countOutcome(bypassed)
			p := &admittedResponse{ResponseWriter: w, room: room, request: req, public: everybody}
			p.serve(next)
			return
		}
	}
	if !room.isReady() {
		if !isPageView(req) {
			if room.waitUntilReady(req.Context()) {
				r.serve(w, req, next)
				return
			}
			room.countOutcome(undecided)
			notCarriedOut(w, req, http.StatusServiceUnavailable, unready)
			return
		}
		room.countOutcome(undecided)
		r.sendWaiting(w, req, room, m, queue.Decision{Outcome: queue.Wait, Ticket: queue.Ticket{LastCheckIn: now, RefreshInterval: unready}}, "")
		return
	}
	t, known, passes := room.findTicket(req.Header, now, m)
	if passes {
		room.countOutcome(passed)
		room.admit(w, req, next, t, "")
		return
	}
	if wantsStream(req) && (!known || t.Waiting()) {
		r.serveStream(w, req, room, m, t, known)
		return
	}
	if isSubresource(req, known) || covering.SubresourcesPerMinute < 0 && !known && isProgram(req) {
		r.serveSubresource(w, req, next, room, m, raw)
		return
	}
	if !known {
		t = newTicket()
	}
	r.decide(w, req, next, room, m, t)
}

// isPageView reports whether a request is GET or HEAD, which a browser repeats by itself once the waiting page has let the visitor
// in. The waiting page is no response to any other request: its success status would say that an order was taken.
func isPageView(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// findTicket returns the ticket that counts of those that a request has, and whether it passes without a decision of the data
// centre. A browser can send tickets of several paths and partitions: one that was admitted counts before one that waits.
func (r *room) findTicket(h http.Header, now time.Time, m *config.EffectiveSettings) (counts queue.Ticket, known, passes bool) {
	for t := range r.codec.readTickets(h) {
		if !t.Waiting() {
			switch r.sessionOf(now, m, &t) {
			case queue.SessionPasses:
				return t, true, true
			case queue.SessionOver:
				continue
			}
		}
		if !known || counts.Waiting() && !t.Waiting() {
			counts, known = t, true
		}
	}
	return counts, known, false
}

// sessionOf returns the state of an accepted ticket's session. It takes no lock and does not allocate.
func (r *room) sessionOf(now time.Time, m *config.EffectiveSettings, t *queue.Ticket) queue.Session {
	if r.revoked.contains(t.ID) {
		return queue.SessionOver
	}
	return m.Settings.Session(now, t)
}

// decide has the data centre decide about a request without a session, or with a session to be renewed, and serves it accordingly.
// If the room has a challenge, a visitor without a ticket must pass that before.
func (r *Rooms) decide(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, m *config.EffectiveSettings, t queue.Ticket) {
	if room.checks != nil && t.First() && !room.checks.passes(w, req) {
		room.countOutcome(challenged)
		return
	}
	if t.Waiting() && room.upstream != nil {
		room.upstream.probe(req.Context(), false)
	}
	now := room.now()
	room.wakeReports()
	var d queue.Decision
	err := errStopped
	if !r.options.Frozen {
		err = room.do(req.Context(), func(ctx context.Context, s *durable.State, c *centre) (err error) {
			d, err = c.decideVisit(ctx, s, t)
			return err
		})
	}
	if err != nil {
		room.countOutcome(undecided)
		if !errors.Is(err, errStopped) {
			r.options.Logger.Error("waitingroom: couldn't decide about a visitor, who has to wait", "room", room.config.Name, "err", err)
		}
		if !t.Waiting() {
			room.parts.recordAddress(req, &t, now)
			room.admit(w, req, next, t, "") // the session is not over; a later request renews it
			return
		}
		if !isPageView(req) {
			notCarriedOut(w, req, http.StatusServiceUnavailable, unready)
			return
		}
		d = keepWaiting(now, m, t)
	}
	if d.Outcome == queue.Reissue {
		r.decide(w, req, next, room, m, newTicket())
		return
	}
	t = d.Ticket
	cookie := func(keep time.Duration) string {
		if !d.Changed {
			return ""
		}
		return newSetCookie(room.config, room.codec.seal(&t), keep, overTLS(req))
	}
	switch d.Outcome {
	case queue.Pass:
		if d.Changed && !t.AcceptedAt.Before(now) { // else it renews, or is an old ticket of a session
			room.countAdmitted(now.Sub(t.Since))
			room.analytics.countAdmission(now, t)
		} else {
			room.countOutcome(passed)
		}
		if d.Changed {
			room.analytics.countSession(now, t)
		}
		if d.Changed && !t.LastCheckIn.Before(now) { // an old ticket that is sent again and again vouches for no address
			room.parts.recordAddress(req, &t, now)
		}
		room.admit(w, req, next, t, cookie(t.Ends.Sub(now)))
	case queue.Refuse:
		room.countOutcome(refused)
		r.sendWaiting(w, req, room, m, d, "")
	default:
		room.countOutcome(waiting)
		r.sendWaiting(w, req, room, m, d, cookie(t.RefreshInterval+m.Settings.PlaceKept))
	}
}

// keepWaiting returns the decision if the data centre makes none. A ticket that waits stays as it is; any other is replaced by one
// that starts to wait now, with the refresh interval of m.
func keepWaiting(now time.Time, m *config.EffectiveSettings, t queue.Ticket) queue.Decision {
	if !t.First() && t.Waiting() {
		return queue.Decision{Outcome: queue.Wait, Ticket: t}
	}
	return queue.Decision{Outcome: queue.Wait, Changed: true, Ticket: queue.Ticket{
		ID: t.ID, Since: now, LastCheckIn: now, RefreshInterval: m.Settings.RefreshInterval,
	}}
}

// admit passes a request to next, and sets the room's headers in the response. t is the ticket by which it is admitted, zero for
// none.
func (r *room) admit(w http.ResponseWriter, req *http.Request, next http.Handler, t queue.Ticket, cookie string) {
	p := &admittedResponse{ResponseWriter: w, room: r, request: req, ticket: t, cookie: cookie}
	p.serve(next)
}

// redirectToCanonical redirects a client for good (308), with its query, from a path that servers read in different ways to path,
// on which they agree.
func redirectToCanonical(w http.ResponseWriter, req *http.Request, path string) {
	h := w.Header()
	if req.URL.RawQuery != "" {
		path += "?" + req.URL.RawQuery
	}
	h.Set("Location", path)
	h.Set("Cache-Control", private)
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusPermanentRedirect)
}

// overTLS reports whether the client uses HTTPS.
func overTLS(req *http.Request) bool { return client.Scheme(req) == "https" }

// clientAddress returns the address of the client without its port, invalid if it is not known.
func clientAddress(req *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}

// Lane returns a lane handler that leaves requests which a room covers to net/http, and so to [Rooms.Handler], and passes others to
// next. It also leaves requests with a field by which a proxy may name another host: only net/http knows whether it trusts that
// proxy.
func (r *Rooms) Lane(next lane.Handler) lane.Handler { return &uncovered{r, next} }

type uncovered struct {
	rooms *Rooms
	next  lane.Handler
}

// Answer implements lane.Handler.
func (u *uncovered) Answer(x *lane.Exchange) bool {
	covered := u.rooms.Covers(x.Host, x.Path) || x.Forwarded && u.rooms.coversSomewhere(x.Path)
	return !covered && u.next.Answer(x)
}
