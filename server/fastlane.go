package server

import (
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane"
)

// Answer implements lane.Handler: it answers for assets, and leaves requests with another
// path to net/http. What is prepared is sent as it is; failures and what must be inflated
// are written as over net/http.
func (a *Assets) Answer(x *lane.Exchange) bool {
	if !strings.HasPrefix(x.Path, Prefix) {
		return false
	}
	a.metrics.inFlight.Add(1)
	defer a.metrics.inFlight.Add(-1)
	q := query{head: x.Head, path: x.Path, fields: &x.Fields}
	out := answer(a, onLane{a, x}, &q)
	if out.status == 0 {
		return false
	}
	a.metrics.answered(out)
	return true
}

// onLane is a recipient on the fast lane.
type onLane struct {
	*Assets
	x *lane.Exchange
}

func (to onLane) now() time.Time { return to.x.Now() }

func (to onLane) mayBlock() bool { return to.x.MayBlock() }

func (to onLane) form() form {
	if to.x.Multiplexed() {
		return block
	}
	return plain
}

func (to onLane) fail(f *answers.Failure, varies bool) outcome {
	return outcome{f.Status, labelNone, sendFailure(to.x.Writer(), f, varies, to.x.Head, to.x.Fields.Accept)}
}

func (to onLane) notModified(r *representation, tag string) outcome {
	to.send(r.notModifiedHead(to.form(), tag), nil)
	return outcome{http.StatusNotModified, labelOf(r), 0}
}

func (to onLane) headOf(r *representation) outcome {
	to.send(r.okHead(to.form()), nil)
	return outcome{http.StatusOK, labelOf(r), 0}
}

func (to onLane) body(f *asset, r *representation) (outcome, error) {
	if r.length > 0 && !to.x.Ready() {
		return outcome{}, errLater
	}
	x, ok := to.bodies.cached(r.sum)
	if !ok {
		if !to.mayBlock() {
			return outcome{}, errLater
		}
		var err error
		if x, err = to.bodyOf(f, r, false); err != nil {
			return outcome{}, err
		}
	}
	if x == nil {
		return to.inflate(to.x.Writer(), 1, f, r)
	}
	if to.x.Multiplexed() {
		x.sentAs(labelOf(r))
		h := r.okHead(block)
		to.x.SendHeld(*h, x.bytes, x)
		heads.Put(h)
		return outcome{http.StatusOK, labelOf(r), 0}, nil
	}
	defer to.bodies.release(x)
	return outcome{http.StatusOK, labelOf(r), to.send(r.okHead(plain), x)}, nil
}

// send sends a head, which it puts back into heads, and the body if there is one.
func (to onLane) send(h *lane.Head, x *body) (sent int64) {
	if x == nil {
		to.x.Send(*h, nil, nil)
	} else {
		sent = to.x.Send(*h, x.bytes, x)
	}
	heads.Put(h)
	return sent
}

// newHead prepares the head of an answer with those fields.
func newHead(status int, fields []answers.Field) lane.Head {
	return lane.NewHead(status, iter.Seq2[string, string](func(yield func(string, string) bool) {
		for _, f := range fields {
			if !yield(f.Name, f.Value) {
				return
			}
		}
	}))
}
