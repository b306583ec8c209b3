package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
)

// Caches may absorb a flood of requests for what is not there, and forget it soon after it is.
var (
	notFound = &answers.Failure{Status: http.StatusNotFound, Caching: answers.CacheFor(10 * time.Second),
		Message: "No such file. Names, versions and paths are case-sensitive, and versions are exact."}
	unavailable = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "The file cannot be read at the moment. Try again later.", Retry: 5}
	overloaded  = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too much is being sent at the moment. Try again later.", Retry: 1}

	preconditionFailed = &answers.Failure{Status: http.StatusPreconditionFailed, Message: "The file is not in the state that If-Match or If-Unmodified-Since asks for."}
)

// notAcceptableFailure returns the 406 response for a client whose Accept-Encoding refuses all encodings of a file. Its message lists them (RFC 9110
// §15.5.7).
func notAcceptableFailure(f *asset) *answers.Failure {
	var names []string
	for _, r := range f.representations {
		names = append(names, r.coding.String())
	}
	return &answers.Failure{Status: http.StatusNotAcceptable, Message: "Accept-Encoding refuses every coding of this file: " + strings.Join(names, ", ") + "."}
}

// rangeFailure returns the 416 response for ranges that all lie outside of the representation r.
func rangeFailure(r *representation) *answers.Failure {
	size := strconv.FormatInt(r.length, 10)
	return &answers.Failure{
		Status:  http.StatusRequestedRangeNotSatisfiable,
		Message: "The range lies outside of the " + size + " bytes that there are in this coding.",
		Fields:  []answers.Field{{Name: "Content-Range", Value: "bytes */" + size}},
	}
}

// failureFor returns the error response to the query q for the target t after err. A browser that navigates to a path below [Prefix] that is not a
// file is redirected (303) to the page about it. Caches must not store that, because many do not distinguish browsers from programs. Otherwise it is
// that of failureOf.
func (a *Assets) failureFor(q *query, t target, err error) *answers.Failure {
	if a.o.Page != nil && errors.Is(err, errNoFile) && !a.o.Lacking && requests.WantsPage(q.fields.Accept) {
		if path, ok := strings.CutPrefix(q.path+"/", Prefix); ok {
			at := a.o.Page(strings.TrimRight(path, "/"))
			return &answers.Failure{Status: http.StatusSeeOther, Message: "This is not a file. Its page is at " + at, Fields: []answers.Field{{Name: "Location", Value: at}}}
		}
	}
	return a.failureOf(t, err)
}

// failureOf returns the error response for a target after err: 400, 404, 410 or 503. It counts a 503, and logs it unless the reason is that too
// much is being sent.
func (a *Assets) failureOf(t target, err error) *answers.Failure {
	var withdrawn *withdrawnError
	switch {
	case errors.Is(err, text.ErrMalformedPath):
		return answers.BadPath
	case errors.Is(err, errNoFile) && a.o.Lacking:
		return answers.Missing
	case errors.Is(err, errNoFile):
		return notFound
	case errors.As(err, &withdrawn):
		return &answers.Failure{
			Status: http.StatusGone, Entry: &withdrawn.Entry,
			Message: fmt.Sprintf("This version was withdrawn (log entry %d): %s", withdrawn.Entry, withdrawn.Reason),
		}
	case errors.Is(err, errBusy):
		a.metrics.busy.Inc()
		return overloaded
	case errors.Is(err, kvstore.ErrCorrupt):
		a.metrics.corrupt.Inc()
	default:
		a.metrics.unreadable.Inc()
	}
	a.o.Logger.Error("server: couldn't read an asset", "asset", t.key, "err", err)
	return unavailable
}

// writeFailure writes the error response f as text or as JSON, as the lines of the Accept field prefer, and returns how many bytes of the body it has
// sent. varies says that the URL has several encodings, so that Vary is set; head that the client wants no body.
func writeFailure(w http.ResponseWriter, f *answers.Failure, varies, head bool, accept []string) int64 {
	answers.SetFields(w.Header(), answers.AnyOrigin...)
	if varies {
		w.Header().Set("Vary", "Accept-Encoding")
	}
	return f.Send(w, head, accept)
}

// A request that net/http cannot read never reaches a handler: net/http writes a
// few fixed lines to the connection and closes it. Clients of the API must be able
// to rely on one shape of errors, so a refusingConn puts a response of ours in the
// place of those lines.
//
// They come in a single Write, and first after a request began, where a response of a
// handler always has more header fields. So nothing that a handler sends, not even a
// file that has the same lines in it, is taken for one.

// A refusingListener wraps the connections that its listener accepts in refusingConns, except those whose TLS handshake failed.
type refusingListener struct {
	net.Listener
	connections *connections
}

// Accept returns the next connection, wrapped so that an error response that net/http writes itself, without a handler, has the form of the API's
// errors. It does not wrap a connection whose TLS handshake failed.
func (l refusingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	handed, ok := c.(handedOff)
	if !ok {
		return c, nil
	}
	if encrypted, ok := c.(interface{ ConnectionState() tls.ConnectionState }); ok {
		r := &refusingTLSConn{refusingConn{handedOff: handed, connections: l.connections}, encrypted.ConnectionState()}
		r.known = r
		return r, nil
	}
	r := &refusingConn{handedOff: handed, connections: l.connections}
	r.known = r
	return r, nil
}

// A handedOff is a connection that the lane has handed over, except one whose handshake failed.
type handedOff interface {
	net.Conn
	MarkAsked()
	CloseWrite() error
}

// A refusingTLSConn is a refusingConn with TLS, whose state net/http reads.
type refusingTLSConn struct {
	refusingConn
	state tls.ConnectionState
}

// ConnectionState returns the state of TLS as it was after the handshake, when the lane handed the connection over. net/http takes it
// for Request.TLS.
func (c *refusingTLSConn) ConnectionState() tls.ConnectionState { return c.state }

// A refusingConn is a connection of net/http on which it replaces the error responses that net/http writes without a handler.
type refusingConn struct {
	handedOff
	connections *connections
	known       net.Conn      // what connections and net/http know it as
	awaits      atomic.Bool   // a later request, of which nothing has come
	turn        atomic.Uint32 // a proxy of an upgraded connection writes from a goroutine of its own
	// asked is what net/http read last before it answered, in net/http's own memory: nearly always all of a request. lead is
	// the byte before that, where net/http waited for a request with a read of one byte, which single has meanwhile: that
	// read may end when the memory is another connection's. Only goroutines that read requests for net/http look at them, one at
	// a time.
	asked  []byte
	lead   []byte
	single [1]byte
}

// The values of refusingConn.turn.
const (
	requesting uint32 = iota // nothing was written since the last response ended
	answering
	other // it is not HTTP/1
)

// awaitRequest records that a response has ended, so that the next bytes from the client start a new request. The server calls it when net/http
// reports the connection as idle.
func (c *refusingConn) awaitRequest() {
	c.turn.CompareAndSwap(answering, requesting)
	c.awaits.Store(true)
}

// Close implements net.Conn. It also removes an upgraded connection from the registry of connections, because net/http does not report its end.
func (c *refusingConn) Close() error {
	c.connections.forgetUpgraded(c.known)
	return c.handedOff.Close()
}

// Read implements net.Conn. It remembers the last bytes that were read, for writeFirst, and notifies connections when a request begins on an idle
// connection.
func (c *refusingConn) Read(p []byte) (int, error) {
	n, err := c.handedOff.Read(p)
	if n > 0 && c.awaits.CompareAndSwap(true, false) {
		c.connections.requestBegins(c.known)
	}
	if n > 0 && (len(p) == 1 || c.turn.Load() == requesting) { // that byte may come before the response has ended
		c.lead = c.lead[:0]
		if len(c.asked) == 1 {
			c.lead = append(c.lead, c.asked[0])
		}
		if c.asked = p[:n]; n == 1 {
			c.single[0] = p[0]
			c.asked = c.single[:]
		}
	}
	return n, err
}

// Write implements net.Conn. It replaces an error response that net/http writes without a handler; only the first write of a response can be one.
func (c *refusingConn) Write(p []byte) (int, error) {
	if c.turn.Load() == requesting {
		return c.writeFirst(p)
	}
	return c.handedOff.Write(p)
}

// writeFirst writes p, the first bytes of a response. If p is an error response that net/http wrote without a handler, it writes the API's form of
// the error instead, and reads and discards what the client still sends. It returns len(p) then.
func (c *refusingConn) writeFirst(p []byte) (int, error) {
	if !bytes.HasPrefix(p, []byte("HTTP/1.")) {
		c.turn.Store(other)
		return c.handedOff.Write(p)
	}
	c.turn.Store(answering)
	f, ok := parseRefusal(p)
	if !ok {
		return c.handedOff.Write(p)
	}
	line, _, _ := bytes.Cut(append(c.lead, c.asked...), []byte("\r\n"))
	c.asked = nil
	asked, rest, _ := strings.Cut(string(line), " ")
	method := ""
	if target, version, _ := strings.Cut(rest, " "); f.Status == http.StatusBadRequest && strings.HasPrefix(version, "HTTP/1.") {
		if missing := checkTarget(target); missing != nil {
			f, method = missing, asked
		}
	}
	if _, err := c.handedOff.Write(formatResponse(f, method)); err != nil {
		return 0, err
	}
	c.discardRest()
	return len(p), nil
}

// A refused client may still be sending what it was refused for. If the connection
// were closed then, its system would answer what is under way with a reset, and the
// client might never see why (RFC 9112 §9.6). So all that is read and thrown away
// first, within these bounds.
const (
	lingerBytes   = 4 << 20
	lingerSilence = time.Second     // without a byte
	lingerTime    = 5 * time.Second // in all
)

// discardRest closes the connection for writing, then reads and discards what a client with a refused request is still sending, until 4 MiB have
// come, nothing comes for a second, or five seconds have passed. It does not close the connection; net/http does.
func (c *refusingConn) discardRest() {
	// A client that waits for the end of the connection has it now.
	_ = c.CloseWrite()
	end := time.Now().Add(lingerTime)
	rest := make([]byte, 16<<10)
	for read := 0; read < lingerBytes; {
		deadline := time.Now().Add(lingerSilence)
		if end.Before(deadline) {
			deadline = end
		}
		if c.SetReadDeadline(deadline) != nil {
			return
		}
		n, err := c.Read(rest)
		if err != nil {
			return
		}
		read += n
	}
}

// refusalFields is how net/http's refusals go on after their status line.
const refusalFields = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// parseRefusal returns the failure that replaces p, the first bytes of a response, if p is an error response that net/http writes without a handler,
// or any 417. Otherwise the result is false.
func parseRefusal(p []byte) (*answers.Failure, bool) {
	const version = len("HTTP/1.1 ")
	if len(p) < version+len("400 ") || p[version] != '4' && p[version] != '5' {
		return nil, false
	}
	status, err := strconv.Atoi(string(p[version : version+3]))
	end := bytes.IndexByte(p, '\r')
	if err != nil || end < 0 {
		return nil, false
	}
	reason := ""
	if bytes.HasPrefix(p[end:], []byte(refusalFields)) {
		_, after, _ := bytes.Cut(p[:end], []byte(": "))
		reason = string(after)
	} else if status != http.StatusExpectationFailed {
		// To an Expect field that it does not know, net/http answers through its own
		// response writer. No handler of ours answers 417.
		return nil, false
	}
	return &answers.Failure{Status: status, Message: refusalMessage(status, reason)}, true
}

// checkRequest returns the failure for a request whose Host or Expect field is not acceptable, nil for others. net/http checks the same over
// HTTP/1.1, except for the host of a target in absolute form; this check makes HTTP/2 and such targets equal.
func checkRequest(r *http.Request) *answers.Failure {
	status, reason := http.StatusBadRequest, ""
	switch {
	case r.Host == "" && r.ProtoMajor > 1:
		reason = "missing required Host header"
	case !httpguts.ValidHostHeader(r.Host):
		reason = "malformed Host header"
	case !requests.ExpectsContinue(r.Header) && r.Header.Get("Expect") != "":
		status = http.StatusExpectationFailed
	default:
		return nil
	}
	return &answers.Failure{Status: status, Message: refusalMessage(status, reason)}
}

// checkTarget returns the failure for a request target whose path has invalid percent-encoding, which net/http refuses: 404 as in the API of the
// public service, since nothing can be under such a path. It returns nil if the path is valid, does not begin with a slash, or is below /ajax/.
func checkTarget(target string) *answers.Failure {
	path, _, _ := strings.Cut(target, "?")
	if _, err := url.PathUnescape(path); err == nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/ajax/") {
		return nil
	}
	known := answers.NoEndpoint
	if strings.HasPrefix(path, "/libraries/") {
		known = answers.NoLibrary
	}
	return &answers.Failure{Status: known.Status, Message: known.Message}
}

// refuseTooLarge responds with 431 to a request over HTTP/2 whose header fields were too large to be read. It is a http.HandlerFunc for the fast
// lane.
func refuseTooLarge(w http.ResponseWriter, r *http.Request) {
	const status = http.StatusRequestHeaderFieldsTooLarge
	f := &answers.Failure{Status: status, Message: refusalMessage(status, "")}
	writeFailure(w, f, false, r.Method == http.MethodHead, r.Header["Accept"])
}

// refusalMessage returns the message of the error response that replaces one of net/http: for 417, 431, 501 and 505 a text of its own. Any other
// status must be 400: the text is that the request is malformed, with reason, net/http's own text, unless that is "".
func refusalMessage(status int, reason string) string {
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return "The URL and the headers together are too large. Send a shorter URL, or fewer and shorter headers."
	case status == http.StatusNotImplemented:
		return `The Transfer-Encoding is not known. Send "chunked", or none.`
	case status == http.StatusHTTPVersionNotSupported:
		return "The version of HTTP is not supported. Use HTTP/1.1 or HTTP/2."
	case status == http.StatusExpectationFailed:
		return `The Expect field is not known. Send "100-continue", or none.`
	case reason != "":
		return "The request is malformed: " + reason + "."
	}
	return "The request is malformed: its first line or a header cannot be read as HTTP."
}

// formatResponse returns the failure as the bytes of a complete HTTP/1.1 response, with Connection: close. method is that of the request: for HEAD
// the response has no body; "" is GET.
func formatResponse(f *answers.Failure, method string) []byte {
	body := f.JSON()
	h := http.Header{}
	f.SetHeader(h)
	answers.SetFields(h, answers.AnyOrigin...)
	answers.SetFields(h,
		answers.Field{Name: "Date", Value: time.Now().UTC().Format(http.TimeFormat)},
		answers.Field{Name: "Content-Type", Value: answers.JSON})
	var b bytes.Buffer
	_ = (&http.Response{
		StatusCode: f.Status, ProtoMajor: 1, ProtoMinor: 1, Header: h, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		Close: true, Request: &http.Request{Method: method},
	}).Write(&b) // a buffer takes everything
	return b.Bytes()
}
