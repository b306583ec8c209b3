package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/signing"
)

// The reasons that clients of the log get.
const (
	lostPublicly     = "the service has lost some of its data and needs a repair"
	unsignedPublicly = "the service cannot sign at the moment"
)

// A readOnlyError is why a process cannot publish although it may be able to serve all that it has published: the disk or the
// data folder cannot be written, the log's key cannot be used, or the bucket of the cluster does not respond at the start.
type readOnlyError struct {
	err error
	// resolved reports whether the reason is gone, so that the role can start. It is nil if an operator has to restart the process.
	resolved func(context.Context) bool
}

// Error returns the text of the reason.
func (e *readOnlyError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *readOnlyError) Unwrap() error { return e.err }

// asReadOnly wraps err, an error of opening the data folder or the key folder, in a [*readOnlyError], so that the process serves
// read-only. If the process cannot write files now, the error is resolved once it can; otherwise an operator has to resolve it and
// restart the process. asReadOnly returns err unchanged if it is nil or a [*Shortfall], for which the process serves read-only
// anyway, if the settings are mistaken, the start was canceled, another process has the folder or the keys, a newer program wrote
// it, or there is no store to serve.
func (r *roleRun) asReadOnly(err error) error {
	switch {
	case err == nil, errors.As(err, new(*Shortfall)), errors.As(err, new(settings.Mistake)), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, kvstore.ErrLocked), errors.Is(err, kvstore.ErrNewer), errors.Is(err, signing.ErrInUse), checkStoreExists(r.settings) != nil:
		return err
	}
	e := &readOnlyError{err: err}
	if !r.canWrite() {
		e.resolved = func(context.Context) bool { return r.canWrite() }
	}
	return e
}

// asReadOnlyWithoutBucket wraps err in a [*readOnlyError] if it is a network error of the bucket b and the log of w has entries
// to serve; the error is resolved once the bucket responds. It returns other errors unchanged.
func (r *roleRun) asReadOnlyWithoutBucket(err error, w *Writer, b bucket.Bucket) error {
	if w.folder.log.Checkpoint().Size == 0 || !errors.As(err, new(net.Error)) || errors.Is(err, context.Canceled) {
		return err
	}
	return &readOnlyError{err, func(ctx context.Context) bool {
		_, err := cluster.Origin(ctx, b)
		return err == nil
	}}
}

// A readOnlyRole serves what can be read of a data folder to which nothing may write: it has no bot, schedule, webhooks or
// purge hook, and neither signs nor pushes the log.
type readOnlyRole struct {
	server  Server
	reason  error // a *Shortfall if signed entries are missing or damaged, else a *readOnlyError
	instead role  // the role that could not open the folder, which starts again when the reason is gone
}

// start implements [role] for read-only mode: it opens what can be read of the data folder, serves it, and adds the parts to
// the run. If the reason can be resolved without an operator, a part waits for that and restarts the role that could not open
// the folder. If a store is damaged or lacks entries, `larder repair` can repair it.
func (o readOnlyRole) start(ctx context.Context, r *roleRun) error {
	s, reason := o.server, o.reason
	if err := r.removeReadyFile(); err != nil { // the disk may be read-only
		r.logger.Warn("an old ready file stays", "err", err)
	}
	folder, readable, err := r.openDamagedFolder()
	if err != nil {
		return err
	}
	missing, lacking := errors.AsType[*Shortfall](reason)
	lacking = lacking || !readable
	r.supervisor.readiness.addCheck(func(report *readinessReport) {
		if lacking {
			report.cannotServe(fmt.Errorf("read-only: %w", reason))
		}
		report.cannotPublish(fmt.Errorf("read-only: %w", reason))
	})
	r.console.addStatus(func(status *Status) { status.Degraded = reason.Error() })
	socket, err := r.openAdminSocket()
	if err != nil && missing != nil {
		return err
	}
	if err != nil {
		r.logger.Warn("commands cannot reach this process", "err", err)
	}
	site := newSiteOptions()
	site.readOnly, site.lacking = true, lacking
	if site.signer, err = r.openFrozenSigner(folder, reason, lacking); err != nil {
		return err
	}
	r.addMemoryLimit(s.Serve)
	if _, err := s.openSiteWithRooms(ctx, r, folder, site, roomsOptions{cluster: standaloneRooms{}, readOnly: true}); err != nil {
		return err
	}
	r.announce = append(r.announce, func() error {
		example := func() (string, error) { return library.Example(folder.store) }
		if lacking {
			example = nil
		}
		s.Serving(r.self.Address, example)
		err := r.addReadyFile()
		if err != nil && missing == nil {
			r.logger.Warn("there is no ready file", "err", err)
			return nil
		}
		return err
	})
	all := refuseWrites(r.addConsole(folder.operations(), folder), reason)
	if missing != nil {
		r.addRebuild(all, missing)
	}
	if socket != nil {
		r.serveAdmin(socket, folder, all, refuseRequests(func() error { return reason }), s.checkSettings)
	}
	if unwritable, ok := errors.AsType[*readOnlyError](reason); ok && unwritable.resolved != nil {
		r.parts.Add(parts.Part{Name: "wait until the process can publish", Run: func(ctx context.Context) error { return r.awaitResolved(ctx, unwritable, o.instead) }})
	}
	return r.markReady(s.Stopping)
}

// openFrozenSigner returns a signer that publishes the last signed checkpoint and signs nothing, and closes it when the run
// ends. It logs reason, the cause of read-only mode. lacking says that signed entries are missing or cannot be read, which
// clients of the log get as the reason.
func (r *roleRun) openFrozenSigner(folder *Reader, reason error, lacking bool) (*signing.Signer, error) {
	publicly, consequence := unsignedPublicly, "nothing is published until this is repaired; all files are served"
	if lacking {
		publicly, consequence = lostPublicly, "read-only: only the remaining files are served, and nothing is written, until the store is repaired"
	}
	signer, err := signing.OpenFrozen(signing.Options{Dir: r.settings.KeyFolder(), Store: folder.store, Logger: r.logger.With("part", "signing")}, publicly)
	if err != nil {
		return nil, fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	r.parts.Add(parts.Part{Name: "frozen signer", Stop: signer.Close})
	r.logger.Error(consequence, "err", reason)
	return signer, nil
}

// resolvedEvery is the interval between two checks whether the reason for read-only mode is gone.
const resolvedEvery = 10 * time.Second

// awaitResolved checks at intervals whether reason, the reason for read-only mode, is gone, and then requests a restart of the
// run with the role wanted. It returns nil then, and when ctx ends. reason.resolved must not be nil.
func (r *roleRun) awaitResolved(ctx context.Context, reason *readOnlyError, wanted role) error {
	for retry.Sleep(ctx, resolvedEvery) == nil {
		if reason.resolved(ctx) {
			r.logger.Info("the process can publish again", "after", reason)
			r.requestRestart(restart{role: wanted})
			return nil
		}
	}
	return nil
}

// canWrite reports whether files can be written to the data folder, the store's folder and the key folder, and the disk has
// enough space for the store. It writes a small file in each, and removes it. It returns false if a folder is missing.
func (r *roleRun) canWrite() bool {
	for _, dir := range []string{r.settings.Data, storeDir(r.settings.Data), r.settings.KeyFolder()} {
		f, err := os.CreateTemp(dir, ".writable-*")
		if err == nil {
			_, err = f.WriteString("writable")
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		if err != nil {
			return false
		}
	}
	return kvstore.CheckSpaceToOpen(storeDir(r.settings.Data)) == nil
}

// registerDegraded registers a gauge that says for the whole run whether the process is in read-only mode: degraded is 1 if it is,
// else 0.
func registerDegraded(r prometheus.Registerer, degraded float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_degraded",
		Help: "1 while the store is damaged or misses signed entries: nothing is written, and missing files are 503.",
	}, func() float64 { return degraded }))
}
