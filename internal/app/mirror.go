package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
)

// A Mirror says whose log a process follows.
type Mirror struct {
	// From is the URL of the Larder that is followed, or the path of a bundle, or of a folder with a store or a backup.
	From string
	// Trust says whose signatures count. Without a key in it, the key that was seen first counts.
	Trust verify.Trust
	// Only are patterns, PACKAGE or PACKAGE@VERSION, of the releases whose files are copied. Default: all.
	Only []string
	// Following is called when the state of following changes; nil for nothing.
	Following func(FollowState)
}

// FollowState is how far a mirror has come, and its JSON form.
type FollowState = replication.State

// A mirrorRole follows another Larder: nothing in it publishes or signs.
type mirrorRole struct{ server Server }

// start implements [role] for a mirror: it opens the parts that copy the log of another Larder, once or all the time, and serve
// it if the server says so, and adds them to the run, which starts each at once. The error says why a part cannot be opened, or is a mistake in the
// settings.
func (m mirrorRole) start(ctx context.Context, r *roleRun) error {
	s := m.server
	only, err := replication.ParseOnly(s.Mirror.Only)
	if err != nil {
		return settings.Mistakef("--only %w", err)
	}
	if s.Serve { // otherwise the file may be that of a process that serves
		if err := r.removeReadyFile(); err != nil {
			return err
		}
	}
	if err := makeKeyFolder(r.settings); err != nil {
		return err
	}
	w, err := r.openDataFolder(ctx, s.writerConfig(r), refuseReplacement)
	if err != nil {
		return err
	}
	socket, err := s.openBase(r, w.folder)
	if err != nil {
		return err
	}
	follower, err := r.openMirrorFollower(w.folder, s.Mirror, only)
	if err != nil {
		return err
	}
	if s.Serve {
		site := newSiteOptions()
		site.signer = follower
		site.waits = true
		if _, err := s.openSiteWithRooms(ctx, r, w.folder, site, roomsOptions{cluster: standaloneRooms{}, webhooks: true}); err != nil {
			return err
		}
		if err := r.addPurgeHook(ctx, w.folder); err != nil {
			return err
		}
		s.announceSite(r, w.folder)
		if err := r.addOutbox(w.folder); err != nil {
			return err
		}
	}
	e, err := w.folder.outbox.get()
	if err != nil {
		return err
	}
	// Only the source publishes, withdraws and signs.
	refusal := fmt.Errorf("this data folder mirrors %s: publish and withdraw there, and it arrives here", s.Mirror.From)
	if !verify.IsURL(s.Mirror.From) {
		refusal = fmt.Errorf("this data folder mirrors %s, which lacks it: publish and withdraw at its source, and bring a newer one", s.Mirror.From)
	}
	all := refuseWrites(w.folder.operations(), refusal)
	r.addRepairInPlace(all, w.folder)
	r.serveAdmin(socket, w.folder, r.addConsole(all, w.folder), e.Schedule.Handler(schedulePath), s.checkSettings)
	if s.Once {
		r.parts.Add(parts.Part{Name: "catching up", Run: func(ctx context.Context) error {
			if err := follower.Once(ctx); err != nil {
				return fmt.Errorf("couldn't follow %s: %w", s.Mirror.From, err)
			}
			return parts.ErrDone
		}})
	} else {
		r.parts.Add(follower.Part())
	}
	return r.markReady(s.Stopping)
}

// makeKeyFolder creates the key folder if it is missing. It is called before the store is opened, because the store's mark is
// in that folder.
func makeKeyFolder(s *settings.Settings) error {
	if err := disk.MakeFolder(vfs.Default, s.KeyFolder()); err != nil {
		return fmt.Errorf("couldn't make the key folder: %w", err)
	}
	return nil
}

// openMirrorFollower returns the follower that copies the log and the releases from the source of the mirror m, and does not
// run it. It adds the follower's status, metrics, readiness check and closing, and the closing of the source, to the run. only
// reports whether the files of a release are copied; nil is for all.
func (r *roleRun) openMirrorFollower(folder *Reader, m *Mirror, only func(pkg, version string) bool) (*replication.Follower, error) {
	source, err := openSource(r.settings, m.From, r.logger.With("part", "store"))
	if err != nil {
		return nil, err
	}
	if closer, ok := source.(io.Closer); ok {
		r.parts.Add(parts.Part{Name: "files of the source", Stop: closer.Close})
	}
	started := time.Now()
	f, err := replication.Open(replication.Options{
		Source: source, Trust: m.Trust,
		Store: folder.store, Log: folder.log, Keys: r.settings.KeyFolder(), Only: only, Dictionaries: r.settings.Dictionaries, Logger: r.logger.With("part", "follower"), Changed: m.Following,
	})
	if err != nil {
		return nil, fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	r.console.addStatus(func(s *Status) {
		state := f.State()
		s.Following = &state
	})
	replication.RegisterMetrics(r.metrics, f, started)
	r.supervisor.readiness.addCheck(func(report *readinessReport) {
		report.cannotServe(checkCaughtUp(f.State()))
		report.cannotPublish(errMirror)
		if stale := f.State().Stale; stale != "" {
			report.addNote("what is served may be out of date: " + stale)
		}
	})
	r.parts.Add(parts.Part{Name: "source", Stop: f.Close})
	return f, nil
}

// errMirror is why a mirror cannot publish.
var errMirror = errors.New("mirror: releases are published at its source")

// checkCaughtUp returns an error until a mirror has copied all entries of a checkpoint for the first time, and nil from then on.
func checkCaughtUp(s FollowState) error {
	if s.Ready {
		return nil
	}
	text := fmt.Sprintf("behind: %d of %d log entries are here", s.Entries, s.Of)
	if s.Problem != "" {
		text += "; " + s.Problem
	}
	return errors.New(text)
}
