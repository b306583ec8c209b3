package waitingroom

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// private keeps a response out of every cache, because it hands out a ticket or says to wait.
const private = "private, no-store"

// sendWaiting responds to a user whom decision d does not admit: with the waiting page or its JSON; or with a line of text and
// 429 to a program, and 429 or 503 to a request other than a page view. m are the settings in force. cookie is the value of a
// Set-Cookie field, "" for none.
func (r *Rooms) sendWaiting(w http.ResponseWriter, req *http.Request, room *room, m *config.EffectiveSettings, d queue.Decision, cookie string) {
	h := w.Header()
	h.Set("Cache-Control", private)
	if cookie != "" {
		h.Add("Set-Cookie", cookie)
	}
	now := room.now()
	form := pageFormOf(req.Header["Accept"], room.config.JSON)
	again := roundUpSeconds(d.Ticket.LastCheckIn.Add(d.Ticket.RefreshInterval).Sub(now))
	if d.Outcome == queue.Refuse {
		again = 60 // for programs; the page does not refresh itself
	}
	if !isPageView(req) {
		status := http.StatusTooManyRequests
		if room.isDown() {
			status = http.StatusServiceUnavailable
		}
		sendNotCarriedOut(w, req, status, time.Duration(again)*time.Second)
		return
	}
	if form == formNeither {
		sendTooMany(w, req, time.Duration(again)*time.Second)
		return
	}
	if d.Outcome != queue.Refuse {
		h.Set("Refresh", strconv.Itoa(again))
	}
	if room.config.QueueingStatus == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(again))
	}
	state := pageState{Moment: m, Decision: d, Now: now, Down: room.isDown()}
	var body []byte
	if form == formJSON {
		h.Set("Content-Type", "application/json")
		allowCORS(h, req)
		body = state.JSON()
	} else {
		made, err := r.pages.Render(&state, req.Header.Get("Accept-Language"), room.config.Language)
		if err != nil {
			r.options.Logger.Error("waitingroom: the template of a room fails; its users see the built-in page", "room", room.config.Name, "err", err)
		}
		made.setHeader(h)
		h.Set("Referrer-Policy", "same-origin")
		body = made.HTML
	}
	sendBody(w, req, room.config.QueueingStatus, body)
}

// sendBody responds with a status and a body, to HEAD without the body. The caller has set the other header fields, except
// Content-Length and X-Content-Type-Options. It ignores errors.
func sendBody(w http.ResponseWriter, req *http.Request, status int, body []byte) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if req.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have gone
	}
}

// roundUpSeconds returns a duration in seconds, at least 1, rounded up so that a client that comes back then is not too early.
func roundUpSeconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// sendTooMany responds 429 with a line of text to a client that shows no pages. again is after how long it may repeat the
// request.
func sendTooMany(w http.ResponseWriter, req *http.Request, again time.Duration) {
	sendRetryLater(w, req, http.StatusTooManyRequests, again, "There are too many users at the moment.")
}

// sendNotCarriedOut responds to a request other than a page view, such as a form, from a visitor who is not in: in one line of
// text, which says that the request was not carried out and may be repeated after the duration again. status is 429 or 503.
func sendNotCarriedOut(w http.ResponseWriter, req *http.Request, status int, again time.Duration) {
	reason := "There are too many users at the moment."
	if status == http.StatusServiceUnavailable {
		reason = "The site, or its waiting room, is not ready."
	}
	sendRetryLater(w, req, status, again, reason+" This "+text.Cut(req.Method, 20)+" request was not carried out.")
}

// sendRetryLater responds with a status, a line of text that begins with the sentence reason, and the time after which the client
// may repeat the request, also in Retry-After.
func sendRetryLater(w http.ResponseWriter, req *http.Request, status int, again time.Duration, reason string) {
	h := w.Header()
	h.Set("Cache-Control", private)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Retry-After", strconv.Itoa(roundUpSeconds(again)))
	allowCORS(h, req)
	sendBody(w, req, status, fmt.Appendf(nil, "%s Please try again in %d seconds.\n", reason, roundUpSeconds(again)))
}

// allowCORS sets header fields that let scripts of any origin read the response (Fetch §3.2), which only says that they have to
// wait. If the request names its origin, the response names it too, so that a script that sends cookies may read it.
func allowCORS(h http.Header, req *http.Request) {
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

// commandField is the header of a response by which an origin gives the room a command.
const commandField = "Cf-Waiting-Room-Command"

// admittedResponse is the response to a user who may go on. It keeps shared caches from storing what
// others would have to wait for, and carries out the origin's commands to the room.
type admittedResponse struct {
	http.ResponseWriter
	room    *room
	request *http.Request
	ticket  queue.Ticket
	cookie  string // "" for none
	public  bool   // shared caches may store the response for all clients
	begun   bool
}

// serve has next respond to the request, and adds the room's header fields and carries out the origin's commands even if next
// writes nothing.
func (p *admittedResponse) serve(next http.Handler) {
	next.ServeHTTP(p, p.request)
	p.writeHeaders() // the response of a handler that wrote nothing
}

// writeHeaders sets the room's header fields before the first byte, after the origin has set its own: the visitor's cookie, and
// fields that keep shared caches from storing the response. It carries out the origin's commands to the room, which may end the
// visitor's session. Later calls do nothing.
func (p *admittedResponse) writeHeaders() {
	if p.begun {
		return
	}
	p.begun = true
	h := p.Header()
	p.applyOriginCommands(h)
	switch {
	case p.cookie != "":
		h["Cache-Control"] = privateValue
		delete(h, "Expires")
		h.Add("Set-Cookie", p.cookie)
	case !p.public:
		h["Cache-Control"] = []string{restrictToBrowser(h["Cache-Control"])}
	default:
		return
	}
	for _, f := range sharedCaches {
		delete(h, f)
	}
}

// applyOriginCommands carries out the commands to the room in the header h of the origin's response, and removes them from h. If
// the room accepts it and the request has a ticket, the command revoke ends the visitor's session, and p.cookie becomes one that
// deletes the visitor's.
func (p *admittedResponse) applyOriginCommands(h http.Header) {
	commands := h[commandField]
	if commands == nil {
		return
	}
	delete(h, commandField)
	if p.room.config.OriginRevokes && isRevoke(commands) && p.ticket.ID != (queue.TicketID{}) {
		p.room.revoke(p.request.Context(), p.ticket)
		p.cookie = newSetCookie(p.room.config, "", 0, overTLS(p.request))
	}
}

var privateValue = []string{private}

// sharedCaches are fields that tell caches in front otherwise (RFC 9213, and vendors' own).
var sharedCaches = []string{"Cdn-Cache-Control", "Surrogate-Control", "Cloudflare-Cdn-Cache-Control"}

// restrictToBrowser returns the lines of an origin's Cache-Control field (RFC 9111 §5.2.2) as one, changed so that only the
// visitor's own cache stores the response: with private first, and without the directives for shared caches.
func restrictToBrowser(lines []string) string {
	kept := "private"
	for rest := strings.Join(lines, ","); rest != ""; {
		var directive string
		directive, rest = cutDirective(rest)
		switch name, _, _ := strings.Cut(directive, "="); strings.ToLower(strings.TrimSpace(name)) {
		case "", "public", "private", "s-maxage", "proxy-revalidate":
		default:
			kept += ", " + directive
		}
	}
	return kept
}

// cutDirective returns the first member of a comma-separated list, without white space around it, and the list after its comma.
// Commas in quotes do not separate members.
func cutDirective(list string) (first, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch {
		case list[i] == '"':
			quoted = !quoted
		case quoted && list[i] == '\\':
			i++
		case list[i] == ',' && !quoted:
			return strings.TrimSpace(list[:i]), list[i+1:]
		}
	}
	return strings.TrimSpace(list), ""
}

// isRevoke reports whether the origin's commands, as header values, include the one that ends the user's session.
func isRevoke(commands []string) bool {
	for c := range strings.SplitSeq(strings.Join(commands, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(c), "revoke") {
			return true
		}
	}
	return false
}

// WriteHeader implements http.ResponseWriter. As Write does, it first adds the room's header fields and carries out the origin's
// commands, except for informational responses (1xx) other than 101.
func (p *admittedResponse) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		p.writeHeaders()
	}
	p.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. It first calls writeHeaders, which adds the room's header fields and carries out the
// origin's commands to the room, such as ending the visitor's session.
func (p *admittedResponse) Write(b []byte) (int, error) {
	p.writeHeaders()
	return p.ResponseWriter.Write(b)
}

// ReadFrom implements io.ReaderFrom, so that the connection can use sendfile. As Write does, it first adds the room's header
// fields and carries out the origin's commands.
func (p *admittedResponse) ReadFrom(src io.Reader) (int64, error) {
	p.writeHeaders()
	return io.Copy(p.ResponseWriter, src)
}

// Flush implements http.Flusher. As Write does, it first adds the room's header fields and carries out the origin's commands. It
// ignores errors.
func (p *admittedResponse) Flush() {
	p.writeHeaders()
	_ = http.NewResponseController(p.ResponseWriter).Flush() // a writer that cannot flush has nothing to flush
}

// Hijack implements http.Hijacker, for connections that a proxy upgrades. As Write does, it first adds the room's header fields
// and carries out the origin's commands. If the writer does not support it, the error is http.ErrNotSupported.
func (p *admittedResponse) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	p.writeHeaders()
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (p *admittedResponse) Unwrap() http.ResponseWriter { return p.ResponseWriter }
