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
	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// private keeps an answer out of every cache, because it hands out a ticket or says to wait.
const private = "private, no-store"

// answer shows the waiting page, or its JSON, to a user who does not get in.
func (r *Rooms) answer(w http.ResponseWriter, req *http.Request, room *room, m *config.Moment, d queue.Decision, cookie string) {
	h := w.Header()
	h.Set("Cache-Control", private)
	h.Set("X-Content-Type-Options", "nosniff")
	if cookie != "" {
		h.Add("Set-Cookie", cookie)
	}
	now := room.now()
	form := page.FormOf(req.Header["Accept"], room.config.JSON)
	again := seconds(d.Ticket.LastCheckIn.Add(d.Ticket.RefreshInterval).Sub(now))
	if d.Outcome == queue.Refuse {
		again = 60 // for programs; the page does not refresh itself
	}
	if !isPageView(req) {
		notCarriedOut(w, req, http.StatusTooManyRequests, time.Duration(again)*time.Second)
		return
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
	state := page.State{Moment: m, Decision: d, Now: now}
	var body []byte
	if form == page.JSON {
		h.Set("Content-Type", "application/json")
		allowReading(h, req)
		body = state.JSON()
	} else {
		made, err := r.pages.Render(&state, req.Header.Get("Accept-Language"), room.config.Language)
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
		_, _ = w.Write(body) // the client may have gone
	}
}

// seconds rounds up, so that a client that comes back then is not too early.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// tooMany asks a client that shows no pages to come back later.
func tooMany(w http.ResponseWriter, req *http.Request, again time.Duration) {
	comeBack(w, req, http.StatusTooManyRequests, again, "There are too many users at the moment.")
}

// notCarriedOut refuses a request that is no page view, such as a form, from a visitor who is not in.
func notCarriedOut(w http.ResponseWriter, req *http.Request, status int, again time.Duration) {
	reason := "There are too many users at the moment."
	if status == http.StatusServiceUnavailable {
		reason = "The waiting room has just started."
	}
	comeBack(w, req, status, again, reason+" This "+text.Cut(req.Method, 20)+" request was not carried out.")
}

// comeBack refuses a request in one line of text, with the time after which the client may repeat it.
func comeBack(w http.ResponseWriter, req *http.Request, status int, again time.Duration, reason string) {
	h := w.Header()
	h.Set("Cache-Control", private)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Retry-After", strconv.Itoa(seconds(again)))
	allowReading(h, req)
	body := fmt.Sprintf("%s Please try again in %d seconds.\n", reason, seconds(again))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if req.Method != http.MethodHead {
		_, _ = io.WriteString(w, body)
	}
}

// allowReading lets scripts of any origin read the answer (Fetch §3.2), which only says that
// they have to wait. For a script that sends cookies its origin must be named.
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

// commandField is the header of an answer by which an origin gives the room a command.
const commandField = "Cf-Waiting-Room-Command"

// passing is the answer to a user who may go on. It keeps shared caches from storing what
// others would have to wait for, and carries out the origin's commands to the room.
type passing struct {
	http.ResponseWriter
	room    *room
	request *http.Request
	ticket  queue.Ticket
	cookie  string // "" for none
	public  bool   // the answer is for all who ask
	begun   bool
}

// serve has next answer.
func (p *passing) serve(next http.Handler) {
	next.ServeHTTP(p, p.request)
	p.begin() // the answer of a handler that wrote nothing
}

// begin sets the room's headers, after the origin has set its own.
func (p *passing) begin() {
	if p.begun {
		return
	}
	p.begun = true
	h := p.Header()
	p.obey(h)
	switch {
	case p.cookie != "":
		h["Cache-Control"] = privateValue
		delete(h, "Expires")
		h.Add("Set-Cookie", p.cookie)
	case !p.public:
		h["Cache-Control"] = []string{forBrowsers(h["Cache-Control"])}
	default:
		return
	}
	for _, f := range sharedCaches {
		delete(h, f)
	}
}

// obey carries out what the origin's answer asks of the room.
func (p *passing) obey(h http.Header) {
	commands := h[commandField]
	if commands == nil {
		return
	}
	delete(h, commandField)
	if p.room.config.OriginRevokes && isRevoke(commands) && p.ticket.ID != (queue.TicketID{}) {
		p.room.revoke(p.request.Context(), p.ticket)
		p.cookie = setCookie(p.room.config, "", 0, overTLS(p.request))
	}
}

var privateValue = []string{private}

// sharedCaches are fields that tell caches in front otherwise (RFC 9213, and vendors' own).
var sharedCaches = []string{"Cdn-Cache-Control", "Surrogate-Control", "Cloudflare-Cdn-Cache-Control"}

// forBrowsers returns an origin's Cache-Control field (RFC 9111 §5.2.2) as it is for the
// cache of the visitor alone: with private, without what shared caches may do.
func forBrowsers(lines []string) string {
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

// cutDirective cuts the first member off a list, in which commas in quotes do not count.
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

func isRevoke(commands []string) bool {
	for _, line := range commands {
		for c := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(c), "revoke") {
				return true
			}
		}
	}
	return false
}

// WriteHeader implements http.ResponseWriter. Informational answers (1xx) come before the answer.
func (p *passing) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		p.begin()
	}
	p.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (p *passing) Write(b []byte) (int, error) {
	p.begin()
	return p.ResponseWriter.Write(b)
}

// ReadFrom keeps sendfile where the connection has it.
func (p *passing) ReadFrom(src io.Reader) (int64, error) {
	p.begin()
	return io.Copy(p.ResponseWriter, src)
}

// Flush implements http.Flusher.
func (p *passing) Flush() {
	p.begin()
	_ = http.NewResponseController(p.ResponseWriter).Flush() // a writer that cannot flush has nothing to flush
}

// Hijack implements http.Hijacker, for upgrades that a proxy carries.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	p.begin()
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the writer that sets deadlines.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }
