package app

import (
	"errors"
	"slices"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Readiness states of a process that is not ready.
var (
	errOpening    = errors.New("opening: the store is being opened")
	errRecovering = errors.New("recovering: the store is being opened again")
	errStopping   = errors.New("stopping: the process was told to end")
	errHandedOver = errors.New("stopping: another process takes over")
)

// readiness is the readiness state of the process, as probes get it.
type readiness struct {
	mu     sync.Mutex
	state  error            // why the process as a whole is not ready; nil if it is
	checks []readinessCheck // of the parts of the role
}

// A readinessCheck returns an error while a part is not ready, or else a note for the operator, "" for none.
type readinessCheck func() (note string, err error)

// set sets the state of the process. A process that was asked to stop is never ready again.
func (r *readiness) set(state error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != errStopping {
		r.state = state
	}
}

// addCheck adds a check for the rest of the run of the role.
func (r *readiness) addCheck(check readinessCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, check)
}

// removeChecks removes the checks of the previous run of a role.
func (r *readiness) removeChecks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = nil
}

// report is what /readyz responds.
func (r *readiness) report() (notes []string, err error) {
	r.mu.Lock()
	state, checks := r.state, slices.Clone(r.checks)
	r.mu.Unlock()
	if state != nil {
		return nil, state
	}
	for _, check := range checks {
		note, problem := check()
		if note != "" {
			notes = append(notes, note)
		}
		err = errors.Join(err, problem)
	}
	return notes, err
}

// notify sends states to the service manager, if there is one that wants them.
func notify(states ...string) {
	for _, state := range states {
		_, _ = daemon.SdNotify(false, state) // it has gone, or never was
	}
}
