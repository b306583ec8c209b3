package answers

import "net/http"

// Missing is the response for what is not found while the store lacks some published data: it may
// have been published.
var Missing = &Failure{Status: http.StatusServiceUnavailable, Retry: 60,
	Message: "This is not here at the moment: the service has lost some of its data and needs a repair. Try again later."}

// Lacking returns a handler that answers as next does, but with [Missing] where that finds
// nothing. What it finds may lack something too, so that nothing may be kept.
func Lacking(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&lacking{ResponseWriter: w, request: r}, r)
	})
}

type lacking struct {
	http.ResponseWriter
	request *http.Request
	begun   bool
	missing bool // whether the answer has been replaced
}

func (l *lacking) WriteHeader(status int) {
	if l.begun {
		return
	}
	l.begun, l.missing = status >= 200, status == http.StatusNotFound
	h := l.Header()
	h.Del("Expires")
	NoStore.Set(h)
	switch {
	case !l.missing:
		l.ResponseWriter.WriteHeader(status)
	case h.Get("Content-Type") == JSON:
		Missing.SendJSON(l.ResponseWriter, l.request)
	default:
		Missing.Send(l.ResponseWriter, l.request.Method == http.MethodHead, l.request.Header["Accept"])
	}
}

func (l *lacking) Write(p []byte) (int, error) {
	l.WriteHeader(http.StatusOK)
	if l.missing {
		return len(p), nil
	}
	return l.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (l *lacking) Flush() {
	l.WriteHeader(http.StatusOK)
	if f, ok := l.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (l *lacking) Unwrap() http.ResponseWriter { return l.ResponseWriter }
