package app

import (
	"context"
	"fmt"
	"net/http"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/logs/signing"
)

// lostPublicly is the reason that clients of the log get.
const lostPublicly = "the service has lost some of its data and is to be repaired"

// A readOnlyRole serves what can be read of a data folder to which nothing may write: no bot, no schedule, no webhooks, no purge hook, and
// nothing that signs or pushes the log.
type readOnlyRole struct {
	server  Server
	missing *Shortfall
	instead role // that could not open the folder
}

func (o readOnlyRole) start(ctx context.Context, r *roleRun) error {
	s, missing := o.server, o.missing
	if err := r.removeReadyFile(); err != nil {
		return err
	}
	r.supervisor.readiness.addCheck(func(report *readinessReport) {
		if missing.Key != nil { // everything that was published is served
			report.cannotPublish(missing)
		} else {
			report.cannotServe(fmt.Errorf("read-only: %w", missing))
		}
	})
	folder, err := r.openDamagedFolder()
	if err != nil {
		return err
	}
	r.console.addStatus(func(status *Status) { status.Degraded = missing.Error() })
	socket, err := r.openAdminSocket()
	if err != nil {
		return err
	}
	site := newSiteOptions()
	site.readOnly = missing.Key == nil
	if site.signer, err = r.openFrozenSigner(folder, missing); err != nil {
		return err
	}
	r.addMemoryLimit(s.Serve)
	if s.hasRooms(r.settings) {
		if err := (&roomsSite{settings: r.settings, logger: r.logger, run: r, folder: folder, site: site, cluster: roomsAlone{}, frozen: true}).open(ctx); err != nil {
			return err
		}
	}
	if _, err := r.openSite(folder, site); err != nil {
		return err
	}
	s.Serving(r.self.Address, nil)
	if err := r.addReadyFile(); err != nil {
		return err
	}
	all := refusing(r.withConsole(folder.operations(), folder), missing)
	r.addRebuild(all, missing)
	noSchedule := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&answers.Failure{Status: http.StatusServiceUnavailable, Message: missing.Error()}).SendJSON(w, r)
	})
	r.serveAdmin(socket, folder, all, noSchedule, s.check)
	return r.finish(s.Stopping)
}

// openFrozenSigner returns the signer of what was signed before, which signs nothing.
func (r *roleRun) openFrozenSigner(folder *Reader, missing *Shortfall) (*signing.Signer, error) {
	keys, err := r.settings.KeyFolder()
	var signer *signing.Signer
	if err == nil {
		signer, err = signing.Frozen(signing.Options{Dir: keys, Store: folder.store, Logger: r.logger.With("part", "signing")}, lostPublicly)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	r.parts.Add(parts.Part{Name: "frozen signer", Stop: signer.Close})
	r.logger.Error("read-only: only the remaining files are served, and nothing is written, until the store is repaired", "err", missing)
	return signer, nil
}
