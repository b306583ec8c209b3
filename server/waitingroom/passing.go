package waitingroom

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// commandField is by which an origin speaks to the room, in an answer's header.
const commandField = "Cf-Waiting-Room-Command"

// passing is the answer to a user who is in. It keeps caches from storing the answer, and
// hears what the origin has to say to the room.
type passing struct {
	http.ResponseWriter
	room    *room
	request *http.Request
	ticket  ticket.Ticket
	cookies []string
	begun   bool
}

// begin sets what the answer must have, once the origin has set what it wants.
func (p *passing) begin() {
	if p.begun {
		return
	}
	p.begun = true
	h := p.Header()
	h["Cache-Control"] = privateValue
	for _, f := range sharedCaches {
		delete(h, f)
	}
	if commands := h[commandField]; commands != nil {
		delete(h, commandField)
		if p.room.config.OriginRevokes && isRevoke(commands) && p.ticket.ID != (ticket.ID{}) {
			p.room.revoke(p.request.Context(), p.ticket)
			p.cookies = []string{ticket.Cookie(p.room.config, "", 0, overTLS(p.request))}
		}
	}
	for _, c := range p.cookies {
		h.Add("Set-Cookie", c)
	}
}

var privateValue = []string{private}

// sharedCaches are fields by which caches in front would be told otherwise (RFC 9213, and
// what they have of their own).
var sharedCaches = []string{"Cdn-Cache-Control", "Surrogate-Control", "Cloudflare-Cdn-Cache-Control", "Expires"}

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

// WriteHeader implements http.ResponseWriter. Early answers (1xx) are not the answer.
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
	_ = http.NewResponseController(p.ResponseWriter).Flush() // where it cannot there is nothing to flush
}

// Hijack implements http.Hijacker, for upgrades that a proxy carries.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	p.begin()
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController find what sets deadlines.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// finish begins the answer of a handler that wrote nothing.
func (p *passing) finish() { p.begin() }
