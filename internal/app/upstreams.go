package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// Upstreams are where the checks on a submission look.
type Upstreams struct {
	getter     *fetch.Client
	sources    map[string]submission.Source // by what a package JSON calls them
	popularity submission.Popularity
	git        *git.Client
	minifiers  *worker.Pool
}

// OpenUpstreams opens the upstreams for a command, which reports errors itself.
func OpenUpstreams(s *settings.Settings, logger *slog.Logger) (*Upstreams, error) {
	client, err := git.NewGitHubClient(git.GitHubOptions{URL: s.GitHubURL, Token: s.Token, UserAgent: agent(), Logger: logger})
	if err != nil {
		return nil, settings.Mistakef("%s, or the token in %s: %w", s.Origin("github-url"), s.TokenFrom, err)
	}
	config, err := strangersConfig()
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{UserAgent: agent(), Allow: s.AllowHosts, Logger: logger})
	if err != nil {
		return nil, settings.Mistakef("%s: %w", s.Origin("allow-host"), err)
	}
	u := &Upstreams{getter: getter, sources: map[string]submission.Source{
		"npm": submission.Npm(npm.NewClient(config, getter, npm.Options{})),
	}}
	if s.DownloadsURL != "" {
		if u.popularity.Downloads, err = submission.Downloads(getter, s.DownloadsURL); err != nil {
			return nil, settings.Mistakef("%s: %w", s.Origin("downloads-url"), err)
		}
	}
	u.git = git.New(git.Options{Fetch: getter, GitHub: client})
	u.popularity.Stars = stars(client)
	u.sources["git"] = submission.Git(u.git)
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	u.minifiers = worker.NewPool(worker.Options{Program: program, Size: 2, Single: true, Timeout: bot.MinifyTimeout})
	for name, source := range u.sources {
		u.sources[name] = submission.Minified(source, u.minify)
	}
	return u, nil
}

// OpenAuditor returns what compares releases with npm and with git repositories, and what ends it.
func OpenAuditor(s *settings.Settings, logger *slog.Logger) (verify.Upstream, func(), error) {
	config, err := strangersConfig()
	if err != nil {
		return nil, nil, err
	}
	attestations, err := newProvenance(s)
	if err != nil {
		return nil, nil, err
	}
	getter, err := fetch.New(fetch.Options{UserAgent: agent(), Allow: s.AllowHosts, Logger: logger})
	if err != nil {
		return nil, nil, settings.Mistakef("%s: %w", s.Origin("allow-host"), err)
	}
	repositories, err := newGit(s, getter, logger)
	if err != nil {
		return nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	minifiers := worker.NewPool(worker.Options{Program: program, Size: 2, Timeout: bot.MinifyTimeout})
	auditor := audit.New(audit.Options{
		Npm: npm.NewClient(config, getter, npm.Options{}), Git: repositories,
		Minifiers: minifiers, Provenance: attestations, TempDir: os.TempDir(),
	})
	return auditor, func() { getter.Close(); minifiers.Close() }, nil
}

// OpenImports returns what finds out what a module imports, in a process of its own, and what ends it.
func OpenImports() (func(ctx context.Context, module []byte) ([]string, error), func(), error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	pool := worker.NewPool(worker.Options{Program: program, Size: 1, Single: true, Timeout: bot.MinifyTimeout})
	return func(ctx context.Context, module []byte) (imports []string, err error) {
		found, err := pool.Do(ctx, "", worker.FindImports, module)
		if err == nil {
			err = json.Unmarshal(found, &imports)
		}
		return imports, err
	}, pool.Close, nil
}

// strangersConfig is npm's configuration without the .npmrc of the folder that larder runs in: that may be a checkout of
// a submission, whose author would choose the registry and get the credentials.
func strangersConfig() (_ *npm.Config, err error) {
	empty, err := os.MkdirTemp("", "larder-npm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(empty)) }()
	return npm.LoadConfig(empty)
}

// minify minifies a file as the bot does, in a process of its own.
func (u *Upstreams) minify(ctx context.Context, extension string, data []byte) error {
	task := worker.MinifyJS
	if extension == ".css" {
		task = worker.MinifyCSS
	}
	_, err := u.minifiers.Do(ctx, "", task, data)
	return err
}

// Close ends it.
func (u *Upstreams) Close() {
	u.getter.Close()
	u.minifiers.Close()
}

// Look shows what the bot would publish of a package.
func (u *Upstreams) Look(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
	if p.Autoupdate == nil {
		return nil, errors.New(`it has no "autoupdate", so there is no upstream to look at`)
	}
	source := u.sources[p.Autoupdate.Source]
	if source == nil {
		return nil, fmt.Errorf("the releases of source %q cannot be looked at", p.Autoupdate.Source)
	}
	return submission.Look(ctx, source, p, older)
}

// Preview shows what the bot would publish of a package, with the tags by which pages load it from assetBase ("" is the server
// of the page), and with the difference from the published package JSON if that is not nil.
func (u *Upstreams) Preview(ctx context.Context, p, published *packages.Package, assetBase string, older int) (*submission.Preview, error) {
	preview, err := u.Look(ctx, p, older)
	if err != nil {
		return nil, err
	}
	for _, file := range preview.TagFiles() {
		integrity, ok := preview.Latest.Integrity[file]
		if tag := futureTag(assetBase, p.Name, preview.Latest.Name, file, integrity, ok); tag != "" {
			preview.Tags = append(preview.Tags, tag)
		}
	}
	if published != nil {
		selected, err := u.Look(ctx, published, 0)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		preview.Change = submission.NewChange(preview, published, selected, err)
	}
	return preview, nil
}

// futureTag returns the tag of a file that is not published yet. A file that the bot is going to minify has no integrity yet.
func futureTag(assetBase, name, version, file string, integrity logs.SRI, known bool) string {
	tag := library.NewSnippet(assetBase, name, version, views.PublishedFile{Path: file, SRI: integrity}).HTML
	if !known {
		tag = strings.ReplaceAll(tag, integrity.String(), "sha512-…")
	}
	return tag
}

// lintedAtOnce is how many upstreams are asked at the same time.
const lintedAtOnce = 4

// Lint adds what the upstreams of the packages tell to the results. It returns, each once, what could not be found out
// but need not.
func (u *Upstreams) Lint(ctx context.Context, results []*lint.Result) (unknown []string, err error) {
	notes := make([][]string, len(results))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lintedAtOnce)
	for i, r := range results {
		if r.Package == nil || r.Package.Autoupdate == nil {
			continue
		}
		g.Go(func() error {
			preview, err := u.Look(ctx, r.Package, 0)
			if err != nil {
				r.Add(submission.Trouble(r.Package, err))
				return ctx.Err()
			}
			r.Add(preview.Problems()...)
			problems, open := u.popularity.Check(ctx, r.Package)
			r.Add(problems...)
			notes[i] = open
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, note := range slices.Concat(notes...) {
		if !slices.Contains(unknown, note) {
			unknown = append(unknown, note)
		}
	}
	return unknown, nil
}

// Draft writes the package JSON of an npm package.
func (u *Upstreams) Draft(ctx context.Context, target, name string) (*submission.Draft, error) {
	return submission.NewDraft(ctx, u.sources["npm"], target, name)
}

// stars asks GitHub how many a repository has.
func stars(client *git.GitHubClient) func(ctx context.Context, owner, repository string) (int64, error) {
	return func(ctx context.Context, owner, repository string) (int64, error) {
		found, _, err := git.API(client).Repositories.Get(ctx, owner, repository)
		switch {
		case git.GitHubStatus(err) == http.StatusNotFound:
			return 0, fetch.ErrNotFound
		case err != nil:
			return 0, errors.New(git.DescribeGitHubError(err))
		}
		return int64(found.GetStargazersCount()), nil
	}
}

// What a page may cost: less than the bot takes, because any visitor can ask for it.
const (
	draftPackument = 64 << 20 // bytes, read as a stream
	draftTarball   = 32 << 20 // bytes
	draftFiles     = 200      // that the page lists
)

// newDrafts returns what writes package JSONs for the site. It asks the configured registry without its credentials: what
// only the operator may see is none of a visitor's business.
func newDrafts(s *settings.Settings, logger *slog.Logger) (func(context.Context, string) (*site.Draft, error), error) {
	config, err := npm.LoadConfig(".")
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{UserAgent: agent(), Allow: s.AllowHosts, Concurrency: 2, Tries: 1, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Origin("allow-host"), err)
	}
	source := submission.Npm(npm.NewClient(config.Anonymous(), getter, npm.Options{PackumentBytes: draftPackument, TarballBytes: draftTarball}))
	linter := lint.New(lint.Options{New: true})
	return func(ctx context.Context, name string) (*site.Draft, error) {
		draft, err := submission.NewDraft(ctx, source, name, "")
		if err != nil {
			return nil, draftError(ctx, name, err, logger)
		}
		return showDraft(draft, linter), nil
	}, nil
}

// draftError tells a visitor what is about the package, and only the log what is about this service.
func draftError(ctx context.Context, name string, err error, logger *slog.Logger) error {
	var invalid *npm.NameError
	var undraftable *submission.UndraftableError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &invalid):
		return &site.DraftError{Message: invalid.Error()}
	case errors.As(err, &undraftable):
		return &site.DraftError{Message: undraftable.Error()}
	case errors.Is(err, fetch.ErrNotFound):
		return &site.DraftError{Message: fmt.Sprintf("The npm registry has no package %q. Is that its exact name there?", name)}
	case errors.Is(err, submission.ErrNoReleases):
		return &site.DraftError{Message: fmt.Sprintf("The npm package %q has no release that could be published.", name)}
	case errors.Is(err, fetch.ErrTooLarge):
		return &site.DraftError{Message: fmt.Sprintf("The npm package %q is too large to be looked at from a page; use `larder new`.", name)}
	}
	logger.Warn("couldn't draft a package JSON", "npm", name, "err", err)
	return &site.DraftError{Message: fmt.Sprintf("The npm registry could not be asked about %q just now. Please try again later.", name), Later: true}
}

func showDraft(draft *submission.Draft, linter *lint.Linter) *site.Draft {
	p, r := draft.Preview.Package, &draft.Preview.Latest
	shown := &site.Draft{
		Name: p.Name, Version: r.Name, File: draft.File(), Text: string(draft.JSON()), About: r.Describe(),
		Notes: draft.Notes, More: max(0, len(r.Files)-draftFiles),
	}
	for _, f := range r.Files[:len(r.Files)-shown.More] {
		shown.Files = append(shown.Files, site.DraftFile{Path: f.Path, Size: submission.Size(f), Main: f.Path == r.Default})
	}
	result := linter.Check(p.Name+".json", "", draft.JSON())
	result.Add(draft.Preview.Problems()...)
	for _, problem := range result.Problems {
		shown.Problems = append(shown.Problems, fmt.Sprintf("line %d: %s", problem.Line, problem.Message))
	}
	return shown
}
