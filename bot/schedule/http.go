package schedule

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/larder-cdn/larder/kvstore/durable"
)

// Handler serves the schedule under prefix, such as "/schedule":
//
//	POST   {prefix}        puts a Request, in JSON, on the schedule; 201 with its State
//	POST   {prefix}/{id}   replaces the one with that id; 200 with its State
//	GET    {prefix}/{id}   200 with its State
//	GET    {prefix}        200 with up to ?limit States (100), from ?after an id
//	DELETE {prefix}/{id}   takes it off the schedule; 204
//
// What is wrong is told as {"error": "…"}, with 400, 404, or 503 where it may be tried again.
func (s *Scheduler) Handler(prefix string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+prefix, func(w http.ResponseWriter, r *http.Request) { s.servePost(w, r, "") })
	mux.HandleFunc("POST "+prefix+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if _, err := s.Get(r.Context(), id); err != nil {
			answerError(w, err)
			return
		}
		s.servePost(w, r, id)
	})
	mux.HandleFunc("GET "+prefix+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		state, err := s.Get(r.Context(), r.PathValue("id"))
		answer(w, http.StatusOK, state, err)
	})
	mux.HandleFunc("GET "+prefix, s.serveList)
	mux.HandleFunc("DELETE "+prefix+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Remove(r.Context(), r.PathValue("id")); err != nil {
			answerError(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// maxPosted is far more than a valid request takes in JSON, in bytes.
const maxPosted = 512 << 10

func (s *Scheduler) servePost(w http.ResponseWriter, r *http.Request, id string) {
	var request Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPosted))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		answerError(w, &RequestError{err})
		return
	}
	status := http.StatusOK
	if id == "" {
		status = http.StatusCreated
	}
	state, err := s.Post(r.Context(), id, request)
	answer(w, status, state, err)
}

func (s *Scheduler) serveList(w http.ResponseWriter, r *http.Request) {
	limit := 100
	if value := r.FormValue("limit"); value != "" {
		var err error
		if limit, err = strconv.Atoi(value); err != nil || limit < 1 || limit > 1000 {
			answerError(w, &RequestError{errors.New("limit: want 1 to 1000")})
			return
		}
	}
	states, err := s.List(r.Context(), r.FormValue("after"), limit)
	answer(w, http.StatusOK, states, err)
}

func answer(w http.ResponseWriter, status int, value any, err error) {
	if err != nil {
		answerError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // whoever is gone needs no answer
}

func answerError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrNotFound):
		status, err = http.StatusNotFound, ErrNotFound
	case errors.As(err, new(*RequestError)):
		status = http.StatusBadRequest
	case errors.Is(err, durable.ErrOverloaded), errors.Is(err, durable.ErrClosed):
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
