package fallback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/text"
)

// An Outcome says what came of a request, or of a release that was requested for.
type Outcome string

// The outcomes.
const (
	Filled   Outcome = "filled"   // the client got the file, or the store has it by now; a release was published
	Absent   Outcome = "absent"   // no origin has it, or no origin may be queried about it
	Looped   Outcome = "looped"   // the request came through this Larder, or too many others, before
	Mismatch Outcome = "mismatch" // an origin sent or said something else than it promised
	Budget   Outcome = "budget"   // a limit of the client or the origin is reached, or too many requests are in progress
	Quota    Outcome = "quota"    // the bytes that may be taken are used up
	Later    Outcome = "later"    // it is still on its way
	Failed   Outcome = "failed"   // an origin does not respond, or is not queried because it did not respond
)

// Outcomes are all of them.
var Outcomes = []Outcome{Filled, Absent, Looped, Mismatch, Budget, Quota, Later, Failed}

// outcomeOf returns the outcome that the error of a client's request or of fetching a release stands for; [Filled] for nil, and
// [Failed] for unknown errors.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Filled
	case errors.Is(err, errLoop):
		return Looped
	case errors.Is(err, fetch.ErrNotFound), errors.Is(err, ingest.ErrStays):
		return Absent
	case errors.Is(err, errMismatch):
		return Mismatch
	case errors.Is(err, errQuota):
		return Quota
	case errors.Is(err, errBusy):
		return Budget
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, ingest.ErrInHand):
		return Later
	}
	return Failed
}

// failures are the responses to clients by outcome.
var failures = map[Outcome]*answers.Failure{
	Absent: notThere, Looped: notThere, Mismatch: mismatch, Budget: crowded, Quota: crowded, Later: later, Failed: down,
}

// A State is the state of a Fallback, and its JSON form. Its counters start with the process.
type State struct {
	Origins []OriginState `json:"origins"`
	// Requests counts the requests of clients for missing files, by outcome.
	Requests map[Outcome]int64 `json:"requests"`
	// Releases counts the releases that were requested from origins, by outcome.
	Releases map[Outcome]int64 `json:"releases"`
	// UnderWay counts the releases that are being fetched, and Waiting the requests that wait for one of their files.
	UnderWay int `json:"underWay"`
	Waiting  int `json:"waiting"`
	// Bytes are those of all mirrored releases that are here, of a Quota.
	Bytes int64 `json:"bytes"`
	Quota int64 `json:"quota"`
}

// An OriginState is the state of an origin.
type OriginState struct {
	Origin string `json:"origin"`
	// Budget is how many releases may be requested from it now.
	Budget int `json:"budget"`
	// Rests is the end of the time in which it is not queried because of Problem; zero without one.
	Rests   time.Time `json:"rests,omitzero"`
	Problem string    `json:"problem,omitempty"`
	// Cosigned is as of when the checkpoint of a larder: origin is vouched to be the newest of its log, and Stale why it need not be
	// any more, so that withdrawals may be missing here.
	Cosigned time.Time `json:"cosigned,omitzero"`
	Stale    string    `json:"stale,omitempty"`
}

// State returns the present state of the fallback and its origins. It sends no request and reads nothing from the store; Bytes is
// 0 until they were counted.
func (f *Fallback) State() State {
	s := State{Waiting: int(f.waiting.Load()), Bytes: max(0, f.stored.Load()), Quota: f.o.Quota} // CheckMirrored counts the bytes
	for _, o := range f.origins {
		s.Origins = append(s.Origins, o.state())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Requests, s.Releases, s.UnderWay = maps.Clone(f.requests), maps.Clone(f.releases), len(f.flights)
	return s
}

// state returns the present state of the origin: its budget, the pause after a failure, and how old the checkpoint of a log is.
func (o *limitedOrigin) state() OriginState {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.budget.refill(now)
	s := OriginState{Origin: o.String(), Budget: int(o.budget.tokens)}
	if now.Before(o.backoff.until) {
		s.Rests, s.Problem = o.backoff.until, o.problem
	}
	if l, ok := o.origin.(*larder); ok {
		s.Cosigned = l.age.Load().cosigned
		if err := l.checkAge(now); err != nil {
			s.Stale = err.Error()
		}
	}
	return s
}

// Describe returns lines of text for people about the state: what was taken and from where, refused requests by outcome, and
// origins that are paused, used up or too old. It returns "" for nil.
func (s *State) Describe() string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	var names []string
	for _, o := range s.Origins {
		names = append(names, o.Origin)
	}
	var requested int64
	for _, n := range s.Releases {
		requested += n
	}
	fmt.Fprintf(&b, "What is not here is taken from %s: %d of %s that clients asked for, %s of %s used; %s under way, and %s.\n",
		strings.Join(names, ", then "), s.Releases[Filled], text.Count(int(requested), "release", "releases"),
		humanize.IBytes(uint64(max(0, s.Bytes))), humanize.IBytes(uint64(s.Quota)), text.Count(s.UnderWay, "is", "are"), text.Count(s.Waiting, "request waits", "requests wait"))
	var refused []string
	for _, o := range slices.Sorted(maps.Keys(s.Requests)) {
		if o != Filled {
			refused = append(refused, fmt.Sprintf("%s %d", o, s.Requests[o]))
		}
	}
	if len(refused) > 0 {
		fmt.Fprintf(&b, "Of the requests for it, %d were answered; the others by outcome: %s.\n", s.Requests[Filled], strings.Join(refused, ", "))
	}
	for _, o := range s.Origins {
		switch {
		case !o.Rests.IsZero():
			fmt.Fprintf(&b, "%s is left alone until %s: %s\n", o.Origin, o.Rests.Local().Format(time.TimeOnly), text.Plain(o.Problem))
		case o.Budget < 1:
			fmt.Fprintf(&b, "%s has been asked for as many releases as it may be for the moment.\n", o.Origin)
		}
		if o.Stale != "" {
			fmt.Fprintf(&b, "What %s has withdrawn may be missing: %s.\n", o.Origin, text.Plain(o.Stale))
		}
	}
	return b.String()
}
