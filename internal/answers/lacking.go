package answers

import "net/http"

// Missing is the response for what is not found while the store lacks some published data: it may
// have been published.
var Missing = &Failure{Status: http.StatusServiceUnavailable, Retry: 60,
	Message: "This is not here at the moment: the service has lost some of its data and needs a repair. Try again later."}

// UnavailableIfNotFound returns a handler that responds as next does, but with [Missing] instead of 404. No response may be cached,
// because the data of any of them may be incomplete.
func UnavailableIfNotFound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&incompleteWriter{ResponseWriter: w, request: r}, r)
	})
}

// An incompleteWriter replaces a 404 by [Missing].
type incompleteWriter struct {
	http.ResponseWriter
	request *http.Request
	begun   bool
	missing bool // whether the response has been replaced
}

// WriteHeader implements http.ResponseWriter. It sends [Missing] in place of a 404, as JSON if the 404 was JSON, and other
// statuses with a header that forbids caching. Only the first final status counts.
func (l *incompleteWriter) WriteHeader(status int) {
	if l.begun {
		return
	}
	l.begun, l.missing = status >= 200, status == http.StatusNotFound
	h := l.Header()
	h.Del("Expires")
	NoStore.SetHeader(h)
	switch {
	case !l.missing:
		l.ResponseWriter.WriteHeader(status)
	case h.Get("Content-Type") == JSON:
		Missing.SendJSON(l.ResponseWriter, l.request)
	default:
		Missing.Send(l.ResponseWriter, l.request.Method == http.MethodHead, l.request.Header["Accept"])
	}
}

// Write implements http.ResponseWriter. It discards the body of a response that was replaced.
func (l *incompleteWriter) Write(p []byte) (int, error) {
	l.WriteHeader(http.StatusOK)
	if l.missing {
		return len(p), nil
	}
	return l.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. It sends the header with status 200 if none was sent, and has no other effect if the underlying
// writer cannot flush.
func (l *incompleteWriter) Flush() {
	l.WriteHeader(http.StatusOK)
	if f, ok := l.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (l *incompleteWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }
