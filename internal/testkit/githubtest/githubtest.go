// Package githubtest is as much of GitHub as Larder uses, over real bare git repositories, for tests: its REST API, with the
// shapes, statuses and refusals that GitHub documents and the faults that it has on bad days; git's smart HTTP, with
// partial clones; and archives, from which export-ignore and export-subst leave out and change files.
//
// It is for tests only and knows nothing of the code it tests.
package githubtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
)

// A Server answers for repositories. It is an [http.Handler], and an
// [http.RoundTripper] that reaches itself without a network. It is safe for concurrent
// use.
type Server struct {
	// Token is the one that may write. Set it before the first request.
	Token string
	// Folder is where forks are made that are asked for over HTTP, as OWNER/NAME.git; "" refuses them.
	Folder string
	// Web is what the addresses of repositories begin with, for a client that clones them. Default
	// https://github.com.
	Web string

	mu           sync.Mutex
	ids          int                 // of repositories that were made
	spoil        func([]byte) []byte // changes packs; nil for none
	mux          *http.ServeMux
	repositories map[string]*repository
	faults       []*Fault
	requests     []Request
	limit        *limit
	moved        map[string]*repository // by the names that they had
	collaboration
}

type repository struct {
	*git.Repository
	server        *Server
	dir           string
	id            int
	name          string // OWNER/NAME
	defaultBranch string
	archived      bool
	stars         int
}

type limit struct {
	window    time.Duration
	most      int
	remaining int
	reset     time.Time
}

// A Request is one that came.
type Request struct {
	Method, Path string
	Time         time.Time
	Status       int // that was answered, 0 where the connection was cut
}

// A Fault is something that goes wrong.
type Fault struct {
	// Method and Path say for which requests: Path is a part of theirs. "" is any.
	Method, Path string
	// Skip is how many of those go well before, Times how many do not; 0 is all that come.
	Skip, Times int
	// Status, Header and Message are answered instead of doing anything.
	Status  int
	Header  map[string]string
	Message string
	// Lose does what was asked and cuts the connection without a word.
	Lose bool

	seen int
}

// New returns a server that has no repositories.
func New(token string) *Server {
	s := &Server{Token: token, mux: http.NewServeMux(), repositories: map[string]*repository{}, moved: map[string]*repository{}}
	s.routes()
	s.pullRoutes()
	return s
}

// Start serves on the loopback; the URL has no slash at its end.
func (s *Server) Start() (url string, close func()) {
	server := httptest.NewServer(s)
	return server.URL, server.Close
}

// Add makes an empty repository in dir, whose default branch is to be called so. It replaces one of the same name, with another id.
func (s *Server) Add(name, dir, defaultBranch string) error {
	r, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{
		Bare: true, InitOptions: git.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName(defaultBranch)},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++
	s.repositories[name] = &repository{Repository: r, server: s, dir: dir, id: 1000 + s.ids, name: name, defaultBranch: defaultBranch, stars: 250}
	delete(s.moved, name) // a new repository ends the redirect of a renamed one
	return nil
}

// Break has something go wrong from now on.
func (s *Server) Break(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// ClearFaults removes all faults.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Limit takes no more than so many requests in each window: the primary limit.
func (s *Server) Limit(most int, window time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = &limit{window: window, most: most}
}

// Requests returns what came.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.serve(w, r) {
		panic(http.ErrAbortHandler)
	}
}

// errLost is what a client has where the connection was cut.
var errLost = errors.New("the connection was cut")

// RoundTrip implements http.RoundTripper, in the caller's goroutine.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	if !s.serve(w, r) {
		return nil, errLost
	}
	return w.Result(), nil
}

// serve answers, unless the connection is to be cut.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	recorded := &recorder{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		status := recorded.status
		if !answered {
			status = 0
		}
		s.requests = append(s.requests, Request{r.Method, r.URL.Path, now, status})
	}()
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	byGit := gitPath.MatchString(r.URL.Path) // another host, in the real world
	if !byGit && s.limit != nil && !s.limit.take(now, w.Header()) {
		refuse(recorded, http.StatusForbidden, "API rate limit exceeded for user ID 1.")
		return true
	}
	fault := s.fault(r)
	if fault != nil && !fault.Lose {
		for name, value := range fault.Header {
			w.Header().Set(name, value)
		}
		refuse(recorded, fault.Status, fault.Message)
		return true
	}
	if fault != nil {
		s.mux.ServeHTTP(httptest.NewRecorder(), r)
		return false
	}
	if byGit {
		s.serveGit(recorded, r)
		return true
	}
	if r.Header.Get("Authorization") != "Bearer "+s.Token {
		refuse(recorded, http.StatusUnauthorized, "Bad credentials")
		return true
	}
	if r.Method != http.MethodGet {
		s.mux.ServeHTTP(recorded, r)
		return true
	}
	if s.conditional(recorded, r) && s.limit != nil {
		s.limit.remaining++ // such an answer is free
		w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(s.limit.remaining))
	}
	return true
}

func (l *limit) take(now time.Time, h http.Header) bool {
	if !now.Before(l.reset) {
		l.remaining, l.reset = l.most, now.Add(l.window).Truncate(time.Second).Add(time.Second)
	}
	ok := l.remaining > 0
	if ok {
		l.remaining--
	}
	h.Set("X-RateLimit-Limit", strconv.Itoa(l.most))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(l.remaining))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(l.reset.Unix(), 10))
	return ok
}

// fault returns what goes wrong with a request, nil where nothing does.
func (s *Server) fault(r *http.Request) *Fault {
	for _, f := range s.faults {
		if f.Method != "" && f.Method != r.Method || !strings.Contains(r.URL.Path, f.Path) {
			continue
		}
		f.seen++
		if f.seen > f.Skip && (f.Times == 0 || f.seen <= f.Skip+f.Times) {
			return f
		}
	}
	return nil
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func refuse(w http.ResponseWriter, status int, message string) {
	if status == http.StatusNotModified {
		w.WriteHeader(status)
		return
	}
	write(w, status, map[string]any{"message": message, "documentation_url": "https://docs.github.com/rest"})
}

func write(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(fmt.Sprintf("githubtest: %v", err))
	}
}
