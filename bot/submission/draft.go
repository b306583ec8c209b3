package submission

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/npm"
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
	for _, author := range append([]text{m.Author}, m.Authors...) {
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

var unusable = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// packageName derives a package's name from that of the npm package: @scope/name becomes scope-name.
func packageName(target string) string {
	return strings.TrimLeft(unusable.ReplaceAllString(strings.TrimPrefix(target, "@"), "-"), "._-")
}

// The kinds of files that pages load. What loads them comes first.
var (
	loaders = []string{"js", "css", "mjs"}
	kinds   = append(slices.Clone(loaders), "wasm", "svg", "png", "jpg", "jpeg", "gif", "webp", "avif", "ico", "woff2", "woff", "ttf", "eot", "otf")
)

// homes are the folders where libraries keep what is built for pages, in the order of trust.
var homes = []string{"dist", "build", "umd", "browser", "bundles", "bundle", "_bundles", "cdn", "out", "output", "release", "public", "min", "lib", "js", "css", "src"}

// chooseFiles chooses the folder and the globs, and returns the paths that they publish.
func chooseFiles(files []string) (packages.FileSet, []string) {
	base := chooseBase(files)
	folders := kindFolders(files)
	if !slices.Contains(folders, strings.TrimSuffix(base, "/")) {
		folders = nil
	}
	prefix := "**/"
	if len(folders) > 1 {
		// A style sheet in css/ loads what is in fonts/ beside it.
		base, prefix = "", "{"+strings.Join(folders, ",")+"}/**/"
	}
	var here []string
	for _, f := range files {
		name, ok := strings.CutPrefix(f, base)
		folder, _, _ := strings.Cut(f, "/")
		if ok && fs.ValidPath(name) && (len(folders) < 2 || slices.Contains(folders, folder)) {
			here = append(here, name)
		}
	}
	if base == "" && len(folders) < 2 {
		// At the top are also the sources, the tests and what is for developers.
		prefix = ""
	}
	present := map[string]bool{}
	maps := false
	for _, name := range here {
		if prefix == "" && strings.Contains(name, "/") || hidden(name) {
			continue
		}
		extension := strings.TrimPrefix(path.Ext(name), ".")
		if slices.Contains(kinds, extension) {
			present[extension] = true
		}
		maps = maps || strings.HasSuffix(name, ".js.map") || strings.HasSuffix(name, ".css.map") || strings.HasSuffix(name, ".mjs.map")
	}
	var extensions []string
	for _, kind := range kinds {
		if present[kind] {
			extensions = append(extensions, kind)
		}
	}
	if len(extensions) == 0 {
		return packages.FileSet{}, nil
	}
	glob := prefix + "*.@(" + strings.Join(extensions, "|") + ")"
	if len(extensions) == 1 {
		glob = prefix + "*." + extensions[0]
	}
	if maps {
		glob += "?(.map)"
	}
	set := packages.FileSet{BasePath: strings.TrimSuffix(base, "/"), Files: []string{glob}}
	var published []string
	for _, name := range here {
		extension := strings.TrimPrefix(path.Ext(strings.TrimSuffix(name, ".map")), ".")
		if present[extension] && !hidden(name) && (prefix != "" || !strings.Contains(name, "/")) {
			published = append(published, name)
		}
	}
	return set, published
}

// kindFolders returns the folders at the top that are called by the kind of files in them.
func kindFolders(files []string) []string {
	var found []string
	for _, folder := range []string{"css", "js", "fonts", "font", "webfonts", "images", "img"} {
		if slices.ContainsFunc(files, func(f string) bool {
			return strings.HasPrefix(f, folder+"/") && !hidden(f) && slices.Contains(kinds, strings.TrimPrefix(path.Ext(f), "."))
		}) {
			found = append(found, folder)
		}
	}
	return found
}

// chooseBase returns the folder to publish from, "" or with a slash at its end.
func chooseBase(files []string) string {
	loads := func(name string) bool {
		return slices.Contains(loaders, strings.TrimPrefix(path.Ext(name), ".")) && !hidden(name)
	}
	for i, home := range homes {
		if home == "lib" && slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(f, "/") && loads(f) && !isConfiguration(f) }) {
			return "" // from here on folders are as likely to hold sources
		}
		if slices.ContainsFunc(files, func(f string) bool { return strings.HasPrefix(f, homes[i]+"/") && loads(f) }) {
			return home + "/"
		}
	}
	if slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(f, "/") && loads(f) }) {
		return ""
	}
	// Some other folder: the one with the most of it.
	counts := map[string]int{}
	for _, f := range files {
		if folder, _, ok := strings.Cut(f, "/"); ok && loads(f) {
			counts[folder]++
		}
	}
	best := ""
	for folder, n := range counts {
		if best == "" || n > counts[best] || n == counts[best] && folder < best {
			best = folder
		}
	}
	if best == "" {
		return ""
	}
	return best + "/"
}

// isConfiguration reports whether a file at the top is for tools, such as rollup.config.js.
func isConfiguration(name string) bool {
	return strings.Contains(name, ".config.") || strings.HasPrefix(name, "Gruntfile") || strings.HasPrefix(name, "gulpfile") || strings.HasPrefix(name, "test")
}

func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// chooseMain returns the default file: what the author gives to pages or to content delivery networks,
// in its minified form where there is one or will be one, else what is called like the library.
func chooseMain(target string, m *manifest, base string, published []string) string {
	there := make(map[string]bool, len(published))
	for _, p := range published {
		there[p] = true
	}
	below := func(entry string) string {
		entry = strings.TrimPrefix(path.Clean("/"+entry), "/")
		if base != "" {
			var ok bool
			if entry, ok = strings.CutPrefix(entry, base+"/"); !ok {
				return ""
			}
		}
		for _, candidate := range []string{entry, entry + ".js", entry + "/index.js"} {
			if there[candidate] {
				return candidate
			}
		}
		return ""
	}
	minified := func(name string) string {
		extension := path.Ext(name)
		stem := strings.TrimSuffix(name, extension)
		if extension != ".js" && extension != ".css" || strings.HasSuffix(stem, ".min") || strings.HasSuffix(stem, "-min") {
			return name
		}
		return stem + ".min" + extension // which upstream has, or the bot makes
	}
	for _, entry := range []text{m.Unpkg, m.JSDelivr} {
		if name := below(entry.string()); entry.string() != "" && name != "" {
			return minified(name)
		}
	}
	wanted := []string{}
	for _, entry := range []text{m.Browser, m.Main, m.Style, m.Module} {
		if name := below(entry.string()); entry.string() != "" && name != "" {
			wanted = append(wanted, name)
		}
	}
	short := strings.ToLower(target[strings.LastIndexByte(target, '/')+1:])
	bare := strings.TrimSuffix(strings.TrimSuffix(short, ".js"), ".css")
	score := func(name string) int {
		stem := strings.ToLower(path.Base(name))
		extension := path.Ext(stem)
		stem = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(stem, extension), ".min"), "-min")
		s := 0
		switch {
		case extension == ".js":
			s += 4
		case extension == ".css":
			s += 3
		case extension != ".mjs":
			return -1000
		}
		switch {
		case stem == bare || stem == short:
			s += 30
		case strings.HasPrefix(stem, bare+"."), strings.HasPrefix(stem, bare+"-"):
			s += 15
		case stem == "index", stem == "main":
			s += 8
		}
		for _, word := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune("./-_", r) }) {
			switch word {
			case "umd", "iife", "global", "browser", "bundle", "prod", "production":
				s += 12
			case "cjs", "commonjs", "node", "server", "esm", "es", "es6", "mjs", "module", "common", "test", "tests", "dev", "development", "ssr", "types", "worker", "debug":
				s -= 14
			}
		}
		if i := slices.Index(wanted, name); i >= 0 {
			s += 14 - i
		}
		return s - 3*strings.Count(name, "/")
	}
	best := slices.MaxFunc(published, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(a), score(b)), -cmp.Compare(len(a), len(b)), -cmp.Compare(a, b))
	})
	if score(best) < -500 {
		return ""
	}
	return minified(best)
}

// webAddress returns an address that people can follow, or "".
func webAddress(address string) string {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || len(u.String()) > 500 {
		return ""
	}
	return u.String()
}

var shortAddress = regexp.MustCompile(`^(?:(github|gitlab|bitbucket):)?([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)$`)

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

// oneLine takes line breaks and the like out of a text.
func oneLine(text string) string {
	return strings.Join(strings.Fields(line(text)), " ")
}
