package bot_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// recorded is a package as it was on a real day: what the catalogue said of it, and of its newest releases the versions,
// times and paths. The files' bytes are not there, but for one: whether a script or style sheet parses.
type recorded struct {
	JSON     json.RawMessage
	Latest   string
	Releases []recordedRelease
}

type recordedRelease struct {
	Version   string
	Published time.Time
	Files     []string
	Broken    []string `json:",omitempty"` // of them, those that do not parse
}

const (
	recording = "testdata/agreement.json.gz"
	// agreementFolder is the variable that names a folder of package JSONs.
	agreementFolder = "LARDER_AGREEMENT"
	// startsWith is how many releases a package starts with here.
	startsWith = 3
	// shortFiles is how many files the releases of a package have at most in the short form of the test. This leaves out 6 packages of
	// 50, and three fifths of the files.
	shortFiles = 1200
)

func countFiles(releases []recordedRelease) (files int) {
	for _, release := range releases {
		files += len(release.Files)
	}
	return files
}

// What lint and show-files say of a package is what the bot does with it: the same releases are refused, for the same
// reason, and of the others the same files are published. The packages are real ones, recorded.
func TestAgreement(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	r := newRig(t)
	r.newest = startsWith
	for _, p := range readRecording(t) {
		parsed, err := packages.Parse("", p.JSON)
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv("LARDER_TEST_WHOLE") == "" && countFiles(p.Releases) > shortFiles {
			continue
		}
		r.registerJSON(parsed.Name, p.JSON)
		for _, v := range p.Releases {
			files := make(map[string]string, len(v.Files))
			for _, file := range v.Files {
				files[file] = contentOf(file, slices.Contains(v.Broken, file))
			}
			r.registry.Add(parsed.Autoupdate.Target, v.Version, v.Published, files)
		}
		if p.Latest != "" {
			r.registry.Tag(parsed.Autoupdate.Target, "latest", p.Latest)
		}
	}
	r.register("broken", fromNpm("broken", "*"))
	r.registry.Add("broken", "1.0.0", hour(1), map[string]string{"a.js": contentOf("a.js", false), "b.js": contentOf("b.js", true), "c.css": contentOf("c.css", false), "d.min.js": ""})
	r.register("missing", fromNpm("missing", "*"))
	r.open()
	published, refused := r.agree(r.npm)
	t.Logf("%d releases published and %d refused, as was said", published, refused)
	if published < 100 || refused < 10 {
		t.Error("too few to tell")
	}
	r.sound()
}

// The same with the registry that npm is configured with, over a folder of package JSONs: `make agreement CATALOGUE=DIR`.
// It downloads a few releases of each.
func TestAgreementWithRegistry(t *testing.T) {
	folder := os.Getenv(agreementFolder)
	if folder == "" {
		t.Skip(agreementFolder + " names no folder with a catalogue")
	}
	r := &rig{T: t, catalogue: folder, data: t.TempDir(), now: time.Now(), newest: startsWith}
	t.Cleanup(r.close)
	r.open()
	published, refused := r.agree(r.npm)
	t.Logf("%d releases published and %d refused, as was said", published, refused)
	if to := os.Getenv("LARDER_RECORD"); to != "" {
		r.record(to)
	}
}

// contentOf makes up a file.
func contentOf(file string, broken bool) string {
	switch {
	case broken:
		return "export {{{ " + file
	case path.Ext(file) == ".css":
		return ".a { color: red }\n/* " + file + " */\n"
	}
	return "var a = 1;\n// " + file + "\n"
}

// registerJSON writes a package JSON as it is into the catalogue.
func (r *rig) registerJSON(name string, data []byte) {
	r.Helper()
	file := filepath.Join(r.catalogue, filepath.FromSlash(packages.Path(name)))
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o644)); err != nil {
		r.Fatal(err)
	}
}

// agree has the bot fetch everything, and compares it with what the checks on a submission say.
func (r *rig) agree(client *npm.Client) (published, refused int) {
	r.Helper()
	r.once()
	catalogue, err := packages.Open(r.catalogue)
	if err != nil {
		r.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	minifiers := worker.NewPool(worker.Options{Program: program, Size: 2, Timeout: worker.Timeout})
	defer minifiers.Close()
	source := submission.WithMaker((&sources.Sources{Npm: client}).ForKind(sources.KindNpm), submission.Maker{
		Minify: func(ctx context.Context, extension string, data []byte) error {
			task := worker.MinifyJS
			if extension == ".css" {
				task = worker.MinifyCSS
			}
			_, err := minifiers.Do(ctx, "owner", task, data)
			return err
		},
		BuildModules: func(ctx context.Context, r ingest.ModulesRelease) (*logs.Modules, []worker.ModuleFile, error) {
			return ingest.BuildModules(ctx, minifiers, r)
		},
	})
	for _, p := range catalogue.Packages() {
		preview, err := submission.NewPreview(r.Context(), source, p, startsWith-1)
		if err != nil {
			r.agreeOnError(p, err)
			continue
		}
		for _, release := range append([]submission.Release{preview.Latest}, preview.Older...) {
			if release.Err != nil {
				r.Errorf("%s %s cannot be had: %v", p.Name, release.Name, release.Err)
				continue
			}
			if r.agreeOn(p, &release) {
				published++
			} else {
				refused++
			}
		}
		wrong := slices.ContainsFunc(preview.Problems(), func(problem packages.Problem) bool {
			return problem.Rule == "selection" && problem.Severity == packages.Error
		})
		if s := r.state(p.Name, preview.Latest.Name); wrong != (s.Kind == views.Refused) {
			r.Errorf("%s %s: lint says %v, and the bot %+v", p.Name, s.Version, preview.Problems(), s)
		}
	}
	return published, refused
}

// agreeOnError compares what keeps a package from being looked at.
func (r *rig) agreeOnError(p *packages.Package, err error) {
	r.Helper()
	upstream, upstreamErr := sources.LookupUpstream(r.store, p.Name)
	switch {
	case upstreamErr != nil:
		r.Errorf("%s: %v", p.Name, upstreamErr)
	case errors.Is(err, submission.ErrNoReleases) && upstream.Reason == "" && !strings.Contains(r.states(p.Name), "published"):
	case errors.Is(err, fetch.ErrNotFound) && upstream.Reason == err.Error():
	default:
		r.Errorf("%s: lint says %v, and the bot %q", p.Name, err, upstream.Reason)
	}
}

// agreeOn compares one release, and reports whether it was published.
func (r *rig) agreeOn(p *packages.Package, said *submission.Release) bool {
	r.Helper()
	done, err := views.LookupState(r.store, p.Name, said.Name)
	switch {
	case err != nil:
		r.Errorf("%s %s was looked at, and the bot did not: %v", p.Name, said.Name, err)
		return false
	case said.Refused != "":
		if done.Kind != views.Refused || done.Reason != said.Refused {
			r.Errorf("%s %s: %q was said, and the bot did %+v", p.Name, said.Name, said.Refused, done)
		}
		return false
	case done.Kind != views.Published:
		r.Errorf("%s %s would be published, it was said, and the bot did %+v", p.Name, said.Name, done)
		return false
	}
	m := r.manifest(p.Name, said.Name)
	var want, got []string
	for _, f := range said.Files {
		want = append(want, fmt.Sprint(f.Path, f.Minified))
	}
	for _, f := range m.Files {
		got = append(got, fmt.Sprint(f.Path, f.Origin == logs.Minified))
	}
	for _, f := range want {
		if !slices.Contains(got, f) {
			r.Errorf("%s %s: %s was said to be published, and is not: %v", p.Name, said.Name, f, m.Notes)
		}
	}
	for _, f := range got {
		if !slices.Contains(want, f) {
			r.Errorf("%s %s: %s is published, and was not said to be", p.Name, said.Name, f)
		}
	}
	if m.Default != said.Default || len(m.LeftOut) != len(said.LeftOut) {
		r.Errorf("%s %s: the default file %q and %d left out were said, it is %q and %d", p.Name, said.Name, said.Default, len(said.LeftOut), m.Default, len(m.LeftOut))
	}
	return true
}

func readRecording(t *testing.T) []recorded {
	t.Helper()
	f, err := os.Open(recording)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	if err := json.NewDecoder(zip).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// The bounds of a recording.
const (
	mostRecorded      = 50
	mostRecordedFiles = 600 // of a release
	mostReleases      = 12  // of a package
)

// record writes down the first packages of the catalogue whose releases are small, those with refused releases first.
func (r *rig) record(to string) {
	catalogue, err := packages.Open(r.catalogue)
	if err != nil {
		r.Fatal(err)
	}
	refused := func(p *packages.Package) int { return -min(1, strings.Count(r.states(p.Name), "refused")) }
	list := slices.SortedStableFunc(slices.Values(catalogue.Packages()), func(a, b *packages.Package) int { return cmp.Compare(refused(a), refused(b)) })
	var all []recorded
	for _, p := range list {
		if len(all) == mostRecorded {
			break
		}
		if one, ok := r.recordOne(p); ok {
			all = append(all, one)
		}
	}
	var out strings.Builder
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		r.Fatal(err)
	}
	if err := errors.Join(json.NewEncoder(zip).Encode(all), zip.Close(), os.WriteFile(to, []byte(out.String()), 0o644)); err != nil {
		r.Fatal(err)
	}
	r.Logf("%d packages in %d bytes", len(all), out.Len())
}

func (r *rig) recordOne(p *packages.Package) (recorded, bool) {
	ctx := context.Background()
	packument, _, err := r.npm.Packument(ctx, p.Autoupdate.Target, npm.Validators{})
	if err != nil {
		return recorded{}, false
	}
	one := recorded{JSON: p.JSON, Latest: packument.DistTags["latest"]}
	versions := slices.SortedFunc(maps.Keys(packument.Versions), func(a, b string) int { return packages.CompareVersions(b, a) })
	versions = slices.DeleteFunc(versions, func(v string) bool { return !packages.ValidVersion(v) })
	kept := versions[:min(len(versions), mostReleases)]
	if one.Latest != "" && !slices.Contains(kept, one.Latest) {
		kept = append(kept, one.Latest)
	}
	for _, version := range kept {
		files, err := r.listFiles(ctx, packument.Versions[version])
		if err != nil || len(files) > mostRecordedFiles {
			return recorded{}, false
		}
		v := recordedRelease{Version: version, Published: packument.Versions[version].Published, Files: files}
		if s, err := views.LookupState(r.store, p.Name, version); err == nil && s.Kind == views.Published {
			for _, note := range r.manifest(p.Name, version).Notes {
				if file, _, ok := strings.Cut(note, " was not minified: line"); ok {
					for _, source := range files {
						if strings.HasSuffix(source, file) {
							v.Broken = append(v.Broken, source)
						}
					}
				}
			}
		}
		one.Releases = append(one.Releases, v)
	}
	slices.SortFunc(one.Releases, func(a, b recordedRelease) int { return packages.CompareVersions(a.Version, b.Version) })
	text, err := json.Marshal(one)
	return one, err == nil && !strings.Contains(string(text), "npm"+"js.")
}

func (r *rig) listFiles(ctx context.Context, v npm.Version) ([]string, error) {
	file, err := os.CreateTemp(r.TempDir(), "")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	opened, _, err := r.npm.Release(ctx, v, file)
	if err != nil {
		return nil, err
	}
	var files []string
	err = archive.Walk(ctx, opened, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		if e.Skipped == "" {
			files = append(files, e.Name)
		}
		return nil
	})
	return files, err
}
