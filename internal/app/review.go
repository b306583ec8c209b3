package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/bot/review"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

// ReviewPath is where GitHub tells of pull requests.
const ReviewPath = "/hooks/review"

// mostEvent is the most bytes that an event about a pull request may have here; they have some ten thousand.
const mostEvent = 4 << 20

// A ReviewServer is a process that looks at the pull requests of a catalogue. It has no data folder: what is to be done,
// GitHub knows.
type ReviewServer struct {
	Settings *settings.Settings
	Logger   *slog.Logger
	// Serving is called once the process serves.
	Serving func(address string)
}

// Run looks at pull requests until ctx ends.
func (s ReviewServer) Run(ctx context.Context) (err error) {
	c := s.Settings
	if c.ReviewRepository == "" {
		return settings.Mistakef("which pull requests? Name the repository with --review-repository OWNER/NAME")
	}
	secret, err := c.HookSecret()
	if err != nil {
		return err
	}
	v, ctx, err := newSupervisor(ctx, c, true, s.Logger, func() error {
		return errors.Join(checkReview(c, secret), limitConnections(c, s.Logger))
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.close(err)) }()
	v.signals.handle(ctx)
	r := newRoleRun(ctx, v, c, false)
	_, err = r.do(reviewRole{s, secret})
	return err
}

// A reviewRole looks at pull requests.
type reviewRole struct {
	server ReviewServer
	secret string // of the webhook
}

func (o reviewRole) start(_ context.Context, r *roleRun) error {
	s, secret := o.server, o.secret
	if err := r.removeReadyFile(); err != nil {
		return err
	}
	pulls, upstreams, err := openReview(r.settings, r.logger)
	if err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "upstreams", Stop: parts.Closing(upstreams.Close)})
	keeper, err := s.openCatalogue(r, upstreams)
	if err != nil {
		return err
	}
	r.supervisor.signals.set(map[os.Signal]func(context.Context){syscall.SIGHUP: func(context.Context) {
		if r.ready.Load() {
			s.Logger.Info("looking at the catalogue; all else needs a restart")
			keeper.Refresh()
		}
	}})
	reviewer, err := s.openReviewer(r, pulls, upstreams, keeper)
	if err != nil {
		return err
	}
	if err := s.openHook(r, reviewer, secret); err != nil {
		return err
	}
	s.Serving(r.supervisor.address(s.Settings))
	if err := r.addReadyFile(); err != nil {
		return err
	}
	if err := r.finish(func() { s.Logger.Info("stopping") }); err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "reviewing", Run: parts.Until(func(ctx context.Context) { reviewCatalogue(ctx, reviewer, keeper) })})
	return nil
}

// openCatalogue prepares to follow the catalogue, by default that of the repository.
func (s ReviewServer) openCatalogue(r *roleRun, upstreams *Upstreams) (_ *catalogue.Keeper, err error) {
	c := r.settings
	if !c.Given("catalogue") {
		if c.Catalogue, err = repositoryURL(c.GitHubURL, c.ReviewRepository); err != nil {
			return nil, settings.Mistakef("%s: %w", c.Origin("github-url"), err)
		}
	}
	dir, err := os.MkdirTemp("", "larder-review-")
	if err != nil {
		return nil, err
	}
	keeper, err := newKeeper(c, filepath.Join(dir, "catalogue"), upstreams.git, r.logger.With("part", "catalogue"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r.parts.Add(parts.Part{Name: "catalogue", Stop: func() error { return os.RemoveAll(dir) }})
	return keeper, nil
}

func (s ReviewServer) openReviewer(r *roleRun, pulls *github.Client, upstreams *Upstreams, keeper *catalogue.Keeper) (_ *review.Reviewer, err error) {
	c := r.settings
	o := review.Options{Client: pulls, Catalogue: currentCatalogue(keeper)}
	if c.SiteBase != "" {
		if o.Published, err = review.PublishedBy(upstreams.getter, c.SiteBase); err != nil {
			return nil, settings.Mistakef("%s: %w", c.Origin("site-base"), err)
		}
	}
	return r.newReviewer(upstreams, o, cmp.Or(c.AssetBase, c.SiteBase))
}

func (s ReviewServer) openHook(r *roleRun, reviewer *review.Reviewer, secret string) error {
	o, err := r.withTLS(server.HTTPOptions{MaxConnections: r.settings.MaxConnections, Logger: r.logger.With("part", "server")})
	if err != nil {
		return err
	}
	hooks := map[string]http.Handler{ReviewPath: r.reviewHook(reviewer, secret)}
	at, err := r.supervisor.listen(r.settings.MaxConnections)
	if err != nil {
		return err
	}
	r.serve("webhook", server.NewHTTPServer(withHooks(hooks, http.NotFoundHandler()), o), at)
	return nil
}

// reviewCatalogue looks at pull requests, and follows the catalogue.
func reviewCatalogue(ctx context.Context, reviewer *review.Reviewer, keeper *catalogue.Keeper) {
	ignore := func(context.Context, *packages.Catalogue) error { return nil }
	// Without the catalogue there is no telling what is in it twice.
	first, cancel := context.WithTimeout(ctx, openTime)
	_ = keeper.Look(first, ignore) // it logs why not
	cancel()
	var following sync.WaitGroup
	following.Go(func() { keeper.Run(ctx, ignore) })
	reviewer.Run(ctx)
	following.Wait()
}

// addReviewer has a process that serves and fills look at pull requests, besides what else it does.
func (r *roleRun) addReviewer(f *filler, folder *Reader, site *siteOptions, secret string) error {
	if r.settings.ReviewRepository == "" {
		return nil
	}
	pulls, upstreams, err := openReview(r.settings, r.logger)
	if err != nil {
		return err
	}
	reviewer, err := r.newReviewer(upstreams, review.Options{
		Client:    pulls,
		Catalogue: currentCatalogue(f.keeper),
		Published: func(_ context.Context, name string) (*review.Published, error) {
			return publishedIn(folder.store, name)
		},
	}, folder.assetBase)
	if err != nil {
		upstreams.Close()
		return err
	}
	site.hooks[ReviewPath] = r.reviewHook(reviewer, secret)
	r.parts.Add(parts.Part{Name: "reviewer", Run: parts.Until(reviewer.Run), Stop: parts.Closing(upstreams.Close)})
	return nil
}

func (r *roleRun) reviewHook(reviewer *review.Reviewer, secret string) http.Handler {
	return &github.Webhook{Secret: secret, MaxBytes: mostEvent, Take: reviewer.Take, Logger: r.logger.With("part", "hook")}
}

// checkReview tells what pull requests cannot be looked at without, where they are to be.
func checkReview(s *settings.Settings, secret string) error {
	switch {
	case s.ReviewRepository == "":
		return nil
	case secret == "":
		return settings.Mistakef("%s needs the secret of the webhook, in --hook-secret-file or %s; `openssl rand -hex 32` makes one", s.Origin("review-repository"), settings.SecretVariable)
	case (s.GitHubApp == "") != (s.GitHubAppKeyFile == ""):
		return settings.Mistakef("--github-app and --github-app-key-file go together: the id of a GitHub App, and its private key")
	case s.GitHubApp == "" && s.Token == "":
		return settings.Mistakef("%s needs credentials that may write checks there: a GitHub App with --github-app, or a token in the variable %s or %s", s.Origin("review-repository"), settings.TokenVariables[0], settings.TokenVariables[1])
	}
	return nil
}

// openReview returns what asks GitHub about pull requests, and the upstreams of what they submit.
func openReview(s *settings.Settings, logger *slog.Logger) (*github.Client, *Upstreams, error) {
	pulls, others, err := reviewClients(s, logger)
	if err != nil {
		return nil, nil, err
	}
	config, err := strangersConfig()
	if err != nil {
		return nil, nil, err
	}
	u, err := openUpstreams(s, logger, config.Anonymous(), others) // the answers are public, so nothing that only the operator may see
	return pulls, u, err
}

// reviewClients return what asks GitHub about pull requests and writes checks, and what asks it about upstreams. Those are
// named by strangers, and what is found is public: so they are asked for as an app, which may read what is public and
// the catalogue, or without credentials, and never with a token that may read what is private.
func reviewClients(s *settings.Settings, logger *slog.Logger) (pulls, upstreams *github.Client, err error) {
	o := github.Options{URL: s.GitHubURL, UserAgent: agent(), Logger: logger.With("part", "github")}
	if s.GitHubApp == "" {
		if upstreams, err = github.New(o); err != nil {
			return nil, nil, settings.Mistakef("%s: %w", s.Origin("github-url"), err)
		}
		o.Token = s.Token
		if pulls, err = github.New(o); err != nil {
			return nil, nil, settings.Mistakef("%s, or the token in %s: %w", s.Origin("github-url"), s.TokenFrom, err)
		}
		return pulls, upstreams, nil
	}
	text, err := os.ReadFile(s.GitHubAppKeyFile)
	if err != nil {
		return nil, nil, settings.Mistakef("%s: %w", s.Origin("github-app-key-file"), err)
	}
	key, err := github.ParseAppKey(text)
	if err != nil {
		return nil, nil, settings.Mistakef("%s: %w", s.Origin("github-app-key-file"), err)
	}
	o.App = &github.App{ID: s.GitHubApp, Key: key, Repository: s.ReviewRepository}
	if pulls, err = github.New(o); err != nil {
		return nil, nil, settings.Mistakef("%s: %w", s.Origin("github-app"), err)
	}
	return pulls, pulls, nil
}

// newReviewer completes what a reviewer works with.
func (r *roleRun) newReviewer(u *Upstreams, o review.Options, assetBase string) (*review.Reviewer, error) {
	s := r.settings
	o.Repository, o.Look, o.Popularity = s.ReviewRepository, u.Look, u.popularity.Check
	o.Logger, o.Registerer = r.logger.With("part", "review"), r.metrics
	if assetBase != "" {
		o.Tag = func(name, version, file string, integrity *review.Integrity) string {
			return tagToBe(assetBase, name, version, file, integrity)
		}
	}
	reviewer, err := review.New(o)
	if err != nil {
		return nil, settings.Mistakef("%s: %w", s.Origin("review-repository"), err)
	}
	return reviewer, nil
}

// tagToBe is the tag of a file that is not published yet. The integrity of one that is still to be made is left open.
func tagToBe(assetBase, name, version, file string, integrity *review.Integrity) string {
	f := views.PublishedFile{Path: file}
	if integrity != nil {
		f.SRI = logs.SRI(*integrity)
	}
	tag := library.NewSnippet(assetBase, name, version, f).HTML
	if integrity == nil {
		tag = strings.ReplaceAll(tag, f.SRI.String(), "sha512-…")
	}
	return tag
}

// currentCatalogue returns what counts whenever it is asked.
func currentCatalogue(keeper *catalogue.Keeper) func(context.Context) (*packages.Catalogue, error) {
	return func(context.Context) (*packages.Catalogue, error) {
		if c := keeper.Current(); c != nil {
			return c, nil
		}
		return nil, errors.New(cmp.Or(keeper.State().Problem, "it has not been read yet"))
	}
}

// publishedIn is the latest release of a package in a store, nil for none.
func publishedIn(store *kvstore.Store, name string) (*review.Published, error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	l, _, err := library.Lookup(snapshot, name)
	if errors.Is(err, library.ErrNoLibrary) || err == nil && l.Version == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	release, err := library.LookupRelease(snapshot, name, l.Version)
	if err != nil {
		return nil, err
	}
	published := &review.Published{Version: l.Version, Files: make(map[string]string, len(release.Files))}
	for _, f := range release.Files {
		published.Files[f.Path] = f.SRI.String()
	}
	return published, nil
}

// repositoryURL is where the repository is cloned from whose API is at apiURL, "" for GitHub's own.
func repositoryURL(apiURL, repository string) (string, error) {
	at, err := url.Parse(cmp.Or(apiURL, github.DefaultURL))
	if err != nil {
		return "", err
	}
	return at.Scheme + "://" + strings.TrimPrefix(at.Host, "api.") + "/" + repository + ".git", nil
}
