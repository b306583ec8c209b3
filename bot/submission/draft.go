package submission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
	"github.com/larder-cdn/larder/packages/lint"
)

// A Draft is a package JSON that was written from a release.
type Draft struct {
	// Preview is what the bot would publish by it; its package is the draft.
	Preview *Preview
	// Notes are what a person should look at, in words: what was guessed for want of better.
	Notes []string
}

// JSON is the package JSON, in a catalogue's form.
func (d *Draft) JSON() []byte { return d.Preview.Package.JSON }

// File is where a catalogue keeps the package JSON, with slashes.
func (d *Draft) File() string { return packages.Path(d.Preview.Package.Name) }

// UndraftableError says what a package lacks that only a person can supply.
type UndraftableError struct {
	// Package is the npm package, Version the release that was looked at.
	Package, Version string
	Reason           string
}

func (e *UndraftableError) Error() string {
	return fmt.Sprintf("npm package %s %s: %s", e.Package, e.Version, e.Reason)
}

// NewDraft writes a package JSON for an npm package from its latest release: what it is from its
// package.json, which files from what is really there. name is what the package is going to be called;
// "" derives that from the npm package's.
//
// Errors are an *[UndraftableError], [ErrNoReleases], and those of the source.
func NewDraft(ctx context.Context, source Source, target, name string) (*Draft, error) {
	if !npm.ValidName(target) {
		return nil, &npm.NameError{Name: target}
	}
	if name == "" {
		name = packageName(target)
	}
	// A package that selects everything shows what there is.
	everything := &packages.Package{Name: name, Autoupdate: &packages.Autoupdate{Source: "npm", Target: target}}
	versions, err := source.Releases(ctx, target)
	if err != nil {
		return nil, err
	}
	latest, ok := latestOf(everything, versions)
	if !ok {
		return nil, fmt.Errorf("npm package %s: %w", target, ErrNoReleases)
	}
	var m manifest
	var files []string
	err = withArchive(ctx, source, latest, func(a archive.Source) error {
		return archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
			if e.Skipped == "" {
				files = append(files, e.Name)
			}
			if e.Name != "package.json" || e.Skipped != "" {
				return nil
			}
			data, err := io.ReadAll(io.LimitReader(r, packages.MaxFileSize))
			if err == nil {
				err = json.Unmarshal(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), &m)
			}
			var wrong *json.UnmarshalTypeError
			if err != nil && !errors.As(err, &wrong) { // one odd field does not spoil the others
				return &UndraftableError{target, latest.Name, "its package.json: " + err.Error()}
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	d := &Draft{}
	data, err := d.write(name, target, &m, files)
	if err != nil {
		return nil, &UndraftableError{target, latest.Name, err.Error()}
	}
	p, err := packages.Parse("", data)
	if err != nil {
		return nil, &UndraftableError{target, latest.Name, "what it says of itself makes no package JSON: " + err.Error()}
	}
	if d.Preview, err = Look(ctx, source, p, 0); err != nil {
		return nil, err
	}
	return d, nil
}

func latestOf(p *packages.Package, versions []Version) (Version, bool) {
	var names []string
	for _, v := range versions {
		if packages.ValidVersion(v.Name) {
			names = append(names, v.Name)
		}
	}
	latest := packages.LatestVersion(names)
	i := slices.IndexFunc(versions, func(v Version) bool { return v.Name == latest })
	if i < 0 || latest == "" {
		return Version{}, false
	}
	return versions[i], true
}

// write makes the package JSON.
func (d *Draft) write(name, target string, m *manifest, files []string) ([]byte, error) {
	set, published := chooseFiles(files)
	if len(published) == 0 {
		return nil, fmt.Errorf("none of its %d files is one that pages load (.js, .css and what they need), so there is nothing to serve", len(files))
	}
	p := packages.Package{
		Name: name, Description: oneLine(m.Description.string()), Homepage: webAddress(m.Homepage.string()), License: oneLine(m.License.string()),
		Filename:   chooseMain(target, m, set.BasePath, published),
		Autoupdate: &packages.Autoupdate{Source: "npm", Target: target, FileMap: []packages.FileSet{set}},
	}
	if p.Description == "" {
		p.Description = "The npm package " + target + "."
		d.note("npm has no description; write what the library does, in a sentence")
	}
	if valid, nearest := lint.License(p.License); !valid && p.License != "" {
		d.note(fmt.Sprintf("npm has the license %q, which is no SPDX identifier; see that %q is right", p.License, nearest))
		if nearest == "" {
			d.Notes[len(d.Notes)-1] = fmt.Sprintf("npm has the license %q, which is no SPDX identifier; write the one that it is", p.License)
		}
		p.License = nearest
	}
	for _, keyword := range m.Keywords.strings() {
		if keyword := oneLine(keyword.string()); keyword != "" && len(p.Keywords) < maxKeywords && !slices.Contains(p.Keywords, keyword) {
			p.Keywords = append(p.Keywords, keyword)
		}
	}
	if len(p.Keywords) == 0 {
		p.Keywords = []string{strings.TrimPrefix(strings.ReplaceAll(target, "/", "-"), "@")}
		d.note("npm has no keywords; write what people would search for")
	}
	if address := repositoryAddress(m.Repository.string(), m.Homepage.string()); address != "" {
		p.Repository = &packages.Repository{Type: "git", URL: address}
	} else {
		return nil, errors.New(`its package.json names no repository that can be reached; a package JSON needs one`)
	}
	for _, author := range append([]anyText{m.Author}, m.Authors...) {
		if a, ok := author.author(); ok && len(p.Authors) < maxAuthors {
			p.Authors = append(p.Authors, a)
		}
	}
	if p.Filename == "" {
		d.note("it has no main file that a page could load; name one as filename if there is")
	}
	d.note("look through the files: chosen are those of the kinds that pages load, in " + folderNames(set))
	return encode(&p)
}

const (
	maxKeywords = 30
	maxAuthors  = 20
)

func (d *Draft) note(text string) { d.Notes = append(d.Notes, text) }

func folderNames(set packages.FileSet) string {
	switch several, _, ok := strings.Cut(set.Files[0], "}/"); {
	case ok && strings.HasPrefix(several, "{"):
		return strings.ReplaceAll(several[1:], ",", "/, ") + "/"
	case set.BasePath == "":
		return "the release's top folder"
	}
	return set.BasePath + "/"
}

// encode writes a package JSON in a catalogue's form, without what is empty or as it is by default.
func encode(p *packages.Package) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(struct {
		*packages.Package
		Optimization *struct{} `json:"optimization,omitempty"`
	}{Package: p}); err != nil {
		return nil, err
	}
	return lint.Format(b.Bytes())
}

var unusable = lazyregexp.New(`[^a-zA-Z0-9._-]+`)

// packageName derives a package's name from that of the npm package: @scope/name becomes scope-name.
func packageName(target string) string {
	return strings.TrimLeft(unusable.ReplaceAllString(strings.TrimPrefix(target, "@"), "-"), "._-")
}

// webAddress returns an address that people can follow, or "".
func webAddress(address string) string {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || len(u.String()) > 500 {
		return ""
	}
	return u.String()
}

var shortAddress = lazyregexp.New(`^(?:(github|gitlab|bitbucket):)?([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)$`)

// repositoryAddress makes an https address of the ways in which npm lets people write repositories.
func repositoryAddress(address, homepage string) string {
	address = strings.TrimSpace(address)
	if m := shortAddress.FindStringSubmatch(address); m != nil {
		host := map[string]string{"": "github.com", "github": "github.com", "gitlab": "gitlab.com", "bitbucket": "bitbucket.org"}[m[1]]
		return "https://" + host + "/" + strings.TrimSuffix(m[2], ".git") + ".git"
	}
	address = strings.TrimPrefix(address, "git+")
	if user, rest, ok := strings.Cut(address, "@"); ok && !strings.Contains(address, "://") && user == "git" {
		host, rest, _ := strings.Cut(rest, ":")
		address = "https://" + host + "/" + rest // git@host:owner/repository
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || len(address) > 500 {
		if home := webAddress(homepage); gitHubAddress.MatchString(home) {
			m := gitHubAddress.FindStringSubmatch(home)
			return "https://github.com/" + m[1] + "/" + m[2] + ".git"
		}
		return ""
	}
	switch u.Scheme {
	case "git", "ssh", "http", "https":
	default:
		return ""
	}
	u.Scheme, u.User, u.RawQuery, u.Fragment = "https", nil, "", ""
	return u.String()
}

// oneLine replaces line breaks and other white space of a text by single spaces.
func oneLine(text string) string {
	return strings.Join(strings.Fields(line(text)), " ")
}
