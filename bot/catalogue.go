package bot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// CatalogueOptions configures a [CatalogueWatcher]. Source and Dir are required, and Git for a repository that is not on this
// machine.
type CatalogueOptions struct {
	// Source is a folder, an archive, a bare git repository or the URL of one over https, both with #BRANCH where
	// it is not the default branch, or "starter" or "" for the built-in catalogue.
	Source string
	// Dir is the folder of the cache for a git repository, also one on this machine. The first read creates it.
	Dir string
	// Git reads repositories.
	Git *git.Client
	// Token returns the token for a repository's URL, or "". Default: no token.
	Token func(*url.URL) string
	// Interval is the time between two polls; default five minutes.
	Interval time.Duration
	// Logger gets changes and errors; default: none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// A CatalogueState is the state of a catalogue.
type CatalogueState struct {
	Source string `json:"source"`
	// Commit and Branch are those of the catalogue in use, for a git repository.
	Commit string `json:"commit,omitempty"`
	Branch string `json:"branch,omitempty"`
	// Packages is their number; Changed is when the catalogue changed last.
	Packages int       `json:"packages"`
	Changed  time.Time `json:"changed,omitzero"`
	// Checked is when the last successful poll ended.
	Checked time.Time `json:"checked,omitzero"`
	// Problem is why the last poll failed, and Since when the first of the failed polls in a row ended.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Refused are up to a hundred invalid files. Their packages stay as they were.
	Refused []RefusedFile `json:"refused,omitempty"`
}

// A RefusedFile is an invalid file of a catalogue.
type RefusedFile struct {
	File   string `json:"file"`
	Reason string `json:"reason"`
}

// A CatalogueWatcher polls one catalogue. It is safe for concurrent use.
//
// If the source has an error, the last valid catalogue stays, and the state says what is wrong and since when. A catalogue from a
// git repository is cached in a folder, so a start needs no network. Polls that are requested during a poll are one poll.
type CatalogueWatcher struct {
	o      CatalogueOptions
	source catalogueSource
	wake   chan struct{}

	mu    sync.Mutex
	state CatalogueState
	seen  string // fingerprint of the source when the catalogue in use was read
}

// NewCatalogueWatcher returns a watcher, which has not read the catalogue yet. It returns an error only if o.Source is a URL that
// cannot be used, as newCatalogueSource says.
func NewCatalogueWatcher(o CatalogueOptions) (*CatalogueWatcher, error) {
	o.Interval = cmp.Or(o.Interval, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &CatalogueWatcher{o: o, wake: make(chan struct{}, 1)}
	var err error
	if w.source, err = newCatalogueSource(o); err != nil {
		return nil, err
	}
	w.state.Source = o.Source
	return w, nil
}

// newCatalogueSource returns the source that o.Source names: the starter catalogue for "" or "starter", a git repository
// elsewhere for a URL with https or http, a bare one on this machine, else a folder or an archive, whether it exists or not. It
// returns an error for a malformed URL, one with a query, a user or a password, and one with another scheme. It calls o.Token for
// a URL.
func newCatalogueSource(o CatalogueOptions) (catalogueSource, error) {
	location, branch, _ := strings.Cut(o.Source, "#")
	switch {
	case o.Source == "" || o.Source == "starter":
		return catalogueSource{static: true, read: readStarterCatalogue}, nil
	case strings.HasPrefix(location, "https://"), strings.HasPrefix(location, "http://"):
		at, err := url.Parse(location)
		if err != nil || at.Host == "" || at.RawQuery != "" {
			return catalogueSource{}, errors.New("the catalogue must be a URL such as https://example.com/owner/catalogue.git, with #BRANCH where it is not the default branch")
		}
		if at.User != nil {
			return catalogueSource{}, errors.New("the catalogue's URL has a user or a password in it, which every user of this machine can read in the list of processes")
		}
		token := ""
		if o.Token != nil {
			token = o.Token(at)
		}
		r := git.Remote{URL: at, Branch: branch, Token: token}
		return newGitCatalogue(o, true, func(ctx context.Context) (git.Head, error) { return o.Git.Head(ctx, r) },
			func(ctx context.Context, dst *os.File) (git.Head, *git.Release, error) {
				return o.Git.Snapshot(ctx, r, dst)
			}), nil
	case strings.Contains(location, "://"):
		return catalogueSource{}, fmt.Errorf("the catalogue %.100q: of URLs, https: is what can be fetched", location)
	case git.IsRepository(location):
		return newGitCatalogue(o, false, func(context.Context) (git.Head, error) { return git.ReadLocalHead(location, branch) },
			func(ctx context.Context, dst *os.File) (git.Head, *git.Release, error) {
				return git.LocalSnapshot(ctx, location, branch, dst)
			}), nil
	}
	return catalogueSource{read: func(ctx context.Context, seen string) (*packages.Catalogue, catalogueVersion, error) {
		return readCatalogueFolder(ctx, o.Source, seen)
	}}, nil
}

// Static reports whether the catalogue can never change.
func (w *CatalogueWatcher) Static() bool { return w.source.static }

// Remote reports whether the catalogue comes over a network.
func (w *CatalogueWatcher) Remote() bool { return w.source.remote }

// State returns the state of the catalogue.
func (w *CatalogueWatcher) State() CatalogueState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Refresh makes Run poll soon, after the poll that may be under way, and returns at once. Further calls before that poll add
// none.
func (w *CatalogueWatcher) Refresh() { retry.Wake(w.wake) }

// UseCached returns the cached catalogue and records it as the one in use, as [CatalogueWatcher.State] then says, so that Poll
// passes on only another one. It returns false if none is cached, if the cached one cannot be read, which it logs, or if the
// source is not a URL.
func (w *CatalogueWatcher) UseCached() (*packages.Catalogue, bool) {
	if !w.Remote() {
		return nil, false
	}
	c, head, err := readCatalogueCache(w.o)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.o.Logger.Warn("the cached catalogue is not used", "err", err)
		}
		return nil, false
	}
	w.use(c, head)
	return c, true
}

// Open reads the catalogue as the source has it now, returns it, and records it as the one in use. After an error, which it does
// not record, the state is as before.
func (w *CatalogueWatcher) Open(ctx context.Context) (*packages.Catalogue, error) {
	c, head, err := w.source.read(ctx, "")
	if err != nil {
		return nil, err
	}
	w.use(c, head)
	return c, nil
}

// firstCatalogueBackoff is the time until the next poll after the first failure while there is no catalogue yet. It doubles up to
// the interval.
const firstCatalogueBackoff = 5 * time.Second

// Run polls the source at once, each interval, and on request by Refresh, until ctx ends. It calls apply with a changed
// catalogue, and again after the next poll if apply fails. While no catalogue is in use, the time until the next poll starts at
// five seconds and doubles. For the starter catalogue it returns at once and never calls apply.
func (w *CatalogueWatcher) Run(ctx context.Context, apply func(context.Context, *packages.Catalogue) error) {
	if w.Static() {
		return
	}
	backoff := firstCatalogueBackoff
	for {
		if err := w.Poll(ctx, apply); err == nil || !w.State().Changed.IsZero() {
			backoff = w.o.Interval
		}
		if retry.SleepUnless(ctx, min(backoff, w.o.Interval), w.wake) != nil {
			return
		}
		backoff *= 2
	}
}

// Poll reads the source once and, if it has changed, calls apply with the catalogue, which is the one in use if apply returns
// nil. An error of the source or of apply is returned, and recorded in the state; then the catalogue in use stays. If ctx has
// ended, Poll returns its error and records nothing, although apply may have succeeded.
func (w *CatalogueWatcher) Poll(ctx context.Context, apply func(context.Context, *packages.Catalogue) error) error {
	w.mu.Lock()
	seen := w.seen
	w.mu.Unlock()
	c, head, err := w.source.read(ctx, seen)
	if err == nil && c != nil {
		err = apply(ctx, c)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		w.recordFailure(err)
		return err
	case c == nil:
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.state.Problem != "" {
			w.o.Logger.Info("the catalogue can be read again", "source", w.o.Source)
		}
		w.state.Checked, w.state.Problem, w.state.Since = w.o.Now().UTC(), "", time.Time{}
		return nil
	}
	w.use(c, head)
	w.o.Logger.Info("the catalogue has changed", "source", w.o.Source, "commit", head.Commit, "packages", len(c.Packages()), "refused", len(c.Problems()))
	return nil
}

// recordFailure stores why a poll failed, and logs it unless the poll before failed for the same reason.
func (w *CatalogueWatcher) recordFailure(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.o.Now().UTC()
	problem := err.Error()
	if w.state.Problem != problem {
		w.o.Logger.Error("the catalogue stays as it was", "source", w.o.Source, "err", err)
	}
	if w.state.Problem == "" {
		w.state.Since = now
	}
	w.state.Problem = problem
}

// maxRefusedFiles is how many invalid files a state lists.
const maxRefusedFiles = 100

// use replaces the state by that of a catalogue which is in use from now on, without a problem. It logs each invalid file of the
// catalogue.
func (w *CatalogueWatcher) use(c *packages.Catalogue, head catalogueVersion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.o.Now().UTC()
	w.seen = head.seen
	w.state = CatalogueState{
		Source: w.o.Source, Commit: head.Commit, Branch: head.Branch,
		Packages: len(c.Packages()), Changed: now, Checked: now,
	}
	for i, invalid := range c.Problems() {
		w.o.Logger.Warn("package refused", "file", invalid.File, "err", invalid)
		if i < maxRefusedFiles {
			w.state.Refused = append(w.state.Refused, RefusedFile{File: invalid.File, Reason: invalid.Error()})
		}
	}
}

// A catalogueVersion is the state of a source when it was read.
type catalogueVersion struct {
	git.Head
	seen string // fingerprint, another one if the source has changed
}

// A catalogueSource is a place that has a catalogue.
type catalogueSource struct {
	static bool // the catalogue can never change
	remote bool // it comes over a network
	// read returns the catalogue and the state of the source. seen is the fingerprint at the last read, "" for
	// none. If the source still has it, the catalogue is nil, and the state may be zero.
	read func(ctx context.Context, seen string) (*packages.Catalogue, catalogueVersion, error)
}

// readStarterCatalogue returns the built-in catalogue, as a catalogueSource does.
func readStarterCatalogue(context.Context, string) (*packages.Catalogue, catalogueVersion, error) {
	return packages.Starter(), catalogueVersion{}, nil
}

// readCatalogueFolder returns the catalogue in a folder, or in an archive of one, as a catalogueSource does.
func readCatalogueFolder(ctx context.Context, name, seen string) (*packages.Catalogue, catalogueVersion, error) {
	now, err := hashListing(ctx, name)
	if err == nil && now == seen {
		return nil, catalogueVersion{}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, catalogueVersion{}, err
	}
	c, err := packages.Open(name) // its error says what is missing
	return c, catalogueVersion{seen: now}, err
}

// maxCatalogueEntries bounds the files and folders that a poll reads.
const maxCatalogueEntries = 200_000

// hashListing returns a hash of the paths, modes, sizes and times of name and of all files and folders below it: another one if
// one was added, removed or written. name is a folder or a file, or a link to one. It leaves out what begins with a dot. It
// returns an error for more than 200,000 entries, and one that wraps [fs.ErrNotExist] if name does not exist.
func hashListing(ctx context.Context, name string) (string, error) {
	// A link to a folder is a usual way to replace all of it at once.
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return "", fmt.Errorf("catalogue: %w", err)
	}
	var all strings.Builder
	entries := 0
	err = filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if path != name && strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entries++; entries > maxCatalogueEntries {
			return fmt.Errorf("it has more than %d files and folders", maxCatalogueEntries)
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted since
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "%s %v %d %d\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("catalogue %s: %w", name, err)
	}
	return kvstore.Sum([]byte(all.String())).String(), nil
}

// A writeSnapshot writes the files of a repository's last commit into a file, as a tar archive.
type writeSnapshot func(ctx context.Context, dst *os.File) (git.Head, *git.Release, error)

// newGitCatalogue returns a catalogue in a git repository, of which head returns the last commit. It stores what it has read in
// the cache on disk, which the next start reads.
func newGitCatalogue(o CatalogueOptions, remote bool, head func(context.Context) (git.Head, error), snapshot writeSnapshot) catalogueSource {
	return catalogueSource{remote: remote, read: func(ctx context.Context, seen string) (*packages.Catalogue, catalogueVersion, error) {
		if seen != "" {
			head, err := head(ctx)
			if err != nil || head.Commit == seen {
				return nil, catalogueVersion{}, err
			}
		}
		return fetchIntoCatalogueCache(ctx, o, snapshot)
	}}
}

// The cache of a git repository: the files of the last commit that was a valid catalogue, and a description of them.
const (
	catalogueFilesName = "catalogue.tar"
	catalogueHeadName  = "catalogue.json"
)

// A catalogueCacheHead describes the files of the cache.
type catalogueCacheHead struct {
	Source string `json:"source"`
	Commit string `json:"commit"`
	Branch string `json:"branch,omitempty"`
}

// fetchIntoCatalogueCache calls snapshot, which writes the files of a commit into a temporary file as a tar archive. If they are a
// catalogue with at least one valid package, it puts them into the cache in o.Dir, which it creates, and returns the catalogue.
// On an error before that, the cache stays as it was; after one while it replaces the files, nothing may be cached.
func fetchIntoCatalogueCache(ctx context.Context, o CatalogueOptions, snapshot writeSnapshot) (_ *packages.Catalogue, _ catalogueVersion, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, catalogueVersion{}, fmt.Errorf("couldn't make a folder for the catalogue: %w", err)
	}
	file, err := os.CreateTemp(o.Dir, "fetched-*.tar")
	if err != nil {
		return nil, catalogueVersion{}, fmt.Errorf("couldn't make a file for the catalogue: %w", err)
	}
	defer func() {
		if gone := os.Remove(file.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	defer file.Close()
	head, _, err := snapshot(ctx, file)
	if err != nil {
		return nil, catalogueVersion{}, err
	}
	c, err := packages.Open(file.Name())
	if err != nil {
		return nil, catalogueVersion{}, fmt.Errorf("commit %s is not a catalogue: %w", head.Commit, withoutTempName(err))
	}
	if len(c.Packages()) == 0 {
		return nil, catalogueVersion{}, fmt.Errorf("commit %s is not a catalogue: all %d package files are refused, the first because of %w", head.Commit, len(c.Problems()), c.Problems()[0])
	}
	data, err := json.Marshal(catalogueCacheHead{o.Source, head.Commit, head.Branch})
	if err != nil {
		return nil, catalogueVersion{}, err
	}
	at := filepath.Join(o.Dir, catalogueHeadName)
	// If this is interrupted, the head never describes other files.
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, catalogueVersion{}, err
	}
	if err := errors.Join(file.Sync(), os.Rename(file.Name(), filepath.Join(o.Dir, catalogueFilesName)), os.WriteFile(at, data, 0o600)); err != nil {
		return nil, catalogueVersion{}, fmt.Errorf("couldn't cache the catalogue: %w", err)
	}
	return c, catalogueVersion{head, head.Commit}, nil
}

// withoutTempName returns why [packages.Open] refused a temporary file, without the file's name: the cause that err wraps or, if
// it wraps none, that the file has no package. err is not nil.
func withoutTempName(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("it has no package; a catalogue has them as packages/{first letter}/{name}.json")
}

// readCatalogueCache returns the cached catalogue of o.Source. Its error wraps [fs.ErrNotExist] if no catalogue is cached, or
// only one of another source.
func readCatalogueCache(o CatalogueOptions) (*packages.Catalogue, catalogueVersion, error) {
	data, err := os.ReadFile(filepath.Join(o.Dir, catalogueHeadName))
	if err != nil {
		return nil, catalogueVersion{}, err
	}
	var n catalogueCacheHead
	if err := json.Unmarshal(data, &n); err != nil || n.Commit == "" {
		return nil, catalogueVersion{}, fmt.Errorf("%s is damaged", catalogueHeadName)
	}
	if n.Source != o.Source {
		return nil, catalogueVersion{}, fs.ErrNotExist
	}
	c, err := packages.Open(filepath.Join(o.Dir, catalogueFilesName))
	return c, catalogueVersion{git.Head{Commit: n.Commit, Branch: n.Branch}, n.Commit}, err
}
