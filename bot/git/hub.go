package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	gogithub "github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/packages/archive"
)

// hub reads repositories through GitHub's API.
type hub struct {
	client   *GitHubClient
	fetch    *fetch.Client
	api, web string // hosts, with ports where they have one
	limit    int64  // bytes of an archive
	// turn is held by the one request that is under way: GitHub wants them one after
	// the other, and the next one then knows of a limit that this one has met.
	turn chan struct{}
}

func newHub(client *GitHubClient, f *fetch.Client, limit int64) *hub {
	api := strings.ToLower(client.BaseURL.Host)
	// GitHub itself: api.github.com; with data residency: api.NAME.ghe.com; a server: HOST/api/v3.
	return &hub{client: client, fetch: f, api: api, web: strings.TrimPrefix(api, "api."), limit: limit, turn: make(chan struct{}, 1)}
}

// repositoryPath is an owner and a name, as GitHub allows them.
var repositoryPath = lazyregexp.New(`^/([A-Za-z0-9_.-]{1,100})/([A-Za-z0-9_.-]{1,100})$`)

// has reports whether a repository is one of GitHub's.
func (h *hub) has(at *url.URL) bool {
	return IsGitHubHost(h.client.BaseURL.String(), at.Host)
}

// home returns the path of a repository in the API.
func (h *hub) home(at *url.URL) (string, error) {
	m := repositoryPath.FindStringSubmatch(strings.TrimSuffix(at.Path, ".git"))
	if m == nil || strings.Trim(m[1], ".") == "" || strings.Trim(m[2], ".") == "" {
		return "", refuse("the address is not that of a repository at GitHub: https://%s/OWNER/NAME", h.web)
	}
	return "repos/" + m[1] + "/" + m[2], nil
}

// patience is how long an answer may take, short waits for limits included. A longer wait is for
// the scheduler, which has other things to do meanwhile.
const patience = 90 * time.Second

// errNotModified: an answer is the one that is known.
var errNotModified = errors.New("not modified")

// get asks for JSON, unless it is the one of that entity tag, and returns the new one's.
func (h *hub) get(ctx context.Context, path, etag string, into any) (fresh string, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		request, err := API(h.client).NewRequest(http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		if etag != "" {
			request.Header.Set("If-None-Match", etag)
		}
		response, err := API(h.client).Do(ctx, request, into)
		if err == nil {
			fresh = response.Header.Get("ETag")
		}
		return err
	})
	return fresh, err
}

// ask does what asks GitHub, unless that has to wait for long.
func (h *hub) ask(parent context.Context, do func(context.Context) error) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-parent.Done():
		return context.Cause(parent)
	}
	if until := h.client.Waiting(); time.Until(until) > patience {
		return &LimitError{until}
	}
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	err := do(ctx)
	if err == nil {
		return nil
	}
	if parent.Err() != nil {
		return context.Cause(parent)
	}
	if until := h.client.Waiting(); ctx.Err() != nil && !until.IsZero() {
		return &LimitError{until}
	}
	switch GitHubStatus(err) {
	case http.StatusNotModified:
		return errNotModified
	case http.StatusNotFound:
		return fmt.Errorf("%w (%s)", fetch.ErrNotFound, DescribeGitHubError(err))
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return err // for moved
	}
	return errors.New(DescribeGitHubError(err))
}

// repository is what is told of one.
type repository struct {
	HTMLURL  string `json:"html_url"`
	Archived bool   `json:"archived"`
}

var movedTo = lazyregexp.New(`/repositories/([0-9]{1,20})(?:/|$)`)

// moved returns the path that GitHub says a repository has now; "" where err says nothing like that.
func (h *hub) moved(err error) string {
	var answered *gogithub.ErrorResponse
	if !errors.As(err, &answered) || answered.Response == nil {
		return ""
	}
	location, err := answered.Response.Request.URL.Parse(answered.Response.Header.Get("Location"))
	if err != nil || strings.ToLower(location.Host) != h.api {
		return ""
	}
	m := movedTo.FindStringSubmatch(location.Path)
	if m == nil {
		return ""
	}
	return "repositories/" + m[1]
}

// about asks for the repository itself, and finds it where it has moved: home is then its path by number,
// which no further move changes.
func (h *hub) about(ctx context.Context, at *url.URL, etag string) (home, fresh string, about *About, err error) {
	if home, err = h.home(at); err != nil {
		return "", "", nil, err
	}
	var found repository
	fresh, err = h.get(ctx, home, etag, &found)
	if to := h.moved(err); to != "" {
		home = to
		if _, err = h.get(ctx, home, "", &found); err != nil {
			return "", "", nil, failed(err)
		}
		return home, "", &About{Moved: found.HTMLURL, Archived: found.Archived}, nil
	}
	switch {
	case errors.Is(err, errNotModified):
		return home, etag, nil, nil
	case err != nil:
		return "", "", nil, failed(err)
	}
	return home, fresh, &About{Archived: found.Archived}, nil
}

// counts asks for a repository's counts. They are nil where they are those that came with the entity tag.
func (h *hub) counts(ctx context.Context, at *url.URL, etag string) (found *Counts, fresh string, err error) {
	home, err := h.home(at)
	if err != nil {
		return nil, "", err
	}
	found = new(Counts)
	fresh, err = h.get(ctx, home, etag, found)
	if to := h.moved(err); to != "" {
		fresh, err = h.get(ctx, to, etag, found)
	}
	if errors.Is(err, errNotModified) && etag != "" { // else there is nothing that it could be as
		return nil, etag, nil
	}
	if err != nil {
		return nil, "", failed(err)
	}
	return found, fresh, nil
}

// failed words a redirect that leads nowhere as any other answer.
func failed(err error) error {
	if GitHubStatus(err)/100 == 3 {
		return errors.New(DescribeGitHubError(err))
	}
	return err
}

// perPage is the most that GitHub puts on a page.
const perPage = 100

// tags asks for all tags, page by page. The validator is the entity tags of the repository and of all
// pages, because a new tag may stand on any of them; the last page is always one with room.
func (h *hub) tags(ctx context.Context, at *url.URL, validator string) (*Listing, error) {
	var known []string
	if validator != "" {
		known = strings.Split(validator, "\n")
	}
	etag := func(i int) string {
		if i < len(known) {
			return known[i]
		}
		return ""
	}
	home, first, about, err := h.about(ctx, at, etag(0))
	if err != nil {
		return nil, err
	}
	listing := &Listing{About: about}
	if len(known) > 1 && h.same(ctx, home, known[1:]) {
		listing.Unchanged = true
		listing.Validator = strings.Join(append([]string{first}, known[1:]...), "\n")
		return listing, nil
	}
	fresh := []string{first}
	commits := make(map[string]string)
	for page := 1; ; page++ {
		var tags []*gogithub.RepositoryTag
		etag, err := h.get(ctx, tagsPath(home, page), "", &tags)
		if err != nil {
			return nil, failed(err)
		}
		fresh = append(fresh, etag)
		for _, tag := range tags {
			name, commit := tag.GetName(), tag.GetCommit().GetSHA()
			if name != "" && len(name) <= maxTagName && commitHash.MatchString(commit) {
				commits[name] = commit
			}
		}
		if len(tags) < perPage {
			break
		}
		if page*perPage > maxTags {
			return nil, refuse("the repository has more than %d tags", maxTags)
		}
	}
	listing.Validator = strings.Join(fresh, "\n")
	listing.Tags, err = versions(commits)
	return listing, err
}

// same reports whether all pages are as they were. What goes wrong is for asking again to tell.
func (h *hub) same(ctx context.Context, home string, etags []string) bool {
	for i, etag := range etags {
		if etag == "" {
			return false
		}
		var none []*gogithub.RepositoryTag
		if _, err := h.get(ctx, tagsPath(home, i+1), etag, &none); !errors.Is(err, errNotModified) {
			return false
		}
	}
	return true
}

func tagsPath(home string, page int) string {
	return fmt.Sprintf("%s/tags?per_page=%d&page=%d", home, perPage, page)
}

func (h *hub) release(ctx context.Context, at *url.URL, tag Tag, dst *os.File) (*Release, error) {
	home, err := h.home(at)
	if err != nil {
		return nil, err
	}
	var commit gogithub.Commit
	_, err = h.get(ctx, home+"/git/commits/"+tag.Commit, "", &commit)
	if to := h.moved(err); to != "" {
		home = to
		_, err = h.get(ctx, home+"/git/commits/"+tag.Commit, "", &commit)
	}
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", tag.Commit, failed(err))
	}
	link, err := h.archiveLink(ctx, home, tag.Commit)
	if err != nil {
		return nil, fmt.Errorf("archive of commit %s: %w", tag.Commit, err)
	}
	err = h.fetch.Get(ctx, fetch.Request{URL: link, Trusted: h.trusted, Limit: h.limit}, func(r *fetch.Response) error {
		if r.Status != http.StatusOK {
			return fmt.Errorf("GitHub answers %d instead of an archive", r.Status)
		}
		if err := empty(dst); err != nil {
			return err
		}
		_, err := io.Copy(fetch.LocalWriter(dst), r.Body)
		return err
	})
	if err != nil {
		return nil, err
	}
	source, err := archive.OpenDownload(dst)
	if err != nil {
		return nil, refuse("GitHub's archive of commit %s: %v", tag.Commit, err)
	}
	r := &Release{Archive: source.StripRoot(), Date: sensible(commit.GetCommitter().GetDate().Unix())}
	if hasSubmodules(ctx, r.Archive) {
		r.Notes = append(r.Notes, "the repository has submodules, which were left out: they are other repositories")
	}
	return r, nil
}

// archiveLink asks where the archive of a commit is. It is not GetArchiveLink, which knows repositories by
// name only.
func (h *hub) archiveLink(ctx context.Context, home, commit string) (string, error) {
	var link string
	err := h.ask(ctx, func(ctx context.Context) error {
		request, err := API(h.client).NewRequest(http.MethodGet, home+"/tarball/"+commit, nil)
		if err != nil {
			return err
		}
		response, err := API(h.client).BareDo(ctx, request)
		if err == nil {
			response.Body.Close()
			return errors.New("GitHub answered with no redirect to an archive")
		}
		var answered *gogithub.ErrorResponse
		if !errors.As(err, &answered) || answered.Response == nil || answered.Response.StatusCode != http.StatusFound {
			return err
		}
		to, err := answered.Response.Request.URL.Parse(answered.Response.Header.Get("Location"))
		if err != nil {
			return errors.New("GitHub's redirect to an archive is no URL")
		}
		link = to.String()
		return nil
	})
	return link, failed(err)
}

// trusted reports whether an archive is on the host that the operator named, or below it, as codeload is,
// and no less protected on its way than the API.
func (h *hub) trusted(u *url.URL) bool {
	host := strings.ToLower(u.Host)
	if u.Scheme != "https" && u.Scheme != h.client.BaseURL.Scheme {
		return false
	}
	return host == h.api || host == h.web || strings.HasSuffix(host, "."+h.web)
}

// hasSubmodules reports whether an archive of GitHub's is that of a commit that names some. Its entries
// are in git's order, so there is not much to read.
func hasSubmodules(ctx context.Context, a archive.Source) (found bool) {
	err := archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		found = e.Name == ".gitmodules"
		if found || e.Name > ".gitmodules" {
			return errDone
		}
		return nil
	})
	return found && errors.Is(err, errDone)
}

var errDone = errors.New("done")

// sensible is a commit's time, zero for one that cannot be true: a committer may write any.
func sensible(seconds int64) time.Time {
	at := time.Unix(seconds, 0).UTC()
	if at.Year() < 1990 || at.Year() > 2200 {
		return time.Time{}
	}
	return at
}
