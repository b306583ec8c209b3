package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/follow"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/packages/glob"
)

// A Mirror says whose log a process follows.
type Mirror struct {
	// URL is that of the Larder that is followed.
	URL string
	// Trust says whose signatures count; without a key the one counts that was seen first.
	Trust verify.Trust
	// Only are patterns of the releases that are taken over, as PACKAGE or PACKAGE@VERSION. Default: all.
	Only []string
	// Following hears how far it has come.
	Following func(FollowState)
}

// FollowState is how far a mirror has come, and its JSON form.
type FollowState = follow.State

// following is a part: it has the store follow the source.
type following struct {
	*working
	only     func(pkg, version string) bool
	follower *follow.Follower
	begun    time.Time
}

// mirrorParts are what a process is made of that follows another Larder: nothing in it publishes or signs.
func (s *working) mirrorParts() (parts list, err error) {
	f := &following{working: s}
	if f.only, err = chosen(s.Mirror.Only); err != nil {
		return nil, err
	}
	s.lasting.doubt(func() (string, error) { return "", f.behind() })
	add := parts.add
	site := newServing(s.running)
	site.tells = true
	add(s.Serve && s.settings.ReadyFile != "", s.noReadyFile())
	add(true, part{name: "key folder", start: s.keyFolder}, s.dataFolder(), s.adminSocket())
	add(true, part{name: "source", start: func(context.Context) error { return f.open(site) }, stop: f.close})
	add(true, part{name: "limit of memory", run: until(s.limitMemory)}, s.watchDisk())
	if s.Serve {
		add(s.hasRooms(), site.rooms())
		add(true, site.fresh())
		add(s.settings.AccessLog != "", site.logging())
		add(len(s.settings.ACMEDomains) > 0, site.openCertificates())
		add(true, site.server(), site.usage(), site.following())
		add(true, site.keepCertificates()...)
		add(s.settings.PurgeHook != "", s.early(s.purging()))
		add(true, part{name: "announcement", start: site.announce})
		add(s.settings.ReadyFile != "", s.readyFile())
		add(true, s.early(s.sending()))
	}
	add(true, s.adminServer(func() (operations, http.Handler, error) {
		e, err := s.folder.errands.get()
		if err != nil {
			return nil, nil, err
		}
		return f.operations(), e.schedule.Handler(schedulePath), nil
	}))
	if s.Once {
		add(true, part{name: "catching up", run: f.once})
	} else {
		add(true, part{name: "following", run: until(func(ctx context.Context) { f.follower.Run(ctx) })})
	}
	add(true, s.readiness(), s.beginAgain(), stopping(s.lasting.ending, s.Stopping))
	return parts, nil
}

// keyFolder makes the key folder, before the store is opened, whose mark is in it.
func (s *working) keyFolder(context.Context) error {
	keys, err := s.settings.KeyFolder()
	if err != nil {
		return err
	}
	return follow.MakeKeys(keys)
}

func (f *following) open(site *serving) error {
	keys, err := f.settings.KeyFolder()
	if err != nil {
		return err
	}
	m := f.Mirror
	f.begun = time.Now()
	f.follower, err = follow.Open(follow.Options{
		Source: follow.HTTP(verify.Options{Server: strings.TrimRight(m.URL, "/"), UserAgent: agent()}), Trust: m.Trust,
		Store: f.writer.store, Log: f.writer.log, Keys: keys, Only: f.only, Logger: f.logger.With("part", "follower"), Changed: m.Following,
	})
	if err != nil {
		return fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	site.signed = f.follower
	f.tell = append(f.tell, func(s *Status) {
		state := f.follower.State()
		s.Following = &state
	})
	f.metrics.following(f.follower, f.begun)
	return nil
}

func (f *following) close() error { return f.follower.Close() }

// once catches up, and ends the process.
func (f *following) once(ctx context.Context) error {
	if err := f.follower.Once(ctx); err != nil {
		return fmt.Errorf("couldn't follow %s: %w", f.Mirror.URL, err)
	}
	return errDone
}

// behind is why the mirror is not ready: it has yet to have all of a checkpoint for the first time.
func (f *following) behind() error {
	if f.follower == nil {
		return errors.New("starting")
	}
	s := f.follower.State()
	if s.Ready {
		return nil
	}
	text := fmt.Sprintf("behind: %d of %d log entries are here", s.Entries, s.Of)
	if s.Problem != "" {
		text += "; " + s.Problem
	}
	return errors.New(text)
}

// operations are those that read, besides repair: what would publish, withdraw or sign has to be asked of the source.
func (f *following) operations() operations {
	why := fmt.Errorf("this data folder mirrors %s: publish and withdraw there, and it arrives here", f.Mirror.URL)
	all := refusing(f.folder.operations(), why)
	f.repairOperation(all)
	return f.telling(all)
}

// chosen returns which releases patterns name, nil for all.
func chosen(patterns []string) (func(pkg, version string) bool, error) {
	type choice struct{ pkg, version *glob.Glob }
	var all []choice
	for _, pattern := range patterns {
		at := strings.LastIndexByte(pattern, '@')
		if at <= 0 { // that of a scope is no version's
			at = len(pattern)
		}
		var c choice
		var err error
		if c.pkg, err = glob.Compile(pattern[:at]); err == nil && at < len(pattern) {
			c.version, err = glob.Compile(pattern[at+1:])
		}
		if err != nil {
			return nil, settings.Mistakef("--only %q: %w; it is a pattern of packages, or of packages and versions, such as jquery, @vue/* or d3@7.*", pattern, err)
		}
		all = append(all, c)
	}
	if all == nil {
		return nil, nil
	}
	return func(pkg, version string) bool {
		for _, c := range all {
			if c.pkg.Match(pkg) && (c.version == nil || c.version.Match(version)) {
				return true
			}
		}
		return false
	}, nil
}

// following shows how far a mirror is behind.
func (r *registry) following(f *follow.Follower, begun time.Time) {
	gauge := func(name, help string, value func(follow.State) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "follow", Name: name, Help: help}, func() float64 { return value(f.State()) }))
	}
	gauge("entries", "Log entries that are here.", func(s follow.State) float64 { return float64(s.Entries) })
	gauge("behind_entries", "Signed log entries of the source that are not here yet, as far as it was heard of.", func(s follow.State) float64 { return float64(s.Of - s.Entries) })
	gauge("behind_seconds", "Time since the mirror had all that its source showed.", func(s follow.State) float64 {
		if s.Current.IsZero() {
			return time.Since(begun).Seconds()
		}
		return time.Since(s.Current).Seconds()
	})
	gauge("refused", "1 while the source says what cannot be true, and nothing is taken over.", func(s follow.State) float64 {
		if s.Refused {
			return 1
		}
		return 0
	})
	gauge("fetched_files", "Contents that were fetched since the start.", func(s follow.State) float64 { return float64(s.Files) })
	gauge("fetched_bytes", "Bytes of the contents that were fetched since the start, before compression.", func(s follow.State) float64 { return float64(s.Bytes) })
}
