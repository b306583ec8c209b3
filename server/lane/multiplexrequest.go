package lane

import (
	"net/http"
	"strings"
	"unsafe"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// readRequest sets the exchange's request from one over HTTP/2, whose memory its strings share. It returns false if the lane's
// handler cannot serve it, so that an http.Handler has to; then the exchange's request is only partly set.
func (x *Exchange) readRequest(r *h2.Request) bool {
	if x.Head = r.Method == http.MethodHead; !x.Head && r.Method != http.MethodGet {
		return false
	}
	if !r.Bodiless || r.TooLarge || len(r.Path) > bufferBytes || !x.setTarget(r.Path) {
		return false
	}
	x.Host, x.Fields, x.Forwarded, x.closes = r.Authority, requests.Fields{}, false, false
	x.Referer, x.UserAgent, x.Relayed = "", "", nil
	for i := range r.Fields {
		f := &r.Fields[i]
		ok := true
		if x.relay != "" && f.Name == x.relay {
			ok = x.relayed.put(&x.Relayed, f.Value)
		}
		switch f.Kind {
		case h2.Other:
		case h2.Referer:
			x.Referer = f.Value
		case h2.UserAgent:
			x.UserAgent = f.Value
		case h2.Host:
			x.Host = f.Value
		case h2.Forwarded:
			x.Forwarded = true
		case h2.Accept:
			ok = x.accept.put(&x.Fields.Accept, f.Value)
		case h2.AcceptEncoding:
			ok = x.acceptEncoding.put(&x.Fields.AcceptEncoding, f.Value)
		case h2.AvailableDictionary:
			ok = x.availableDictionary.put(&x.Fields.AvailableDictionary, f.Value)
		case h2.IfMatch:
			ok = x.ifMatch.put(&x.Fields.IfMatch, f.Value)
		case h2.IfNoneMatch:
			ok = x.ifNoneMatch.put(&x.Fields.IfNoneMatch, f.Value)
		case h2.IfModifiedSince:
			ok = x.ifModifiedSince.put(&x.Fields.IfModifiedSince, f.Value)
		case h2.IfUnmodifiedSince:
			ok = x.ifUnmodifiedSince.put(&x.Fields.IfUnmodifiedSince, f.Value)
		case h2.Range, h2.IfRange, h2.Expect, h2.Trailer, h2.ContentLength, h2.LogSize:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return isHost(x.Host)
}

// setTarget sets Target to s, and Path to s without the query. It returns false if s is not a path, with or without a query, in
// the characters that the lane accepts.
func (x *Exchange) setTarget(s string) bool {
	end, query, ok := scanTarget(unsafe.Slice(unsafe.StringData(s), len(s)), 0)
	if !ok || end != len(s) || !strings.HasPrefix(s, "/") {
		return false
	}
	x.Target, x.Path = s, s
	if query > 0 {
		x.Path = s[:query]
	}
	return true
}
