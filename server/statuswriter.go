package server

import "net/http"

// A statusWriter is a ResponseWriter that records status and size of the response.
type statusWriter struct {
	http.ResponseWriter
	status int
	sent   int64
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It records the status, unless a final one (200 or above) was recorded before, and
// always passes it on.
func (w *statusWriter) WriteHeader(status int) {
	if w.status < http.StatusOK { // what only informs may come before
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer. It records the status 200 unless a final one was recorded, and counts the bytes that the underlying
// writer reports as written. Those include a body to a HEAD, which net/http does not send.
func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status < http.StatusOK {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}

// Flush implements http.Flusher, which some handlers look for. It ignores errors.
func (w *statusWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
