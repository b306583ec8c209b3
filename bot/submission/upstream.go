package submission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// A packageJSON has the fields that a draft takes from npm's package.json. Authors write most fields in several ways.
type packageJSON struct {
	Description rawText   `json:"description"`
	License     rawText   `json:"license"`
	Homepage    rawText   `json:"homepage"`
	Keywords    rawText   `json:"keywords"`
	Repository  rawText   `json:"repository"`
	Author      rawText   `json:"author"`
	Authors     []rawText `json:"contributors"`
	Unpkg       rawText   `json:"unpkg"`
	JSDelivr    rawText   `json:"jsdelivr"`
	Browser     rawText   `json:"browser"`
	Main        rawText   `json:"main"`
	Module      rawText   `json:"module"`
	Style       rawText   `json:"style"`
}

// rawText is a JSON value that should be a string, but may also be an object that has one, or a list.
type rawText struct{ raw json.RawMessage }

// UnmarshalJSON stores a copy of the JSON value without decoding it, so that a value of another type is not an error.
func (t *rawText) UnmarshalJSON(data []byte) error {
	t.raw = append([]byte(nil), data...)
	return nil
}

// text returns the string, or the url or type of an object, or "".
func (t rawText) text() string {
	var s string
	if json.Unmarshal(t.raw, &s) == nil {
		return s
	}
	var object struct{ URL, Type string }
	if json.Unmarshal(t.raw, &object) == nil {
		return cmp.Or(object.URL, object.Type) // the type is that of a license
	}
	return ""
}

// list returns the elements of a list, or the parts between the commas of a string.
func (t rawText) list() []rawText {
	var list []rawText
	if json.Unmarshal(t.raw, &list) == nil {
		return list
	}
	for part := range strings.SplitSeq(t.text(), ",") {
		if raw, err := json.Marshal(part); err == nil {
			list = append(list, rawText{raw})
		}
	}
	return list
}

// person is npm's "Name <email> (url)".
var person = text.NewRegexp(`^\s*([^<(]*?)\s*(?:<([^>(]*)>)?\s*(?:\(([^)]*)\))?\s*$`)

// parseAuthor parses a person: an object, or npm's "Name <mail> (url)". It drops the mail address, which is not published unasked. It returns false
// if the person has no name.
func (t rawText) parseAuthor() (packages.Author, bool) {
	var object struct{ Name, URL string }
	if json.Unmarshal(t.raw, &object) != nil {
		m := person.FindStringSubmatch(t.text())
		if m == nil {
			return packages.Author{}, false
		}
		object.Name, object.URL = m[1], m[3]
	}
	a := packages.Author{Name: oneLine(object.Name), URL: webAddress(object.URL)}
	return a, a.Name != ""
}

// A library is popular enough with one of these.
const (
	minDownloads = 800 // from npm in a month
	minStars     = 200 // at GitHub
)

// Popularity requests how many people use a library.
type Popularity struct {
	// Downloads returns how often an npm package was downloaded in the last month, or
	// [fetch.ErrNotFound] if there is no count. Nil: npm is not requested.
	Downloads func(ctx context.Context, name string) (int64, error)
	// Stars returns how many stars a repository at GitHub has, or [fetch.ErrNotFound] if
	// it does not exist. Nil: GitHub is not requested.
	Stars func(ctx context.Context, owner, repository string) (int64, error)
}

// Check requests how many people use the library of p: npm's downloads, and unless these suffice, the stars at GitHub. It returns a warning if the
// counts are all known and low, another if GitHub has no such repository, and sentences about counts that are unknown. It returns nothing for a
// package without upstream, and no problem if one count suffices.
func (o Popularity) Check(ctx context.Context, p *packages.Package) (problems []packages.Problem, unknown []string) {
	if p.Autoupdate == nil {
		return nil, nil
	}
	at, target := []string{"autoupdate", "target"}, p.Autoupdate.Target
	var known []string
	if p.Autoupdate.Source == "npm" && o.Downloads == nil {
		unknown = append(unknown, "npm's download counts, because --downloads-url names no API that has them")
	} else if p.Autoupdate.Source == "npm" {
		n, err := o.Downloads(ctx, target)
		switch {
		case err != nil && !errors.Is(err, fetch.ErrNotFound): // of a new package nothing is counted yet
			unknown = append(unknown, fmt.Sprintf("npm's downloads of %.200q are not known: %v", target, err))
		case n >= minDownloads:
			return nil, nil
		default:
			known = append(known, humanize.Comma(n)+" downloads from npm in a month")
		}
	}
	if owner, repository, ok := gitHubRepository(p); ok && o.Stars == nil {
		unknown = append(unknown, "stars at GitHub: not asked for")
	} else if ok {
		n, err := o.Stars(ctx, owner, repository)
		switch {
		case errors.Is(err, fetch.ErrNotFound):
			problems = append(problems, packages.ProblemAt(p.JSON, packages.Warning, "address",
				fmt.Sprintf("GitHub has no repository %s/%s, or it is not public", owner, repository), "repository", "url"))
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("the stars of %s/%s at GitHub are not known: %v", owner, repository, err))
		case n >= minStars:
			return nil, unknown
		default:
			known = append(known, humanize.Comma(n)+" stars at GitHub")
		}
	}
	if len(known) > 0 && len(unknown) == 0 {
		problems = append(problems, packages.ProblemAt(p.JSON, packages.Warning, "popularity", fmt.Sprintf(
			"few people use it: it has %s; a library should have %d downloads in a month or %d stars", strings.Join(known, " and "), minDownloads, minStars), at...))
	}
	return problems, unknown
}

// gitHubRepository returns owner and name of a package's repository at GitHub, by the address of its git upstream or else of its repository; ok is
// false if neither is at GitHub.
func gitHubRepository(p *packages.Package) (owner, repository string, ok bool) {
	var addresses []string
	if p.Autoupdate != nil && p.Autoupdate.Source == "git" {
		addresses = append(addresses, p.Autoupdate.Target)
	}
	if p.Repository != nil {
		addresses = append(addresses, p.Repository.URL)
	}
	for _, address := range addresses {
		if owner, repository, ok = packages.ParseGitHubAddress(address); ok {
			return owner, repository, true
		}
	}
	return "", "", false
}

// Downloads returns a function that requests download counts from an API like npm's: {base}/downloads/point/last-month/{name}. The operator
// configures base, so it may have any address. If it is no URL or has credentials, Downloads returns an error.
func Downloads(client *fetch.Client, base string) (func(ctx context.Context, name string) (int64, error), error) {
	home, err := url.Parse(base)
	if err != nil || home.Host == "" || home.User != nil {
		return nil, errors.New("the address of the downloads API is not a URL")
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

// A releaseJSON is the JSON form of a release.
type releaseJSON struct {
	Version string     `json:"version"`
	Files   int        `json:"files"`
	Bytes   int64      `json:"bytes"`
	Made    int        `json:"made"`
	Built   int        `json:"built,omitempty"`
	Default string     `json:"default,omitempty"`
	Refused string     `json:"refused,omitempty"`
	Error   string     `json:"error,omitempty"`
	List    []fileJSON `json:"list,omitempty"`
	LeftOut []fileJSON `json:"leftOut,omitempty"`
}

// A fileJSON is the JSON form of a file.
type fileJSON struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes,omitempty"`
	Minified bool   `json:"minified,omitempty"`
	Built    bool   `json:"built,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// AsJSON returns a value for encoding/json with the releases, the files of the latest one, the tags, the change, and the texts of problems.
func (p *Preview) AsJSON(problems []packages.Problem) any {
	shown := struct {
		Package  string        `json:"package"`
		Latest   releaseJSON   `json:"latest"`
		Older    []releaseJSON `json:"older"`
		Tags     []string      `json:"tags"`
		Change   *Change       `json:"change,omitempty"`
		Problems []string      `json:"problems"`
	}{
		Package: p.Package.Name, Latest: p.Latest.asJSON(), Older: []releaseJSON{}, Tags: append([]string{}, p.Tags...),
		Change: p.Change, Problems: []string{},
	}
	for _, f := range p.Latest.Files {
		shown.Latest.List = append(shown.Latest.List, fileJSON{Path: f.Path, Bytes: f.Size, Minified: f.Minified, Built: f.Source == ""})
	}
	for _, l := range p.Latest.LeftOut {
		shown.Latest.LeftOut = append(shown.Latest.LeftOut, fileJSON{Path: l.Path, Reason: l.Reason})
	}
	for i := range p.Older {
		shown.Older = append(shown.Older, p.Older[i].asJSON())
	}
	for _, problem := range problems {
		shown.Problems = append(shown.Problems, problem.String())
	}
	return shown
}

// asJSON returns the JSON form of the release without its files.
func (r *Release) asJSON() releaseJSON {
	minified, built := r.Made()
	shown := releaseJSON{Version: r.Name, Files: len(r.Files), Bytes: r.Bytes(), Made: minified, Built: built, Default: r.Default, Refused: r.Refused}
	if r.Err != nil {
		shown.Error = r.Err.Error()
	}
	return shown
}
