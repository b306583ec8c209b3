package waitingroom

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// private keeps an answer out of every cache: it may hand out a ticket.
const private = "private, no-store"

// answer shows a user that, and for how long, there is no getting in.
func (r *Rooms) answer(w http.ResponseWriter, req *http.Request, room *room, m *moment, d queue.Decision, cookie string) {
	h := w.Header()
	h.Set("Cache-Control", private)
	h.Set("X-Content-Type-Options", "nosniff")
	if cookie != "" {
		h.Add("Set-Cookie", cookie)
	}
	now := r.now()
	form := page.FormOf(req.Header["Accept"], room.config.JSON)
	again := seconds(d.Visitor.LastCheckIn.Add(d.Visitor.RefreshInterval).Sub(now))
	if d.Outcome == queue.Refuse {
		again = 60 // for programs; the page does not refresh itself
	}
	if form == page.Neither {
		tooMany(w, req, time.Duration(again)*time.Second)
		return
	}
	if d.Outcome != queue.Refuse {
		h.Set("Refresh", strconv.Itoa(again))
	}
	if room.config.QueueingStatus == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(again))
	}
	state := stateOf(m, d, now)
	var body []byte
	if form == page.JSON {
		h.Set("Content-Type", "application/json")
		allowReading(h, req)
		body = state.JSON()
	} else {
		made, err := r.pages.Render(&state, m.traffic.Template, req.Header.Get("Accept-Language"), room.config.Language)
		if err != nil {
			r.options.Logger.Error("waitingroom: the template of a room fails; its users see the built-in page", "room", room.config.Name, "err", err)
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Language", made.Language)
		h.Set("Referrer-Policy", "same-origin")
		if made.Policy != "" {
			h.Set("Content-Security-Policy", made.Policy)
		}
		body = made.HTML
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(room.config.QueueingStatus)
	if req.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that has gone needs no answer
	}
}

// stateOf is what a user is told of a decision.
func stateOf(m *moment, d queue.Decision, now time.Time) page.State {
	s := page.State{
		Method: m.traffic.Method, QueueAll: m.settings.QueueAll && m.phase != config.Prequeueing, WaitKnown: d.Estimate.Known,
		LastUpdated: d.Visitor.LastCheckIn, RefreshInterval: d.Visitor.RefreshInterval, Now: now, Event: m.event, Phase: m.phase,
	}
	if m.settings.QueueAll || d.Outcome == queue.Refuse {
		s.WaitKnown = false
	}
	if d.Outcome == queue.Refuse {
		s.LastUpdated = now
	}
	s.Wait = inMinutes(d.Estimate.Minutes)
	s.Percentiles = [...]time.Duration{inMinutes(d.Estimate.P25), inMinutes(d.Estimate.P50), inMinutes(d.Estimate.P75)}
	return s
}

// inMinutes is a number of minutes, which may be infinite, as a duration.
func inMinutes(m float64) time.Duration {
	const most = 7 * 24 * 60
	if !(m < most) {
		m = most
	}
	return time.Duration(m * float64(time.Minute))
}

// seconds rounds up, so that who comes back then is not too early.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// tooMany tells a client that can show nothing to come back later.
func tooMany(w http.ResponseWriter, req *http.Request, again time.Duration) {
	h := w.Header()
	h.Set("Cache-Control", private)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Retry-After", strconv.Itoa(seconds(again)))
	allowReading(h, req)
	body := fmt.Sprintf("Too many users are here at the moment. Please try again in %d seconds.\n", seconds(again))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusTooManyRequests)
	if req.Method != http.MethodHead {
		_, _ = w.Write([]byte(body))
	}
}

// allowReading lets scripts of any page see that they are to wait (Fetch §3.2). There is
// nothing else to see. A script that sends cookies must be named.
func allowReading(h http.Header, req *http.Request) {
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", "Retry-After, Refresh")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	origin := req.Header.Get("Origin")
	if origin == "" || !httpguts.ValidHeaderFieldValue(origin) {
		h.Set("Access-Control-Allow-Origin", "*")
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
}

// revoke ends a user's session, as the origin asked.
func (r *room) revoke(ctx context.Context, t ticket.Ticket) {
	now := r.now()
	if t.Waiting() {
		return
	}
	// No session is promised for longer, whoever renewed it meanwhile.
	until := now.Add(r.config.LongestSession() + 2*time.Minute + r.skew)
	r.revoked.add(t.ID, until, now) // at once; the object makes it durable
	r.analytics.revoke(now, t)
	_, _ = r.send(ctx, event{moment: r.momentAt(now), revoke: &revocation{t.ID, until}}) // logged where it reports
}
