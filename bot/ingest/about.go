package ingest

import (
	"encoding/json"
	"strings"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages/archive"
)

// The bounds of the stored texts about a release.
const (
	maxDescription  = 512 << 10 // bytes of a file that says it
	maxReadme       = 64 << 10  // bytes
	maxDependencies = 200
	maxDependency   = 214     // bytes of a name, which is npm's limit
	maxRange        = 1 << 10 // bytes of a range of versions
)

// describesRelease reports whether an entry of an archive is a README or the package.json in its top folder, a regular file of
// 1 byte to 512 KiB. What such a file says is stored in the manifest, also if the file is not published.
func describesRelease(e archive.Entry) bool {
	return e.Skipped == "" && e.Size > 0 && e.Size <= maxDescription && sources.DescribesRelease(e.Name)
}

// describe stores in the manifest what a README or a package.json says about the release: the README's text, cut to 64 KiB, or
// the dependencies and peer dependencies. name is the file's path in the archive, and data its content. A malformed package.json
// changes nothing. Of several READMEs the best ranked counts, so the result does not depend on the order of the files. It takes
// no lock: only the goroutine that walks the archive calls describe.
func (a *assembly) describe(name string, data []byte) {
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
		about.Dependencies, about.Peers = parseDependencies(said.Dependencies), parseDependencies(said.PeerDependencies)
	} else {
		rank, before := sources.ReadmeRank(name), sources.ReadmeRank(about.ReadmeFile)
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

// parseDependencies returns the version ranges of a package.json's dependencies by name. It leaves out those whose name or range
// is too long. It returns nil if none is left, or if they have another form or are over maxDependencies.
func parseDependencies(data json.RawMessage) map[string]string {
	var all map[string]string
	if len(data) == 0 || json.Unmarshal(data, &all) != nil || len(all) > maxDependencies {
		return nil
	}
	for name, wanted := range all {
		if name == "" || len(name) > maxDependency || len(wanted) > maxRange {
			delete(all, name)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
