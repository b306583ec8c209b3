package githubtest

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
)

// Check is a check run, as GitHub shows it.
type Check struct {
	ID          int64
	Name        string
	SHA         string
	ExternalID  string
	Status      string
	Conclusion  string
	Title       string
	Summary     string
	Annotations []Annotation
}

// An Annotation is shown beside a line.
type Annotation struct {
	Path      string `json:"path"`
	StartLine int    `json:"start_line"`
	EndLine   int    `json:"end_line"`
	Column    *int   `json:"start_column,omitempty"`
	EndColumn *int   `json:"end_column,omitempty"`
	Level     string `json:"annotation_level"`
	Message   string `json:"message"`
	Title     string `json:"title,omitempty"`
}

type checkRun struct {
	Check
	repository *repository
	started    time.Time
}

// A Status is a commit status.
type Status struct{ SHA, Context, State, Description string }

type status struct {
	Status
	repository *repository
}

// What GitHub allows.
const (
	mostAnnotations = 50    // in a request
	mostSummary     = 65535 // characters
	mostDescription = 140   // characters
)

func (s *Server) checkRoutes() {
	s.handle("POST /check-runs", s.createCheck)
	s.handle("PATCH /check-runs/{run}", s.updateCheck)
	s.handle("GET /check-runs/{run}/annotations", s.listAnnotations)
	s.handle("POST /check-runs/{run}/rerequest", s.rerequest)
	s.handle("GET /commits/{sha}/check-runs", s.listChecks)
	s.handle("POST /statuses/{sha}", s.createStatus)
	s.handle("GET /commits/{sha}/status", s.getStatus)
}

// RefuseChecks answers 403 with a message to clients that want to write a check run, as GitHub does to one that is
// not an app.
func (s *Server) RefuseChecks(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = message
}

// Checks returns the check runs of a repository, oldest first.
func (s *Server) Checks(repository string) []Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Check
	for _, c := range s.checks {
		if c.repository == s.repositories[repository] {
			shown := c.Check
			shown.Annotations = slices.Clone(c.Annotations)
			all = append(all, shown)
		}
	}
	return all
}

// Statuses returns the commit statuses of a repository, oldest first.
func (s *Server) Statuses(repository string) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, t := range s.statuses {
		if t.repository == s.repositories[repository] {
			all = append(all, t.Status)
		}
	}
	return all
}

func (c *checkRun) body() map[string]any {
	body := map[string]any{
		"id": c.ID, "name": c.Name, "head_sha": c.SHA, "external_id": c.ExternalID, "status": c.Status, "conclusion": nil,
		"started_at": c.started.UTC().Format(time.RFC3339), "pull_requests": []any{},
		"output": map[string]any{"title": c.Title, "summary": c.Summary, "annotations_count": len(c.Annotations)},
		"app":    map[string]any{"id": 1, "slug": "larder"},
	}
	if c.Conclusion != "" {
		body["conclusion"] = c.Conclusion
	}
	return body
}

// checkInput is what a check run is made or changed by.
type checkInput struct {
	Name       *string `json:"name"`
	HeadSHA    string  `json:"head_sha"`
	ExternalID string  `json:"external_id"`
	Status     string  `json:"status"`
	Conclusion string  `json:"conclusion"`
	Output     *struct {
		Title       string       `json:"title"`
		Summary     string       `json:"summary"`
		Annotations []Annotation `json:"annotations"`
	} `json:"output"`
}

func invalid(what string) error {
	return problem{http.StatusUnprocessableEntity, "Invalid request. " + what}
}

func (c *checkRun) apply(in checkInput) error {
	if in.Name != nil {
		c.Name = *in.Name
	}
	c.ExternalID = cmp.Or(in.ExternalID, c.ExternalID)
	if in.Conclusion != "" {
		in.Status = "completed"
	}
	switch {
	case !slices.Contains([]string{"", "queued", "in_progress", "completed"}, in.Status):
		return invalid("status is not a status")
	case in.Status == "completed" && in.Conclusion == "":
		return invalid("a completed check run needs a conclusion")
	case !slices.Contains([]string{"", "action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out"}, in.Conclusion):
		return invalid("conclusion is not a conclusion")
	}
	if in.Status != "" {
		c.Status, c.Conclusion = in.Status, in.Conclusion
	}
	o := in.Output
	if o == nil {
		return nil
	}
	switch {
	case o.Title == "" || o.Summary == "":
		return invalid(`"title" and "summary" weren't supplied.`)
	case utf8.RuneCountInString(o.Summary) > mostSummary || utf8.RuneCountInString(o.Title) > 255:
		return invalid("title or summary is too long")
	case len(o.Annotations) > mostAnnotations:
		return invalid("no more than 50 annotations in a request")
	}
	for _, a := range o.Annotations {
		switch {
		case a.Path == "" || a.Message == "" || a.StartLine < 1 || a.EndLine < a.StartLine:
			return invalid("an annotation lacks its path, message or lines")
		case len(a.Message) > 64<<10 || utf8.RuneCountInString(a.Title) > 255:
			return invalid("an annotation is too long")
		case a.StartLine != a.EndLine && (a.Column != nil || a.EndColumn != nil):
			return invalid("columns of an annotation on more lines than one")
		case !slices.Contains([]string{"notice", "warning", "failure"}, a.Level):
			return invalid("annotation_level is not a level")
		}
	}
	c.Title, c.Summary = o.Title, o.Summary
	c.Annotations = append(c.Annotations, o.Annotations...) // never replaced
	return nil
}

func (s *Server) createCheck(r *repository, q *http.Request) (int, any, error) {
	if s.refused != "" {
		return 0, nil, problem{http.StatusForbidden, s.refused}
	}
	if s.key != nil && q.Header.Get("Authorization") == "Bearer "+s.Token {
		return 0, nil, problem{http.StatusForbidden, "You must authenticate via a GitHub App."}
	}
	in, err := read[checkInput](q)
	if err != nil {
		return 0, nil, err
	}
	if _, err := r.CommitObject(plumbing.NewHash(in.HeadSHA)); err != nil {
		return 0, nil, invalid("No commit found for SHA: " + in.HeadSHA)
	}
	if in.Name == nil || *in.Name == "" {
		return 0, nil, invalid(`"name" wasn't supplied.`)
	}
	c := &checkRun{Check: Check{ID: int64(len(s.checks) + 5001), SHA: in.HeadSHA, Status: "queued"}, repository: r, started: time.Now()}
	if err := c.apply(in); err != nil {
		return 0, nil, err
	}
	s.checks = append(s.checks, c)
	return http.StatusCreated, c.body(), nil
}

func (s *Server) check(r *repository, q *http.Request) (*checkRun, error) {
	for _, c := range s.checks {
		if c.repository == r && strconv.FormatInt(c.ID, 10) == q.PathValue("run") {
			return c, nil
		}
	}
	return nil, notFound
}

func (s *Server) updateCheck(r *repository, q *http.Request) (int, any, error) {
	c, err := s.check(r, q)
	if err != nil {
		return 0, nil, err
	}
	in, err := read[checkInput](q)
	if err != nil {
		return 0, nil, err
	}
	changed := *c
	changed.Annotations = slices.Clone(c.Annotations)
	if err := changed.apply(in); err != nil {
		return 0, nil, err
	}
	*c = changed
	return http.StatusOK, c.body(), nil
}

func (s *Server) listAnnotations(r *repository, q *http.Request) (int, any, error) {
	c, err := s.check(r, q)
	if err != nil {
		return 0, nil, err
	}
	all := make([]any, len(c.Annotations))
	for i, a := range c.Annotations {
		all[i] = a
	}
	return http.StatusOK, page(q, all), nil
}

// rerequest asks for a check run again, as the button does.
func (s *Server) rerequest(r *repository, q *http.Request) (int, any, error) {
	c, err := s.check(r, q)
	if err != nil {
		return 0, nil, err
	}
	c.Status, c.Conclusion = "queued", ""
	s.tell(r, "check_run", map[string]any{"action": "rerequested", "check_run": c.body()})
	return http.StatusCreated, map[string]any{}, nil
}

// listChecks lists the runs of a commit, the newest of each name alone unless all are asked for.
func (s *Server) listChecks(r *repository, q *http.Request) (int, any, error) {
	found := []any{}
	names := map[string]bool{}
	for _, c := range slices.Backward(s.checks) {
		name := q.URL.Query().Get("check_name")
		if c.repository != r || c.SHA != q.PathValue("sha") || name != "" && name != c.Name {
			continue
		}
		if q.URL.Query().Get("filter") != "all" && names[c.Name] {
			continue
		}
		names[c.Name] = true
		found = append(found, c.body())
	}
	return http.StatusOK, map[string]any{"total_count": len(found), "check_runs": page(q, found)}, nil
}

func (s *Server) createStatus(r *repository, q *http.Request) (int, any, error) {
	in, err := read[struct{ State, Context, Description string }](q)
	if err != nil {
		return 0, nil, err
	}
	sha := q.PathValue("sha")
	if _, err := r.CommitObject(plumbing.NewHash(sha)); err != nil {
		return 0, nil, invalid("No commit found for SHA: " + sha)
	}
	if !slices.Contains([]string{"error", "failure", "pending", "success"}, in.State) || utf8.RuneCountInString(in.Description) > mostDescription {
		return 0, nil, invalid("state or description")
	}
	t := status{Status{sha, cmp.Or(in.Context, "default"), in.State, in.Description}, r}
	s.statuses = append(s.statuses, t)
	return http.StatusCreated, t.body(), nil
}

func (t status) body() map[string]any {
	return map[string]any{"state": t.State, "context": t.Context, "description": t.Description}
}

func (s *Server) getStatus(r *repository, q *http.Request) (int, any, error) {
	found := []any{}
	names := map[string]bool{}
	for _, t := range slices.Backward(s.statuses) {
		if t.repository == r && t.SHA == q.PathValue("sha") && !names[t.Context] {
			names[t.Context] = true
			found = append(found, t.body())
		}
	}
	return http.StatusOK, map[string]any{"state": "pending", "total_count": len(found), "statuses": page(q, found)}, nil
}
