package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/packages"
)

// openClients opens the clients of registries and git hosts, with the options o and those of the settings, and sends no
// request. Settings that the clients refuse are a [settings.Mistake]. The caller closes the clients.
func openClients(s *settings.Settings, o bot.ClientOptions, logger *slog.Logger) (*bot.Clients, error) {
	o.Fetch.UserAgent, o.Fetch.Allow, o.Fetch.Logger = UserAgent(), s.AllowHosts, logger
	o.GitHub.URL, o.GitHub.Token, o.GitHub.UserAgent, o.GitHub.Logger = s.GitHubURL, s.Token, UserAgent(), logger
	c, err := bot.OpenClients(o)
	switch {
	case errors.Is(err, bot.ErrGitHubOptions):
		err = settings.Mistakef("%s, or the token in %s: %w", s.Origin("github-url"), s.TokenFrom, err)
	case errors.Is(err, bot.ErrFetchOptions):
		err = settings.Mistakef("%s: %w", s.Origin("allow-host"), err)
	}
	return c, err
}

// newDownloadLookup returns a function that requests from an API how often an npm package was downloaded in a month, by its
// name; nil, without an error, if the settings name no such API. A wrong address of the API is a [settings.Mistake].
func newDownloadLookup(s *settings.Settings, c *bot.Clients) (func(context.Context, string) (int64, error), error) {
	if s.DownloadsURL == "" {
		return nil, nil
	}
	downloads, err := submission.Downloads(c.Fetch, s.DownloadsURL)
	if err != nil {
		return nil, settings.Mistakef("%s: %w", s.Origin("downloads-url"), err)
	}
	return downloads, nil
}

// Upstreams are the registries and git hosts that the checks of a submission request, with the workers that check its files.
type Upstreams struct {
	submission.Upstreams
	clients   *bot.Clients
	minifiers *worker.Pool
}

// OpenUpstreams opens the clients and workers for the commands that check submissions, that is package JSONs. It sends no
// request; workers start on first use. The caller closes it.
func OpenUpstreams(s *settings.Settings, logger *slog.Logger) (*Upstreams, error) {
	c, err := openClients(s, bot.ClientOptions{}, logger)
	if err != nil {
		return nil, err
	}
	u := &Upstreams{clients: c}
	u.Popularity.Stars = git.Stars(c.GitHub)
	if u.Popularity.Downloads, err = newDownloadLookup(s, c); err != nil {
		return nil, err
	}
	u.minifiers = newWorkers(worker.Options{Size: 2, Timeout: worker.Timeout})
	maker := submission.Maker{
		Minify: u.minify,
		BuildModules: func(ctx context.Context, r ingest.ModulesRelease) (*logs.Modules, []worker.ModuleFile, error) {
			return ingest.BuildModules(ctx, u.minifiers, r)
		},
	}
	kinds := sources.Sources{Npm: c.Npm, Git: c.Git}
	u.Sources = make(map[string]sources.Source)
	for _, kind := range []string{sources.KindNpm, sources.KindGit} {
		u.Sources[kind] = submission.WithMaker(kinds.ForKind(kind), maker)
	}
	return u, nil
}

// OpenAuditor returns an auditor that compares releases with npm and with git repositories, and a function that closes it and
// its connections. After an error both are nil.
func OpenAuditor(s *settings.Settings, logger *slog.Logger) (verify.Upstream, func(), error) {
	attestations, err := newAttestationVerifier(s)
	if err != nil {
		return nil, nil, err
	}
	c, err := openClients(s, bot.ClientOptions{}, logger)
	if err != nil {
		return nil, nil, err
	}
	auditor, stop, err := c.NewAuditor(attestations)
	if err != nil {
		return nil, nil, err
	}
	return auditor, func() { c.Close(); stop() }, nil
}

// OpenImports returns a function that finds the imports of a JavaScript module, given its source text, in a worker process that ends
// with the call; calls run one after the other. The second result is a function to call after the last one.
func OpenImports() (func(ctx context.Context, module []byte) ([]string, error), func()) {
	pool := newWorkers(worker.Options{Size: 1, Timeout: worker.Timeout})
	return func(ctx context.Context, module []byte) (imports []string, err error) {
		found, err := pool.Do(ctx, "", worker.FindImports, module)
		if err == nil {
			err = json.Unmarshal(found, &imports)
		}
		return imports, err
	}, pool.Close
}

// minify returns an error unless the file data can be minified, which it tries in a worker process, as the bot does. It
// discards the result. extension is .css, or else the file is JavaScript.
func (u *Upstreams) minify(ctx context.Context, extension string, data []byte) error {
	task := worker.MinifyJS
	if extension == ".css" {
		task = worker.MinifyCSS
	}
	_, err := u.minifiers.Do(ctx, "", task, data)
	return err
}

// Close closes idle connections and ends the worker processes.
func (u *Upstreams) Close() {
	u.clients.Close()
	u.minifiers.Close()
}

// Preview returns what the bot would publish of the package p, with the HTML tags by which pages load it from assetBase ("" for
// the server of the page). If published, the published package JSON, is not nil, the result also has the differences from that.
// older limits the number of older releases that are checked. Preview requests the package's upstream, and publishes nothing.
// With an error of the comparison it also returns the preview.
func (u *Upstreams) Preview(ctx context.Context, p, published *packages.Package, assetBase string, older int) (*submission.Preview, error) {
	preview, err := u.Upstreams.Preview(ctx, p, older)
	if err != nil {
		return nil, err
	}
	for _, file := range preview.TagFiles() {
		integrity, ok := preview.Latest.Integrity[file]
		if tag := library.FutureTag(assetBase, p.Name, preview.Latest.Name, file, integrity, ok); tag != "" {
			preview.Tags = append(preview.Tags, tag)
		}
	}
	if published != nil {
		err = u.Compare(ctx, preview, published)
	}
	return preview, err
}

// Draft returns a new package JSON for the npm package target, which it requests. name is the name of the library; "" derives
// it from target. It stores nothing. For the errors see [submission.NewDraft].
func (u *Upstreams) Draft(ctx context.Context, target, name string) (*submission.Draft, error) {
	return submission.NewDraft(ctx, u.Sources["npm"], target, name)
}

// Limits of the page with a draft, which are below those of the bot, because any visitor can request it.
const (
	draftPackument = 64 << 20 // bytes, read as a stream
	draftTarball   = 32 << 20 // bytes
	draftFiles     = 200      // that the page lists
)

// newDraftWriter returns a function that drafts package JSONs for the site by the names of npm packages. It requests the
// configured registry without its credentials: visitors must not see what only the operator may. The function's errors are that
// of its context, or a [*site.DraftError]. The end of the run does not close its connections.
func newDraftWriter(s *settings.Settings, logger *slog.Logger) (func(context.Context, string) (*site.Draft, error), error) {
	o := bot.ClientOptions{OwnConfig: true, Anonymous: true}
	o.Fetch.Concurrency, o.Fetch.Tries = 2, 1
	o.Npm.PackumentBytes, o.Npm.TarballBytes = draftPackument, draftTarball
	c, err := openClients(s, o, logger)
	if err != nil {
		return nil, err
	}
	source := (&sources.Sources{Npm: c.Npm}).ForKind(sources.KindNpm)
	return func(ctx context.Context, name string) (*site.Draft, error) {
		draft, err := submission.NewDraft(ctx, source, name, "")
		if err == nil {
			return toSiteDraft(draft), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		text, about := submission.DescribeDraftError(name, err)
		if !about { // the cause is not the package
			logger.Warn("couldn't draft a package JSON", "npm", name, "err", err)
		}
		return nil, &site.DraftError{Message: text, Later: !about}
	}, nil
}

// toSiteDraft converts a draft for its page. It lists the first draftFiles files; More counts the others.
func toSiteDraft(draft *submission.Draft) *site.Draft {
	p, r := draft.Preview.Package, &draft.Preview.Latest
	shown := &site.Draft{
		Name: p.Name, Version: r.Name, File: draft.File(), Text: string(draft.JSON()), About: r.Describe(),
		Notes: draft.Notes, More: max(0, len(r.Files)-draftFiles), Problems: draft.Lint(),
	}
	for _, f := range r.Files[:len(r.Files)-shown.More] {
		shown.Files = append(shown.Files, site.DraftFile{Path: f.Path, Size: submission.Size(f), Main: f.Path == r.Default})
	}
	return shown
}
