package submission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages"
)

// What makes a library popular enough: one of them is.
const (
	leastDownloads = 800 // from npm in a month
	leastStars     = 200 // at GitHub
)

// Popularity asks how many people use a library.
type Popularity struct {
	// Downloads returns how often an npm package was downloaded in the last month, or
	// [fetch.ErrNotFound] where nobody has counted. Nil: it is not asked.
	Downloads func(ctx context.Context, name string) (int64, error)
	// Stars returns how many stars a repository at GitHub has, or [fetch.ErrNotFound] where there is
	// none. Nil: it is not asked.
	Stars func(ctx context.Context, owner, repository string) (int64, error)
}

// Check returns a warning where hardly anybody uses the library, and in words what could not be found
// out on the way.
func (o Popularity) Check(ctx context.Context, p *packages.Package) (problems []packages.Problem, unknown []string) {
	if p.Autoupdate == nil {
		return nil, nil
	}
	at, target := []string{"autoupdate", "target"}, p.Autoupdate.Target
	var known []string
	if p.Autoupdate.Source == "npm" {
		switch n, err := o.downloads(ctx, target); {
		case errors.Is(err, errNotAsked):
			unknown = append(unknown, "npm's downloads: --downloads-url does not say where they are counted")
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("npm's downloads of %.200q are not known: %v", target, err))
		case n >= leastDownloads:
			return nil, nil
		default:
			known = append(known, humanize.Comma(n)+" downloads from npm in a month")
		}
	}
	owner, repository, ok := gitHubRepository(p)
	if ok {
		switch n, err := o.stars(ctx, owner, repository); {
		case errors.Is(err, fetch.ErrNotFound):
			problems = append(problems, packages.ProblemAt(p.JSON, packages.Warning, "address",
				fmt.Sprintf("GitHub has no repository %s/%s, or it is not public", owner, repository), "repository", "url"))
		case errors.Is(err, errNotAsked):
			unknown = append(unknown, "stars at GitHub: nobody is asked for them")
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("the stars of %s/%s at GitHub are not known: %v", owner, repository, err))
		case n >= leastStars:
			return nil, unknown
		default:
			known = append(known, humanize.Comma(n)+" stars at GitHub")
		}
	}
	if len(known) > 0 && len(unknown) == 0 {
		problems = append(problems, packages.ProblemAt(p.JSON, packages.Warning, "popularity", fmt.Sprintf(
			"few people use it: it has %s; a library should have %d downloads in a month or %d stars", strings.Join(known, " and "), leastDownloads, leastStars), at...))
	}
	return problems, unknown
}

// errNotAsked: nobody has said whom to ask.
var errNotAsked = errors.New("not asked")

func (o Popularity) downloads(ctx context.Context, name string) (int64, error) {
	if o.Downloads == nil {
		return 0, errNotAsked
	}
	n, err := o.Downloads(ctx, name)
	if errors.Is(err, fetch.ErrNotFound) {
		return 0, nil // of a new package nothing is counted yet
	}
	return n, err
}

func (o Popularity) stars(ctx context.Context, owner, repository string) (int64, error) {
	if o.Stars == nil {
		return 0, errNotAsked
	}
	return o.Stars(ctx, owner, repository)
}

var gitHubAddress = regexp.MustCompile(`(?i)^(?:git\+)?(?:(?:https?|git|ssh)://)?(?:[^@/]*@)?(?:www\.)?github\.com[/:]([A-Za-z0-9-]{1,100})/([A-Za-z0-9._-]{1,100}?)(?:\.git)?(?:[/#?].*)?$`)

// gitHubRepository finds the package's repository at GitHub.
func gitHubRepository(p *packages.Package) (owner, repository string, ok bool) {
	var addresses []string
	if p.Autoupdate != nil && p.Autoupdate.Source == "git" {
		addresses = append(addresses, p.Autoupdate.Target)
	}
	if p.Repository != nil {
		addresses = append(addresses, p.Repository.URL)
	}
	for _, address := range addresses {
		if m := gitHubAddress.FindStringSubmatch(strings.TrimSpace(address)); m != nil && strings.Trim(m[2], ".") != "" {
			return m[1], m[2], true
		}
	}
	return "", "", false
}

// Downloads returns a counter of downloads that asks an API like npm's at base:
// {base}/downloads/point/last-month/{name}. base is the operator's word and may have any address.
func Downloads(client *fetch.Client, base string) (func(ctx context.Context, name string) (int64, error), error) {
	home, err := url.Parse(base)
	if err != nil || home.Host == "" || home.User != nil {
		return nil, errors.New("the address of the downloads API is no URL")
	}
	return func(ctx context.Context, name string) (n int64, err error) {
		// A scope's slash stays: the API has no other form.
		parts := strings.Split(name, "/")
		for i, part := range parts {
			parts[i] = url.PathEscape(part)
		}
		request := fetch.Request{
			URL:     strings.TrimRight(base, "/") + "/downloads/point/last-month/" + strings.Join(parts, "/"),
			Trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, home) },
			Limit:   64 << 10,
		}
		err = client.Get(ctx, request, func(r *fetch.Response) error {
			var answer struct{ Downloads *int64 }
			if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Downloads == nil || *answer.Downloads < 0 {
				return errors.New("its answer has no number of downloads; is it an API like npm's?")
			}
			n = *answer.Downloads
			return nil
		})
		return n, err
	}, nil
}
