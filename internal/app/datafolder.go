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

// openDataFolder opens the data folder to be written. replace is called where nothing may write to the folder, to make room for a new
// store; its error is that of openDataFolder.
func (r *roleRun) openDataFolder(ctx context.Context, o writing, replace func(*Shortfall) error) (*Writer, error) {
	if err := kvstore.CheckSpaceToOpen(storeDir(r.settings.Data)); err != nil {
		return nil, r.asReadOnly(err)
	}
	w, err := r.openPatiently(ctx, o)
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
	showDegraded(r.metrics, false)
	r.metrics.MustRegister(store.Collector())
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

// watchDisk reports to the log and to probes how much space the disk of a store has. The process starts again if a full disk has made
// the store read-only and has space again.
func (r *roleRun) watchDisk(store *kvstore.Store) {
	r.supervisor.readiness.addCheck(func(report *readinessReport) { // nodes that fill up together go on serving
		note, err := store.CheckSpace()
		switch {
		case err != nil:
			report.cannotPublish(err)
		case note != "":
			report.note(note)
		}
	})
	r.parts.Add(store.SpacePart(r.logger, func() bool { return r.restartQuietly(restart{before: r.supervisor.execAgain}) }))
}

// refuseReplacement replaces nothing.
func refuseReplacement(short *Shortfall) error { return short }

// commandFor is how long a process that starts waits for a command.
const commandFor = 10 * time.Second

// openPatiently opens the data folder. It waits for a command, such as `larder status`, that has it open for a moment, because no process
// answered: before this one began, or between two runs of its roles. Then it waits as long as that takes, because clients wait, too.
func (r *roleRun) openPatiently(ctx context.Context, o writing) (*Writer, error) {
	deadline := time.Now().Add(commandFor)
	for logged := false; ; logged = true {
		w, err := openWriter(r.settings, o, r.logger)
		if !errors.Is(err, kvstore.ErrLocked) {
			return w, err
		}
		if !r.again {
			client, noAnswer := Dial(ctx, r.settings.Data)
			if noAnswer == nil {
				return nil, errors.Join(err, client.Close()) // another server, or a command that takes long
			}
			if time.Now().After(deadline) {
				return nil, err
			}
		}
		if !logged {
			r.logger.Info("a command has the data folder open; waiting until it is closed", "data", r.settings.Data)
		}
		if retry.Sleep(ctx, reachAgain) != nil {
			return nil, err
		}
	}
}

// openDamagedFolder opens what can be read of the data folder. If the store cannot be opened, readable is false and the folder is an
// empty one in memory.
func (r *roleRun) openDamagedFolder() (folder *Reader, readable bool, err error) {
	if err := os.MkdirAll(r.settings.Data, 0o700); err != nil { // for the admin socket
		return nil, false, err
	}
	o := openOptions{store: kvstore.Options{ReadOnly: true}, address: r.self.Address}
	folder, err = open(r.settings, o, r.logger)
	readable = err == nil
	if err != nil && !errors.Is(err, kvstore.ErrLocked) {
		o.store = kvstore.Options{FS: vfs.NewMem()}
		folder, err = open(r.settings, o, r.logger)
	}
	if err != nil {
		return nil, false, err
	}
	showDegraded(r.metrics, true)
	r.metrics.MustRegister(folder.store.Collector())
	r.parts.Add(parts.Part{Name: "damaged data folder", Stop: folder.Close})
	return folder, readable, nil
}

// addSigner opens the signer of the log, which creates the key if it is missing. All checks of the settings come before.
func (r *roleRun) addSigner(w *Writer) error {
	if err := w.openSigner(r.logger, r.metrics); err != nil {
		return r.asReadOnly(err)
	}
	r.parts.Add(w.signature.signer.Part())
	return nil
}
