package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// catalogueSettings say where the catalogue is, and when somebody looks at it.
type catalogueSettings struct {
	catalogue         string
	catalogueInterval time.Duration
	hookSecretFile    string
}

func (s *catalogueSettings) addTo(f *pflag.FlagSet) {
	f.Var(textValue(&s.catalogue, "source"), "catalogue", "catalogue `SOURCE`: the https URL of a git repository (with #BRANCH where it is not the default branch), a bare one on this machine, a folder, a .tar.gz or .zip archive, or starter for the one in the binary")
	f.Var(durationValue(&s.catalogueInterval, time.Second), "catalogue-interval", "`DURATION` between two looks at the catalogue")
	f.Var(textValue(&s.hookSecretFile, "file"), "hook-secret-file", "`FILE` with the secret of the webhooks that a git host sends, so that a push to the catalogue is taken at once (POST /hooks/catalogue) and pull requests are looked at (POST /hooks/review); it may be in the environment instead, in LARDER_HOOK_SECRET")
}

// secretVariable may hold the secret of webhooks.
const secretVariable = envPrefix + "HOOK_SECRET"

// hookSecret returns the secret of webhooks, "" where there is none.
func (a *app) hookSecret() (string, error) {
	s := a.settings
	secret, from := "", secretVariable
	for _, pair := range a.environ {
		if value, ok := strings.CutPrefix(pair, secretVariable+"="); ok {
			secret = value
		}
	}
	if s.hookSecretFile != "" {
		if secret != "" {
			return "", usageError{fmt.Errorf("%s and %s both have a secret; remove one of them", s.origin("hook-secret-file"), secretVariable)}
		}
		data, err := os.ReadFile(s.hookSecretFile)
		if err != nil {
			return "", usageError{fmt.Errorf("%s: %w", s.origin("hook-secret-file"), err)}
		}
		secret, from = strings.TrimRight(string(data), "\r\n"), s.origin("hook-secret-file")
	}
	if secret == "" && s.hookSecretFile == "" {
		return "", nil
	}
	if err := github.CheckSecret(secret); err != nil {
		return "", usageError{fmt.Errorf("%s: %w", from, err)}
	}
	return secret, nil
}

// newGit returns what reads git repositories, and GitHub for it.
func (s *settings) newGit(getter *fetch.Client, logger *slog.Logger) (*git.Client, error) {
	hub, err := github.New(github.Options{URL: s.githubURL, Token: s.token, UserAgent: "larder/" + version(), Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("%s, or the token in %s: %w", s.origin("github-url"), s.tokenFrom, err)
	}
	return git.New(git.Options{Fetch: getter, GitHub: hub}), nil
}

// newKeeper returns what keeps the catalogue of the settings.
func (s *settings) newKeeper(dir string, g *git.Client, logger *slog.Logger) (*catalogue.Keeper, error) {
	keeper, err := catalogue.New(catalogue.Options{
		Source: s.catalogue, Dir: dir, Git: g, Interval: s.catalogueInterval, Logger: logger,
		Token: func(at *url.URL) string {
			if s.token == "" || !github.IsHost(s.githubURL, at.Host) {
				return ""
			}
			return s.token
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origin("catalogue"), err)
	}
	return keeper, nil
}

// openTime is how long a command waits for a catalogue from elsewhere.
const openTime = time.Minute

// openCatalogue returns the catalogue to begin with. Who follows it may begin without one, if it is elsewhere.
func (f *folder) openCatalogue() (*packages.Catalogue, error) {
	c, ok := f.keeper.Kept()
	if ok || f.follows && f.keeper.Remote() {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	return f.keeper.Open(ctx)
}

func (f *folder) catalogueDir() string { return filepath.Join(f.dir, "catalogue") }

// lookOnce brings the bot's catalogue up to date for a single pass.
func (f *folder) lookOnce(ctx context.Context, filler *bot.Bot) error {
	err := f.keeper.Look(ctx, filler.SetCatalogue)
	if err != nil && !f.keeper.State().Changed.IsZero() {
		return nil // the log tells; the last good one is still good
	}
	return err
}

// hookPath is where the git host says that the catalogue was pushed to.
const hookPath = "/hooks/catalogue"

// mostPushed is the most bytes that a push event may have here. GitHub's tell of two thousand commits at most.
const mostPushed = 8 << 20

// withHook puts the webhook in front of what else answers, where there is a secret and somebody to tell.
func (p *daemon) withHook(filler *bot.Bot, secret string, rest http.Handler) http.Handler {
	if secret == "" || filler == nil || p.folder.keeper.Static() {
		return rest
	}
	keeper := p.folder.keeper
	hook := &github.Webhook{
		Secret: secret, MaxBytes: mostPushed, Logger: p.logger.With("part", "hook"),
		Take: func(d github.Delivery) (int, string) { return pushed(d, keeper.State().Branch, keeper.Refresh) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == hookPath {
			hook.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// pushed takes a webhook's event, and has the catalogue looked at where the event is about its branch, "" for any.
func pushed(d github.Delivery, branch string, look func()) (status int, message string) {
	switch d.Event {
	case "ping":
		return http.StatusOK, "the secret is right"
	case "push":
		to, ok := github.PushedBranch(d.Payload)
		if !ok || branch != "" && to != branch {
			return http.StatusOK, "nothing to do: it is not a push to the branch of the catalogue"
		}
		look()
		return http.StatusAccepted, "the catalogue is about to be looked at"
	}
	return http.StatusOK, "nothing to do for such an event; push is the one that is wanted"
}

// catalogueState is how the catalogue stands, of a process that follows it; else nil.
func (f *folder) catalogueState() *catalogue.State {
	if f.keeper == nil || !f.follows {
		return nil
	}
	state := f.keeper.State()
	return &state
}

// shownCatalogue is what visitors may know of it: what is in it, not where it is.
func (f *folder) shownCatalogue() site.Catalogue {
	s := f.keeper.State()
	shown := site.Catalogue{Packages: s.Packages, Commit: s.Commit[:min(len(s.Commit), 12)], Checked: s.Checked, Failing: s.Since}
	for _, refused := range s.Refused {
		shown.Refused = append(shown.Refused, firstLine(refused.Reason))
	}
	return shown
}

// printCatalogue tells how the catalogue stands, where there is something to tell.
func (s *status) printCatalogue(w io.Writer, now time.Time) {
	c := s.Catalogue
	if c == nil {
		return
	}
	if c.Commit != "" {
		fmt.Fprintf(w, "The catalogue is commit %.12s of %s.\n", c.Commit, c.Source)
	}
	if c.Problem != "" {
		stays := "the last good one stays"
		if c.Changed.IsZero() {
			stays = "there is none yet"
		}
		fmt.Fprintf(w, "The catalogue cannot be read since %s, and %s: %s\n", humanize.RelTime(c.Since, now, "ago", "from now"), stays, c.Problem)
	}
	for _, refused := range c.Refused {
		fmt.Fprintf(w, "A file of the catalogue is refused, and its package stays what it was: %s\n", lint.Plain(firstLine(refused.Reason)))
	}
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// catalogue shows whether the catalogue can be read.
func (r *registry) catalogue(keeper *catalogue.Keeper) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_failing",
			Help: "1 while the catalogue cannot be read, so that the last good one stays.",
		}, func() float64 {
			if keeper.State().Problem != "" {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_refused_files",
			Help: "Files of the catalogue that cannot be used; what their packages were before stays.",
		}, func() float64 { return float64(len(keeper.State().Refused)) }))
}
