package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/gitlog/push"
)

// githubSettings are those of whoever pushes to GitHub. The token is none of them: it is neither in a list of processes
// nor in a file that is read for other things.
type githubSettings struct {
	logRepository push.Repository
	githubURL     string

	token, tokenFrom string // by load: what the environment has, and the variable that has it
}

var githubFlags = []string{"log-repository"}

func (s *githubSettings) addTo(f *pflag.FlagSet) {
	f.Var(repositoryValue(&s.logRepository), "log-repository", "push the log to the GitHub repository `OWNER/NAME[@BRANCH]`, one commit for each entry; the token is in the environment, in LARDER_GITHUB_TOKEN or GITHUB_TOKEN")
	f.Var(baseValue(&s.githubURL), "github-url", "`URL` of GitHub's API; that of GitHub Enterprise Server is https://HOST/api/v3")
}

// repositoryValue is a branch of a repository on GitHub; or nothing.
func repositoryValue(target *push.Repository) *value[push.Repository] {
	format := func(r push.Repository) string {
		if r == (push.Repository{}) {
			return ""
		}
		return r.String()
	}
	return &value[push.Repository]{target: target, kind: "repository", format: format, parse: func(s string) (push.Repository, error) {
		if s == "" {
			return push.Repository{}, nil
		}
		return push.ParseRepository(s)
	}}
}

// The variables that may hold the token; the first one that does counts.
var tokenVariables = []string{envPrefix + "GITHUB_TOKEN", "GITHUB_TOKEN"}

// githubToken returns the token and the variable that has it.
func githubToken(environ []string) (token, variable string) {
	for _, name := range tokenVariables {
		for _, pair := range environ {
			if value, ok := strings.CutPrefix(pair, name+"="); ok && value != "" {
				return value, name
			}
		}
	}
	return "", ""
}

// logPusher pushes the log of a data folder to GitHub.
type logPusher struct {
	*push.Pusher
	repository push.Repository
	client     *github.Client
}

// openGitHub returns a client where the log is to be pushed, nil where it is not. It asks for nothing yet.
func (p *daemon) openGitHub() (*github.Client, error) {
	s := p.settings
	if s.logRepository == (push.Repository{}) || !p.duties.fill {
		return nil, nil
	}
	token, variable := githubToken(p.environ)
	if token == "" {
		return nil, usageError{fmt.Errorf("%s needs a token that may write there: put it into the variable %s or %s", s.origin("log-repository"), tokenVariables[0], tokenVariables[1])}
	}
	client, err := github.New(github.Options{URL: s.githubURL, Token: token, UserAgent: "larder/" + version(), Logger: p.logger.With("part", "github")})
	if err != nil {
		return nil, usageError{fmt.Errorf("%s, or the token in %s: %w", s.origin("github-url"), variable, err)}
	}
	return client, nil
}

// newLogPusher returns what pushes the log of the open folder.
func (p *daemon) newLogPusher(client *github.Client) *logPusher {
	f, repository := p.folder, p.settings.logRepository
	return &logPusher{client: client, repository: repository, Pusher: push.New(push.Options{
		Client: client.Client, Repository: repository, Changes: f.signedChanges, Wait: f.waitSigned, Describe: github.Describe,
		Logger: p.logger.With("part", "push"), Registerer: p.metrics,
	})}
}

// signedChanges returns the changes after a position that a signed checkpoint covers: what is pushed cannot be taken
// back, so nobody may see another log in the place of those entries later.
func (f *folder) signedChanges(after gitlog.Position) iter.Seq2[gitlog.Change, error] {
	signed, err := f.signer.Checkpoint()
	if err != nil {
		return func(yield func(gitlog.Change, error) bool) {
			yield(gitlog.Change{}, fmt.Errorf("the log is not signed, and only what is signed is pushed: %w", err))
		}
	}
	return f.changes(after, signed.Size)
}

// untilSigned is how long an entry waits to be signed, about.
const untilSigned = 250 * time.Millisecond

// waitSigned returns when there is a signed entry after a position, or nothing is signed any more.
func (f *folder) waitSigned(ctx context.Context, after gitlog.Position) error {
	if _, err := f.log.Wait(ctx, after.Index+1); err != nil {
		return err
	}
	tick := time.NewTicker(untilSigned)
	defer tick.Stop()
	for {
		if signed, err := f.signer.Checkpoint(); err != nil || signed.Size > after.Index+1 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp pushes what the log has now, for a process that is about to end.
func (f *folder) catchUp(ctx context.Context) error {
	if f.pusher == nil {
		return nil
	}
	return errors.Join(f.signer.Sign(), f.pusher.CatchUp(ctx))
}

// logPush is what `larder status` tells of the log on GitHub.
type logPush struct {
	Repository string `json:"repository"`
	push.State
	Of int64 `json:"of"` // entries of the log
	// Waiting is until when GitHub takes no more requests.
	Waiting time.Time `json:"waiting,omitzero"`
}

func (f *folder) logPush() *logPush {
	if f.pusher == nil {
		return nil
	}
	return &logPush{f.pusher.repository.String(), f.pusher.State(), f.log.Checkpoint().Size, f.pusher.client.Waiting().UTC()}
}

func (l *logPush) print(w io.Writer, now time.Time) {
	if l == nil {
		return
	}
	has := "not known yet how many"
	if l.Entries >= 0 {
		has = humanize.Comma(l.Entries)
	}
	fmt.Fprintf(w, "The log is pushed to %s, which has %s of %s.\n", l.Repository, has, count(int(l.Of), "entry", "entries"))
	if l.Problem != "" {
		fmt.Fprintf(w, "Pushing it fails since %s: %s%s\n", l.Since.Local().Format(time.DateTime), l.Problem, again(l.Next, now))
	}
	if l.Waiting.After(now) {
		fmt.Fprintf(w, "GitHub takes more requests %s.\n", humanize.RelTime(l.Waiting, now, "ago", "from now"))
	}
}
