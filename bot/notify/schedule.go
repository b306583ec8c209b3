package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// SchedulerOptions configures a Scheduler.
type SchedulerOptions struct {
	// Class is the name of the objects; default "request". A second scheduler over the
	// same runtime has another.
	Class string
	// UserAgent is sent with every request that does not have its own; default "larder".
	UserAgent string
	// Receiver, where set, names the receiver of a request; default the host of its URL.
	// A few requests at once are sent to the same one.
	Receiver func(id string, r Request) string
	// Before, where set, completes each request before it is sent. With [ErrGone] it is
	// given up, with any other error tried again.
	Before func(ctx context.Context, id string, r *http.Request, body []byte) error
	// After, where set, is told of each attempt, at least once. With an error the
	// attempt is made again.
	After func(ctx context.Context, id string, s State) error
	// Transport sends the requests; default one of its own.
	Transport http.RoundTripper
	Logger    *slog.Logger

	jitter func(time.Duration) time.Duration // for tests
}

// The waits, and how long what is over can still be looked at.
const (
	firstPause   = 2 * time.Second
	longestPause = time.Hour
	giveUpAfter  = 3 * 24 * time.Hour
	keepFor      = 24 * time.Hour
	timeout      = 30 * time.Second
	maxAnswer    = 64 << 10
	maxProblem   = 300 // bytes
)

var (
	// ErrNoRequest says that nothing is scheduled under an id.
	ErrNoRequest = errors.New("no request is scheduled under this id")
	// ErrGone says that a request has no purpose any more.
	ErrGone = errors.New("it has no purpose any more")
)

// A Status says what becomes of a request.
type Status string

const (
	Waiting   Status = "waiting"   // for its time, or the next attempt
	Delivered Status = "delivered" // and done; kept for a day
	GivenUp   Status = "given-up"  // kept for a day
)

// A State is a request and how it fares.
type State struct {
	ID      string    `json:"id"`
	Request Request   `json:"request"`
	Status  Status    `json:"status"`
	Due     time.Time `json:"due,omitzero"`  // of the delivery that is waited for
	Next    time.Time `json:"next,omitzero"` // of the next attempt
	// Attempts counts those for this delivery that failed, Deliveries those that were
	// answered with 2xx, Missed what was given up for the next.
	Attempts   int   `json:"attempts"`
	Deliveries int64 `json:"deliveries"`
	Missed     int64 `json:"missed,omitempty"`
	// The last attempt, its answer's status (0: there was none), and why it failed.
	Last    time.Time `json:"last,omitzero"`
	Answer  int       `json:"answer,omitempty"`
	Problem string    `json:"problem,omitempty"`
	// Since is when the first attempt for this delivery failed.
	Since time.Time `json:"since,omitzero"`
}

// A Scheduler sends what it was told to. Its methods may be called at the same time.
type Scheduler struct {
	options SchedulerOptions
	objects *durable.Namespace[requestCommand, State]
	client  *http.Client
	shares  shares
}

// A command is what an object is told to do.
type requestCommand struct {
	put    *Request
	keep   bool // leave a request alone that is there
	remove bool
}

// OpenScheduler begins to send what is due, until the runtime is closed.
func OpenScheduler(r *durable.Runtime, o SchedulerOptions) (*Scheduler, error) {
	o.Class = cmp.Or(o.Class, "request")
	o.UserAgent = cmp.Or(o.UserAgent, "larder")
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxResponseHeaderBytes = maxAnswer
		o.Transport = t
	}
	if o.Receiver == nil {
		o.Receiver = func(_ string, r Request) string { return r.host() }
	}
	if o.jitter == nil {
		o.jitter = func(d time.Duration) time.Duration { return rand.N(d/4 + 1) }
	}
	s := &Scheduler{options: o, client: &http.Client{
		Transport:     o.Transport,
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var err error
	s.objects, err = durable.Open(r, durable.Class[requestCommand, State]{
		Name: o.Class,
		New: func(context.Context, *durable.State) (durable.Handler[requestCommand, State], error) {
			return requestObject{s}, nil
		},
		Limits: durable.Limits{Alarms: turns},
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	return s, nil
}

// Post puts a request on the schedule, under a new id where id is "", else in place
// of what is there.
func (s *Scheduler) Post(ctx context.Context, id string, r Request) (State, error) {
	if id == "" {
		id = s.objects.NewUniqueID()
	}
	return s.post(ctx, id, requestCommand{put: &r})
}

// PostOnce is [Scheduler.Post], but what is there already, or was done within a day,
// stays as it is.
func (s *Scheduler) PostOnce(ctx context.Context, id string, r Request) (State, error) {
	return s.post(ctx, id, requestCommand{put: &r, keep: true})
}

func (s *Scheduler) post(ctx context.Context, id string, c requestCommand) (State, error) {
	if err := c.put.Check(); err != nil {
		return State{}, &RequestError{err}
	}
	if !possible(id) {
		return State{}, &RequestError{fmt.Errorf("id: want 1 to %d bytes, none of them zero", durable.MaxNameBytes)}
	}
	return s.objects.Object(id).Send(ctx, c)
}

// possible reports whether something can be scheduled under an id.
func possible(id string) bool {
	return id != "" && len(id) <= durable.MaxNameBytes && !strings.ContainsRune(id, 0)
}

// A RequestError says what is wrong with a [Request].
type RequestError struct{ Err error }

func (e *RequestError) Error() string { return e.Err.Error() }
func (e *RequestError) Unwrap() error { return e.Err }

// Get returns how a request fares, or [ErrNoRequest].
func (s *Scheduler) Get(ctx context.Context, id string) (State, error) {
	if !possible(id) {
		return State{}, ErrNoRequest
	}
	return s.objects.Object(id).Send(ctx, requestCommand{})
}

// Remove takes a request off the schedule, or returns [ErrNoRequest].
func (s *Scheduler) Remove(ctx context.Context, id string) error {
	if !possible(id) {
		return ErrNoRequest
	}
	_, err := s.objects.Object(id).Send(ctx, requestCommand{remove: true})
	return err
}

// List returns up to limit requests in the order of their ids, from after one.
func (s *Scheduler) List(ctx context.Context, after string, limit int) ([]State, error) {
	ids, err := s.objects.Names(after, limit)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	states := []State{}
	for _, id := range ids {
		state, err := s.Get(ctx, id)
		if errors.Is(err, ErrNoRequest) {
			continue // just now
		}
		if err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// requestObject is a request on the schedule. It has one row with its state, one with the body,
// which may be as large as a row, and one with a number that is another whenever it is
// replaced.
type requestObject struct{ *Scheduler }

const (
	stateKey          = "state"
	bodyKey           = "body"
	requestVersionKey = "version"
)

// readRequest returns the request's state, and whether there is one.
func readRequest(ctx context.Context, s *durable.State) (State, bool, error) {
	state, found, err := durable.GetJSON[State](ctx, s, stateKey)
	if err != nil || !found {
		return state, false, err
	}
	body, _, err := s.Get(ctx, bodyKey)
	state.Request.Body = string(body)
	return state, true, err
}

// write stores the state, but for the body, and sets when to look at it next.
func write(ctx context.Context, s *durable.State, state State, next time.Time) error {
	state.Request.Body = ""
	return errors.Join(durable.PutJSON(ctx, s, stateKey, state), s.SetAlarm(ctx, next))
}

// Handle implements [durable.Handler].
func (o requestObject) Handle(ctx context.Context, s *durable.State, c requestCommand) (State, error) {
	state, found, err := readRequest(ctx, s)
	switch {
	case err != nil:
		return State{}, err
	case c.put != nil && !(found && c.keep):
		due := c.put.first(s.Now())
		state = State{ID: s.Name(), Request: *c.put, Status: Waiting, Due: due.UTC(), Next: due.UTC()}
		return state, errors.Join(
			durable.PutJSON(ctx, s, requestVersionKey, rand.Uint64()),
			s.Put(ctx, bodyKey, []byte(state.Request.Body)),
			write(ctx, s, state, due))
	case !found:
		return State{}, ErrNoRequest
	case c.remove:
		return state, s.DeleteAll(ctx)
	}
	return state, nil
}

// Alarm implements [durable.Handler]: it makes an attempt, or forgets what is over.
func (o requestObject) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	state, found, err := readRequest(ctx, s)
	if err != nil || !found {
		return err
	}
	version, _, err := durable.GetJSON[uint64](ctx, s, requestVersionKey)
	if err != nil {
		return err
	}
	if state.Status != Waiting {
		return s.DeleteAll(ctx)
	}
	if every := state.Request.every(); every > 0 {
		if late := s.Now().Sub(state.Due) / every; late > 0 {
			state.Missed += int64(late)
			state.Due = state.Due.Add(late * every)
			state.Attempts, state.Since = 0, time.Time{}
		}
	}
	receiver, begun := o.options.Receiver(state.ID, state.Request), s.Now()
	ok, again := o.shares.take(receiver, begun)
	if !ok {
		state.Next = again.UTC()
		return write(ctx, s, state, again)
	}
	err = s.Call(ctx, func(ctx context.Context) error {
		failed := true
		defer func() { o.shares.leave(receiver, s.Now().Sub(begun), failed) }()
		state = o.attempt(ctx, s.Now, state)
		failed = state.Problem != ""
		if ctx.Err() != nil {
			return context.Cause(ctx) // stopping is not a failure of the receiver
		}
		if o.options.After != nil {
			return o.options.After(ctx, state.ID, state)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// It may have been replaced or removed meanwhile.
	if now, _, err := durable.GetJSON[uint64](ctx, s, requestVersionKey); err != nil || now != version {
		return err
	}
	alarm := state.Next
	if state.Status != Waiting {
		alarm = s.Now().Add(keepFor)
	}
	return write(ctx, s, state, alarm)
}

// attempt sends a request and returns its state afterwards.
func (o requestObject) attempt(ctx context.Context, clock func() time.Time, s State) State {
	answer, err := o.send(ctx, s)
	now := clock().UTC()
	s.Last, s.Answer, s.Problem = now, answer, ""
	every := s.Request.every()
	if err == nil {
		s.Deliveries++
		s.Attempts, s.Since = 0, time.Time{}
		if every == 0 {
			s.Status, s.Next, s.Due = Delivered, time.Time{}, time.Time{}
			return s
		}
		s.Due = s.Due.Add((now.Sub(s.Due)/every + 1) * every)
		s.Next = s.Due
		return s
	}
	s.Problem = text.Short(err.Error(), maxProblem) // it may repeat what the receiver said
	s.Attempts++
	if s.Since.IsZero() {
		s.Since = now
	}
	pause := retry.Doubled(s.Attempts, firstPause, longestPause)
	s.Next = now.Add(pause + o.options.jitter(pause))
	switch {
	case errors.Is(err, ErrGone) || every == 0 && s.Next.Sub(s.Since) > giveUpAfter:
		s.Status, s.Next = GivenUp, time.Time{}
	case every > 0 && s.Next.After(s.Due.Add(every)):
		s.Next = s.Due.Add(every)
	}
	o.options.Logger.Warn("a scheduled request failed", "id", s.ID, "host", s.Request.host(), "err", s.Problem, "attempts", s.Attempts, "status", s.Status)
	return s
}

// send sends a request once. The status is 0 where there was no answer.
func (o requestObject) send(ctx context.Context, s State) (status int, err error) {
	host := s.Request.host()
	r, err := http.NewRequestWithContext(ctx, cmp.Or(s.Request.Method, "GET"), s.Request.URL, strings.NewReader(s.Request.Body))
	if err != nil {
		return 0, fmt.Errorf("couldn't make a request to %s", host)
	}
	r.Header.Set("User-Agent", o.options.UserAgent)
	for name, value := range s.Request.Headers {
		r.Header.Set(name, value)
	}
	if o.options.Before != nil {
		if err := o.options.Before(ctx, s.ID, r, []byte(s.Request.Body)); err != nil {
			return 0, err
		}
	}
	response, err := o.client.Do(r)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the other part is the URL
	}
	if err != nil {
		return 0, fmt.Errorf("couldn't reach %s: %w", host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // so that the connection can be used again
	if response.StatusCode/100 != 2 {
		return response.StatusCode, fmt.Errorf("%s answered %d %s", host, response.StatusCode, http.StatusText(response.StatusCode))
	}
	return response.StatusCode, nil
}

// shares keep one receiver that is slow or dead, and has much to be sent to it, from
// taking the turns of all others. A request that finds the turns of its receiver taken is told
// when to come back: one after the other, as fast as the receiver takes them.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

type share struct {
	running int
	failing bool          // the last attempt failed
	pace    time.Duration // about how long an attempt takes
	next    time.Time     // when the last of the requests that were sent away comes back
}

const (
	// turns is how many requests are sent at once, and atOnce how many of them to one
	// receiver; to one whose last answer was a failure it is a single one.
	turns  = 256
	atOnce = 4
	// longestAway bounds how long a request stays away that finds no turn, as its
	// receiver may recover meanwhile.
	longestAway = 10 * time.Minute
	// firstPace and leastPace are what is assumed of a receiver that is not known, and
	// of one that answers at once.
	firstPace, leastPace = 100 * time.Millisecond, time.Millisecond
	// keptShares bounds the receivers that are remembered although nothing is being
	// sent to them.
	keptShares = 1000
)

// take takes a turn, which leave gives back, or says when to try again.
func (s *shares) take(receiver string, now time.Time) (ok bool, again time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[receiver]
	if r == nil {
		if s.of == nil {
			s.of = make(map[string]*share)
		}
		r = &share{pace: firstPace}
		s.of[receiver] = r
	}
	width := atOnce
	if r.failing {
		width = 1
	}
	if r.running < width {
		r.running++
		return true, time.Time{}
	}
	if r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(max(leastPace, r.pace/time.Duration(width)))
	if latest := now.Add(longestAway); r.next.After(latest) {
		r.next = latest
	}
	return false, r.next
}

// leave gives a turn back, after an attempt that took so long.
func (s *shares) leave(receiver string, took time.Duration, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[receiver]
	r.running--
	r.failing = failed
	r.pace = (3*r.pace + took) / 4
	if len(s.of) <= keptShares {
		return
	}
	for name, r := range s.of {
		if r.running == 0 {
			delete(s.of, name)
		}
	}
}
