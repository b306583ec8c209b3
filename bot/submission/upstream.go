package submission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// manifest is what a draft takes from a package.json. Authors write most fields in several ways.
type manifest struct {
	Description anyText   `json:"description"`
	License     anyText   `json:"license"`
	Homepage    anyText   `json:"homepage"`
	Keywords    anyText   `json:"keywords"`
	Repository  anyText   `json:"repository"`
	Author      anyText   `json:"author"`
	Authors     []anyText `json:"contributors"`
	Unpkg       anyText   `json:"unpkg"`
	JSDelivr    anyText   `json:"jsdelivr"`
	Browser     anyText   `json:"browser"`
	Main        anyText   `json:"main"`
	Module      anyText   `json:"module"`
	Style       anyText   `json:"style"`
}

// anyText is a value that ought to be a text: it may also be an object that has one inside, or a list.
type anyText struct{ raw json.RawMessage }

func (t *anyText) UnmarshalJSON(data []byte) error {
	t.raw = append([]byte(nil), data...)
	return nil
}

// string returns the text, or that of an object's url or type, or "".
func (t anyText) string() string {
	var s string
	if json.Unmarshal(t.raw, &s) == nil {
		return s
	}
	var object struct{ URL, Type string }
	if json.Unmarshal(t.raw, &object) == nil {
		if object.URL != "" {
			return object.URL
		}
		return object.Type // of a license
	}
	return ""
}

// strings returns the texts of a list, or those between the commas of a text.
func (t anyText) strings() []anyText {
	var list []anyText
	if json.Unmarshal(t.raw, &list) == nil {
		return list
	}
	for part := range strings.SplitSeq(t.string(), ",") {
		if raw, err := json.Marshal(part); err == nil {
			list = append(list, anyText{raw})
		}
	}
	return list
}

// person is npm's "Name <email> (url)".
var person = lazyregexp.New(`^\s*([^<(]*?)\s*(?:<([^>(]*)>)?\s*(?:\(([^)]*)\))?\s*$`)

// author reads a person, whose address for mail stays out of a file that is going to be published
// without being asked.
func (t anyText) author() (packages.Author, bool) {
	var object struct{ Name, URL string }
	if json.Unmarshal(t.raw, &object) != nil {
		m := person.FindStringSubmatch(t.string())
		if m == nil {
			return packages.Author{}, false
		}
		object.Name, object.URL = m[1], m[3]
	}
	a := packages.Author{Name: oneLine(object.Name), URL: webAddress(object.URL)}
	return a, a.Name != ""
}

// Git returns the source of packages from git repositories.
func Git(client *git.Client) Source { return gitSource{client} }

type gitSource struct{ client *git.Client }

// tagged is a version of a git repository.
type tagged struct {
	target string
	tag    git.Tag
}

func (s gitSource) Releases(ctx context.Context, target string) ([]Version, error) {
	listing, err := s.client.Tags(ctx, target, "")
	if err != nil {
		return nil, err
	}
	versions := make([]Version, 0, len(listing.Tags))
	for _, tag := range listing.Tags {
		versions = append(versions, Version{Name: tag.Version, Source: tagged{target, tag}})
	}
	return versions, nil
}

func (s gitSource) Archive(ctx context.Context, v Version, dst *os.File) (archive.Source, error) {
	of := v.Source.(tagged)
	release, err := s.client.Release(ctx, of.target, of.tag, nil, dst)
	var refused *git.RefusedError
	if errors.As(err, &refused) {
		return archive.Source{}, &RefusedError{err}
	}
	if err != nil {
		return archive.Source{}, err
	}
	return release.Archive, nil
}

// What makes a library popular enough: one of them is.
const (
	leastDownloads = 800 // from npm in a month
	leastStars     = 200 // at GitHub
)

// Popularity asks how many people use a library.
type Popularity struct {
	// Downloads returns how often an npm package was downloaded in the last month, or
	// [fetch.ErrNotFound] where there is no count. Nil: it is not asked.
	Downloads func(ctx context.Context, name string) (int64, error)
	// Stars returns how many stars a repository at GitHub has, or [fetch.ErrNotFound] if
	// it does not exist. Nil: stars are not looked up.
	Stars func(ctx context.Context, owner, repository string) (int64, error)
}

// Check returns a warning where hardly any site uses the library, and in words what could not be found
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
			unknown = append(unknown, "stars at GitHub: not asked for")
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

// errNotAsked: the settings name no server to ask.
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

var gitHubAddress = lazyregexp.New(`(?i)^(?:git\+)?(?:(?:https?|git|ssh)://)?(?:[^@/]*@)?(?:www\.)?github\.com[/:]([A-Za-z0-9-]{1,100})/([A-Za-z0-9._-]{1,100}?)(?:\.git)?(?:[/#?].*)?$`)

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

// shownRelease is a release as JSON.
type shownRelease struct {
	Version string      `json:"version"`
	Files   int         `json:"files"`
	Bytes   int64       `json:"bytes"`
	Made    int         `json:"made"`
	Default string      `json:"default,omitempty"`
	Refused string      `json:"refused,omitempty"`
	Error   string      `json:"error,omitempty"`
	List    []shownFile `json:"list,omitempty"`
	LeftOut []shownFile `json:"leftOut,omitempty"`
}

type shownFile struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes,omitempty"`
	Minified bool   `json:"minified,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// shownChange is the difference from the published package JSON, as JSON.
type shownChange struct {
	Fields  []string `json:"fields,omitempty"`
	Release string   `json:"release,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

// AsJSON is the preview in its JSON form, with what is wrong.
func (p *Preview) AsJSON(problems []packages.Problem) any {
	shown := struct {
		Package  string         `json:"package"`
		Latest   shownRelease   `json:"latest"`
		Older    []shownRelease `json:"older"`
		Tags     []string       `json:"tags"`
		Change   *shownChange   `json:"change,omitempty"`
		Problems []string       `json:"problems"`
	}{Package: p.Package.Name, Latest: p.Latest.shown(), Older: []shownRelease{}, Tags: append([]string{}, p.Tags...), Problems: []string{}}
	if c := p.Change; c != nil {
		shown.Change = &shownChange{c.Fields, c.Release, c.Added, c.Removed, c.Problem}
	}
	for _, f := range p.Latest.Files {
		shown.Latest.List = append(shown.Latest.List, shownFile{Path: f.Path, Bytes: f.Size, Minified: f.Minified})
	}
	for _, l := range p.Latest.LeftOut {
		shown.Latest.LeftOut = append(shown.Latest.LeftOut, shownFile{Path: l.Path, Reason: l.Reason})
	}
	for i := range p.Older {
		shown.Older = append(shown.Older, p.Older[i].shown())
	}
	for _, problem := range problems {
		shown.Problems = append(shown.Problems, problem.String())
	}
	return shown
}

func (r *Release) shown() shownRelease {
	shown := shownRelease{Version: r.Name, Files: len(r.Files), Bytes: r.Bytes(), Made: r.Made(), Default: r.Default, Refused: r.Refused}
	if r.Err != nil {
		shown.Error = r.Err.Error()
	}
	return shown
}
