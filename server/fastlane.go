package server

import (
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

// Answer implements lane.Handler: it answers for assets, and leaves to net/http what has
// another path. What is prepared is sent as it is; failures and what must be inflated go
// the same way as over net/http.
func (a *Assets) Answer(x *lane.Exchange) bool {
	if !strings.HasPrefix(x.Path, Prefix) {
		return false
	}
	a.metrics.inFlight.Add(1)
	defer a.metrics.inFlight.Add(-1)
	q := query{head: x.Head, path: x.Path, fields: &x.Fields}
	a.metrics.answered(answer(a, onLane{a, x}, &q))
	return true
}

// onLane is a recipient whom the fast lane serves.
type onLane struct {
	*Assets
	x *lane.Exchange
}

func (to onLane) now() time.Time { return to.x.Now() }

func (to onLane) wait() { to.x.Leave() }

func (to onLane) fail(f failure) outcome {
	return outcome{f.status, labelNone, f.send(to.x.Writer(), to.x.Head, to.x.Fields.Accept)}
}

func (to onLane) notModified(r *representation, tag string) outcome {
	to.send(r.notModifiedHead(tag), nil)
	return outcome{http.StatusNotModified, labelOf(r), 0}
}

func (to onLane) headOf(r *representation) outcome {
	to.send(r.okHead(), nil)
	return outcome{http.StatusOK, labelOf(r), 0}
}

func (to onLane) body(f *asset, r *representation) (outcome, error) {
	x, ok := to.bodies.cached(r.sum)
	if !ok {
		to.wait()
		var err error
		if x, err = to.bodyOf(f, r, false); err != nil {
			return outcome{}, err
		}
	}
	if x == nil {
		return to.inflate(to.x.Writer(), 1, f, r)
	}
	defer to.bodies.release(x)
	return outcome{http.StatusOK, labelOf(r), to.send(r.okHead(), x)}, nil
}

// send sends a head, which goes back to heads, and the body if there is one.
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
func newHead(status int, fields []*field) lane.Head {
	return lane.NewHead(status, iter.Seq2[string, string](func(yield func(string, string) bool) {
		for _, f := range fields {
			if !yield(f.name, f.value[0]) {
				return
			}
		}
	}))
}
