package waitingroom

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Handler returns the rooms in front of next. It looks at the path as it came, so a router
// in front must neither clean it nor redirect.
func (r *Rooms) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, next) })
}

func (r *Rooms) serve(w http.ResponseWriter, req *http.Request, next http.Handler) {
	raw := requests.RawPath(req.URL)
	covering, canonical := r.table.Find(req.Host, raw)
	if canonical != "" {
		redirect(w, req, canonical)
		return
	}
	if covering == nil {
		next.ServeHTTP(w, req)
		return
	}
	room := r.byName[covering.Name]
	if room.upstream != nil {
		next = room.upstream
	}
	now := room.now()
	m := room.at(now)
	if m.Settings.Suspended {
		next.ServeHTTP(w, req)
		return
	}
	if covering.Rules != nil && covering.Bypassed(req, raw, peer(req)) {
		room.count(bypassed)
		room.pass(w, req, next, queue.Ticket{}, "")
		return
	}
	t, known := room.jar.find(req.Header)
	if known && !t.Waiting() {
		switch room.session(now, m, &t) {
		case queue.SessionPasses:
			room.count(passed)
			room.pass(w, req, next, t, "")
			return
		case queue.SessionOver:
			known = false
		}
	}
	if part(req, known) || room.parts.perMinute < 0 && !known && mute(req) {
		room.subresource(w, req, next, now)
		return
	}
	if !known {
		t = newTicket()
	}
	r.decide(w, req, next, room, m, t)
}

// session says what an accepted ticket is worth. It takes no lock and does not allocate.
func (r *room) session(now time.Time, m *config.Moment, t *queue.Ticket) queue.Session {
	if r.revoked.has(t.ID) {
		return queue.SessionOver
	}
	return m.Settings.Session(now, t)
}

// decide asks the data centre about a request without a session, or with a session to be
// renewed.
func (r *Rooms) decide(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, m *config.Moment, t queue.Ticket) {
	now := room.now()
	room.came()
	var d queue.Decision
	err := errStopped
	if !r.options.Frozen {
		err = room.do(req.Context(), func(ctx context.Context, s *durable.State, c *centre) (err error) {
			d, err = c.visit(ctx, s, t)
			return err
		})
	}
	if err != nil {
		room.count(undecided)
		if !errors.Is(err, errStopped) {
			r.options.Logger.Error("waitingroom: couldn't decide about a visitor, who has to wait", "room", room.config.Name, "err", err)
		}
		if !t.Waiting() {
			room.pass(w, req, next, t, "") // the session is not over; a later request renews it
			return
		}
		d = hold(now, m, t)
	}
	t = d.Ticket
	cookie := func(keep time.Duration) string {
		if !d.Changed {
			return ""
		}
		return setCookie(room.config, room.jar.seal(&t), keep, overTLS(req))
	}
	switch d.Outcome {
	case queue.Pass:
		if d.Changed && !t.AcceptedAt.Before(now) { // else it renews, or is an old ticket of a session
			room.countAdmitted(now.Sub(t.Since))
			room.analytics.admit(now, t)
		} else {
			room.count(passed)
		}
		if d.Changed {
			room.analytics.see(now, t)
		}
		room.pass(w, req, next, t, cookie(t.Ends.Sub(now)))
	case queue.Refuse:
		room.count(refused)
		r.answer(w, req, room, m, d, "")
	default:
		room.count(waiting)
		r.answer(w, req, room, m, d, cookie(t.RefreshInterval+m.Settings.PlaceKept))
	}
}

// hold is the decision where the data centre makes none: to wait, with the place that the
// ticket has, without a chance having been used.
func hold(now time.Time, m *config.Moment, t queue.Ticket) queue.Decision {
	if !t.First() && t.Waiting() {
		return queue.Decision{Outcome: queue.Wait, Ticket: t}
	}
	return queue.Decision{Outcome: queue.Wait, Changed: true, Ticket: queue.Ticket{
		ID: t.ID, Since: now, LastCheckIn: now, RefreshInterval: m.Settings.RefreshInterval,
	}}
}

// subresource answers for a part of a page, in whose place no page is shown, and which may
// carry no ticket.
func (r *room) subresource(w http.ResponseWriter, req *http.Request, next http.Handler, now time.Time) {
	ok, again := r.parts.take(now)
	if ok {
		r.count(partPassed)
		r.pass(w, req, next, queue.Ticket{}, "")
		return
	}
	r.count(partHeld)
	tooMany(w, req, again)
}

// shown are the values of Sec-Fetch-Dest (Fetch Metadata §2.1) of requests whose answer a
// browser shows or hands to a program of the page. All others are parts of a page.
var shown = map[string]bool{"": true, "document": true, "iframe": true, "frame": true, "embed": true, "object": true, "empty": true}

// part reports whether a request is for a part of a page, which is not queued by ticket. A
// preflight (Fetch §4.8) never carries cookies.
func part(req *http.Request, known bool) bool {
	if !shown[req.Header.Get("Sec-Fetch-Dest")] {
		return true
	}
	return !known && req.Method == http.MethodOptions && req.Header.Get("Access-Control-Request-Method") != "" && req.Header.Get("Origin") != ""
}

// mute reports whether a client neither shows pages nor has sent a cookie, so that it would
// lose a ticket.
func mute(req *http.Request) bool {
	return req.Header["Cookie"] == nil && page.FormOf(req.Header["Accept"], true) == page.Neither
}

// pass hands a request on, and sets the headers of its answer. t is the ticket by which it
// passes, if there is one.
func (r *room) pass(w http.ResponseWriter, req *http.Request, next http.Handler, t queue.Ticket, cookie string) {
	p := &passing{ResponseWriter: w, room: r, request: req, ticket: t, cookie: cookie}
	next.ServeHTTP(p, req)
	p.begin() // the answer of a handler that wrote nothing
}

// redirect leads a client from a path that servers read in different ways to the path that
// they agree on.
func redirect(w http.ResponseWriter, req *http.Request, path string) {
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

// peer is the address of the client, port left out.
func peer(req *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}

// An allowance lets so many requests pass in each minute: none at 0, all at a negative number.
type allowance struct {
	perMinute int64

	mu     sync.Mutex
	minute int64
	used   int64
}

// take uses one, or returns how long it takes until there are more.
func (a *allowance) take(now time.Time) (ok bool, again time.Duration) {
	if a.perMinute < 0 {
		return true, 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := now.Unix() / 60; m != a.minute {
		a.minute, a.used = m, 0
	}
	if a.used < a.perMinute {
		a.used++
		return true, 0
	}
	return false, time.Unix((a.minute+1)*60, 0).Sub(now)
}

// Lane returns the rooms in front of the fast lane, which leaves requests that a room
// covers to net/http, and so to [Rooms.Handler]. So it does where a field may say that a proxy was asked for
// another host, on which a room might cover the path: whether that proxy is trusted is known there.
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
