package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/review"
	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

// reviewSettings say whose pull requests are looked at.
type reviewSettings struct {
	reviewRepository string
	githubApp        string
	githubAppKeyFile string
}

var reviewFlags = []string{"review-repository", "github-app", "github-app-key-file"}

func (s *reviewSettings) addTo(f *pflag.FlagSet) {
	f.Var(textValue(&s.reviewRepository, "repository"), "review-repository", "look at the pull requests of the catalogue in the GitHub repository `OWNER/NAME`; docs/review.md tells what GitHub needs for that")
	f.Var(textValue(&s.githubApp, "id"), "github-app", "`ID` of the GitHub App that the checks of pull requests are written as, in place of the token in the environment")
	f.Var(textValue(&s.githubAppKeyFile, "file"), "github-app-key-file", "`FILE` with the private key of --github-app (PEM)")
}

func newReview(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "review",
		Short: "Look at the pull requests of a catalogue on GitHub",
		Long: `Look at each pull request of a catalogue on GitHub, and say beside the lines what is wrong: what larder lint says,
which files would be published and which tags load them, and in what that differs from what is published. It is told of
pull requests by a webhook (POST /hooks/review), and asks for them at the start and each hour.

Nothing of a submission is checked out or run. It needs no data folder: what is to be done, GitHub knows. With
--site-base it compares with what the Larder there has published. larder up does the same with --review-repository.

The secret of the webhook is in --hook-secret-file or LARDER_HOOK_SECRET. Only a GitHub App may write check runs, so
give it one with --github-app; with a token in LARDER_GITHUB_TOKEN or GITHUB_TOKEN it writes commit statuses, which show
no lines. docs/review.md tells what either has to be allowed.`,
		Example: `  larder review --review-repository example/catalogue --hook-secret-file hook-secret \
    --github-app 123456 --github-app-key-file app.pem --listen :8082
  larder review --review-repository example/catalogue --site-base https://cdn.example.com`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, []string{"config"}, reviewFlags, []string{"hook-secret-file", "listen", "tls-cert", "tls-key", "max-connections", "drain", "ready-file", "private-listen",
		"catalogue", "catalogue-interval", "site-base", "asset-base"}, upstreamFlags)
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		out := newTerminal(a.stderr)
		p := &daemon{app: a, duties: duties{serve: true}, terminal: out, logger: a.settings.newLogger(out, slog.LevelInfo), metrics: newRegistry()}
		return p.runReview(ctx)
	})
	return cmd
}

// checkReview tells what pull requests cannot be looked at without, where they are to be.
func (p *daemon) checkReview() error {
	s := p.settings
	switch {
	case s.reviewRepository == "":
		return nil
	case p.secret == "":
		return usageError{fmt.Errorf("%s needs the secret of the webhook, in --hook-secret-file or %s; `openssl rand -hex 32` makes one", s.origin("review-repository"), secretVariable)}
	case (s.githubApp == "") != (s.githubAppKeyFile == ""):
		return usageError{errors.New("--github-app and --github-app-key-file go together: the id of a GitHub App, and its private key")}
	case s.githubApp == "" && s.token == "":
		return usageError{fmt.Errorf("%s needs somebody who may write checks there: a GitHub App with --github-app, or a token in the variable %s or %s", s.origin("review-repository"), tokenVariables[0], tokenVariables[1])}
	}
	return nil
}

// openReview returns what asks GitHub about pull requests, and the upstreams of what they submit.
func (p *daemon) openReview() (*github.Client, *upstreams, error) {
	pulls, others, err := p.reviewClients()
	if err != nil {
		return nil, nil, err
	}
	config, err := strangersConfig()
	if err != nil {
		return nil, nil, err
	}
	u, err := p.openUpstreams(p.logger, config.Anonymous(), others) // what only the operator may see is nobody's business here
	return pulls, u, err
}

// reviewClients return what asks GitHub about pull requests and writes checks, and what asks it about upstreams. Those are
// named by strangers, and what is found is shown to anybody: so they are asked for as an app, which may read what
// is public and the catalogue, or as nobody, and never with a token that may read what is private.
func (p *daemon) reviewClients() (pulls, upstreams *github.Client, err error) {
	s := p.settings
	o := github.Options{URL: s.githubURL, UserAgent: "larder/" + version(), Logger: p.logger.With("part", "github")}
	if s.githubApp == "" {
		if upstreams, err = github.New(o); err != nil {
			return nil, nil, usageError{fmt.Errorf("%s: %w", s.origin("github-url"), err)}
		}
		o.Token = s.token
		if pulls, err = github.New(o); err != nil {
			return nil, nil, usageError{fmt.Errorf("%s, or the token in %s: %w", s.origin("github-url"), s.tokenFrom, err)}
		}
		return pulls, upstreams, nil
	}
	text, err := os.ReadFile(s.githubAppKeyFile)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("%s: %w", s.origin("github-app-key-file"), err)}
	}
	key, err := github.ParseAppKey(text)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("%s: %w", s.origin("github-app-key-file"), err)}
	}
	o.App = &github.App{ID: s.githubApp, Key: key, Repository: s.reviewRepository}
	if pulls, err = github.New(o); err != nil {
		return nil, nil, usageError{fmt.Errorf("%s: %w", s.origin("github-app"), err)}
	}
	return pulls, pulls, nil
}

// runReview is `larder review`.
func (p *daemon) runReview(parent context.Context) (err error) {
	ctx, end := context.WithCancel(parent)
	defer end()
	s := p.settings
	if s.reviewRepository == "" {
		return usageError{errors.New("which pull requests? Name the repository with --review-repository OWNER/NAME")}
	}
	if p.secret, err = p.hookSecret(); err != nil {
		return err
	}
	if err := errors.Join(p.checkReview(), s.limitConnections(p.logger)); err != nil {
		return err
	}
	public, private, err := p.listen()
	if err != nil {
		return err
	}
	defer closeAll(public, private)
	pulls, u, err := p.openReview()
	if err != nil {
		return err
	}
	defer u.close()
	if !s.given("catalogue") {
		if s.catalogue, err = repositoryURL(s.githubURL, s.reviewRepository); err != nil {
			return usageError{fmt.Errorf("%s: %w", s.origin("github-url"), err)}
		}
	}
	dir, err := os.MkdirTemp("", "larder-review-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	keeper, err := s.newKeeper(filepath.Join(dir, "catalogue"), u.git, p.logger.With("part", "catalogue"))
	if err != nil {
		return err
	}
	o := review.Options{Client: pulls, Catalogue: currentCatalogue(keeper)}
	if s.siteBase != "" {
		if o.Published, err = review.PublishedBy(u.getter, s.siteBase); err != nil {
			return usageError{fmt.Errorf("%s: %w", s.origin("site-base"), err)}
		}
	}
	if p.reviewer, err = p.newReviewer(u, o, cmp.Or(s.assetBase, s.siteBase)); err != nil {
		return err
	}

	if private != nil {
		inside := newPrivateServer(ctx, p.metrics, p.logger)
		go inside.Serve(private) //nolint:errcheck // it ends with Close
		defer p.stop(inside, time.Second)
	}
	httpOptions := server.HTTPOptions{MaxConnections: s.maxConnections, Logger: p.logger.With("part", "server")}
	if s.tlsCert != "" {
		if httpOptions.TLS, err = server.Certificate(s.tlsCert, s.tlsKey, p.logger); err != nil {
			return fmt.Errorf("%w; both files must be PEM and belong together", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	p.serve(ctx, group, server.NewHTTPServer(p.withReviewer(http.NotFoundHandler()), httpOptions), public)
	address := s.address(public)
	fmt.Fprintf(p.stdout, "Larder looks at the pull requests of %s; GitHub is to tell of them at %s%s.\n", s.reviewRepository, address, reviewPath)
	if s.readyFile != "" {
		if err := writeReadyFile(s.readyFile, address); err != nil {
			end()
			return errors.Join(err, group.Wait())
		}
		defer os.Remove(s.readyFile)
	}
	group.Go(func() error {
		// Without the catalogue there is no telling what is in it twice.
		first, cancel := context.WithTimeout(ctx, openTime)
		_ = keeper.Look(first, func(context.Context, *packages.Catalogue) error { return nil }) // it logs why not
		cancel()
		group.Go(func() error {
			keeper.Run(ctx, func(context.Context, *packages.Catalogue) error { return nil })
			return nil
		})
		p.reviewer.Run(ctx)
		return nil
	})
	defer context.AfterFunc(parent, func() { p.logger.Info("stopping") })()
	return group.Wait()
}

// reviewInside has this process look at pull requests, besides what else it does; nil where it is not to.
func (p *daemon) reviewInside(ctx context.Context, group *errgroup.Group, filler *bot.Bot) (*review.Reviewer, error) {
	if p.settings.reviewRepository == "" || filler == nil {
		return nil, nil
	}
	pulls, u, err := p.openReview()
	if err != nil {
		return nil, err
	}
	o := review.Options{
		Client:    pulls,
		Catalogue: currentCatalogue(p.folder.keeper),
		Published: func(_ context.Context, name string) (*review.Published, error) {
			return publishedIn(p.folder.store, name)
		},
	}
	reviewer, err := p.newReviewer(u, o, p.settings.assetBaseAt(p.self.Address))
	if err != nil {
		u.close()
		return nil, err
	}
	group.Go(func() error {
		defer u.close()
		reviewer.Run(ctx)
		return nil
	})
	return reviewer, nil
}

// newReviewer completes what a reviewer works with.
func (p *daemon) newReviewer(u *upstreams, o review.Options, assetBase string) (*review.Reviewer, error) {
	s := p.settings
	o.Repository, o.Look, o.Popularity = s.reviewRepository, u.look, u.popularity.Check
	o.Logger, o.Registerer = p.logger.With("part", "review"), p.metrics
	if assetBase != "" {
		o.Tag = func(name, version, file string, integrity *review.Integrity) string {
			return tagToBe(assetBase, name, version, file, integrity)
		}
	}
	reviewer, err := review.New(o)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", s.origin("review-repository"), err)}
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

// reviewPath is where GitHub tells of pull requests.
const reviewPath = "/hooks/review"

// mostEvent is the most bytes that an event about a pull request may have here; they have some ten thousand.
const mostEvent = 4 << 20

// withReviewer puts the webhook in front of what else answers, where pull requests are looked at.
func (p *daemon) withReviewer(rest http.Handler) http.Handler {
	if p.reviewer == nil {
		return rest
	}
	hook := &github.Webhook{Secret: p.secret, MaxBytes: mostEvent, Take: p.reviewer.Take, Logger: p.logger.With("part", "hook")}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == reviewPath {
			hook.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}
