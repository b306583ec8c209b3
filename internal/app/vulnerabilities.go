package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
)

// osvAPI is where `larder up` requests known vulnerabilities if the settings name no other source.
const osvAPI = "https://api.osv.dev"

const (
	vulnerabilityAge     = 24 * time.Hour   // after which a package is requested again
	vulnerabilityStore   = time.Minute      // between two times that responses are stored
	vulnerabilityPause   = 10 * time.Minute // until new packages are looked for
	vulnerabilityBackoff = time.Hour        // after a failed request

	vulnerabilityFile = "vulnerabilities.json" // in the data folder, where responses of an OSV API are stored

	maxVulnerabilityFailures = 5 // failed packages in a row after which the others are requested later
)

// storedAdvisories returns the known vulnerabilities of npm packages for commands: those of the file that the settings name,
// or else those that a process stored in the data folder, none if nothing is stored. Both files are read again when they change. It sends
// no request. It returns nil if the settings turn them off, or if the file that they name cannot be read, which it logs.
func (r *Reader) storedAdvisories() *library.Advisories {
	source := r.settings.Vulnerabilities
	switch {
	case source == settings.Off:
		return nil
	case source != "" && !strings.Contains(source, "://"):
		known, err := library.OpenAdvisories(source, r.logger)
		if err != nil {
			r.logger.Error("couldn't read the known vulnerabilities; the response says that none were checked", "err", err)
		}
		return known
	}
	return library.FollowAdvisories(filepath.Join(r.settings.Data, vulnerabilityFile), r.logger)
}

// openAdvisories opens the known vulnerabilities of npm packages for pages: those of the file in the settings, or those of the
// OSV API in the settings. If the settings name neither and the process fills the data folder, it is OSV's own API, unless npm
// is configured with another registry than its own or with credentials for it, because the network may be closed then and the
// packages private. A part of the run polls the API; in read-only mode only stored responses count. openAdvisories returns nil
// and no error if the settings turn the vulnerabilities off, or nothing is polled by default.
func (r *roleRun) openAdvisories(o *siteOptions, libraries *library.Index) (*library.Advisories, error) {
	source, logger := r.settings.Vulnerabilities, r.logger.With("part", "vulnerabilities")
	switch {
	case source == settings.Off || source == "" && !o.fills:
		return nil, nil
	case source != "" && !strings.Contains(source, "://"):
		return library.OpenAdvisories(source, logger)
	}
	file := filepath.Join(r.settings.Data, vulnerabilityFile)
	if o.readOnly {
		return library.FollowAdvisories(file, logger), nil
	}
	clients, err := openClients(r.settings, bot.ClientOptions{OwnConfig: true}, logger)
	if err != nil {
		return nil, err
	}
	if source == "" && !clients.Npm.IsPublic("npm") {
		clients.Close()
		return nil, nil
	}
	mayRequest := func(*library.Library) bool { return true }
	if source == "" {
		source = osvAPI
		mayRequest = func(l *library.Library) bool { return !l.Hidden && clients.Npm.IsPublic(l.NPM()) }
	}
	p := &vulnerabilityPoll{
		source: source, file: file, advisories: library.FollowAdvisories(file, logger), ranking: libraries.Ranking,
		mayRequest: mayRequest, failed: map[string]int{}, now: time.Now, logger: logger,
		request: func(ctx context.Context, name string) ([]json.RawMessage, error) {
			return clients.Npm.Vulnerabilities(ctx, source, name)
		},
	}
	r.parts.Add(parts.Part{Name: "vulnerabilities", Run: p.run, Stop: func() error { clients.Close(); return nil }})
	return p.advisories, nil
}

// A vulnerabilityPoll requests the known vulnerabilities of all npm packages that libraries come from, each once a day, and
// stores them in a file.
type vulnerabilityPoll struct {
	source, file string
	advisories   *library.Advisories
	ranking      func(context.Context) (*library.Ranking, error)
	mayRequest   func(*library.Library) bool // reports whether the source may learn the name of a library's package
	request      func(ctx context.Context, name string) ([]json.RawMessage, error)
	failed       map[string]int // has 1 for each npm package whose last request failed for a reason of its own; see stopsRequests
	now          func() time.Time
	logger       *slog.Logger
}

// run polls the packages that are due, at once and at the interval vulnerabilityPause until ctx ends, and returns nil. After a
// failure, also of one package, it logs the error, at info level only the first time, and waits vulnerabilityBackoff.
func (p *vulnerabilityPoll) run(ctx context.Context) error {
	level := slog.LevelInfo
	for pause := time.Duration(0); retry.Sleep(ctx, pause) == nil; {
		pause = vulnerabilityPause
		if err := p.pollDue(ctx); err != nil && ctx.Err() == nil {
			p.logger.Log(ctx, level, "couldn't request known vulnerabilities; pages say \"not checked\" (--vulnerabilities off ends the requests)", "source", p.source, "again", vulnerabilityBackoff, "err", err)
			level, pause = slog.LevelDebug, vulnerabilityBackoff
		}
	}
	return nil
}

// pollDue requests the known vulnerabilities of the npm packages that were not requested with success within a day, the most
// popular first, but those that failed last time at the end. It continues after the failure of one package, and ends if
// [stopsRequests] is true of an error or maxVulnerabilityFailures packages in a row fail. It stores the responses every minute
// and at the end, without those of packages that no library comes from any more. It returns the last error; one of storing ends
// it.
func (p *vulnerabilityPoll) pollDue(ctx context.Context) error {
	ranking, err := p.ranking(ctx)
	if err != nil {
		return err
	}
	known := library.ReadCheckedPackages(p.file, p.logger)
	current := map[string]bool{}
	var names []string
	for _, l := range ranking.Libraries {
		if name := l.NPM(); name != "" && !current[name] && p.mayRequest(l) {
			current[name] = true
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return p.failed[a] - p.failed[b] })
	maps.DeleteFunc(known, func(name string, _ library.CheckedPackage) bool { return !current[name] })
	stored, changed := p.now(), false
	failures := 0
	for _, name := range names {
		if age := p.now().Sub(known[name].Checked); age >= 0 && age < vulnerabilityAge {
			continue
		}
		records, failure := p.request(ctx, name)
		var checked library.CheckedPackage
		if failure == nil {
			checked, failure = library.NewCheckedPackage(name, p.now(), records)
		}
		if failure != nil {
			err = failure
			if stopsRequests(failure) {
				break
			}
			p.failed[name] = 1
			if failures++; failures == maxVulnerabilityFailures {
				break
			}
			continue
		}
		failures = 0
		delete(p.failed, name)
		known[name] = checked
		if changed = true; p.now().Sub(stored) >= vulnerabilityStore {
			if err := p.store(known); err != nil {
				return err
			}
			stored, changed = p.now(), false
		}
	}
	if changed {
		err = errors.Join(err, p.store(known))
	}
	return err
}

// stopsRequests reports whether an error of a request concerns all packages: no response was received from the source, or it
// limits requests (429).
func stopsRequests(err error) bool {
	var failure *fetch.Error
	return errors.As(err, &failure) && (failure.Status == http.StatusTooManyRequests || failure.Status == 0 && !errors.Is(err, fetch.ErrTooLarge))
}

// store replaces the file in the data folder by known, which is by npm package, and has pages read the file again.
func (p *vulnerabilityPoll) store(known map[string]library.CheckedPackage) error {
	if err := library.WriteCheckedPackages(p.file, known); err != nil {
		return err
	}
	p.advisories.Recheck()
	return nil
}
