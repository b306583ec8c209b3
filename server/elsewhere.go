package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/larder-cdn/larder/internal/answers"
)

// Elsewhere answers for a file of a version that the store does not know. It returns the file's bytes, which it has verified and which are not nil
// even if the file is empty, or the failure to respond with. If both are nil, the store has the version by now.
type Elsewhere func(r *http.Request, pkg, version, path string) ([]byte, *answers.Failure)

// errUnknown says that not even the version of a file is known.
var errUnknown = fmt.Errorf("%w, and its version is not known", errNoFile)

// mayBeElsewhere reports whether a file that was not found because of err may be available from another origin: there is one, and the store does not
// even know the file's version.
func (a *Assets) mayBeElsewhere(err error) bool {
	return a.o.Elsewhere != nil && errors.Is(err, errUnknown)
}

// serveElsewhere implements recipient. It sends nothing and returns an outcome with status 0 and true, which leaves the request to net/http, where a
// goroutine can wait for another origin.
func (to onLane) serveElsewhere(target) (outcome, bool) { return outcome{}, true }

// serveElsewhere implements recipient: it responds with a file of a version that the store does not have, through the function Elsewhere, or with its
// failure. It returns false, and sends nothing, if the store has the version by now. It ignores errors of sending; the outcome has the bytes that
// were sent.
func (to overHTTP) serveElsewhere(t target) (outcome, bool) {
	t = t.clone()
	data, failure := to.o.Elsewhere(to.r, t.pkg, t.version, t.path)
	switch {
	case failure != nil:
		return to.sendFailure(failure, false), true
	case data == nil:
		return outcome{}, false
	}
	name := contentType(t.path)
	h := to.w.Header()
	answers.SetFields(h, answers.AnyOrigin...)
	answers.SetFields(h, sandboxFields(name)...)
	answers.NoStore.SetHeader(h) // what is published soon has a validator, and may be kept
	h.Set("Content-Type", name)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	to.w.WriteHeader(http.StatusOK)
	if to.r.Method == http.MethodHead {
		return outcome{http.StatusOK, labelNone, 0}, true
	}
	w := to.newWriter(to.w, to.r.ProtoMajor, func() bool { return to.bodies.Scarce() || to.mustHurry() })
	w.Write(data)
	return outcome{http.StatusOK, labelNone, w.Sent}, true
}
