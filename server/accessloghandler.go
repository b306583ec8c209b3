package server

import (
	"net/http"
	"net/netip"
	"time"
)

// Handler returns a handler that calls next and logs each response when next has returned or panicked. If next has set no status,
// it logs 200. A nil AccessLog returns next. The handler that sets r.RemoteAddr to the client's address must come before it.
func (l *AccessLog) Handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := accessLogEntry{
			Time: time.Now(), Method: r.Method, Host: r.Host, Target: r.RequestURI, Protocol: r.Proto,
			Referer: r.Header.Get("Referer"), Agent: r.Header.Get("User-Agent"),
		}
		if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			e.Client = at.Addr()
		}
		seen := &accessLogWriter{ResponseWriter: w}
		defer func() { // also where a handler ends the connection by a panic
			e.Status, e.Sent, e.Took = seen.status, seen.sent, time.Since(e.Time)
			if e.Status == 0 {
				e.Status = http.StatusOK
			}
			l.add(&e)
		}()
		next.ServeHTTP(seen, r)
	})
}

// accessLogWriter is a ResponseWriter that records status and size of the response.
type accessLogWriter struct {
	http.ResponseWriter
	status int
	sent   int64
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *accessLogWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It records the status, unless a final one (200 or above) was recorded before, and
// always passes it on.
func (w *accessLogWriter) WriteHeader(status int) {
	if w.status < http.StatusOK { // what only informs may come before
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer. It records the status 200 unless a final one was recorded, and counts the bytes that the underlying
// writer reports as written. Those include a body to a HEAD, which net/http does not send.
func (w *accessLogWriter) Write(p []byte) (int, error) {
	if w.status < http.StatusOK {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}

// Flush implements http.Flusher, which some handlers look for. It ignores errors.
func (w *accessLogWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
