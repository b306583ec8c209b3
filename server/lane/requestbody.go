package lane

import (
	"io"
	"net/http"
	"os"

	"github.com/larder-cdn/larder/server/lane/h2"
)

// A requestBody is the body that the client sends after the head.
type requestBody struct{ w *handled }

// Read implements io.Reader. It waits until the client sends a part of the body, the body ends, the read deadline passes or the
// stream ends. It sends 100 (Continue) first if the client waits for that. At the end of the body it sets the trailer of the
// request. The error is io.EOF then, os.ErrDeadlineExceeded after the deadline, [errStreamEnded] after the stream has ended
// early, and http.ErrBodyReadAfterClose after Close.
func (b *requestBody) Read(p []byte) (int, error) {
	w, m := b.w, b.w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.continued && len(w.body) == 0 && !w.broken {
		w.s.Inform(h2.AppendStatus(nil, http.StatusContinue))
		m.onChange()
	}
	w.continued = false
	for {
		switch {
		case w.unread:
			return 0, http.ErrBodyReadAfterClose
		case w.readTime.over:
			return 0, os.ErrDeadlineExceeded
		case len(w.body) > 0:
			n := copy(p, w.body)
			if w.body = w.body[n:]; len(w.body) == 0 {
				w.body = nil
			}
			if !w.broken {
				w.s.Consumed(n)
				m.onChange()
			}
			return n, nil
		case w.bodyEnded:
			b.setTrailer()
			return 0, io.EOF
		case w.broken || !w.s.Open():
			return 0, errStreamEnded
		case len(p) == 0:
			return 0, nil
		}
		w.change.Wait()
	}
}

// setTrailer adds the fields that came after the body to the trailer of the request, if the client had announced them.
func (b *requestBody) setTrailer() {
	for _, f := range b.w.trailer {
		name := http.CanonicalHeaderKey(f.Name)
		if _, ok := b.w.request.Trailer[name]; ok {
			b.w.request.Trailer[name] = append(b.w.request.Trailer[name], f.Value)
		}
	}
	b.w.trailer = nil
}

// Close implements io.Closer. It drops what has come of the body, and what will come.
func (b *requestBody) Close() error {
	w := b.w
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if n := len(w.body); n > 0 && !w.broken {
		w.s.Consumed(n)
		w.m.onChange()
	}
	w.unread, w.body = true, nil
	return nil
}
