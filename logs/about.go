package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// An About is the part of a manifest about the release itself: facts from upstream, and the modules that were built from it.
type About struct {
	// Readme is the text of the file that introduces it, mostly in Markdown, and ReadmeFile its name in the archive.
	Readme     string `json:"readme,omitempty"`
	ReadmeFile string `json:"readmeFile,omitempty"`
	ReadmeCut  bool   `json:"readmeCut,omitempty"` // it goes on
	// Dependencies and Peers are the ranges of versions that its package.json wants, by npm package.
	Dependencies map[string]string `json:"dependencies,omitempty"`
	Peers        map[string]string `json:"peerDependencies,omitempty"`
	// Modules is nil if the package JSON requests none.
	Modules *Modules `json:"modules,omitempty"`
}

// Modules says which ES modules for browsers were built from a release, from which of its files, and how. Their files are those of the
// manifest with the origin [Built].
type Modules struct {
	Program string `json:"program"`
	Version string `json:"version"`
	Options string `json:"options"`
	// Problem says why there are no modules, "" if there are.
	Problem string `json:"problem,omitempty"`
	// Subpaths are the paths of the modules, by the subpaths that the package exports, such as "." and "./client".
	Subpaths map[string]string `json:"subpaths,omitempty"`
	// Skipped says why other subpaths have no modules.
	Skipped map[string]string `json:"skipped,omitempty"`
	// Imports are the specifiers that each built script imports, none for one that imports nothing, and Dynamic those that it imports only when
	// its code calls import; by path.
	Imports map[string][]string `json:"imports,omitempty"`
	Dynamic map[string][]string `json:"dynamic,omitempty"`
	// Inputs are the hashes of the files of upstream's archive that were read, published or not, by path.
	Inputs map[string]kvstore.Hash `json:"inputs,omitempty"`
	// Globals are the globals that only Node.js has and that scripts use without testing for them, by the script in upstream's archive.
	Globals map[string][]string `json:"globals,omitempty"`
}

// DescribeSkipped returns a sentence with the reason for each subpath without a module, in byte order, for the first ones up
// to the number most. If there are more, one more sentence counts the rest. It returns nil if none was skipped.
func (m *Modules) DescribeSkipped(most int) (sentences []string) {
	for i, subpath := range slices.Sorted(maps.Keys(m.Skipped)) {
		if i == most {
			return append(sentences, fmt.Sprintf("no modules were built for %d more subpaths", len(m.Skipped)-most))
		}
		sentences = append(sentences, fmt.Sprintf("no module was built for %.100q: %s", subpath, m.Skipped[subpath]))
	}
	return sentences
}

// DescribeGlobals returns a sentence that names the scripts which use globals that only Node.js has, with these globals: the
// first three scripts, and the number of the others. It returns "" if no script uses any.
func (m *Modules) DescribeGlobals() string {
	const most = 3
	var scripts []string
	for i, script := range slices.Sorted(maps.Keys(m.Globals)) {
		if i == most {
			scripts = append(scripts, fmt.Sprintf("%d more", len(m.Globals)-most))
			break
		}
		scripts = append(scripts, fmt.Sprintf("%.100s (%s)", script, strings.Join(m.Globals[script], ", ")))
	}
	if len(scripts) == 0 {
		return ""
	}
	return "code that uses globals which only Node.js has throws in browsers: " + strings.Join(scripts, ", ")
}

// DecodeAbout decodes the member "about" of an encoded manifest, nil if the manifest has none before its files. It reads
// nothing after that member, and does not decode or check the files. Data over [MaxManifest] is an error.
func DecodeAbout(manifest []byte) (*About, error) {
	if len(manifest) > MaxManifest {
		return nil, fmt.Errorf("logs: a manifest of %d bytes, over the limit of %d", len(manifest), MaxManifest)
	}
	d := json.NewDecoder(bytes.NewReader(manifest))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("logs: malformed manifest: not an object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("logs: malformed manifest: %w", err)
		}
		switch name {
		case "about":
			var about *About
			if err := d.Decode(&about); err != nil {
				return nil, fmt.Errorf("logs: malformed manifest: %w", err)
			}
			return about, nil
		case "files": // what is said of the release comes before them
			return nil, nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return nil, fmt.Errorf("logs: malformed manifest: %w", err)
		}
	}
	return nil, nil
}

// ReadAbout reads the manifest with the hash h, which an entry names, from the store and decodes it with [DecodeAbout]. It
// returns nil for a manifest without that part.
func ReadAbout(store *kvstore.Store, h kvstore.Hash) (*About, error) {
	return readDocument(store, h, "manifest", DecodeAbout)
}
