package waitingroom

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// Handler returns the rooms in front of next. It looks at the path as it came, so a router
// in front must neither clean it nor redirect.
func (r *Rooms) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, next) })
}

func (r *Rooms) serve(w http.ResponseWriter, req *http.Request, next http.Handler) {
	raw := rawPath(req.URL)
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
	now := r.now()
	m := room.momentAt(now)
	if m.settings.Suspended {
		next.ServeHTTP(w, req)
		return
	}
	if covering.Rules != nil && covering.Bypassed(req, raw, peer(req)) {
		r.metrics.count(room, bypassed)
		room.pass(w, req, next, ticket.Ticket{}, nil)
		return
	}
	t, ours := room.jar.Find(req.Header)
	if ours && !t.Waiting() {
		switch room.session(now, m, &t) {
		case queue.SessionPasses:
			r.metrics.count(room, passed)
			room.pass(w, req, next, t, nil)
			return
		case queue.SessionOver:
			ours = false
		}
	}
	if part(req, ours) || room.parts.perMinute < 0 && !ours && mute(req) {
		r.subresource(w, req, next, room, now)
		return
	}
	r.decide(w, req, next, room, m, t, ours)
}

// session says what an accepted ticket is worth. It takes no lock and allocates nothing.
func (r *room) session(now time.Time, m *moment, t *ticket.Ticket) queue.Session {
	if r.revoked.has(t.ID) {
		return queue.SessionOver
	}
	v := visitor(t)
	return m.settings.Session(now, &v)
}

// decide asks the data centre about whoever has no session, or one that is to be renewed.
func (r *Rooms) decide(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, m *moment, t ticket.Ticket, ours bool) {
	now := r.now()
	if !ours {
		t = ticket.Ticket{ID: ticket.NewID(), Since: now}
	}
	room.came()
	d, err := r.ask(req, room, m, &t)
	if err != nil {
		r.metrics.count(room, undecided)
		if !errors.Is(err, errStopped) {
			r.options.Logger.Error("waitingroom: couldn't decide about a visitor, who waits", "room", room.config.Name, "err", err)
		}
		if ours && !t.Waiting() {
			room.pass(w, req, next, t, nil) // its session is not over; it is renewed another time
			return
		}
		d = room.stay(now, m, t)
	}
	switch d.Outcome {
	case queue.Pass:
		admitted := !d.Visitor.AcceptedAt.Before(now) // else an old ticket of a session that there is
		t = remember(d.Visitor, t.Since)
		if !d.Changed {
			r.metrics.count(room, passed)
			room.pass(w, req, next, t, nil)
			return
		}
		if admitted {
			r.metrics.admitted(room, now.Sub(t.Since))
			room.analytics.admit(now, t)
		} else {
			r.metrics.count(room, passed)
		}
		room.analytics.see(now, t)
		room.pass(w, req, next, t, []string{ticket.Cookie(room.config, room.jar.Seal(&t), t.Ends.Sub(now), overTLS(req))})
	case queue.Refuse:
		r.metrics.count(room, refused)
		r.answer(w, req, room, m, d, "")
	default:
		r.metrics.count(room, waiting)
		cookie := ""
		if d.Changed {
			t = remember(d.Visitor, t.Since)
			cookie = ticket.Cookie(room.config, room.jar.Seal(&t), t.RefreshInterval+m.settings.PlaceKept, overTLS(req))
		}
		r.answer(w, req, room, m, d, cookie)
	}
}

// ask has the data centre decide. A ticket that is worth nothing is replaced by a new one.
func (r *Rooms) ask(req *http.Request, room *room, m *moment, t *ticket.Ticket) (queue.Decision, error) {
	v := visitor(t)
	if t.LastCheckIn.IsZero() {
		v = queue.Visitor{ID: queue.TicketID(t.ID)}
	}
	const attempts = 3
	for range attempts {
		a, err := room.send(req.Context(), event{moment: m, visit: &v})
		if err != nil || a.decision.Outcome != queue.Reissue {
			return a.decision, err
		}
		*t = ticket.Ticket{ID: ticket.NewID(), Since: r.now()}
		v = queue.Visitor{ID: queue.TicketID(t.ID)}
	}
	return room.stay(r.now(), m, *t), nil
}

// stay is the decision about whom nobody can decide: to wait, with the place that the
// ticket has, without a chance having been used.
func (r *room) stay(now time.Time, m *moment, t ticket.Ticket) queue.Decision {
	v := visitor(&t)
	if !v.First() && v.AcceptedAt.IsZero() {
		return queue.Decision{Outcome: queue.Wait, Visitor: v}
	}
	return queue.Decision{Outcome: queue.Wait, Changed: true, Visitor: queue.Visitor{
		ID: v.ID, Bucket: queue.MinuteOf(now), LastCheckIn: now, RefreshInterval: m.settings.RefreshInterval,
	}}
}

// subresource answers for a part of a page, which nobody would show a page in place of
// and which may carry no ticket.
func (r *Rooms) subresource(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, now time.Time) {
	ok, again := room.parts.take(now)
	if ok {
		r.metrics.count(room, partPassed)
		room.pass(w, req, next, ticket.Ticket{}, nil)
		return
	}
	r.metrics.count(room, partHeld)
	tooMany(w, req, again)
}

// shown are the values of Sec-Fetch-Dest (Fetch Metadata §2.1) of what a browser shows or
// hands to a program of the page. All others are parts of a page.
var shown = map[string]bool{"": true, "document": true, "iframe": true, "frame": true, "embed": true, "object": true, "empty": true}

// part reports whether a request is for a part of a page. Such a one is not queued by
// ticket. A preflight (Fetch §4.8) has no cookies whatever the client has.
func part(req *http.Request, ours bool) bool {
	if !shown[req.Header.Get("Sec-Fetch-Dest")] {
		return true
	}
	return !ours && req.Method == http.MethodOptions && req.Header.Get("Access-Control-Request-Method") != "" && req.Header.Get("Origin") != ""
}

// mute reports whether a client neither shows pages nor has shown that it keeps cookies,
// so that a ticket would be lost on it.
func mute(req *http.Request) bool {
	return req.Header["Cookie"] == nil && page.FormOf(req.Header["Accept"], true) == page.Neither
}

// pass hands a request on, with what has to be said of its answer. t is the ticket that
// it goes in by, if there is one.
func (r *room) pass(w http.ResponseWriter, req *http.Request, next http.Handler, t ticket.Ticket, cookies []string) {
	p := &passing{ResponseWriter: w, room: r, request: req, ticket: t, cookies: cookies}
	next.ServeHTTP(p, req)
	p.finish()
}

func visitor(t *ticket.Ticket) queue.Visitor {
	v := queue.Visitor{
		ID: queue.TicketID(t.ID), LastCheckIn: t.LastCheckIn, RefreshInterval: t.RefreshInterval, AcceptedAt: t.Accepted, Ends: t.Ends,
	}
	if !t.Bucket.IsZero() {
		v.Bucket = queue.MinuteOf(t.Bucket)
	}
	return v
}

func remember(v queue.Visitor, since time.Time) ticket.Ticket {
	return ticket.Ticket{
		ID: ticket.ID(v.ID), Bucket: v.Bucket.Time(), Since: since, LastCheckIn: v.LastCheckIn,
		Accepted: v.AcceptedAt, Ends: v.Ends, RefreshInterval: v.RefreshInterval,
	}
}

// redirect leads a client that wrote a path in a way that servers read differently to how it is written.
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

// rawPath is the path of a request as the client sent it.
func rawPath(u *url.URL) string {
	switch {
	case u.RawPath != "":
		return u.RawPath
	case u.Path == "": // of "GET http://host HTTP/1.1" (RFC 9112 §3.2.2)
		return "/"
	}
	return u.EscapedPath()
}

// overTLS reports whether the client has HTTPS. What a proxy says of it decides nothing
// but the attributes of the asker's own cookie, so anybody may say it.
func overTLS(req *http.Request) bool {
	return req.TLS != nil || req.Header.Get("X-Forwarded-Proto") == "https"
}

// peer is the address that a request came from. What a proxy says of it is not heard,
// because any client can say it too.
func peer(req *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}
