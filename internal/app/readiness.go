package app

import (
	"errors"
	"slices"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
)

// Readiness states of a process that is not ready.
var (
	errOpening    = errors.New("opening: the store is being opened")
	errIndexing   = errors.New("opening: the libraries are being read for search, pages and API")
	errRecovering = errors.New("recovering: the store is being opened again")
	errStopping   = errors.New("stopping: the process was asked to stop")
	errHandedOver = errors.New("stopping: another process takes over")
)

// readiness is the readiness state of the process, as probes get it.
type readiness struct {
	mu     sync.Mutex
	state  error            // why the process as a whole is not ready; nil if it is
	checks []readinessCheck // of the parts of the role
}

// A readinessCheck adds to a report what a part of the role cannot do, and what an operator should know of it.
type readinessCheck func(*readinessReport)

// A readinessReport collects what probes get.
type readinessReport struct{ api.Readiness }

// cannotServe reports that the process cannot serve all files that it has published; nil adds nothing. Only a store that is being
// opened, a follower before its first catch-up, and missing entries are such a reason: another node can respond then.
func (r *readinessReport) cannotServe(err error) { r.Serve = errors.Join(r.Serve, err) }

// cannotPublish reports that the process serves files and cannot publish; nil adds nothing.
func (r *readinessReport) cannotPublish(err error) { r.Publish = errors.Join(r.Publish, err) }

// addNote adds a line of text for the operator, which does not change whether the process is ready.
func (r *readinessReport) addNote(text string) { r.Notes = append(r.Notes, text) }

// checkLibraries returns a readiness check of the index that search, pages and API read. The process is not ready while the index
// is read for the first time. If that fails, it is only noted, since files are served without it. Later failures are not reported.
func checkLibraries(index *library.Index) readinessCheck {
	return func(report *readinessReport) {
		switch err := index.Ready(); {
		case errors.Is(err, library.ErrNotReady):
			report.cannotServe(errIndexing)
		case err != nil:
			report.addNote("search, pages or API cannot respond: " + err.Error())
		}
	}
}

// registerMetrics registers two gauges for alerts: whether the process can serve, and whether it can also publish. They call
// [readiness.report] whenever metrics are gathered.
func (r *readiness) registerMetrics(registry prometheus.Registerer) {
	can := func(does func(api.Readiness) bool) func() float64 {
		return func() float64 {
			if does(r.report()) {
				return 1
			}
			return 0
		}
	}
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "larder_can_serve", Help: "1 while /readyz responds 200."},
			can(func(r api.Readiness) bool { return r.Serve == nil })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "larder_can_publish", Help: "1 while /readyz?publish responds 200."},
			can(func(r api.Readiness) bool { return r.Serve == nil && r.Publish == nil })))
}

// setState sets why the process as a whole is not ready, nil if it is. After errStopping it has no effect: a process that was
// asked to stop is never ready again.
func (r *readiness) setState(state error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != errStopping {
		r.state = state
	}
}

// addCheck adds a check that is called for each report, unless the state is an error, until the next run of the role removes it.
func (r *readiness) addCheck(check readinessCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, check)
}

// removeChecks removes all checks, which are those of the previous run of a role.
func (r *readiness) removeChecks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = nil
}

// report returns for probes what the process can do at the moment. While its state is an error, it returns only that error, as
// the reason why it cannot serve; otherwise it calls all checks, in the order in which they were added.
func (r *readiness) report() api.Readiness {
	r.mu.Lock()
	state, checks := r.state, slices.Clone(r.checks)
	r.mu.Unlock()
	if state != nil {
		return api.Readiness{Serve: state}
	}
	var report readinessReport
	for _, check := range checks {
		check(&report)
	}
	return report.Readiness
}

// notifyManager sends a state, such as READY=1, to the service manager (systemd). It does nothing if the service manager expects
// none, and ignores errors.
func notifyManager(state string) {
	_, _ = daemon.SdNotify(false, state) // it has gone, or never was
}
