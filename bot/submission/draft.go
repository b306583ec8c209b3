package submission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
	"github.com/larder-cdn/larder/packages/lint"
)

// A Draft is a package JSON that was made from a release.
type Draft struct {
	// Preview is the preview of the draft.
	Preview *Preview
	// Notes are sentences about what a person should check.
	Notes []string
}

// JSON returns the package JSON, in a catalogue's form.
func (d *Draft) JSON() []byte { return d.Preview.Package.JSON }

// File returns the path of the package JSON in a catalogue, with slashes.
func (d *Draft) File() string { return packages.Path(d.Preview.Package.Name) }

// An UndraftableError says why no package JSON can be made from a package without a person.
type UndraftableError struct {
	// Package is the npm package, Version its latest release.
	Package, Version string
	Reason           string
}

// Error names the npm package, the version and the reason.
func (e *UndraftableError) Error() string {
	return fmt.Sprintf("npm package %s %s: %s", e.Package, e.Version, e.Reason)
}

// NewDraft makes a package JSON for the npm package target from the package.json and the files of its latest release, and previews it. name is the
// name of the new package; "" derives it from target. It downloads that release twice, into temporary files that it deletes. Errors are an
// *[npm.NameError], an *[UndraftableError], [ErrNoReleases], and those of the source.
func NewDraft(ctx context.Context, source sources.Source, target, name string) (*Draft, error) {
	if !npm.ValidName(target) {
		return nil, &npm.NameError{Name: target}
	}
	if name == "" {
		name = packageName(target)
	}
	listing, err := source.List(ctx, target, fetch.Validators{})
	if err != nil {
		return nil, err
	}
	names := slices.Collect(maps.Keys(listing.Versions))
	latest, ok := listing.Versions[packages.LatestVersion(slices.DeleteFunc(names, func(name string) bool { return !packages.ValidVersion(name) }))]
	if !ok {
		return nil, fmt.Errorf("npm package %s: %w", target, ErrNoReleases)
	}
	var m packageJSON
	var files []string
	err = withArchive(ctx, source, nil, target, latest, func(a archive.Source) error {
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
	data, err := d.encodePackage(name, target, &m, files)
	if err != nil {
		return nil, &UndraftableError{target, latest.Name, err.Error()}
	}
	p, err := packages.Parse("", data)
	if err != nil {
		return nil, &UndraftableError{target, latest.Name, "what it says of itself makes no package JSON: " + err.Error()}
	}
	if d.Preview, err = NewPreview(ctx, source, p, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// encodePackage returns the package JSON of a package that serves files of an npm package, and adds notes about what a person should check. It
// returns an error if pages load none of the files or m names no repository.
func (d *Draft) encodePackage(name, target string, m *packageJSON, files []string) ([]byte, error) {
	set, published := chooseFiles(files)
	if len(published) == 0 {
		return nil, fmt.Errorf("none of its %d files is one that pages load (.js, .css and what they need), so there is nothing to serve", len(files))
	}
	p := packages.Package{
		Name: name, Description: oneLine(m.Description.text()), Homepage: webAddress(m.Homepage.text()), License: oneLine(m.License.text()),
		Filename:   chooseMain(target, m, set.BasePath, published),
		Autoupdate: &packages.Autoupdate{Source: "npm", Target: target, FileMap: []packages.FileSet{set}},
	}
	if p.Description == "" {
		p.Description = "The npm package " + target + "."
		d.addNote("npm has no description; write what the library does, in a sentence")
	}
	if valid, nearest := lint.ValidateLicense(p.License); !valid && p.License != "" {
		d.addNote(fmt.Sprintf("npm has the license %q, which is not an SPDX identifier; see that %q is right", p.License, nearest))
		if nearest == "" {
			d.Notes[len(d.Notes)-1] = fmt.Sprintf("npm has the license %q, which is not an SPDX identifier; write the one that it is", p.License)
		}
		p.License = nearest
	}
	for _, keyword := range m.Keywords.list() {
		if keyword := oneLine(keyword.text()); keyword != "" && len(p.Keywords) < maxKeywords && !slices.Contains(p.Keywords, keyword) {
			p.Keywords = append(p.Keywords, keyword)
		}
	}
	if len(p.Keywords) == 0 {
		p.Keywords = []string{strings.TrimPrefix(strings.ReplaceAll(target, "/", "-"), "@")}
		d.addNote("npm has no keywords; write what people would search for")
	}
	if address := repositoryAddress(m.Repository.text(), m.Homepage.text()); address != "" {
		p.Repository = &packages.Repository{Type: "git", URL: address}
	} else {
		return nil, errors.New(`its package.json names no repository that can be reached; a package JSON needs one`)
	}
	for _, author := range append([]rawText{m.Author}, m.Authors...) {
		if a, ok := author.parseAuthor(); ok && len(p.Authors) < maxAuthors {
			p.Authors = append(p.Authors, a)
		}
	}
	if p.Filename == "" {
		d.addNote("it has no main file that a page could load; name one as filename if there is")
	}
	d.addNote("check the list of files: it has those of the kinds that pages load, in " + folderNames(set))
	return encodeJSON(&p)
}

const (
	maxKeywords = 30
	maxAuthors  = 20
)

// addNote adds a sentence to Notes.
func (d *Draft) addNote(text string) { d.Notes = append(d.Notes, text) }

// folderNames returns the folders of a file set, for the end of a sentence.
func folderNames(set packages.FileSet) string {
	switch several, _, ok := strings.Cut(set.Files[0], "}/"); {
	case ok && strings.HasPrefix(several, "{"):
		return strings.ReplaceAll(several[1:], ",", "/, ") + "/"
	case set.BasePath == "":
		return "the release's top folder"
	}
	return set.BasePath + "/"
}

// encodeJSON returns a package as JSON, formatted as in a catalogue and without its property optimization, which the caller has not
// set.
func encodeJSON(p *packages.Package) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(struct {
		*packages.Package
		Optimization *struct{} `json:"optimization,omitempty"`
	}{Package: p}); err != nil {
		return nil, err
	}
	return packages.Format(b.Bytes(), true)
}

var unusable = text.NewRegexp(`[^a-zA-Z0-9._-]+`)

// packageName returns the name for a package that serves an npm package: scope-name for @scope/name, with "-" for characters that names here do not
// have.
func packageName(target string) string {
	return strings.TrimLeft(unusable.ReplaceAllString(strings.TrimPrefix(target, "@"), "-"), "._-")
}

// webAddress returns an http or https URL, without white space around it, as package url writes it; "" for any other text, and for a URL with
// credentials or over 500 bytes.
func webAddress(address string) string {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || len(u.String()) > 500 {
		return ""
	}
	return u.String()
}

var shortAddress = text.NewRegexp(`^(?:(github|gitlab|bitbucket):)?([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)$`)

// repositoryAddress returns the https URL of a repository, without credentials and query, given its address as a URL, owner/name, github:owner/name
// (or gitlab:, bitbucket:) or git@host:path. If the address names no host or is over 500 bytes, a repository at GitHub in homepage counts instead. It
// returns "" if homepage has none, and for a URL with another scheme than git, ssh, http and https.
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
		if owner, name, ok := packages.ParseGitHubAddress(webAddress(homepage)); ok {
			return "https://github.com/" + owner + "/" + name + ".git"
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

// oneLine replaces line breaks and other white space of a text by single spaces, and cuts it to 500 bytes.
func oneLine(text string) string {
	return strings.Join(strings.Fields(shortLine(text)), " ")
}
