package waitingroom

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// unready is when a visitor comes back to a node that has yet to learn what time it is in the rooms. Visitors keep the
// tickets that they have.
const unready = 5 * time.Second

// Handler returns a handler that puts the rooms in front of next: a request that no room covers, or whose visitor is in, goes to
// next. It reads the path as the client sent it, so a router in front must neither clean the path nor redirect.
func (r *Rooms) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, next) })
}

// serve handles a request. Without a room that covers the request, next responds, and an ambiguous path is redirected. Otherwise
// the room decides: a visitor who is in gets the response of the room's upstream, or of next if the room has none; others get the
// waiting page, an event stream or another refusal.
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
		if !isPageView(req) && room.waitUntilReady(req.Context()) {
			r.serve(w, req, next)
			return
		}
		room.countOutcome(undecided)
		if !isPageView(req) {
			sendNotCarriedOut(w, req, http.StatusServiceUnavailable, unready)
			return
		}
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

// isPageView reports whether a request is GET or HEAD, which a browser repeats by itself once the waiting page has let the
// visitor in. The waiting page is no response to any other request: its success status would say that an order was taken.
func isPageView(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// findTicket returns the ticket of a visitor from the cookies in the request header h. Of several valid tickets, which a browser
// may have of several paths and partitions, one with a session comes before one that waits, and then the first one. known is
// false if there is no ticket, or only such whose session is over. passes says that the session needs no decision and no renewal
// by the data centre.
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

// sessionOf returns whether the session of an admitted ticket is over or revoked, passes, or passes and has to be renewed. It
// takes no lock and does not allocate.
func (r *room) sessionOf(now time.Time, m *config.EffectiveSettings, t *queue.Ticket) queue.Session {
	if r.revoked.contains(t.ID) {
		return queue.SessionOver
	}
	return m.Settings.Session(now, t)
}

// decide requests the data centre's decision about a visitor with ticket t, who has no session or one that must be renewed, and
// serves the request accordingly. m are the settings in force. If the room has a challenge, a visitor without a ticket must pass
// that before. Without a decision, whose error decide logs, a session passes, a page view gets the waiting page, and another
// request of a waiting visitor gets 503. If the ticket is worthless, decide continues with a new one.
func (r *Rooms) decide(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, m *config.EffectiveSettings, t queue.Ticket) {
	if room.checks != nil && t.First() && !room.checks.checkVisitor(w, req) {
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
			sendNotCarriedOut(w, req, http.StatusServiceUnavailable, unready)
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

// keepWaiting returns the decision to let a visitor wait, for use if the data centre makes none. A ticket that waits stays as it
// is; any other is replaced by one with the same ID that starts to wait now, with the refresh interval of m.
func keepWaiting(now time.Time, m *config.EffectiveSettings, t queue.Ticket) queue.Decision {
	if !t.First() && t.Waiting() {
		return queue.Decision{Outcome: queue.Wait, Ticket: t}
	}
	return queue.Decision{Outcome: queue.Wait, Changed: true, Ticket: queue.Ticket{
		ID: t.ID, Since: now, LastCheckIn: now, RefreshInterval: m.Settings.RefreshInterval,
	}}
}

// admit has next respond to a request that passes the room, and adds the room's header fields to the response. t is the visitor's
// ticket, zero for none. cookie is the value of a Set-Cookie field, "" for none.
func (r *room) admit(w http.ResponseWriter, req *http.Request, next http.Handler, t queue.Ticket, cookie string) {
	p := &admittedResponse{ResponseWriter: w, room: r, request: req, ticket: t, cookie: cookie}
	p.serve(next)
}

// redirectToCanonical redirects a client permanently (308) to path, which is percent-encoded, and keeps the query. Servers would
// read the path that the client requested in different ways, and all of them agree on this one.
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

// overTLS reports whether the client sent its request over HTTPS, to this server or to a trusted proxy in front.
func overTLS(req *http.Request) bool { return requests.Scheme(req) == "https" }

// clientAddress returns the address of the client without its port, invalid if it is not known. It does not turn an IPv4 address
// mapped to IPv6 into IPv4.
func clientAddress(req *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}

// Lane returns a handler for the server's fast path (package lane). It passes requests that no room covers to next. It leaves all
// others, and those to which next does not respond, to net/http, and so to [Rooms.Handler]. The others include a request with a
// field by which a proxy may name another host, if a room covers its path on some host: only net/http knows whether it trusts
// that proxy.
func (r *Rooms) Lane(next lane.Handler) lane.Handler { return &uncovered{r, next} }

// An uncovered handler responds to requests that no room covers.
type uncovered struct {
	rooms *Rooms
	next  lane.Handler
}

// Answer implements lane.Handler. It returns false, which leaves the request to net/http, if a room may cover it or next does not
// respond.
func (u *uncovered) Answer(x *lane.Exchange) bool {
	table := u.rooms.currentRooms().table
	covered := table.Covers(x.Host, x.Path) || x.Forwarded && table.CoversSomewhere(x.Path)
	return !covered && u.next.Answer(x)
}
