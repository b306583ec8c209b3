package bot

import (
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages/archive"
)

// The bounds of what is kept of what upstream says about a release.
const (
	maxDescription  = 512 << 10 // bytes of a file that says it
	maxReadme       = 64 << 10  // bytes of what is kept
	maxDependencies = 200
	maxDependency   = 214 // bytes of a name, which is npm's limit, and of a range
)

// tells reports whether a file in an archive says something about the release as a whole.
func tells(e archive.Entry) bool {
	return e.Skipped == "" && e.Size > 0 && e.Size <= maxDescription && describesRelease(e.Name)
}

// describesRelease reports whether a file of that name is read for what it says about the release, published or not.
func describesRelease(name string) bool { return name == "package.json" || readmeRank(name) > 0 }

// readmeRank is the greater the likelier a file is the one that introduces a release, 0 for one that does not.
func readmeRank(name string) int {
	lower := strings.ToLower(name)
	if strings.Contains(name, "/") || strings.TrimSuffix(lower, path.Ext(lower)) != "readme" {
		return 0
	}
	switch path.Ext(lower) {
	case ".md", ".markdown":
		return 3
	case ".txt", "":
		return 2
	case ".rst":
		return 1
	}
	return 0
}

// tell takes what a file says into the manifest. What comes of it does not depend on the order of the files.
func (a *assembly) tell(name string, data []byte) {
	about := a.manifest.About
	if about == nil {
		about = new(logs.About)
	}
	if name == "package.json" {
		var said struct {
			Dependencies     json.RawMessage `json:"dependencies"`
			PeerDependencies json.RawMessage `json:"peerDependencies"`
		}
		if json.Unmarshal(data, &said) != nil {
			return
		}
		about.Dependencies, about.Peers = dependencies(said.Dependencies), dependencies(said.PeerDependencies)
	} else {
		rank, before := readmeRank(name), readmeRank(about.ReadmeFile)
		if rank < before || rank == before && name >= about.ReadmeFile {
			return
		}
		readme := strings.ToValidUTF8(string(data), "\uFFFD")
		about.ReadmeFile, about.Readme = name, text.Cut(readme, maxReadme)
		about.ReadmeCut = len(about.Readme) < len(readme)
	}
	if about.Readme != "" || len(about.Dependencies) > 0 || len(about.Peers) > 0 {
		a.manifest.About = about
	}
}

// dependencies reads what a package.json may have anything in.
func dependencies(data json.RawMessage) map[string]string {
	var all map[string]string
	if len(data) == 0 || json.Unmarshal(data, &all) != nil || len(all) > maxDependencies {
		return nil
	}
	for name, wanted := range all {
		if name == "" || len(name) > maxDependency || len(wanted) > maxDependency {
			delete(all, name)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// deprecations returns the versions that upstream warns of, by what it says.
func deprecations(versions map[string]candidate) map[string][]string {
	said := map[string][]string{}
	for name, v := range versions {
		if v.deprecated == "" {
			continue
		}
		why := text.Cut(v.deprecated, maxNote)
		if _, ok := said[why]; ok || len(said) < maxDeprecations {
			said[why] = append(said[why], name)
		}
	}
	if len(said) == 0 {
		return nil
	}
	for _, names := range said {
		slices.Sort(names)
	}
	return said
}

// maxDeprecations bounds the different reasons that are kept of one package.
const maxDeprecations = 200

// ReadDeprecations returns the versions of a package that upstream warns of, with the reason of each.
func ReadDeprecations(r kvstore.Reader, pkg string) (map[string]string, error) {
	u, err := LookupUpstream(r, pkg)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil
	}
	reasons := map[string]string{}
	for why, versions := range u.Deprecated {
		for _, version := range versions {
			reasons[version] = why
		}
	}
	return reasons, err
}
