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
		seen := &statusWriter{ResponseWriter: w}
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
