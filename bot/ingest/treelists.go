package ingest

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// The values of Tree.Released that are no file's path.
const (
	ByPackument = "packument" // the dates of the package's npm registry
	ByTimes     = "mtime"     // the time of the release's newest file
)

// dates are the release dates that a file has, by the release's id (see ReleaseID).
type dates map[string]time.Time

// readDates reads a JSON file of release dates: {"jquery": {"3.7.1": "2023-08-28T13:37:31Z"}}, or with "jquery/3.7.1" as key. It
// returns them by release id (see ReleaseID). It returns nil without an error if file is [ByPackument] or [ByTimes], which are no
// files. A date over a day after now, or before 1995, and two dates for one release are errors, with which the map is incomplete.
func readDates(file string, now time.Time) (dates, error) {
	if file == ByPackument || file == ByTimes {
		return nil, nil
	}
	all := make(dates)
	err := readStrings(file, func(key, value string) error {
		parts := strings.Split(key, "/")
		if len(parts) != 2 {
			return errors.New("package/version is expected in place of this key")
		}
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			if at, err = time.Parse(time.DateOnly, value); err != nil {
				return fmt.Errorf("%q is no date as 2006-01-02 or 2006-01-02T15:04:05Z", value)
			}
		}
		id := ReleaseID(parts[0], parts[1])
		if _, twice := all[id]; twice {
			return errors.New("it has two dates")
		}
		all[id] = at
		return checkDate(at, now)
	})
	return all, err
}

// earliest is the earliest date that a release may have. No public service of libraries has older ones.
var earliest = time.Date(1995, 1, 1, 0, 0, 0, 0, time.UTC)

// checkDate returns an error if a release cannot have been made at that time, because that is before 1995 or over a day after
// now. Files in npm's archives have dates of 1985, and others of 1970.
func checkDate(at, now time.Time) error {
	if at.Before(earliest) || at.After(now.Add(24*time.Hour)) {
		return fmt.Errorf("%s cannot be when it was released", at.UTC().Format(time.DateTime))
	}
	return nil
}

// releaseDate returns when a release was made, as t.Released says: according to npm, to the newest file in source, or to a file
// of dates. It returns an error if that does not have the date, because a published release keeps its date, or if the date is
// impossible (see checkDate).
func (t *treeImport) releaseDate(ctx context.Context, p *treePackage, version string, source archive.Source) (at time.Time, err error) {
	switch t.Released {
	case ByPackument:
		at, err = t.dateFromUpstream(p, version)
	case ByTimes:
		err = archive.Walk(ctx, source, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
			if e.Modified.After(at) {
				at = e.Modified
			}
			return nil
		})
		if err == nil && at.IsZero() {
			err = sources.Refusef("there are no files in it")
		}
	default:
		var ok bool
		if at, ok = t.dates[ReleaseID(p.Name, version)]; !ok {
			err = treeProblem(noDate, "the file of dates does not have it")
		}
	}
	if err != nil {
		return time.Time{}, err
	}
	if err := checkDate(at, t.options.Now()); err != nil {
		return time.Time{}, treeProblem(noDate, "%w; name a file of dates with --released", err)
	}
	return at, nil
}

const otherDates = "; --released takes a file of dates, or mtime for the files' times"

// dateFromUpstream returns when npm published a version. In an import, the first call for a package requests the dates of all its
// versions, for which other calls wait, and all return the same dates or error. It returns an error for a package that is not from
// npm, and for a version without a date.
func (t *treeImport) dateFromUpstream(p *treePackage, version string) (time.Time, error) {
	if p.Autoupdate == nil || p.Autoupdate.Source != sources.KindNpm {
		return time.Time{}, treeProblem(noDate, "only npm has dates, and the package is not updated from there%s", otherDates)
	}
	dates, err := p.dates()
	if err != nil {
		return time.Time{}, treeProblem(noDate, "%w; import the tree again when it can be asked%s", err, otherDates)
	}
	at := dates[version]
	if at.IsZero() {
		return time.Time{}, treeProblem(noDate, "npm's %s does not say when it had that version%s", p.Autoupdate.Target, otherDates)
	}
	return at, nil
}

// requestDates requests when npm published the versions of a package, and returns that by version, zero for one that npm lacks. It
// sends no request, and returns an error, while the registry's circuit breaker is open, and reports the outcome of a request to that.
func (t *treeImport) requestDates(ctx context.Context, p *packages.Package, versions []string) (map[string]time.Time, error) {
	name := sources.UpstreamName(p)
	if t.options.Breakers.IsDown(name) {
		return nil, fmt.Errorf("the registry does not answer (%s)", name)
	}
	listed, err := t.options.Sources.ForPackage(p).List(ctx, p.Autoupdate.Target, fetch.Validators{})
	t.options.Breakers.Record(name, p.Name, err)
	if err != nil {
		return nil, err
	}
	dates := make(map[string]time.Time)
	for _, version := range versions {
		dates[version] = listed.Versions[version].Published
	}
	return dates, nil
}

// integrities are the integrities that files of imported releases must have. The zero value has none.
type integrities struct {
	folder *os.Root // nil if they are in one file
	all    map[string]map[string]string
	absent map[string]struct{} // the releases of all, by id, for which markFound was not called
}

// openIntegrities reads a JSON file of integrities that the imported files must have: {"jquery": {"3.7.1": {"jquery.js":
// "sha512-…"}}}, or with "jquery/3.7.1/jquery.js" as key. name may also be a folder with a file for each version, which is read
// when the version is imported, so that memory does not grow with their number. The caller closes the result. The name "" stands
// for none.
func openIntegrities(name string) (l integrities, err error) {
	if name == "" {
		return l, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return l, err
	}
	if info.IsDir() {
		l.folder, err = os.OpenRoot(name)
		return l, err
	}
	l = integrities{all: make(map[string]map[string]string), absent: make(map[string]struct{})}
	return l, readStrings(name, func(key, value string) error {
		parts := strings.SplitN(key, "/", 3)
		if len(parts) != 3 || parts[2] == "" {
			return errors.New("package/version/file is expected in place of this key")
		}
		id := ReleaseID(parts[0], parts[1])
		if l.all[id] == nil {
			l.all[id], l.absent[id] = make(map[string]string), struct{}{}
		}
		return setIntegrity(l.all[id], parts[2], value)
	})
}

// close closes the folder from which integrities are read, if they are in one.
func (l integrities) close() {
	if l.folder != nil {
		l.folder.Close()
	}
}

// markFound records that the tree has these versions of a package, so that missingReleases does not return them. It takes no
// lock.
func (l integrities) markFound(name string, versions []string) {
	for _, version := range versions {
		delete(l.absent, ReleaseID(name, version))
	}
}

// missingReleases returns the releases, by id, for which integrities are listed and which markFound was not called with. It
// returns none if the integrities are in a folder.
func (l integrities) missingReleases() (some Sample) {
	some.add(slices.Sorted(maps.Keys(l.absent))...)
	return some
}

// get returns the integrities ("sha512-…" or "sha256-…") that the files of a release must have, by path; nil without an error if
// none are listed. If the integrities are in a folder, it reads the release's file there. The caller does not change the
// map.
func (l integrities) get(name, version string) (map[string]string, error) {
	if l.folder == nil {
		return l.all[ReleaseID(name, version)], nil
	}
	file := name + "/" + version + ".json"
	f, err := l.folder.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := make(map[string]string)
	err = decodeStrings(io.LimitReader(f, logs.MaxManifest), func(key, value string) error { return setIntegrity(found, key, value) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return found, nil
}

// setIntegrity adds the integrity value ("sha512-…" or "sha256-…") of a file to the map all, by path, which the caller has made.
// It returns an error if the value is malformed, or if all has one for the file.
func setIntegrity(all map[string]string, file, value string) error {
	algorithm, encoded, _ := strings.Cut(value, "-")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	size, ok := map[string]int{"sha256": sha256.Size, "sha512": sha512.Size}[algorithm]
	switch {
	case err != nil || !ok || len(sum) != size:
		return fmt.Errorf("%q is not a sha512 or sha256 integrity", value)
	case all[file] != "":
		return errors.New("it has two integrities")
	}
	all[file] = value
	return nil
}

// checkIntegrities returns an error unless the manifest m has every file of listed, a map from paths to integrities, and with the
// integrity there. Files that are not in listed are not checked; an empty or nil map is always satisfied.
func checkIntegrities(listed map[string]string, m *logs.Manifest) error {
	if len(listed) == 0 {
		return nil
	}
	files := make(map[string]logs.File, len(m.Files))
	for _, f := range m.Files {
		files[f.Path] = f
	}
	var wrong Sample
	for _, file := range slices.Sorted(maps.Keys(listed)) {
		f, ok := files[file]
		if !ok {
			wrong.add(file + " is not in the release")
			continue
		}
		is := f.SRI.String()
		if strings.HasPrefix(listed[file], "sha256-") {
			is = "sha256-" + base64.StdEncoding.EncodeToString(f.SHA256[:])
		}
		if is != listed[file] {
			wrong.add(fmt.Sprintf("%s is %s and not %s", file, is, listed[file]))
		}
	}
	if wrong.Count > 0 {
		return treeProblem(wrongIntegrity, "%s", wrong)
	}
	return nil
}

// readStrings opens a file of JSON and calls fn for each string in its objects, with the path of keys to it, such as
// "jquery/3.7.1" (see decodeStrings). The error of fn ends it, and names the file.
func readStrings(name string, fn func(key, value string) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := decodeStrings(f, fn); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// deepest is how many objects lie in each other at most in what decodeStrings reads.
const deepest = 8

// decodeStrings reads one JSON object, and calls fn for each string in it and in the objects in it. key is the path to the
// string: the keys of the objects around it and its own, with slashes between them. Other values, deeper nesting than 8 objects,
// and anything behind the object are errors, before which fn may have been called. The error of fn ends it.
func decodeStrings(r io.Reader, fn func(key, value string) error) error {
	d := json.NewDecoder(r)
	token, err := d.Token()
	if err == nil && token != json.Delim('{') {
		return errors.New("a JSON object is expected")
	}
	if err == nil {
		err = decodeObject(d, "", 1, fn)
	}
	if err == nil {
		if _, err := d.Token(); err != io.EOF {
			return errors.New("something follows the JSON object")
		}
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		err = fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return err
}

// decodeObject reads the rest of an object from d, whose opening brace is read already, and calls fn for each string in it.
// parent is the path to the object, "" or ending with a slash; the object's keys are appended to it. depth is the number of
// objects around, with this one. The error of fn, a value that is neither a string nor an object, and an object deeper than 8 end
// it with an error.
func decodeObject(d *json.Decoder, parent string, depth int, fn func(key, value string) error) error {
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key := parent + token.(string) // the decoder sees to it
		if token, err = d.Token(); err != nil {
			return err
		}
		value, isString := token.(string)
		switch {
		case isString:
			if err := fn(key, value); err != nil {
				return fmt.Errorf("%q: %w", key, err)
			}
		case token == json.Delim('{') && depth < deepest:
			if err := decodeObject(d, key+"/", depth+1, fn); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%q: a string is expected", key)
		}
	}
	_, err := d.Token() // the closing brace
	return err
}
