package server

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/usage"
)

// Answer implements lane.Handler: it responds to requests for assets. It returns false, having sent nothing, for other paths and for requests that
// only net/http can serve. It sends prepared responses directly. Failures, and bodies that are decoded while they are sent, go through an
// http.ResponseWriter.
func (a *Assets) Answer(x *lane.Exchange) bool {
	if !strings.HasPrefix(x.Path, Prefix) {
		return false
	}
	a.metrics.inFlight.Add(1)
	defer a.metrics.inFlight.Add(-1)
	if a.o.AccessLog != nil {
		x.Remote() // while it certainly has one
	}
	q := query{head: x.Head, path: x.Path, fields: &x.Fields}
	out := respond(a, onLane{a, x}, &q)
	if out.status == 0 {
		return false
	}
	a.metrics.countResponse(out)
	if a.o.AccessLog != nil {
		a.logRequest(x, out)
	}
	return true
}

// logRequest writes a request with its outcome to the access log, at once, or if its body is sent later, when [delivery.Release] is called after
// that.
func (a *Assets) logRequest(x *lane.Exchange, out outcome) {
	e := accessLogEntry{
		Time: x.Now(), Client: a.o.Proxies.Client(x.Remote(), x.Relayed), Method: http.MethodGet, Host: x.Host, Target: x.Target, Protocol: "HTTP/1.1",
		Referer: x.Referer, Agent: x.UserAgent, Status: out.status, Sent: out.sent,
	}
	if x.Head {
		e.Method = http.MethodHead
	}
	if x.Multiplexed() {
		e.Protocol = "HTTP/2.0"
	}
	if d, ok := x.Held().(*delivery); ok {
		d.log, d.entry = a.o.AccessLog, e
		d.text = d.entry.copyTexts(d.text)
		return
	}
	e.Took = time.Since(e.Time)
	a.o.AccessLog.add(&e)
}

// A delivery is a body on its way. Its response is counted before, and it when all is sent.
type delivery struct {
	*body
	assets *Assets
	label  label
	usage  *usage.Counter // or nil
	log    *AccessLog     // nil if it is not logged
	entry  accessLogEntry // its texts are in text
	text   []byte
}

var deliveries = sync.Pool{New: func() any { return new(delivery) }}

// Release implements h2.Held. The lane calls it when sent bytes of the body were sent or the client is gone: it counts and logs them, releases the
// body, and puts the delivery back into its pool.
func (d *delivery) Release(sent int64) {
	d.assets.metrics.countSent(d.label, sent)
	if d.usage != nil {
		d.usage.CountSent(sent)
	}
	if d.log != nil {
		d.entry.Sent, d.entry.Took = sent, time.Since(d.entry.Time)
		d.log.add(&d.entry)
	}
	d.assets.bodies.release(d.body)
	*d = delivery{text: d.text}
	deliveries.Put(d)
}

// onLane is a recipient on the fast lane.
type onLane struct {
	*Assets
	x *lane.Exchange
}

// now implements recipient: it returns the time of [lane.Exchange.Now].
func (to onLane) now() time.Time { return to.x.Now() }

// mayBlock implements recipient: it reports whether this goroutine may wait for a disk. If not, the request is left to net/http.
func (to onLane) mayBlock() bool { return to.x.MayBlock() }

// client returns the address prefix of the client behind any trusted proxies, to which memory is charged.
func (to onLane) client() netip.Prefix {
	return requests.ClientAt(to.o.Proxies.Client(to.x.Remote(), to.x.Relayed))
}

// headForm returns the form in which the head of a response is written: lines for HTTP/1.1, or a header block for HTTP/2.
func (to onLane) headForm() form {
	if to.x.Multiplexed() {
		return block
	}
	return plain
}

// sendFailure implements recipient: it sends an error response. varies says that the URL has several encodings.
func (to onLane) sendFailure(f *answers.Failure, varies bool) outcome {
	return outcome{f.Status, labelNone, writeFailure(to.x.Writer(), f, varies, to.x.Head, to.x.Fields.Accept)}
}

// sendNotModified implements recipient: it sends 304 with the entity tag.
func (to onLane) sendNotModified(r *representation, tag string) outcome {
	h := r.notModifiedHead(to.headForm(), tag)
	to.x.Send(*h, nil, nil)
	heads.Put(h)
	return outcome{http.StatusNotModified, codingLabel(r), 0}
}

// sendHead implements recipient: it sends the head of a 200 response.
func (to onLane) sendHead(r *representation) outcome {
	h := r.okHead(to.headForm())
	to.x.Send(*h, nil, nil)
	heads.Put(h)
	return outcome{http.StatusOK, codingLabel(r), 0}
}

// sendBody implements recipient: it has the lane send 200 with the representation r of f, possibly after it returns; the delivery then counts the
// bytes. It returns an outcome with status 0, having sent nothing, if the client cannot take a body now, or if the bytes are not in memory and
// this goroutine must not wait.
func (to onLane) sendBody(f *asset, r *representation) (outcome, error) {
	if r.length > 0 && !to.x.Ready() {
		return outcome{}, nil
	}
	x, ok := to.bodies.getCached(r.sum)
	if !ok {
		if !to.mayBlock() {
			return outcome{}, nil
		}
		var err error
		if x, err = to.bodyOf(f, r, false, to.client()); err != nil {
			return outcome{}, err
		}
	}
	if x == nil {
		return to.sendInflated(to.x.Writer(), 1, f, r, to.client(), to.x.MustHurry)
	}
	to.metrics.countSaved(r)
	d := deliveries.Get().(*delivery)
	d.body, d.assets, d.label, d.usage = x, to.Assets, codingLabel(r), f.usage
	h := r.okHead(to.headForm())
	to.x.Send(*h, x.bytes, d)
	heads.Put(h)
	return outcome{http.StatusOK, codingLabel(r), 0}, nil
}
