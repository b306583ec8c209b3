package bot

import (
	"errors"
	"fmt"
	"os"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/logs/verify"
)

// Clients request releases from upstreams: npm registries, GitHub and other git hosts.
type Clients struct {
	Fetch  *fetch.Client
	Npm    *npm.Client
	GitHub *git.GitHubClient
	Git    *git.Client
}

// ClientOptions say how upstreams are requested.
type ClientOptions struct {
	// Fetch and GitHub are for HTTP and for GitHub's API.
	Fetch  fetch.Options
	GitHub git.GitHubOptions
	Npm    npm.Options
	// OwnConfig has npm's configuration include the .npmrc of the working directory. Leave it out for commands that may run in a checkout of
	// a submission: its author would choose the registry and get the credentials.
	OwnConfig bool
	// Anonymous has npm's credentials stay unused, for requests on behalf of visitors.
	Anonymous bool
}

// Errors of [OpenClients] about an option, each with its cause.
var (
	ErrGitHubOptions = errors.New("GitHub")
	ErrFetchOptions  = errors.New("hosts")
)

// OpenClients opens clients of npm, GitHub and git, which request nothing yet. It reads npm's configuration. An error about
// o.GitHub is [ErrGitHubOptions], and one about o.Fetch is [ErrFetchOptions]. The caller closes the result.
func OpenClients(o ClientOptions) (*Clients, error) {
	hub, err := git.NewGitHubClient(o.GitHub)
	if err != nil {
		return nil, &optionError{ErrGitHubOptions, err}
	}
	config, err := loadNpmConfig(o.OwnConfig)
	if err != nil {
		return nil, err
	}
	if o.Anonymous {
		config = config.Anonymous()
	}
	getter, err := fetch.New(o.Fetch)
	if err != nil {
		return nil, &optionError{ErrFetchOptions, err}
	}
	return &Clients{Fetch: getter, Npm: npm.NewClient(config, getter, o.Npm), GitHub: hub, Git: git.New(git.Options{Fetch: getter, GitHub: hub})}, nil
}

// Close closes the idle connections of c.Fetch, which the clients of npm and git share, but not those to GitHub's API.
func (c *Clients) Close() { c.Fetch.Close() }

// An optionError is the error of an option, with the text of its cause alone.
type optionError struct{ option, err error }

// Error returns the text of the cause alone, without that of the option's error.
func (e *optionError) Error() string { return e.err.Error() }

// Unwrap returns the error that stands for the option, such as [ErrGitHubOptions], and the cause.
func (e *optionError) Unwrap() []error { return []error{e.option, e.err} }

// loadNpmConfig reads npm's configuration of the user and the machine. If own is true, it includes the .npmrc of the working
// directory.
func loadNpmConfig(own bool) (_ *npm.Config, err error) {
	if own {
		return npm.LoadConfig(".")
	}
	empty, err := os.MkdirTemp("", "larder-npm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(empty)) }()
	return npm.LoadConfig(empty)
}

// NewAuditor returns an auditor, which compares published releases with npm and git repositories. It verifies attestations of
// builds with attestations. It minifies files in up to two child processes at once, which start when needed; the caller calls
// stop, which ends them, when no comparison is under way any more. The error says that this program's file was not found.
func (c *Clients) NewAuditor(attestations *npm.AttestationVerifier) (_ verify.Upstream, stop func(), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("couldn't find this program's file to start workers from: %w", err)
	}
	minifiers := worker.NewPool(worker.Options{Program: program, Size: 2, Timeout: worker.Timeout})
	return audit.New(audit.Options{Npm: c.Npm, Git: c.Git, Minifiers: minifiers, Provenance: attestations, TempDir: os.TempDir()}), minifiers.Close, nil
}
