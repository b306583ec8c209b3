package site

import (
	"html/template"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// downloads is how often a library is downloaded from npm in a month.
type downloads struct {
	Count int
	AsOf  time.Time // when npm counted them, zero if unknown
}

// A dependency is an npm package that a release needs, and the version of it that is published here.
type dependency struct {
	Name, Range string // on npm, as upstream wrote them
	Peer        bool   // it is a peer dependency
	Library     string // its name here; "", as Version and Address, if no version is published here
	Version     string // the newest in the range, or else the library's latest one
	Fits        bool   // Version is in the range, or that is not known yet
	Address     string // of the page of Version
}

// dependenciesShown is how many dependencies a page lists.
const dependenciesShown = 50

// addAbout adds to a release's page the README, the first 50 dependencies by name, peer dependencies last, why upstream
// deprecated the release (from page.Marks), npm's downloads of the library in a month, and known vulnerabilities. about has
// the first two; nil makes addAbout read it. What cannot be read is logged and left out; without about or the list of
// libraries, so is everything after it. With over 200 dependencies, the page lists none. Libraries and pending documents
// that the page depends on are recorded in q.inputs.
func (s *Site) addAbout(q *request, page *libraryPage, about *logs.About) {
	failed := func(what string, err error) {
		s.logger.Error("site: couldn't read what upstream says of a release; the page is shown without", "package", page.Name, "version", page.Release.Version, "what", what, "err", err)
	}
	if about == nil {
		var err error
		if about, err = s.library.About(page.Release); err != nil {
			failed("about", err)
			return
		}
	}
	if about.Readme != "" {
		var err error
		if page.Readme, err = s.newReadme(q, page.Release, page.RepositoryLink, about.ReadmeFile, about.Readme, about.ReadmeCut); err != nil {
			failed("readme", err)
		}
	}
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		failed("libraries", err)
		return
	}
	wants, pending, err := library.ReadWanted(q.Context(), page.Release.Owner(), about, s.documentsFor(q).Ranges)
	if err != nil {
		failed("ranges", err)
	}
	add := func(all map[string]string, peer bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			wanted := all[name]
			d := dependency{Name: name, Range: wanted, Peer: peer}
			l := listing.OfNPM(name)
			if l == nil {
				q.inputs.addLibraries(library.Catalogue)
			} else {
				q.inputs.addLibraries(l.Name)
				version, fits, err := s.library.ChooseVersion(l, wants, wanted)
				if err != nil {
					failed("dependencies", err)
				}
				if version != "" {
					d.Library, d.Version, d.Fits, d.Address = l.Name, version, fits || pending, versionPath(l.Name, version)
				}
			}
			page.Dependencies = append(page.Dependencies, d)
		}
	}
	if len(about.Dependencies)+len(about.Peers) <= 4*dependenciesShown {
		add(about.Dependencies, false)
		add(about.Peers, true)
	}
	page.MoreDependencies = max(0, len(page.Dependencies)-dependenciesShown)
	page.Dependencies = page.Dependencies[:len(page.Dependencies)-page.MoreDependencies]
	page.Deprecated = page.Marks.Deprecated[page.Release.Version]
	if n, asOf, ok := s.library.Downloads(page.Name); ok && n > 0 {
		page.MonthDownloads = &downloads{int(n), asOf}
	}
	if npm := page.NPM(); npm != "" {
		page.Advisories = s.options.Advisories.Of(npm, page.Release.Version)
		page.Advisories = page.Advisories[:min(advisoriesShown, len(page.Advisories))]
	}
}

// advisoriesShown is how many known vulnerabilities a page lists at most.
const advisoriesShown = 10

// A sizeChart displays how the size of the main file has changed from version to version.
type sizeChart struct {
	First, Last string // the oldest and the newest version in it
	SVG         template.HTML
}

const (
	fewestSizes = 3  // versions with a main file that a chart needs
	mostSizes   = 60 // the newest versions, which a chart may have
)

// addSizes sets page.Sizes to a chart of the main file's size in those of the library's 60 newest versions that have a main
// file. With fewer than three of these it sets nothing. If the sizes cannot be read, it logs that and sets nothing.
func (s *Site) addSizes(page *libraryPage) {
	versions := slices.Clone(page.Versions[:min(mostSizes, len(page.Versions))])
	versions = slices.DeleteFunc(versions, func(v views.Version) bool { return v.Default == "" })
	if len(versions) < fewestSizes {
		return
	}
	slices.Reverse(versions) // the oldest first
	sizes, err := s.library.MainSizes(page.Name, versions)
	if err != nil {
		s.logger.Error("site: couldn't read the sizes of main files; the page is shown without", "package", page.Name, "err", err)
		return
	}
	page.Sizes = newSizeChart(versions, sizes)
}

// newSizeChart returns a chart of sizes, the bytes of the main file in each of versions. Both have the same length, at
// least two, and the same order, oldest first.
func newSizeChart(versions []views.Version, sizes []int64) *sizeChart {
	values := make([]float64, len(sizes))
	smallest, largest := 0, 0
	for i, size := range sizes {
		values[i] = float64(size)
		if size > sizes[largest] {
			largest = i
		}
		if size < sizes[smallest] {
			smallest = i
		}
	}
	last := len(values) - 1
	c := chart.Chart{
		X:     chart.NewSpanAxis(len(values), versions[0].Version, versions[last].Version),
		Y:     chart.NewValueAxis(values[largest], func(v float64) string { return formatBytes(int64(v)) }),
		Lines: []chart.Line{{Name: "bytes", Step: 1, Values: values, Filled: true}},
		Summary: "Size of the main file over " + strconv.Itoa(len(values)) + " versions: " + formatBytes(sizes[0]) + " in " + versions[0].Version + ", " +
			formatBytes(sizes[last]) + " in " + versions[last].Version + ", at least " + formatBytes(sizes[smallest]) + ", in " + versions[smallest].Version +
			", at most " + formatBytes(sizes[largest]) + ", in " + versions[largest].Version + ".",
	}
	return &sizeChart{versions[0].Version, versions[last].Version, template.HTML(c.Inline())} //nolint:gosec // Inline escapes its texts
}
