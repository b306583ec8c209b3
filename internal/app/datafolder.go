package app

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// openDataFolder opens the data folder for writing until the run ends, and registers its metrics. If the store is damaged or
// lacks signed entries, it calls replace: once that has moved the store away and returned nil, openDataFolder makes a new
// store; it returns an error of replace. Once the process is ready, the store takes its newest file format. A [*readOnlyError]
// or a [*Shortfall] says that the folder may still be served read-only.
func (r *roleRun) openDataFolder(ctx context.Context, o writerConfig, replace func(*Shortfall) error) (*Writer, error) {
	if err := kvstore.CheckSpaceToOpen(storeDir(r.settings.Data)); err != nil {
		return nil, r.asReadOnly(err)
	}
	w, err := r.openWhenUnlocked(ctx, o)
	if short := (*Shortfall)(nil); errors.As(err, &short) {
		if err = replace(short); err == nil {
			o.afresh = true
			w, err = openWriter(r.settings, o, r.logger)
		}
	}
	if err != nil {
		return nil, r.asReadOnly(err)
	}
	store := w.folder.store
	registerDegraded(r.metrics, 0)
	r.metrics.MustRegister(store.Collector())
	registerUpkeep(r.metrics, r.settings.Data)
	r.onReady = append(r.onReady, func() {
		if err := store.UseNewestFormat(); err != nil {
			r.logger.Warn("the store stays in its old format; the next start tries again", "err", err)
		}
	})
	r.parts.Add(parts.Part{Name: "data folder", Stop: func() error {
		err := w.Close()
		if failed := store.Failed(); failed != nil && r.restarts.pending.Load() {
			r.logger.Warn("the store was left as it is on the disk", "err", err)
			err = nil // another run of the role follows
		}
		return err
	}})
	return w, nil
}

// watchDisk reports the free space on the store's disk to the log and to probes. If a full disk has made the store read-only,
// it requests a restart once there is space again, in which a new process of the same program replaces this one.
func (r *roleRun) watchDisk(store *kvstore.Store) {
	r.supervisor.readiness.addCheck(func(report *readinessReport) { // nodes that fill up together go on serving
		note, err := store.CheckSpace()
		switch {
		case err != nil:
			report.cannotPublish(err)
		case note != "":
			report.addNote(note)
		}
	})
	r.parts.Add(store.SpacePart(r.logger, func() bool { return r.requestQuietRestart(restart{before: r.supervisor.replaceProcess}) }))
}

// refuseReplacement is the replace function of [roleRun.openDataFolder] where a damaged store must not be replaced: it returns
// the error short, never nil.
func refuseReplacement(short *Shortfall) error { return short }

// commandTimeout is how long a process that starts waits for a command to close the data folder.
const commandTimeout = 10 * time.Second

// openWhenUnlocked opens the data folder for writing. It waits while a short command, such as `larder status`, has it open. The
// first run of a role gives up after commandTimeout, or at once if the folder is that of a process with an admin socket. A
// later run waits without a limit, because clients wait, too. If it gives up or ctx ends, the error is [kvstore.ErrLocked].
func (r *roleRun) openWhenUnlocked(ctx context.Context, o writerConfig) (*Writer, error) {
	deadline := time.Now().Add(commandTimeout)
	for logged := false; ; logged = true {
		w, err := openWriter(r.settings, o, r.logger)
		if !errors.Is(err, kvstore.ErrLocked) {
			return w, err
		}
		if !r.again {
			client, unreachable := Dial(ctx, r.settings.Data)
			if unreachable == nil { // another server, or a command that takes long
				if locked := (*lockedError)(nil); errors.As(err, &locked) {
					ctx, cancel := context.WithTimeout(ctx, reachTimeout)
					if status, err := OpStatus.Ask(ctx, client, StatusRequest{}, nil); err == nil {
						locked.by = status.Process
					}
					cancel()
				}
				return nil, errors.Join(err, client.Close())
			}
			if time.Now().After(deadline) {
				return nil, err
			}
		}
		if !logged {
			r.logger.Info("a command has the data folder open; waiting until it is closed", "data", r.settings.Data)
		}
		if retry.Sleep(ctx, reachInterval) != nil {
			return nil, err
		}
	}
}

// openDamagedFolder opens the data folder read-only until the run ends, and registers its metrics and that of read-only mode.
// It creates a missing data folder, without a store. If the store cannot be opened, readable is false and folder has an empty
// store in memory. It returns an error if the data folder cannot be created, or another process has it open.
func (r *roleRun) openDamagedFolder() (folder *Reader, readable bool, err error) {
	if err := os.MkdirAll(r.settings.Data, 0o700); err != nil { // for the admin socket
		return nil, false, err
	}
	o := openOptions{store: kvstore.Options{ReadOnly: true}, address: r.self.Address}
	folder, err = openFolder(r.settings, o, r.logger)
	readable = err == nil
	if err != nil && !errors.Is(err, kvstore.ErrLocked) {
		o.store = kvstore.Options{FS: vfs.NewMem()}
		folder, err = openFolder(r.settings, o, r.logger)
	}
	if err != nil {
		return nil, false, err
	}
	registerDegraded(r.metrics, 1)
	r.metrics.MustRegister(folder.store.Collector())
	registerUpkeep(r.metrics, r.settings.Data)
	r.parts.Add(parts.Part{Name: "damaged data folder", Stop: folder.Close})
	return folder, readable, nil
}
