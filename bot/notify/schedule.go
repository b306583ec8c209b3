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
	// Receiver returns the name of the receiver of a request; default the host of its URL.
	// The scheduler limits the concurrent requests to each receiver.
	Receiver func(id string, r Request) string
	// Before, if not nil, completes each request before it is sent. After [ErrGone] the request is
	// given up, after any other error retried.
	Before func(ctx context.Context, id string, r *http.Request, body []byte) error
	// After, if not nil, is called after each attempt, at least once. If it returns an error, the
	// scheduler repeats the attempt.
	After func(ctx context.Context, id string, s State) error
	// Send, if not nil, makes an attempt in place of sending the request itself. It may record progress in s.Done.
	Send func(ctx context.Context, s *State) (status int, err error)
	// KeepTrying says that no request is given up after [giveUpAfter].
	KeepTrying bool
	// Transport sends the requests; default one of its own.
	Transport http.RoundTripper
	Logger    *slog.Logger

	jitter func(time.Duration) time.Duration // for tests
}

// requestClass is the default class of a scheduler.
const requestClass = "request"

// The limits of attempts, and the retention of requests that are delivered or given up.
const (
	minBackoff = 2 * time.Second
	maxBackoff = time.Hour
	// longestBackoff is maxBackoff with jitter.
	longestBackoff = maxBackoff + maxBackoff/4
	giveUpAfter    = 3 * 24 * time.Hour
	retention      = 24 * time.Hour
	timeout        = 30 * time.Second
	maxResponse    = 64 << 10
	maxProblem     = 300 // bytes
)

var (
	// ErrNoRequest reports an id under which nothing is scheduled.
	ErrNoRequest = errors.New("no request is scheduled under this id")
	// ErrGone reports a request that is not needed any more. A scheduler gives up a request after this error of Before or Send.
	ErrGone = errors.New("the request is not needed any more")
)

// A Status is the status of a request.
type Status string

// The statuses.
const (
	Waiting   Status = "waiting"   // for its time, or the next attempt
	Delivered Status = "delivered" // stored for a day
	GivenUp   Status = "given-up"  // stored for a day
)

// A State is a request and the state of its delivery.
type State struct {
	ID      string    `json:"id"`
	Request Request   `json:"request"`
	Status  Status    `json:"status"`
	Due     time.Time `json:"due,omitzero"`  // of the next delivery
	Next    time.Time `json:"next,omitzero"` // of the next attempt
	// Attempts counts the failed attempts of the next delivery, Deliveries the responses with 2xx, and
	// Missed the deliveries that were given up because the following one was due.
	Attempts   int   `json:"attempts"`
	Deliveries int64 `json:"deliveries"`
	Missed     int64 `json:"missed,omitempty"`
	// Done counts the parts of the next delivery that succeeded, if [SchedulerOptions].Send has parts.
	Done int `json:"done,omitempty"`
	// The last attempt, the status of its response (0 for no response), and why it failed.
	Last    time.Time `json:"last,omitzero"`
	Answer  int       `json:"answer,omitempty"`
	Problem string    `json:"problem,omitempty"`
	// Since is when the first attempt of the next delivery failed.
	Since time.Time `json:"since,omitzero"`
}

// A Scheduler sends scheduled requests. It is safe for concurrent use.
type Scheduler struct {
	options SchedulerOptions
	objects *durable.Namespace[requestCommand, State]
	client  *http.Client
	limiter limiter
}

// A requestCommand is a command to the object of a request. The zero command reads its state.
type requestCommand struct {
	put    *Request
	once   bool // put nothing if the object has a request with the same body
	remove bool
}

// OpenScheduler opens a scheduler of the requests that the runtime r stores for the class in the options. From then on, until the
// runtime is closed, it sends the requests that are due, unless the runtime is quiet, which means that it fires no alarms.
func OpenScheduler(r *durable.Runtime, o SchedulerOptions) (*Scheduler, error) {
	o.Class = cmp.Or(o.Class, requestClass)
	o.UserAgent = cmp.Or(o.UserAgent, "larder")
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxResponseHeaderBytes = maxResponse
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
		Limits: durable.Limits{Alarms: maxConcurrent},
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	return s, nil
}

// Post puts a request on the schedule and returns its state; it does not wait for the delivery. It replaces the request with that
// id, delivered or not; with id "" it creates an id. An invalid request or id is a *[RequestError].
func (s *Scheduler) Post(ctx context.Context, id string, r Request) (State, error) {
	if id == "" {
		id = s.objects.NewUniqueID()
	}
	return s.sendCommand(ctx, id, requestCommand{put: &r})
}

// PostOnce puts a request on the schedule unless one with that id and the same body is waiting, or was delivered or given up
// within a day. Then it changes nothing and returns the state of that one. A request with the id and another body is replaced.
func (s *Scheduler) PostOnce(ctx context.Context, id string, r Request) (State, error) {
	return s.sendCommand(ctx, id, requestCommand{put: &r, once: true})
}

// sendCommand checks the id and the request c.put, which must not be nil, and sends the command c to the durable object of the
// request with the id. It returns the state after it. An invalid request or id is a *[RequestError].
func (s *Scheduler) sendCommand(ctx context.Context, id string, c requestCommand) (State, error) {
	if err := c.put.Check(); err != nil {
		return State{}, &RequestError{err}
	}
	if !validID(id) {
		return State{}, &RequestError{fmt.Errorf("id: want 1 to %d bytes, none of them zero", durable.MaxNameBytes)}
	}
	return s.objects.Object(id).Send(ctx, c)
}

// validID reports whether id can be that of a request: not "", not too long for a durable object, and without a zero byte.
func validID(id string) bool {
	return id != "" && len(id) <= durable.MaxNameBytes && !strings.ContainsRune(id, 0)
}

// A RequestError reports an invalid [Request].
type RequestError struct{ Err error }

func (e *RequestError) Error() string { return e.Err.Error() }
func (e *RequestError) Unwrap() error { return e.Err }

// Get returns the state of the request with an id, which may be delivered or given up within a day. It returns [ErrNoRequest] if
// it does not exist.
func (s *Scheduler) Get(ctx context.Context, id string) (State, error) {
	if !validID(id) {
		return State{}, ErrNoRequest
	}
	return s.objects.Object(id).Send(ctx, requestCommand{})
}

// Remove deletes the request with an id, or returns [ErrNoRequest]. A delivery that is under way goes on.
func (s *Scheduler) Remove(ctx context.Context, id string) error {
	if !validID(id) {
		return ErrNoRequest
	}
	_, err := s.objects.Object(id).Send(ctx, requestCommand{remove: true})
	return err
}

// correctAlarms moves the alarms of requests that are later than now and the longest backoff to the times that their states have,
// because only a clock which was ahead can have set them. Requests that are due so late are not changed.
func (s *Scheduler) correctAlarms(ctx context.Context, now time.Time) error {
	ids, err := s.objects.NamesDueAfter(now.Add(longestBackoff))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := s.Get(ctx, id); err != nil && !errors.Is(err, ErrNoRequest) { // reading it moves its alarm
			return err
		}
	}
	return nil
}

// List returns the states of up to limit requests in the order of their ids, from the first id behind after on; "" for the
// beginning. A request that is deleted meanwhile is left out, so there may be fewer than limit before the end.
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

// A requestObject is the durable object of a request. It has one row with its state, one with the body,
// which may be as large as a row may be, and one with a version, which changes when the request is
// replaced.
type requestObject struct{ *Scheduler }

const (
	stateKey          = "state"
	bodyKey           = "body"
	requestVersionKey = "version"
)

// readRequest returns the stored state of a request with its body, and whether there is one. It corrects times that only a clock
// which was ahead can have stored, in the result only.
func readRequest(ctx context.Context, s *durable.State) (State, bool, error) {
	state, found, err := durable.GetJSON[State](ctx, s, stateKey)
	if err != nil || !found {
		return state, false, err
	}
	state.boundTimes(s.Now())
	body, _, err := s.Get(ctx, bodyKey)
	state.Request.Body = string(body)
	return state, true, err
}

// boundTimes replaces times that only a clock which was ahead can have stored, so that such a clock delays a request by one
// interval of it or by longestBackoff at most. It keeps the time of the first delivery where the client set that in triggerAt.
func (s *State) boundTimes(now time.Time) {
	now = now.UTC()
	for _, past := range []*time.Time{&s.Last, &s.Since} {
		if past.After(now) {
			*past = now
		}
	}
	every, immediate := s.Request.interval(), s.Request.TriggerAt == 0 && s.Request.TriggerEverySeconds == 0
	switch latest := now.Add(every); {
	case immediate && s.Due.After(now):
		s.Due = now
	case every > 0 && (s.Request.TriggerAt == 0 || s.Deliveries+s.Missed > 0) && s.Due.After(latest):
		s.Due, s.Next = latest, latest
	}
	if s.Next.After(now.Add(longestBackoff)) && (s.Attempts > 0 || immediate || s.Next.After(s.Due)) {
		s.Next = now
		if s.Due.After(now) { // the client's time has not come
			s.Next = s.Due
		}
	}
}

// writeState stores a request's state, without the body, which has a row of its own, and sets the alarm of the request's object
// to next.
func writeState(ctx context.Context, s *durable.State, state State, next time.Time) error {
	state.Request.Body = ""
	return errors.Join(durable.PutJSON(ctx, s, stateKey, state), s.SetAlarm(ctx, next))
}

// Handle implements [durable.Handler]. It puts, deletes or only reads the request, as the command c says, and returns its state;
// that of a deleted one is the last. It returns ErrNoRequest if the request to read or delete does not exist. A read, or a put
// that changes nothing, also moves the alarm of a waiting request that is later than the state says.
func (o requestObject) Handle(ctx context.Context, s *durable.State, c requestCommand) (State, error) {
	state, found, err := readRequest(ctx, s)
	switch {
	case err != nil:
		return State{}, err
	case c.put != nil && !(found && c.once && state.Request.Body == c.put.Body):
		due := c.put.firstDelivery(s.Now())
		state = State{ID: s.Name(), Request: *c.put, Status: Waiting, Due: due.UTC(), Next: due.UTC()}
		return state, errors.Join(
			durable.PutJSON(ctx, s, requestVersionKey, rand.Uint64()),
			s.Put(ctx, bodyKey, []byte(state.Request.Body)),
			writeState(ctx, s, state, due))
	case !found:
		return State{}, ErrNoRequest
	case c.remove:
		return state, s.DeleteAll(ctx)
	}
	if alarm, set, err := s.GetAlarm(ctx); err != nil || !set || state.Status != Waiting || !state.Next.Before(alarm) {
		return state, err
	}
	return state, writeState(ctx, s, state, state.Next) // the clock was ahead when the alarm was set
}

// Alarm implements [durable.Handler]: it makes an attempt to send the request, and stores the result with the time of the next
// attempt, unless the request was replaced or removed meanwhile. If the receiver is at its limit, it only sets a later alarm. It
// deletes a request whose retention has ended.
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
	if every := state.Request.interval(); every > 0 {
		if late := s.Now().Sub(state.Due) / every; late > 0 {
			state.Missed += int64(late)
			state.Due = state.Due.Add(late * every)
			state.Attempts, state.Since = 0, time.Time{}
		}
	}
	receiver, startedAt := o.options.Receiver(state.ID, state.Request), s.Now()
	ok, retryAt := o.limiter.acquire(receiver, startedAt)
	if !ok {
		state.Next = retryAt.UTC()
		return writeState(ctx, s, state, retryAt)
	}
	err = s.Call(ctx, func(ctx context.Context) error {
		failed := true
		defer func() { o.limiter.release(receiver, s.Now().Sub(startedAt), failed) }()
		state = o.sendOnce(ctx, s.Now, state)
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
		alarm = s.Now().Add(retention)
	}
	return writeState(ctx, s, state, alarm)
}

// sendOnce makes one attempt to send the request of the state s, and returns the state afterwards: delivered, given up, or with
// the time of the next attempt or delivery. It stores nothing, and logs a failure. clock returns the current time.
func (o requestObject) sendOnce(ctx context.Context, clock func() time.Time, s State) State {
	send := o.options.Send
	if send == nil {
		send = o.send
	}
	status, err := send(ctx, &s)
	now := clock().UTC()
	s.Last, s.Answer, s.Problem = now, status, ""
	every := s.Request.interval()
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
	backoff := retry.Doubled(s.Attempts, minBackoff, maxBackoff)
	s.Next = now.Add(backoff + o.options.jitter(backoff))
	switch {
	case errors.Is(err, ErrGone) || every == 0 && !o.options.KeepTrying && s.Next.Sub(s.Since) > giveUpAfter:
		s.Status, s.Next = GivenUp, time.Time{}
	case every > 0 && s.Next.After(s.Due.Add(every)):
		s.Next = s.Due.Add(every)
	}
	o.options.Logger.Warn("a scheduled request failed", "id", s.ID, "host", s.Request.host(), "err", s.Problem, "attempts", s.Attempts, "status", s.Status)
	return s
}

// send sends the request of a state once, completed by [SchedulerOptions].Before, and returns the status of the response. A
// status other than 2xx is an error, too. Without a response the status is 0.
func (o requestObject) send(ctx context.Context, s *State) (status int, err error) {
	host := s.Request.host()
	r, err := http.NewRequestWithContext(ctx, cmp.Or(s.Request.Method, "GET"), s.Request.URL, strings.NewReader(s.Request.Body))
	if err != nil {
		return 0, fmt.Errorf("couldn't make a request to %s", host)
	}
	for name, value := range s.Request.Headers {
		r.Header.Set(name, value)
	}
	if o.options.Before != nil {
		if err := o.options.Before(ctx, s.ID, r, []byte(s.Request.Body)); err != nil {
			return 0, err
		}
	}
	if status, err = o.do(r); err != nil {
		return 0, err
	}
	return status, statusError(host, status)
}

// do sends a request, adds a User-Agent if it has none, and returns the status of the response, whatever it is; it discards the
// body. An error means that there was no response. Errors name only the host, because the rest of the URL may be secret.
func (s *Scheduler) do(r *http.Request) (status int, err error) {
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", s.options.UserAgent)
	}
	response, err := s.client.Do(r)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the other part is the URL
	}
	if err != nil {
		return 0, fmt.Errorf("couldn't reach %s: %w", r.URL.Host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxResponse) // so that the connection can be used again
	return response.StatusCode, nil
}

// statusError returns an error that names the host if the status of a response is not 2xx, else nil.
func statusError(host string, status int) error {
	if status/100 == 2 {
		return nil
	}
	return fmt.Errorf("%s answered %d %s", host, status, http.StatusText(status))
}
