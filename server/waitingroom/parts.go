package waitingroom

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A part of a page may carry no ticket, so it cannot wait in line. It passes on behalf of a
// user whom the limits count: one who was admitted from the same address, or, at a path that
// the room lists, the address itself, which takes a slot as any new user does.

// shown are the values of Sec-Fetch-Dest (Fetch Metadata §2.1) of requests whose answer a
// browser shows or hands to a program of the page. All others are parts of a page.
var shown = map[string]bool{"": true, "document": true, "iframe": true, "frame": true, "embed": true, "object": true, "empty": true}

// isSubresource reports whether a request is for a part of a page, such as an image, by its Sec-Fetch-Dest, or a CORS preflight
// (Fetch §4.8), which never carries cookies. Such a request is not queued by a ticket. known says that the client has sent a
// valid ticket: then no preflight is assumed.
func isSubresource(req *http.Request, known bool) bool {
	if !shown[req.Header.Get("Sec-Fetch-Dest")] {
		return true
	}
	return !known && req.Method == http.MethodOptions && req.Header.Get("Access-Control-Request-Method") != "" && req.Header.Get("Origin") != ""
}

// isProgram reports whether a client neither displays pages or JSON nor has sent a cookie, so that it would lose a ticket.
func isProgram(req *http.Request) bool {
	return req.Header["Cookie"] == nil && pageFormOf(req.Header["Accept"], true) == formNeither
}

// serveSubresource has next respond to a request for a part of a page, or refuses it with 429. The client gets no ticket. m are
// the settings in force, raw is the path as the client sent it.
func (r *Rooms) serveSubresource(w http.ResponseWriter, req *http.Request, next http.Handler, room *room, m *config.EffectiveSettings, raw string) {
	ok, again := r.admitSubresource(req, room, m, raw)
	if !ok {
		room.countOutcome(partHeld)
		sendTooMany(w, req, again)
		return
	}
	room.countOutcome(partPassed)
	room.admit(w, req, next, queue.Ticket{}, "")
}

// admitSubresource reports whether a request for a part of a page passes. It does if a user was admitted from the client's
// address, or the path is on the room's list and the address gets a slot, within the room's quota. None passes by another method
// than the room's, or while the room rejects or has all users queue. Otherwise all pass under Passthrough without a challenge, or
// without a quota. In a room with a challenge the list does not count. If ok is false, again is after how long the client may
// repeat it.
func (r *Rooms) admitSubresource(req *http.Request, room *room, m *config.EffectiveSettings, raw string) (ok bool, again time.Duration) {
	s, now := &m.Settings, room.now()
	switch {
	case s.Method == queue.Reject, s.QueueAll, !slices.Contains(room.config.SubresourceMethods, req.Method):
		return false, time.Minute
	case s.Method == queue.Passthrough && room.checks == nil, room.config.SubresourcesPerMinute < 0:
		return true, 0
	}
	from, _ := requests.ClientOf(req.RemoteAddr)
	hasSession := from.IsValid() && room.parts.hasSessionAt(from, now, &room.revoked)
	if !hasSession && (r.options.Frozen || room.checks != nil || !room.config.IsSubresourcePath(raw)) {
		return false, time.Minute
	}
	if ok, again = room.parts.useQuota(from, now, room.config.SubresourcesPerMinute); !ok || hasSession {
		return ok, again
	}
	room.wakeReports()
	err := room.do(req.Context(), func(ctx context.Context, s *durable.State, c *centre) (err error) {
		ok, err = c.admitGuest(ctx, s, room.codec.keys.guestID(room.config.Name, from))
		return err
	})
	return ok && err == nil, s.RefreshInterval
}

// parts are the counts of a room's requests for parts of pages, and the sessions by which they pass.
type parts struct {
	mu       sync.Mutex
	minute   int64
	used     int64                           // of the minute
	usedBy   map[netip.Prefix]int64          // the same by client
	sessions map[netip.Prefix]addressSession // by client
	sweepAt  int                             // how many sessions there are when those that are over are removed
}

// An addressSession is the session of a user who was admitted, or renewed, at a client's address.
type addressSession struct {
	id   queue.TicketID
	ends time.Time
}

// mostAddressSessions bounds the memory that they take.
const mostAddressSessions = 1 << 20

// recordAddress records that a user with the session of t is at the client address of a request, for hasSessionAt. Of several
// sessions at an address it keeps the one that ends last. It does nothing without an address, or for a new one beyond
// mostAddressSessions.
func (p *parts) recordAddress(req *http.Request, t *queue.Ticket, now time.Time) {
	from, ok := requests.ClientOf(req.RemoteAddr)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sessions) >= max(p.sweepAt, 1024) {
		maps.DeleteFunc(p.sessions, func(_ netip.Prefix, v addressSession) bool { return !v.ends.After(now) })
		p.sweepAt = 2 * len(p.sessions)
	}
	if p.sessions == nil {
		p.sessions = map[netip.Prefix]addressSession{}
	}
	if old, ok := p.sessions[from]; ok && old.id != t.ID && old.ends.After(t.Ends) || !ok && len(p.sessions) >= mostAddressSessions {
		return
	}
	p.sessions[from] = addressSession{t.ID, t.Ends}
}

// hasSessionAt reports whether recordAddress has recorded a session for a client that has neither ended nor been revoked.
func (p *parts) hasSessionAt(from netip.Prefix, now time.Time, revoked *revocations) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.sessions[from]
	return ok && now.Before(v.ends) && !revoked.contains(v.id)
}

// useQuota reports in ok whether another request for a part of a page may pass in this minute, and counts it if so. perMinute is
// the room's quota. If not, again is how long the minute still takes. A client may send another request while it has sent fewer
// than are left, so a single client uses half of the quota at most, rounded up.
func (p *parts) useQuota(from netip.Prefix, now time.Time, perMinute int) (ok bool, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := now.Unix() / 60; m != p.minute || p.usedBy == nil {
		p.minute, p.used, p.usedBy = m, 0, map[netip.Prefix]int64{}
	}
	if p.usedBy[from] < int64(perMinute)-p.used {
		p.used++
		p.usedBy[from]++
		return true, 0
	}
	return false, time.Unix((p.minute+1)*60, 0).Sub(now)
}
