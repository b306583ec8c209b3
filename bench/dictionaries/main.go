// Dictionaries measures deltas between the releases of popular npm packages: the bytes that a browser with the previous release downloads, as a
// share of the file in Brotli, and the storage that the deltas take.
//
//	go run ./dictionaries -packages 50 -releases 10 -chart ../docs/pictures/deltas.svg
//
// It fetches the packages from the registry that npm is configured with, and measures the files that their package.json names for browsers.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// Limits of what is measured: the encoders take minutes for more.
const (
	maxFile    = 1 << 20   // bytes of a file
	maxRelease = 100 << 20 // bytes of a release
	maxFiles   = 2         // files of a release
)

func main() {
	list := flag.String("list", "../packages/popular.txt", "`FILE` with the names of npm packages, most popular first")
	most := flag.Int("packages", 50, "number `N` of packages")
	releases := flag.Int("releases", 10, "number `N` of patch releases of each package")
	picture := flag.String("chart", "", "write the distribution as SVG to `FILE`")
	flag.Parse()
	log.SetFlags(log.Ltime)
	names, err := readNames(*list, *most)
	if err != nil {
		log.Fatal(err)
	}
	m, err := newMeasurement()
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range names {
		before := len(m.patches)
		if err := m.addPackage(name, *releases); err != nil {
			log.Printf("%s: %v", name, err)
		}
		log.Printf("%s: %d pairs, median of all so far %.2f %%", name, len(m.patches)-before, percentile(m.patches, 50))
	}
	if err := m.report(os.Stdout, *picture); err != nil {
		log.Fatal(err)
	}
}

// readNames returns the first names of a list that has one in each line, and comments.
func readNames(file string, most int) (names []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && len(names) < most; {
		if name := strings.TrimSpace(lines.Text()); name != "" && name[0] != '#' {
			names = append(names, name)
		}
	}
	return names, nil
}

// A measurement collects what deltas take.
type measurement struct {
	client         *npm.Client
	patches        []float64 // size of each delta against the previous patch release, in percent of Brotli
	minors, majors []float64
	stored, deltas int64 // bytes of files in Brotli and gzip, and of the deltas that are kept
	packages       int   // with at least one pair
}

func newMeasurement() (*measurement, error) {
	config, err := npm.LoadConfig(".")
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{Concurrency: 2})
	if err != nil {
		return nil, err
	}
	return &measurement{client: npm.NewClient(config, getter, npm.Options{})}, nil
}

// addPackage measures the last patch releases of a package against their predecessors.
func (m *measurement) addPackage(name string, most int) error {
	p, _, err := m.client.Packument(context.Background(), name, npm.Validators{})
	if err != nil {
		return err
	}
	byName := make(map[string]npm.Version)
	var versions []string
	for _, v := range p.Versions {
		if v.UnpackedSize <= maxRelease && !packages.IsPrerelease(v.Version) {
			byName[v.Version] = v
			versions = append(versions, v.Version)
		}
	}
	slices.SortFunc(versions, func(a, b string) int { return packages.CompareVersions(b, a) })
	fetched := make(map[string]map[string][]byte)
	release := func(version string) (map[string][]byte, error) {
		if files, ok := fetched[version]; ok {
			return files, nil
		}
		files, err := m.browserFiles(byName[version])
		fetched[version] = files
		return files, err
	}
	pairs := 0
	for _, version := range versions {
		before := packages.Predecessors(version, versions)
		if len(before) == 0 || minorOf(before[0]) != minorOf(version) {
			continue // not a patch release
		}
		files, err := release(version)
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("%s names no file for browsers of up to %d bytes", version, maxFile)
		}
		for file, data := range files {
			if err := m.addFile(file, data, version, before, release); err != nil {
				return err
			}
		}
		if pairs++; pairs == most {
			break
		}
	}
	if pairs > 0 {
		m.packages++
	}
	return nil
}

// addFile measures a file of a release against the same path in the releases before it.
func (m *measurement) addFile(file string, data []byte, version string, before []string, release func(string) (map[string][]byte, error)) error {
	brotli, err := coding.Encode(coding.Brotli, coding.Best, data)
	if err != nil {
		return err
	}
	gzip, err := coding.Encode(coding.Gzip, coding.Quick, data)
	if err != nil {
		return err
	}
	m.stored += int64(len(brotli) + len(gzip))
	for _, other := range before {
		files, err := release(other)
		if err != nil {
			return err
		}
		dictionary, ok := files[file]
		if !ok {
			continue
		}
		delta, err := coding.EncodeDelta(dictionary, data)
		if err != nil {
			return err
		}
		percent := 100 * float64(len(delta)) / float64(len(brotli))
		switch {
		case minorOf(other) == minorOf(version):
			m.patches = append(m.patches, percent)
		case majorOf(other) == majorOf(version):
			m.minors = append(m.minors, percent)
		default:
			m.majors = append(m.majors, percent)
		}
		if coding.DeltaWorthwhile(int64(len(brotli)), int64(len(delta))) {
			m.deltas += int64(len(delta))
		}
	}
	return nil
}

// majorOf and minorOf return a version up to the number.
func majorOf(version string) string { major, _, _ := strings.Cut(version, "."); return major }
func minorOf(version string) string { return version[:max(0, strings.LastIndexByte(version, '.'))] }

// browserFiles fetches a release and returns the files that its package.json names for browsers, by path.
func (m *measurement) browserFiles(v npm.Version) (map[string][]byte, error) {
	f, err := os.CreateTemp("", "dictionaries-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := m.client.Tarball(context.Background(), v, f); err != nil {
		return nil, err
	}
	opened, err := archive.OpenDownload(f)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte)
	err = archive.Walk(context.Background(), opened.StripRoot(), archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		extension := path.Ext(e.Name)
		if e.Name != "package.json" && extension != ".js" && extension != ".mjs" && extension != ".cjs" && extension != ".css" ||
			e.Size > maxFile || e.Size < coding.MinDictionary && e.Name != "package.json" {
			return nil
		}
		data, err := io.ReadAll(r)
		all[e.Name] = data
		return err
	})
	if err != nil {
		return nil, err
	}
	var manifest map[string]any
	if err := json.Unmarshal(all["package.json"], &manifest); err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, field := range []string{"jsdelivr", "unpkg", "style", "browser", "main", "module"} {
		name, _ := manifest[field].(string)
		name = path.Clean(strings.TrimPrefix(name, "./"))
		for _, candidate := range []string{name, name + ".js"} {
			if data, ok := all[candidate]; ok && len(files) < maxFiles {
				files[candidate] = data
				break
			}
		}
	}
	return files, nil
}

// percentile returns the value below which p percent of the values are; 0 without values.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

// report writes the distribution as a table, and as a picture if that has a name.
func (m *measurement) report(to io.Writer, picture string) error {
	fmt.Fprintf(to, "%d packages; deltas take %.1f %% of the bytes of Brotli and gzip\n\n", m.packages, 100*float64(m.deltas)/float64(max(1, m.stored)))
	fmt.Fprintf(to, "| from the previous | pairs | 10 %% | 25 %% | median | 75 %% | 90 %% |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, kind := range []struct {
		name   string
		values []float64
	}{{"patch release", m.patches}, {"minor release", m.minors}, {"major release", m.majors}} {
		fmt.Fprintf(to, "| %s | %d |", kind.name, len(kind.values))
		for _, p := range []int{10, 25, 50, 75, 90} {
			fmt.Fprintf(to, " %.1f %% |", percentile(kind.values, p))
		}
		fmt.Fprintln(to)
	}
	if picture == "" {
		return nil
	}
	line := func(name string, values []float64) chart.Line {
		l := chart.Line{Name: name, Step: 1}
		for p := range 101 {
			l.Values = append(l.Values, min(100, percentile(values, p)))
		}
		return l
	}
	c := chart.Chart{
		Title: "Bytes of an upgrade, in percent of the file in Brotli",
		Summary: fmt.Sprintf("Half of %d upgrades by a patch release take less than %.1f percent of the Brotli bytes; by a minor release %.1f, by a major release %.1f.",
			len(m.patches), percentile(m.patches, 50), percentile(m.minors, 50), percentile(m.majors, 50)),
		X:     chart.Axis{Title: "percent of the upgrades", Max: 100, Step: 20},
		Y:     chart.Axis{Title: "percent of the bytes", Max: 100, Step: 20},
		Lines: []chart.Line{line("previous patch", m.patches), line("previous minor", m.minors), line("previous major", m.majors)},
		Limit: 5, LimitText: "5 %",
	}
	return cmp.Or(os.MkdirAll(path.Dir(picture), 0o777), os.WriteFile(picture, c.File(), 0o666))
}
