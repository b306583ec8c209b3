package lane

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// errStreamEnded is what a handler gets that reads or writes after the client has gone.
var errStreamEnded = errors.New("lane: the client has ended the stream")

// A handled is a request over HTTP/2 that an http.Handler answers, and is its ResponseWriter. The
// fields from s on are guarded by the connection's mu; the others are the handler's goroutine's.
type handled struct {
	m       *multiplexer
	loads   bool
	request *http.Request
	cancel  context.CancelFunc

	header   http.Header
	snapshot http.Header // header as it was when the status was given
	status   int         // 0 before it is
	sentHead bool
	written  int64
	length   int64 // that was promised, -1 if none was
	buffer   []byte
	trailers []string

	s         *h2.Stream
	change    sync.Cond
	broken    bool
	sending   bool
	continued bool // whether the client waits for 100 Continue
	body      []byte
	bodyEnded bool
	unread    bool // the handler is done with the body
	trailer   []h2.Field
	readTime  limit
	writeTime limit
}

// A limit is a deadline, guarded by the connection's mu.
type limit struct {
	timer  *time.Timer
	at     time.Time
	others int64 // bytes that the client's other streams had sent when it was set
	over   bool
}

// setDeadline sets the read or write deadline l of the stream to t, and calls end, with the connection's mu held, when it passes,
// or now if it has passed. A zero t removes the deadline. A write deadline is extended while other streams of the client go
// first. The caller holds the connection's mu.
func (w *handled) setDeadline(l *limit, t time.Time, end func()) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer, l.at, l.over, l.others = nil, t, false, w.s.SentByOthers()
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		l.over = true
		end()
		w.change.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		if l.timer != timer {
			return
		}
		if l == &w.writeTime && w.s.Behind(l.others) {
			// Other streams of the client go first, or did. How long the client may take for all
			// of them is the connection's to judge.
			l.others = w.s.SentByOthers()
			timer.Reset(w.m.c.listener.o.StallTimeout)
			return
		}
		l.over = true
		end()
		w.change.Broadcast()
	})
	l.timer = timer
}

// bufferedBytes are gathered of what a handler writes before it is sent.
const bufferedBytes = 4 << 10

// newHandled returns the http.ResponseWriter for one stream of the connection m. It has no stream until prepareRequest is called.
func newHandled(m *multiplexer) *handled {
	w := &handled{m: m, header: make(http.Header), length: -1}
	w.change.L = &m.mu
	return w
}

// Received implements h2.Peer. It buffers a piece of the request's body until the handler reads it, or drops it if the handler
// has finished with the body.
func (w *handled) Received(p []byte) {
	if w.unread {
		w.s.Consumed(len(p))
		return
	}
	w.body = append(w.body, p...)
	w.change.Broadcast()
}

// Ended implements h2.Peer. It records that the body of the request has ended, and copies the trailer.
func (w *handled) Ended(trailer []h2.Field) {
	w.bodyEnded = true
	for _, f := range trailer {
		w.trailer = append(w.trailer, h2.Field{Name: strings.Clone(f.Name), Value: strings.Clone(f.Value)})
	}
	w.change.Broadcast()
}

// Sent implements h2.Peer. It wakes the handler when everything that it has written has been copied to the connection's output,
// and gives it at least StallTimeout for the next write if other streams had delayed this one.
func (w *handled) Sent() {
	w.sending = false
	if l := &w.writeTime; l.timer != nil && w.s.SentByOthers() > l.others {
		// Other streams delayed it; what the handler does next has its own time, or what it has anyway.
		if next := time.Now().Add(w.m.c.listener.o.StallTimeout); l.at.Before(next) {
			w.setDeadline(l, next, w.onWriteTimeout)
		}
	}
	w.change.Broadcast()
}

// Broken implements h2.Peer. It wakes the handler and cancels the request's context when the stream ends before the response.
func (w *handled) Broken(h2.Code) {
	w.broken, w.body = true, nil
	if w.cancel != nil {
		w.cancel()
	}
	w.change.Broadcast()
}

// prepareRequest creates the http.Request of the stream s with its context, and starts the stream's deadlines. It does not call
// the handler. The caller holds the connection's mu.
func (w *handled) prepareRequest(s *h2.Stream) {
	c, r, o := w.m.c, &s.Request, &w.m.c.listener.o
	w.s = s
	ctx, cancel := context.WithCancel(context.WithValue(o.Context, http.LocalAddrContextKey, c.listener.Addr()))
	w.cancel = cancel
	req := &http.Request{
		Method: r.Method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(r.Fields)),
		Host: r.Authority, RequestURI: r.Path, RemoteAddr: c.remote, Body: http.NoBody,
	}
	var cookies []string
	for i := range r.Fields {
		f := &r.Fields[i]
		value := f.Value
		switch f.Kind {
		case h2.Host:
			if req.Host == "" {
				req.Host = value
			}
			continue
		case h2.Cookie:
			cookies = append(cookies, value)
			continue
		case h2.Trailer:
			req.Trailer = newTrailer(req.Trailer, value)
			continue
		}
		name := http.CanonicalHeaderKey(f.Name)
		req.Header[name] = append(req.Header[name], value)
	}
	if requests.ExpectsContinue(req.Header) {
		w.continued = !r.Bodiless
		delete(req.Header, "Expect") // as net/http does over HTTP/2
	}
	if cookies != nil {
		req.Header["Cookie"] = []string{strings.Join(cookies, "; ")}
	}
	if !r.Bodiless {
		req.Body, req.ContentLength = &requestBody{w}, r.Length
	}
	if c.secure != nil {
		state := c.secure.ConnectionState()
		req.TLS = &state
	}
	w.request = req.WithContext(ctx)
	if o.ReadTimeout > 0 {
		w.setDeadline(&w.readTime, time.Now().Add(o.ReadTimeout), func() {})
	}
	if o.WriteTimeout > 0 {
		w.setDeadline(&w.writeTime, time.Now().Add(o.WriteTimeout), w.onWriteTimeout)
	}
}

// newTrailer adds an empty entry for each field that value, a line of the Trailer field, announces to trailer, which may be nil,
// and returns trailer. It omits fields that cannot be in a trailer.
func newTrailer(trailer http.Header, value string) http.Header {
	for name := range strings.SplitSeq(value, ",") {
		switch name = http.CanonicalHeaderKey(textproto.TrimString(name)); name {
		case "", "Transfer-Encoding", "Trailer", "Content-Length":
		default:
			if trailer == nil {
				trailer = make(http.Header)
			}
			trailer[name] = nil
		}
	}
	return trailer
}

// onWriteTimeout resets the stream when its deadline for writes has passed. The caller holds the connection's mu.
func (w *handled) onWriteTimeout() {
	if !w.broken {
		w.s.Reset(h2.InternalError)
		w.m.onChange()
	}
}

// run calls Options.Requests with the request, or Options.TooLarge for one with too many fields, and ends the response. It runs
// in the handler's goroutine.
func (w *handled) run() {
	defer w.endRequest()
	o := &w.m.c.listener.o
	if w.s.Request.TooLarge {
		o.TooLarge.ServeHTTP(w, w.request)
	} else if w.parseTarget() {
		o.Requests.ServeHTTP(w, w.request)
	}
	w.finish()
}

// parseTarget sets the URL of the request from its target, by the same rules as net/http. If the target is malformed, it resets
// the stream and returns false.
func (w *handled) parseTarget() bool {
	r := w.request
	if r.Method == http.MethodConnect {
		r.URL, r.RequestURI = &url.URL{Host: r.Host}, r.Host
		return true
	}
	var err error
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err == nil {
		return true
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if !w.broken {
		w.s.Reset(h2.ProtocolError)
		w.m.onChange()
	}
	return false
}

// endRequest must be deferred by the handler's goroutine. It recovers from a panic of the handler, logs any reason but
// http.ErrAbortHandler, and resets the stream. In any case it stops the deadlines, drops the unread body and cancels the request's
// context.
func (w *handled) endRequest() {
	reason := recover()
	w.m.c.listener.logPanic(reason, w.request.RemoteAddr)
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	w.setDeadline(&w.readTime, time.Time{}, nil)
	w.setDeadline(&w.writeTime, time.Time{}, nil)
	if reason != nil && !w.broken {
		w.s.Reset(h2.InternalError)
	}
	w.unread = true
	if n := len(w.body); n > 0 && !w.broken {
		w.s.Consumed(n)
	}
	w.body = nil
	w.cancel()
	m.onHandlerDone(w)
	m.onChange()
}

// Header implements http.ResponseWriter. Changes after WriteHeader only affect trailers.
func (w *handled) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. It sends an informational response at once, except 101, which it ignores. For any other
// status it only takes a snapshot of the header, which is sent with the first bytes of the body. After such a status later calls do
// nothing. An invalid status panics before that.
func (w *handled) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic("lane: invalid status " + strconv.Itoa(status))
	}
	if status < 200 {
		if status != http.StatusSwitchingProtocols {
			w.sendInformational(status)
		}
		return
	}
	w.status, w.snapshot = status, w.header.Clone()
	if promised, err := strconv.ParseInt(w.snapshot.Get("Content-Length"), 10, 64); err == nil && promised >= 0 {
		w.length = promised
	} else {
		delete(w.snapshot, "Content-Length")
	}
	for _, value := range w.snapshot["Trailer"] {
		w.trailers = append(w.trailers, slices.Sorted(maps.Keys(newTrailer(nil, value)))...)
	}
}

// sendInformational queues an informational response (1xx) over HTTP/2 at once: with the header that the handler has set, unless it is
// 100 (Continue). It does nothing if the stream has ended. It locks the connection's mu.
func (w *handled) sendInformational(status int) {
	block := h2.AppendStatus(nil, status)
	if status != http.StatusContinue {
		block = appendFields(block, w.header)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if !w.broken {
		w.continued = w.continued && status != http.StatusContinue
		w.s.Inform(block)
		w.m.onChange()
	}
}

// hasBody reports whether a response with a status may have a body (RFC 9110 §6.4.1). It does not consider the method, such as HEAD.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements io.Writer. It may wait for the client's windows.
func (w *handled) Write(p []byte) (int, error) { return writeBody(w, p) }

// WriteString implements io.StringWriter. It may wait for the client's windows.
func (w *handled) WriteString(s string) (int, error) { return writeBody(w, s) }

// writeBody adds p to the buffered part of the response's body, and sends the buffer when it is full. Without a status it sets 200. It
// returns http.ErrBodyNotAllowed if the status allows no body, http.ErrContentLength if the body gets longer than Content-Length, and
// errors of sending. It counts the body of a response to HEAD, which send drops.
func writeBody[T string | []byte](w *handled, p T) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !hasBody(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.written += int64(len(p)); w.length >= 0 && w.written > w.length {
		return 0, http.ErrContentLength
	}
	if w.buffer == nil {
		w.buffer = make([]byte, 0, bufferedBytes)
	}
	if len(w.buffer) > 0 && len(w.buffer)+len(p) > cap(w.buffer) {
		if err := w.flushBuffer(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(w.buffer) {
		if err := w.send([]byte(p), false); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	w.buffer = append(w.buffer, p...)
	return len(p), nil
}

// flushBuffer sends the buffered part of the body, and the head before it if that was not sent. It waits until the client's windows have
// space; it locks the connection's mu. The buffer is empty afterwards, also after an error.
func (w *handled) flushBuffer() error {
	err := w.send(w.buffer, false)
	w.buffer = w.buffer[:0]
	return err
}

// Flush implements http.Flusher. It sends the head and the buffered part of the body, and ignores errors.
func (w *handled) Flush() { _ = w.FlushError() }

// FlushError implements the method for http.ResponseController. It sends the head if it was not sent, with status 200 by default,
// and the buffered part of the body.
func (w *handled) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if len(w.buffer) > 0 || !w.sentHead {
		return w.flushBuffer()
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return w.failure()
}

// failure returns os.ErrDeadlineExceeded after the write deadline, errStreamEnded if the stream was reset or the connection has
// ended, and else nil. The caller holds the connection's mu.
func (w *handled) failure() error {
	switch {
	case w.writeTime.over:
		return os.ErrDeadlineExceeded
	case w.broken:
		return errStreamEnded
	}
	return nil
}

// send sends the head, if it was not sent, and p, the next part of the body, which it drops for HEAD and for a status without a body.
// last says that the response ends with p and the trailer. Unless last is set, it waits until p was copied to the connection's output,
// which the client's windows may delay, and p may be reused. It locks the connection's mu. The error is that of failure.
func (w *handled) send(p []byte, last bool) error {
	var head []byte
	if !w.sentHead {
		head = w.headerBlock(p, last)
	}
	bodiless := w.request.Method == http.MethodHead || !hasBody(w.status)
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := w.failure(); err != nil {
		return err
	}
	var end []byte
	if last && !bodiless {
		end = w.trailerBlock()
	}
	if w.sending = true; bodiless {
		if w.sentHead {
			w.sending = false
			return nil
		}
		w.s.End(nil)
	} else if w.s.Write(p, last && end == nil); end != nil {
		w.s.End(end)
	}
	if head != nil {
		w.s.SendHead(head, nil)
		w.sentHead = true
	}
	m.onChange()
	for w.sending && !last && !w.broken && !w.writeTime.over {
		w.change.Wait()
	}
	if last {
		return nil
	}
	return w.failure()
}

// headerBlock returns the encoded header block of the response. It adds Date, Content-Type as detected from p, the beginning of
// the body, and, if all says that p is the complete body, Content-Length, unless the handler has set them.
func (w *handled) headerBlock(p []byte, all bool) []byte {
	h := w.snapshot
	if w.length < 0 && all && hasBody(w.status) && (len(p) > 0 || w.request.Method != http.MethodHead) {
		h["Content-Length"] = []string{strconv.Itoa(len(p))}
	}
	if _, typed := h["Content-Type"]; !typed && len(p) > 0 && hasBody(w.status) && h.Get("Content-Encoding") == "" {
		h["Content-Type"] = []string{http.DetectContentType(p)}
	}
	if _, dated := h["Date"]; !dated {
		h["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	}
	return appendFields(h2.AppendStatus(nil, w.status), h)
}

// connectionFields are those that HTTP/2 does not have.
var connectionFields = map[string]bool{"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Transfer-Encoding": true, "Upgrade": true}

// appendFields appends the fields of h to a header block, sorted by name, without those prefixed with
// http.TrailerPrefix, those that HTTP/2 does not allow, and invalid names and values. It does not leave out a field announced in Trailer.
func appendFields(b []byte, h http.Header) []byte {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if connectionFields[name] || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		b = appendHPACK(b, name, h[name])
	}
	return b
}

// appendHPACK appends a field to b, a header block of HTTP/2 in HPACK (RFC 7541), once for each of its values, and returns the block. It
// writes the name in lower case and trims the values. It omits invalid names and values.
func appendHPACK(b []byte, name string, values []string) []byte {
	lower := strings.ToLower(name)
	if !h2.IsName(lower) {
		return b
	}
	for _, value := range values {
		if value = textproto.TrimString(value); h2.IsValue(value) {
			b = h2.AppendField(b, lower, value)
		}
	}
	return b
}

// trailerBlock returns the encoded header block of the response's trailer, with the fields that the handler has announced or
// prefixed with http.TrailerPrefix; nil if there are none.
func (w *handled) trailerBlock() (block []byte) {
	for _, name := range w.trailers {
		block = appendHPACK(block, name, w.header[name])
	}
	for _, name := range slices.Sorted(maps.Keys(w.header)) {
		if bare, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			block = appendHPACK(block, bare, w.header[name])
		}
	}
	return block
}

// finish sends the rest of the response after the handler has returned; errors are ignored. If the handler has set no status, it is 200.
// If the handler has written less than Content-Length says, finish panics with http.ErrAbortHandler, so that endRequest resets the
// stream.
func (w *handled) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.length > w.written && w.request.Method != http.MethodHead && hasBody(w.status) {
		panic(http.ErrAbortHandler) // the client must not take it for all
	}
	_ = w.send(w.buffer, true)
}

// SetReadDeadline implements the method for http.ResponseController: it sets the deadline for reading the request's body, and leaves the
// connection's other streams as they are. It always returns nil.
func (w *handled) SetReadDeadline(t time.Time) error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.setDeadline(&w.readTime, t, func() {})
	return nil
}

// SetWriteDeadline implements the method for http.ResponseController. It always returns nil, and does nothing after the deadline
// has passed.
func (w *handled) SetWriteDeadline(t time.Time) error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if !w.writeTime.over {
		w.setDeadline(&w.writeTime, t, w.onWriteTimeout)
	}
	return nil
}

// EnableFullDuplex implements the method for http.ResponseController: HTTP/2 always is full duplex.
func (w *handled) EnableFullDuplex() error { return nil }
