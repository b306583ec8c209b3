package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

// A cause is why a request failed, as a client tells it.
type cause string

const (
	refused     cause = "connection refused"
	cut         cause = "connection cut"
	timedOut    cause = "no answer in time"
	unavailable cause = "503"
	badGateway  cause = "502 or 504"
	notFound    cause = "404"
	wrongBytes  cause = "wrong bytes"
	recalled    cause = "served although withdrawn"
	poisonous   cause = "served although its integrity is wrong"
	otherwise   cause = "otherwise"
)

// unforgivable are the causes that no event allows.
var unforgivable = []cause{wrongBytes, recalled, poisonous, otherwise}

// errStatus is the error of an answer with another status than is due.
type errStatus int

func (e errStatus) Error() string { return "answered " + http.StatusText(int(e)) }

// errClaim is the error of an answer that is wrong in itself.
type errClaim struct {
	cause cause
	what  string
}

func (e errClaim) Error() string { return string(e.cause) + ": " + e.what }

// causeOf tells why a request failed.
func causeOf(err error) cause {
	var claim errClaim
	var status errStatus
	var timeout net.Error
	switch {
	case errors.As(err, &claim):
		return claim.cause
	case errors.As(err, &status):
		switch status {
		case http.StatusServiceUnavailable:
			return unavailable
		case http.StatusBadGateway, http.StatusGatewayTimeout:
			return badGateway
		case http.StatusNotFound:
			return notFound
		}
		return otherwise
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return timedOut
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed),
		strings.Contains(err.Error(), "GOAWAY"), strings.Contains(err.Error(), "connection lost"), strings.Contains(err.Error(), "stream error"):
		return cut
	}
	return otherwise
}

// An event is something that the scenario does, with what clients may notice of it.
type event struct {
	Kind       string
	What       string // in words: to which process, and what came of it
	Begin, End time.Time
	Skipped    bool
	Failed     error
	over       bool               // the play ended meanwhile
	allowed    map[string][]cause // by the name of an entrance
}

// allow says what clients of an entrance may notice.
func (e *event) allow(entrance string, causes ...cause) {
	if e.allowed == nil {
		e.allowed = map[string][]cause{}
	}
	e.allowed[entrance] = append(e.allowed[entrance], causes...)
}

// A failure is a request that failed.
type failure struct {
	begun, at time.Time
	entrance  string
	cause     cause
	detail    string
}

// grace is how long after an event a failure still counts as its own: requests that waited for it end then.
const grace = 3 * time.Second

// explains is whether the contracts allow that failure in that event.
func (e *event) explains(f *failure) bool {
	end := e.End
	if end.IsZero() {
		end = f.at
	}
	return !slices.Contains(unforgivable, f.cause) && slices.Contains(e.allowed[f.entrance], f.cause) && !f.at.Before(e.Begin) && f.begun.Before(end.Add(grace))
}

// A second is what clients of one entrance got in one.
type second struct {
	ok, failed int
	took       []float32 // milliseconds, of those that succeeded
}

// A sample is what one process used at one time.
type sample struct {
	stage.Usage
	pid   int
	inUse int64 // of its memory, in bytes; 0: it did not say
}

// notes are what was seen.
type notes struct {
	begin time.Time

	mu       sync.Mutex
	seconds  map[string][]second // by entrance
	failures []failure
	events   []*event
	samples  map[string][]sample // by process
	waited   int                 // requests that the fallback told to come again, and that came
	told     []string            // what else to tell
	copies   []*copyReport
}

func newNotes() *notes {
	return &notes{begin: time.Now(), seconds: map[string][]second{}, samples: map[string][]sample{}}
}

// request notes a request that has ended.
func (n *notes) request(entrance string, begun time.Time, err error) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.seconds[entrance]
	at := int(now.Sub(n.begin) / time.Second)
	for len(all) <= at {
		all = append(all, second{})
	}
	if err == nil {
		all[at].ok++
		all[at].took = append(all[at].took, float32(now.Sub(begun).Seconds()*1000))
	} else {
		all[at].failed++
		n.failures = append(n.failures, failure{begun, now, entrance, causeOf(err), err.Error()})
	}
	n.seconds[entrance] = all
}

func (n *notes) begins(kind string) *event {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &event{Kind: kind, Begin: time.Now()}
	n.events = append(n.events, e)
	return e
}

func (n *notes) ends(e *event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.End = time.Now()
}

func (n *notes) sample(process string, s sample) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.samples[process] = append(n.samples[process], s)
}

func (n *notes) comesAgain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waited++
}

// explained sorts the failures into those that an event allows, counted by event, entrance and cause, and the others.
func (n *notes) explained() (allowed map[*event]map[string]int, others []failure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	allowed = map[*event]map[string]int{}
	for i := range n.failures {
		f := &n.failures[i]
		at := slices.IndexFunc(n.events, func(e *event) bool { return e.explains(f) })
		if at < 0 {
			others = append(others, *f)
			continue
		}
		e := n.events[at]
		if allowed[e] == nil {
			allowed[e] = map[string]int{}
		}
		allowed[e][f.entrance+": "+string(f.cause)]++
	}
	return allowed, others
}
