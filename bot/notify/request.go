package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// A Request is an HTTP request, and the time of its delivery.
type Request struct {
	// URL has the scheme http or https, and up to 2 KiB.
	URL string `json:"url"`
	// TriggerAt is the time of the first delivery in milliseconds since 1970. 0 is now, or with TriggerEverySeconds in one interval.
	TriggerAt int64 `json:"triggerAt,omitempty"`
	// TriggerEverySeconds is the interval of repeated deliveries, up to 366 days; 0 for a single delivery.
	TriggerEverySeconds int64 `json:"triggerEverySeconds,omitempty"`
	// Method is GET unless given.
	Method string `json:"method,omitempty"`
	// Headers are up to 32, of up to 8 KiB together.
	Headers map[string]string `json:"headers,omitempty"`
	// Body is up to 64 KiB.
	Body string `json:"body,omitempty"`
}

// The bounds of a request.
const (
	maxURL     = 2 << 10
	maxHeaders = 32
	maxHeader  = 8 << 10
	maxBody    = 64 << 10
)

// The longest interval of a request, and the latest time that an alarm can hold: the end of 2261.
const (
	MaxEverySeconds = 366 * 24 * 60 * 60
	MaxTriggerAt    = 9214646400000
)

var requestMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// reserved are headers that the connection needs.
var reserved = []string{"Connection", "Content-Length", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// Check returns an error that names the invalid field of the request and says why, nil if the request is valid.
func (r Request) Check() error {
	if err := CheckURL(r.URL); err != nil {
		return err
	}
	switch {
	case r.Method != "" && !slices.Contains(requestMethods, r.Method):
		return fmt.Errorf("method: %.20q is none of %s", r.Method, strings.Join(requestMethods, ", "))
	case r.TriggerAt < 0 || r.TriggerAt > MaxTriggerAt:
		return errors.New("triggerAt: want milliseconds since 1970, up to the year 2261")
	case r.TriggerEverySeconds < 0 || r.TriggerEverySeconds > MaxEverySeconds:
		return errors.New("triggerEverySeconds: want 1 to 31622400 (366 days), or none for a single request")
	case len(r.Body) > maxBody:
		return fmt.Errorf("body: it has %d bytes, %d are allowed", len(r.Body), maxBody)
	case !utf8.ValidString(r.Body):
		return errors.New("body: it is not valid UTF-8")
	case len(r.Headers) > maxHeaders:
		return fmt.Errorf("headers: there are %d, %d are allowed", len(r.Headers), maxHeaders)
	}
	bytes := 0
	for name, value := range r.Headers {
		bytes += len(name) + len(value)
		switch {
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return fmt.Errorf("headers: %.40q is not a valid header", name)
		case slices.Contains(reserved, http.CanonicalHeaderKey(name)):
			return fmt.Errorf("headers: %s cannot be set, because the connection sets it; leave it out", http.CanonicalHeaderKey(name))
		}
	}
	if bytes > maxHeader {
		return fmt.Errorf("headers: they have %d bytes, %d are allowed", bytes, maxHeader)
	}
	return nil
}

// CheckURL returns an error that says why nothing can be sent to the URL raw, nil if requests can. The error does not repeat the
// URL, which may have a secret.
func CheckURL(raw string) error {
	if raw == "" {
		return errors.New("url: it is missing")
	}
	u, err := url.Parse(raw)
	switch {
	case len(raw) > maxURL:
		return fmt.Errorf("url: it has %d bytes, %d are allowed", len(raw), maxURL)
	case err != nil:
		return errors.New("url: it is malformed")
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("url: it has to begin with https:// or http://")
	case u.Hostname() == "":
		return errors.New("url: it has no host")
	}
	return nil
}

// firstDelivery returns the time of the first delivery of a request that is posted now: TriggerAt, else one interval later for a
// repeated request, else now.
func (r Request) firstDelivery(now time.Time) time.Time {
	switch {
	case r.TriggerAt != 0:
		return time.UnixMilli(r.TriggerAt)
	case r.TriggerEverySeconds != 0:
		return now.Add(r.interval())
	}
	return now
}

// interval returns the time between the deliveries of a repeated request, 0 for a request that is sent once.
func (r Request) interval() time.Duration { return time.Duration(r.TriggerEverySeconds) * time.Second }

// host returns the host of the request's URL, with the port, for messages; the other parts may be secret.
func (r Request) host() string {
	u, err := url.Parse(r.URL)
	if err != nil {
		return "a malformed URL"
	}
	return u.Host
}

// Handler serves the schedule under prefix, such as "/schedule":
//
//	POST   {prefix}        puts a Request, in JSON, on the schedule; 201 with its State
//	POST   {prefix}/{id}   replaces the one with that id; 200 with its State
//	GET    {prefix}/{id}   200 with its State
//	GET    {prefix}        200 with up to ?limit States (default 100) in the order of ids, after the id ?after
//	DELETE {prefix}/{id}   removes it from the schedule; 204
//
// Errors have the form of the API's errors, with 400, 404, 503 if the client may try again, or 500.
func (s *Scheduler) Handler(prefix string) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(w http.ResponseWriter, r *http.Request) (status int, value any, err error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			status, value, err := do(w, r)
			switch {
			case err != nil:
				writeError(w, r, err)
			case value == nil:
				w.WriteHeader(status)
			default:
				w.Header().Set("Content-Type", answers.JSON)
				w.WriteHeader(status)
				_ = json.NewEncoder(w).Encode(value) // the client has gone
			}
		})
	}
	handle("POST "+prefix, s.servePost)
	handle("POST "+prefix+"/{id}", s.servePost)
	handle("GET "+prefix+"/{id}", func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		state, err := s.Get(r.Context(), r.PathValue("id"))
		return http.StatusOK, state, err
	})
	handle("GET "+prefix, s.serveList)
	handle("DELETE "+prefix+"/{id}", func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		return http.StatusNoContent, nil, s.Remove(r.Context(), r.PathValue("id"))
	})
	return mux
}

// maxPosted is far more than a valid request takes in JSON, in bytes.
const maxPosted = 512 << 10

// servePost schedules the request in the body, a [Request] in JSON. With an id in the path it replaces the request of that id, and
// the status of the response is 200; without it creates an id, and the status is 201. The response has the request's state.
func (s *Scheduler) servePost(w http.ResponseWriter, r *http.Request) (status int, value any, err error) {
	status, id := http.StatusCreated, r.PathValue("id")
	if id != "" {
		status = http.StatusOK
		if _, err := s.Get(r.Context(), id); err != nil {
			return 0, nil, err
		}
	}
	var request Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPosted))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return 0, nil, &RequestError{err}
	}
	state, err := s.Post(r.Context(), id, request)
	return status, state, err
}

// serveList returns, for a response, the states of scheduled requests in the order of their ids: as many as the parameter limit
// says, 1 to 1000, by default 100, after the id in the parameter after.
func (s *Scheduler) serveList(_ http.ResponseWriter, r *http.Request) (status int, value any, err error) {
	limit := 100
	if value := r.FormValue("limit"); value != "" {
		if limit, err = strconv.Atoi(value); err != nil || limit < 1 || limit > 1000 {
			return 0, nil, &RequestError{errors.New("limit: want 1 to 1000")}
		}
	}
	states, err := s.List(r.Context(), r.FormValue("after"), limit)
	return http.StatusOK, states, err
}

// writeError sends an error of the scheduler as JSON: 404 for a missing request, 400 for an invalid one, 503 if the client may
// try again, else 500.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrNoRequest):
		status, err = http.StatusNotFound, ErrNoRequest
	case errors.As(err, new(*RequestError)):
		status = http.StatusBadRequest
	case errors.Is(err, durable.ErrOverloaded), errors.Is(err, durable.ErrClosed):
		status = http.StatusServiceUnavailable
	}
	(&answers.Failure{Status: status, Message: err.Error()}).SendJSON(w, r)
}
