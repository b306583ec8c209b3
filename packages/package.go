// Package packages is about what Larder serves, not how: the package JSON that
// contributors write, the catalogue those files form, which files of a release
// a package publishes, the order of its versions, and which of them are known
// to be vulnerable (OSV).
//
// It guarantees that a [Package] returned by [Parse] or found in a [Catalogue]
// follows every rule of the package JSON contract, that every [Problem] names
// the line and column in the file and says in plain words what to change, and
// that one bad file never keeps the others from loading. The files come from
// strangers: whatever they hold, the work and the memory spent on them is
// bounded, and the paths that [Package.Select] returns stay inside the package.
// Withdrawn advisories, and those of other registries, do not count; their texts
// are short and printable.
//
// The rules live in schema.json, a JSON Schema (draft 2020-12) that [Schema]
// returns; what a schema cannot say (globs that do not compile, a name that is
// not the file's) is checked beside it. A test holds the Go types to the schema.
//
// It must not know HTTP, upstreams or stores.
package packages

import (
	"encoding/json"
	"strings"

	"github.com/larder-cdn/larder/packages/glob"
)

// Package is one library of the catalogue. A Package from [Parse] or a
// [Catalogue] is valid, shared and must not be changed.
type Package struct {
	// Name is the package's name in URLs and the file's name without .json.
	Name string `json:"name"`
	// Filename is the default file, "" where the package names none.
	Filename string `json:"filename,omitempty"`
	// Description says in a sentence what the library does.
	Description string `json:"description"`
	// Keywords are the words people search for; never empty.
	Keywords []string `json:"keywords"`
	// Homepage is the library's own page, "" where unknown.
	Homepage string `json:"homepage,omitempty"`
	// License is an SPDX identifier or expression, "" where unknown.
	License string `json:"license,omitempty"`
	// Repository is where the source is developed; never nil.
	Repository *Repository `json:"repository"`
	// Authors are the people behind the library.
	Authors []Author `json:"authors,omitempty"`
	// Autoupdate says where releases come from. It is nil for a package that
	// is served but not updated.
	Autoupdate *Autoupdate `json:"autoupdate,omitempty"`
	// Provenance is the policy for its releases, nil for none.
	Provenance *Policy `json:"provenance,omitempty"`
	// Optimization says which files may get a minified copy.
	Optimization Optimization `json:"optimization"`

	// JSON is the file as its author wrote it.
	JSON []byte `json:"-"`
	// File is the file's name as given to [Parse], for messages.
	File string `json:"-"`
	// Warnings are the problems that did not keep the file from loading, in
	// the file's order.
	Warnings []Problem `json:"-"`

	selectors []selector   // compiled autoupdate.fileMap
	ignored   []*glob.Glob // compiled autoupdate.ignoreVersions
}

// Repository is where a package's source is developed.
type Repository struct {
	// Type is "git", "hg" or "svn".
	Type string `json:"type"`
	// URL is the address as the author wrote it, in any of git's forms.
	URL string `json:"url"`
}

// Author is one of a package's authors.
type Author struct {
	// Name is never empty.
	Name string `json:"name"`
	// Email is "" where unknown.
	Email string `json:"email,omitempty"`
	// URL is the author's page, "" where unknown.
	URL string `json:"url,omitempty"`
}

// Autoupdate says where a package's releases come from and what is published.
type Autoupdate struct {
	// Source is "npm" or "git".
	Source string `json:"source"`
	// Target is the npm package's name or the git repository's address.
	Target string `json:"target"`
	// FileMap says which files are published; never empty.
	FileMap []FileSet `json:"fileMap"`
	// IgnoreVersions are globs over version strings, see [Package.IgnoresVersion].
	IgnoreVersions []string `json:"ignoreVersions,omitempty"`
	// ExcludeFromSearch keeps the package out of search results.
	ExcludeFromSearch bool `json:"excludeFromSearch,omitempty"`
	// Modules says whether ES modules for browsers are built from new releases, and for which subpaths; nil for none.
	Modules *Modules `json:"modules,omitempty"`
}

// Modules selects what a package exports and what modules are built for.
type Modules struct {
	// Subpaths are such as "." and "./client"; empty for all that the package exports.
	Subpaths []string

	off bool // the package JSON says false
}

// MayBuild reports whether the package has modules built and a module of it may be published at a path, which then is
// esm/….mjs. Which modules there are is known only after building them.
func (p *Package) MayBuild(file string) bool {
	return p.Autoupdate != nil && p.Autoupdate.Modules != nil && strings.HasPrefix(file, "esm/") && strings.HasSuffix(file, ".mjs")
}

// UnmarshalJSON decodes true (all that the package exports), false (no modules) or a list of subpaths.
func (m *Modules) UnmarshalJSON(data []byte) error {
	m.Subpaths = nil
	switch string(data) {
	case "true":
		return nil
	case "false":
		m.off = true
		return nil
	}
	return json.Unmarshal(data, &m.Subpaths)
}

// MarshalJSON encodes the selection as a package JSON has it: true without subpaths, else the list. It never writes false,
// because [Parse] makes the selection nil then.
func (m *Modules) MarshalJSON() ([]byte, error) {
	if len(m.Subpaths) == 0 {
		return []byte("true"), nil
	}
	return json.Marshal(m.Subpaths)
}

// Policy says which releases of a package may be published.
type Policy struct {
	// Repository is the URL of the repository that releases must be built from, by an attestation of their build.
	Repository string `json:"repository"`
}

// Required returns the repository that releases must have been built from, "" for a nil policy.
func (p *Policy) Required() string {
	if p == nil {
		return ""
	}
	return p.Repository
}

// FileSet is one entry of a fileMap.
type FileSet struct {
	// BasePath is the folder the files are taken from, as written; "" is the
	// whole release.
	BasePath string `json:"basePath"`
	// Files are globs relative to BasePath; never empty.
	Files []string `json:"files"`
}

// Optimization says for which kinds of files a minified copy may be made. A
// package JSON that does not mention a kind allows it.
type Optimization struct {
	JS  bool `json:"js"`
	CSS bool `json:"css"`
	PNG bool `json:"png"`
	JPG bool `json:"jpg"`
}

// Author returns the authors as the API shows them: each as
// "Name <email> (url)", joined with commas; "" for none.
func (p *Package) Author() string {
	authors := make([]string, len(p.Authors))
	for i, a := range p.Authors {
		authors[i] = a.String()
	}
	return strings.Join(authors, ",")
}

// String returns the author as "Name <email> (url)", leaving out an email and URL that are unknown; the name never is.
func (a Author) String() string {
	s := a.Name
	if a.Email != "" {
		s += " <" + a.Email + ">"
	}
	if a.URL != "" {
		s += " (" + a.URL + ")"
	}
	return s
}

// LaidOut returns a copy of the package without Autoupdate and Optimization, for releases whose files already have their
// final paths: [NewPlan] publishes all files then, and no minified copies are made. [Package.Select] selects none.
func (p *Package) LaidOut() *Package {
	laid := *p
	laid.Autoupdate, laid.Optimization, laid.selectors = nil, Optimization{}, nil
	return &laid
}

// Path returns where a catalogue keeps the package called name:
// "packages/{first character, lower case}/{name}.json".
func Path(name string) string {
	return "packages/" + strings.ToLower(name[:min(1, len(name))]) + "/" + name + ".json"
}
