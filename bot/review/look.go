package review

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

const (
	// lookedAtOnce is how many upstreams of one pull request are asked at the same time.
	lookedAtOnce = 4
	// mostShown is of how many packages older releases are looked at, too.
	mostShown  = 20
	olderShown = 10
	// patience is how long an upstream may take, allPatience how long all of a pull request may.
	patience    = 5 * time.Minute
	allPatience = 20 * time.Minute
)

// look looks at what a pull request changes.
func (r *Reviewer) look(ctx context.Context, p pull) (*report, error) {
	c, err := r.changes(ctx, p.number)
	if err != nil {
		return nil, err
	}
	// The list is that of the newest commit, whichever that is.
	now, err := r.pull(ctx, p.number)
	if err != nil {
		return nil, err
	}
	if now.head != p.head {
		return nil, &movedError{now.head}
	}
	if err := r.read(ctx, c, p.head); err != nil {
		return nil, err
	}
	report := &report{removed: c.removed, other: c.other, left: c.left, cut: c.cut}
	if report.files, err = r.lint(ctx, c, report); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(allPatience)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookedAtOnce)
	for i, f := range report.files {
		if f.Package == nil {
			f.section = f.describe(nil, nil, nil)
			continue
		}
		g.Go(func() error {
			older := olderShown
			if i >= mostShown {
				older = 0
			}
			return r.upstream(ctx, f, older, deadline)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return report, nil
}

// lint checks the files by themselves.
func (r *Reviewer) lint(ctx context.Context, c *changes, report *report) ([]*reviewed, error) {
	o := lint.Options{Changed: map[string]*packages.Package{}}
	for _, name := range c.removed {
		o.Changed[strings.TrimSuffix(path.Base(name), ".json")] = nil
	}
	for _, f := range c.files {
		if p, err := packages.Parse(f.path, f.data); err == nil {
			o.Changed[p.Name] = p
		}
	}
	if r.o.Catalogue != nil {
		var err error
		if o.Catalogue, err = r.o.Catalogue(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			report.note(fmt.Sprintf("duplicates in the catalogue, which cannot be read: %v", err))
		}
	}
	known := lint.New(o)
	o.New = true
	fresh := lint.New(o)
	var files []*reviewed
	for _, f := range c.files {
		reviewed := &reviewed{}
		switch {
		case f.unreadable != "":
			reviewed.Result = lint.Unreadable(f.path, f.unreadable)
		case f.isNew:
			reviewed.Result = fresh.Check(f.path, f.path, f.data)
		default:
			reviewed.Result = known.Check(f.path, f.path, f.data)
		}
		files = append(files, reviewed)
	}
	return files, nil
}

// upstream adds what a package's upstream tells, and what is published. Of a release, which may have many
// files, only the words are kept. The error is ctx's.
func (r *Reviewer) upstream(ctx context.Context, f *reviewed, older int, deadline time.Time) error {
	p := f.Package
	var preview *submission.Preview
	var published *Published
	if p.Autoupdate != nil {
		whole, cancelWhole := context.WithDeadline(ctx, deadline)
		defer cancelWhole()
		limited, cancel := context.WithTimeout(whole, patience)
		defer cancel()
		var err error
		preview, err = r.o.Look(limited, p, older)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			preview = nil
			f.Add(submission.Trouble(p, err))
		} else {
			f.Add(preview.Problems()...)
		}
		if r.o.Popularity != nil {
			problems, unknown := r.o.Popularity(ctx, p)
			f.Add(problems...)
			f.notes = append(f.notes, unknown...)
		}
	}
	if r.o.Published != nil {
		var err error
		if published, err = r.o.Published(ctx, p.Name); err != nil && ctx.Err() == nil {
			f.notes = append(f.notes, fmt.Sprintf("what is published of %s: %v", p.Name, err))
		}
	}
	f.section = f.describe(preview, published, r.tags(preview))
	return ctx.Err()
}

// mostTags is how many files' tags are shown of a package besides the main one.
const mostTags = 3

// tags returns what pages are going to load the latest release with: the main file first.
func (r *Reviewer) tags(preview *submission.Preview) []string {
	if r.o.Tag == nil || preview == nil || preview.Latest.Refused != "" {
		return nil
	}
	latest := &preview.Latest
	var names []string
	if latest.Default != "" {
		names = append(names, latest.Default)
	}
	for _, f := range latest.Files {
		// Of a file in two forms people take the smaller.
		if f.Path != latest.Default && strings.Contains(path.Base(f.Path), ".min.") {
			names = append(names, f.Path)
		}
	}
	var tags []string
	for _, name := range names {
		var integrity *Integrity
		if sum, ok := latest.Integrity[name]; ok { // else it is going to be made
			integrity = (*Integrity)(&sum)
		}
		if tag := r.o.Tag(preview.Package.Name, latest.Name, name, integrity); tag != "" && len(tags) <= mostTags {
			tags = append(tags, tag)
		}
	}
	return tags
}

// Integrity is the SHA-512 of a file's bytes, as a tag's integrity has it.
type Integrity [sha512.Size]byte

// String returns "sha512-" and base64.
func (i Integrity) String() string { return "sha512-" + base64.StdEncoding.EncodeToString(i[:]) }

// Published is a release that is published.
type Published struct {
	Version string
	// Files has the integrity of each file by its path, "" where that is not known.
	Files map[string]string
}

// A difference is in what a preview differs from a published release.
type difference struct {
	added, removed, changed []string
}

// compare holds a release that would be published against one that is.
func compare(preview *submission.Release, published *Published) difference {
	var d difference
	has := map[string]bool{}
	for _, f := range preview.Files {
		has[f.Path] = true
		before, ok := published.Files[f.Path]
		now, known := preview.Integrity[f.Path]
		switch {
		case !ok:
			d.added = append(d.added, f.Path)
		case known && before != "" && before != Integrity(now).String():
			d.changed = append(d.changed, f.Path)
		}
	}
	for path := range published.Files {
		if !has[path] {
			d.removed = append(d.removed, path)
		}
	}
	slices.Sort(d.removed)
	return d
}

// PublishedBy returns what asks the API of a running Larder, or of cdnjs, what is published. base is the
// operator's word and may have any address.
func PublishedBy(client *fetch.Client, base string) (func(ctx context.Context, name string) (*Published, error), error) {
	home, err := url.Parse(base)
	if err != nil || home.Host == "" || home.User != nil {
		return nil, errors.New("the address of the API is no URL")
	}
	get := func(ctx context.Context, path string, to any) error {
		request := fetch.Request{
			URL:     strings.TrimRight(base, "/") + path,
			Trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, home) },
			Limit:   32 << 20,
		}
		return client.Get(ctx, request, func(r *fetch.Response) error {
			if err := json.NewDecoder(r.Body).Decode(to); err != nil {
				return fmt.Errorf("its answer is not that of the API: %w", err)
			}
			return nil
		})
	}
	return func(ctx context.Context, name string) (*Published, error) {
		var latest struct{ Version string }
		at := "/libraries/" + url.PathEscape(name)
		err := get(ctx, at+"?fields=version", &latest)
		if errors.Is(err, fetch.ErrNotFound) || err == nil && latest.Version == "" {
			return nil, nil
		}
		var release struct {
			RawFiles []string
			Files    []string
			SRI      map[string]string
		}
		if err == nil {
			err = get(ctx, at+"/"+url.PathEscape(latest.Version)+"?fields=rawFiles,files,sri", &release)
		}
		if err != nil {
			return nil, err
		}
		if release.RawFiles == nil {
			release.RawFiles = release.Files
		}
		p := &Published{Version: latest.Version, Files: make(map[string]string, len(release.RawFiles))}
		for _, file := range release.RawFiles {
			p.Files[file] = release.SRI[file]
		}
		return p, nil
	}, nil
}
