// Package catalogue keeps a catalogue up to date: it looks again and again at the folder, archive or git
// repository that holds it, and hands over what has changed.
//
// What it guarantees: whatever is wrong with the source, a catalogue that was good once stays; the state
// says what is wrong and since when. What came from a git repository is kept in a folder, so that a start
// needs no network. Looks that are asked for while one is under way are one.
//
// The package must not know what a catalogue is for, nor which part asks for a look.
package catalogue

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

// Options say what a [Keeper] keeps. Source and Dir are required, and Git for a repository that is not on
// this machine.
type Options struct {
	// Source is a folder, an archive, a bare git repository, the URL of one over https, with #BRANCH where
	// it is not the default branch, or "starter".
	Source string
	// Dir is a folder for what came from a git repository. It is made when there is something.
	Dir string
	// Git reads repositories.
	Git *git.Client
	// Token gives the token for a repository's URL, or "". Default: none has one.
	Token func(*url.URL) string
	// Interval is the time between two looks; default five minutes.
	Interval time.Duration
	// Logger gets changes and errors; default: none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// A State is how a catalogue stands.
type State struct {
	Source string `json:"source"`
	// Commit and Branch are those of the catalogue that counts, of a git repository.
	Commit string `json:"commit,omitempty"`
	Branch string `json:"branch,omitempty"`
	// Packages is how many it has; Changed when it last became another one.
	Packages int       `json:"packages"`
	Changed  time.Time `json:"changed,omitzero"`
	// Checked is the last look that found something or nothing new.
	Checked time.Time `json:"checked,omitzero"`
	// Problem is why the last look failed, Since when the first one did that has failed since.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Refused are files that cannot be used, a hundred at most: what their packages were before stays.
	Refused []Refused `json:"refused,omitempty"`
}

// Refused is a file of a catalogue that cannot be used.
type Refused struct {
	File   string `json:"file"`
	Reason string `json:"reason"`
}

// A Keeper keeps one catalogue. It is safe for concurrent use.
type Keeper struct {
	o      Options
	source source
	wake   chan struct{}

	mu    sync.Mutex
	state State
	seen  string // what the source was when the catalogue that counts was taken
}

// New returns a keeper. It looks at nothing yet.
func New(o Options) (*Keeper, error) {
	o.Interval = cmp.Or(o.Interval, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	k := &Keeper{o: o, wake: make(chan struct{}, 1)}
	var err error
	if k.source, err = newSource(o); err != nil {
		return nil, err
	}
	k.state.Source = o.Source
	return k, nil
}

// newSource tells what a source is.
func newSource(o Options) (source, error) {
	location, branch, _ := strings.Cut(o.Source, "#")
	switch {
	case o.Source == "" || o.Source == "starter":
		return starter{}, nil
	case strings.HasPrefix(location, "https://"), strings.HasPrefix(location, "http://"):
		at, err := url.Parse(location)
		if err != nil || at.Host == "" || at.RawQuery != "" {
			return nil, errors.New("the catalogue must be a URL such as https://example.com/owner/catalogue.git, with #BRANCH where it is not the default branch")
		}
		if at.User != nil {
			return nil, errors.New("the catalogue's URL has a user or a password in it, which every user of this machine can read in the list of processes")
		}
		token := ""
		if o.Token != nil {
			token = o.Token(at)
		}
		return remote{o, git.Remote{URL: at, Branch: branch, Token: token}}, nil
	case strings.Contains(location, "://"):
		return nil, fmt.Errorf("the catalogue %.100q: of URLs, https: is what can be fetched", location)
	case git.IsRepository(location):
		return local{o, location, branch}, nil
	}
	return folder{o.Source}, nil
}

// Static reports whether the catalogue can never change.
func (k *Keeper) Static() bool {
	_, static := k.source.(starter)
	return static
}

// Remote reports whether the catalogue comes over a network.
func (k *Keeper) Remote() bool {
	_, remote := k.source.(remote)
	return remote
}

// State returns how the catalogue stands.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// Refresh has Run look soon, and returns at once.
func (k *Keeper) Refresh() {
	select {
	case k.wake <- struct{}{}:
	default: // one is about to be
	}
}

// Kept returns what was kept of the catalogue, where that comes over a network.
func (k *Keeper) Kept() (*packages.Catalogue, bool) {
	if !k.Remote() {
		return nil, false
	}
	c, head, err := kept(k.o)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			k.o.Logger.Warn("what was kept of the catalogue is not used", "err", err)
		}
		return nil, false
	}
	k.taken(c, head)
	return c, true
}

// Open returns the catalogue as the source has it now.
func (k *Keeper) Open(ctx context.Context) (*packages.Catalogue, error) {
	c, head, err := k.source.read(ctx, "")
	if err != nil {
		return nil, err
	}
	k.taken(c, head)
	return c, nil
}

// firstPause is the one after a failure where there is no catalogue yet; it doubles up to the interval.
const firstPause = 5 * time.Second

// Run looks at the source at once, each interval, and on request, until ctx ends. What has changed goes to
// apply; where that fails, the same goes there again after the next look.
func (k *Keeper) Run(ctx context.Context, apply func(context.Context, *packages.Catalogue) error) {
	if k.Static() {
		return
	}
	pause := firstPause
	for {
		if err := k.Look(ctx, apply); err == nil || !k.State().Changed.IsZero() {
			pause = k.o.Interval
		}
		if retry.SleepUnless(ctx, min(pause, k.o.Interval), k.wake) != nil {
			return
		}
		pause *= 2
	}
}

// Look looks once, as Run does.
func (k *Keeper) Look(ctx context.Context, apply func(context.Context, *packages.Catalogue) error) error {
	k.mu.Lock()
	seen := k.seen
	k.mu.Unlock()
	c, head, err := k.source.read(ctx, seen)
	if err == nil && c != nil {
		err = apply(ctx, c)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		k.failed(err)
		return err
	case c == nil:
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.state.Problem != "" {
			k.o.Logger.Info("the catalogue can be read again", "source", k.o.Source)
		}
		k.state.Checked, k.state.Problem, k.state.Since = k.o.Now().UTC(), "", time.Time{}
		return nil
	}
	k.taken(c, head)
	k.o.Logger.Info("the catalogue has changed", "source", k.o.Source, "commit", head.Commit, "packages", len(c.Packages()), "refused", len(c.Problems()))
	return nil
}

// failed notes that a look failed, and tells it once.
func (k *Keeper) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Now().UTC()
	problem := err.Error()
	if k.state.Problem != problem {
		k.o.Logger.Error("the catalogue stays as it was", "source", k.o.Source, "err", err)
	}
	if k.state.Problem == "" {
		k.state.Since = now
	}
	k.state.Problem = problem
}

// maxRefused is how many files a state tells of.
const maxRefused = 100

// taken notes that a catalogue counts from now on.
func (k *Keeper) taken(c *packages.Catalogue, head version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Now().UTC()
	k.seen = head.seen
	k.state = State{
		Source: k.o.Source, Commit: head.Commit, Branch: head.Branch,
		Packages: len(c.Packages()), Changed: now, Checked: now,
	}
	for i, invalid := range c.Problems() {
		k.o.Logger.Warn("package refused", "file", invalid.File, "err", invalid)
		if i < maxRefused {
			k.state.Refused = append(k.state.Refused, Refused{File: invalid.File, Reason: invalid.Error()})
		}
	}
}

// A version is what a source was when it was read.
type version struct {
	git.Head
	seen string // differs where the source does
}

// A source is where a catalogue is.
type source interface {
	// read returns the catalogue, nil where the source still is what seen describes.
	read(ctx context.Context, seen string) (*packages.Catalogue, version, error)
}

type starter struct{}

func (starter) read(context.Context, string) (*packages.Catalogue, version, error) {
	return packages.Starter(), version{}, nil
}

// folder is a folder, or an archive of one.
type folder struct{ name string }

func (f folder) read(ctx context.Context, seen string) (*packages.Catalogue, version, error) {
	now, err := fingerprint(ctx, f.name)
	if err == nil && now == seen {
		return nil, version{}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, version{}, err
	}
	c, err := packages.Open(f.name) // which knows what to say where there is nothing
	return c, version{seen: now}, err
}

// maxEntries bounds what a look at a folder reads.
const maxEntries = 200_000

// fingerprint is short and differs where a file was added, removed or written.
func fingerprint(ctx context.Context, name string) (string, error) {
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
		if entries++; entries > maxEntries {
			return fmt.Errorf("it holds more than %d files and folders", maxEntries)
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since; the next look tells
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

// A remote is a git repository elsewhere.
type remote struct {
	o Options
	git.Remote
}

func (r remote) read(ctx context.Context, seen string) (*packages.Catalogue, version, error) {
	if seen != "" {
		head, err := r.o.Git.Head(ctx, r.Remote)
		if err != nil || head.Commit == seen {
			return nil, version{}, err
		}
	}
	return keep(r.o, func(dst *os.File) (git.Head, error) {
		head, _, err := r.o.Git.Snapshot(ctx, r.Remote, dst)
		return head, err
	})
}

// local is a bare git repository on this machine.
type local struct {
	o           Options
	dir, branch string
}

func (l local) read(ctx context.Context, seen string) (*packages.Catalogue, version, error) {
	if seen != "" {
		head, err := git.LocalHead(l.dir, l.branch)
		if err != nil || head.Commit == seen {
			return nil, version{}, err
		}
	}
	return keep(l.o, func(dst *os.File) (git.Head, error) {
		head, _, err := git.LocalSnapshot(ctx, l.dir, l.branch, dst)
		return head, err
	})
}

// What is kept of a git repository: the files of the last commit that was a catalogue, and which that is.
const (
	filesName = "catalogue.tar"
	headName  = "catalogue.json"
)

// note says what is in filesName.
type note struct {
	Source string `json:"source"`
	Commit string `json:"commit"`
	Branch string `json:"branch,omitempty"`
}

// keep gets the files of a commit, and keeps them where they are a catalogue.
func keep(o Options, get func(*os.File) (git.Head, error)) (_ *packages.Catalogue, _ version, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, version{}, fmt.Errorf("couldn't make a folder for the catalogue: %w", err)
	}
	file, err := os.CreateTemp(o.Dir, "fetched-*.tar")
	if err != nil {
		return nil, version{}, fmt.Errorf("couldn't make a file for the catalogue: %w", err)
	}
	defer func() {
		if gone := os.Remove(file.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	defer file.Close()
	head, err := get(file)
	if err != nil {
		return nil, version{}, err
	}
	c, err := packages.Open(file.Name())
	if err != nil {
		return nil, version{}, fmt.Errorf("commit %s is no catalogue: %w", head.Commit, withoutPath(err))
	}
	if len(c.Packages()) == 0 {
		return nil, version{}, fmt.Errorf("commit %s is no catalogue: all %d package files are refused, the first because of %w", head.Commit, len(c.Problems()), c.Problems()[0])
	}
	data, err := json.Marshal(note{o.Source, head.Commit, head.Branch})
	if err != nil {
		return nil, version{}, err
	}
	at := filepath.Join(o.Dir, headName)
	// Whatever is interrupted, the note is never about other files.
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, version{}, err
	}
	if err := errors.Join(file.Sync(), os.Rename(file.Name(), filepath.Join(o.Dir, filesName)), os.WriteFile(at, data, 0o600)); err != nil {
		return nil, version{}, fmt.Errorf("couldn't keep the catalogue: %w", err)
	}
	return c, version{head, head.Commit}, nil
}

// withoutPath leaves out the name of the file, which no operator gave.
func withoutPath(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("it holds no package; a catalogue keeps them as packages/{first letter}/{name}.json")
}

// kept reads what keep has kept of the same source.
func kept(o Options) (*packages.Catalogue, version, error) {
	data, err := os.ReadFile(filepath.Join(o.Dir, headName))
	if err != nil {
		return nil, version{}, err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil || n.Commit == "" {
		return nil, version{}, fmt.Errorf("%s is damaged", headName)
	}
	if n.Source != o.Source {
		return nil, version{}, fs.ErrNotExist
	}
	c, err := packages.Open(filepath.Join(o.Dir, filesName))
	return c, version{git.Head{Commit: n.Commit, Branch: n.Branch}, n.Commit}, err
}
