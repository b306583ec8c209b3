package app

import (
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/fallback"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/server"
)

// A StatusRequest is a request for the status.
type StatusRequest struct {
	Package string `json:"package,omitempty"` // "" for all
}

// OpStatus returns the status of a process or a data folder.
const OpStatus Operation[StatusRequest, any, *Status] = "status"

// Status is the status of a process or a data folder, and its JSON form.
type Status struct {
	Process *Process `json:"process,omitempty"` // that has the folder open; nil if only the command that shows the status has
	// Degraded says why nothing writes to the folder, and what to do; it is empty if nothing is wrong.
	Degraded string `json:"degraded,omitempty"`
	// Behind says what a store that is sound and has all signed entries lacked of its last changes when it was opened; it is empty
	// if it lacked nothing.
	Behind string `json:"behind,omitempty"`
	bot.Status
	Purges []notify.Purge `json:"purges"` // withdrawals of which the cache in front has yet to be notified
	LogStatus
	// Unprotected says which protections the child processes that read files from upstream lack on this system, and why.
	Unprotected []string `json:"unprotected,omitempty"`
	// Catalogue is the state of the catalogue, of a process that follows it.
	Catalogue *bot.CatalogueState `json:"catalogue,omitempty"`
	// Feed is the state of the registry's change feed, of a process that follows one.
	Feed *discovery.FeedState `json:"feed,omitempty"`
	// Certificates are those with which the process serves, from an ACME server or files.
	Certificates []server.CertificateState `json:"certificates,omitempty"`
	// Following is how far the process has come that mirrors another Larder.
	Following *FollowState `json:"following,omitempty"`
	// Fallback is the state of fetching missing releases from other origins.
	Fallback *fallback.State `json:"fallback,omitempty"`
	// Node is the state of a node of a cluster.
	Node *Node `json:"node,omitempty"`
}

// LogStatus is the part of a status that is about the signed log.
type LogStatus struct {
	// Unsigned says why the log's newest entries are not signed, and what to do; it is empty if nothing is wrong.
	Unsigned string `json:"unsigned,omitempty"`
	// Disputes describe the checkpoints that are signed with the log's key and are not part of the log.
	Disputes []string `json:"disputes,omitempty"`
	// LogPush is how far the log has come to GitHub, of a process that pushes it.
	LogPush *LogPush `json:"logPush,omitempty"`
}

// A Process describes a running process.
type Process struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Address string    `json:"address,omitempty"` // URL at which it serves; "" if it does not
	Private string    `json:"private,omitempty"` // HOST:PORT of the private listener, or the path of its Unix socket; "" for none
	// RunStarted is when the present run of its role started.
	RunStarted time.Time `json:"runStarted"`
	// Failed says why the last reload, or the last upgrade whose newer process had passed its checks, failed; it is empty if it
	// succeeded.
	Failed string `json:"failed,omitempty"`
}

// readStatus reads the status of the package name, or of all packages if name is "", from the store. It adds why nothing may
// write to the folder, as it compares the store with the key folder. The caller adds what only a running process knows.
func (r *Reader) readStatus(name string) (*Status, error) {
	snapshot := r.store.Snapshot()
	defer snapshot.Close()
	packages, err := bot.ReadStatus(snapshot, name)
	if err != nil {
		return nil, err
	}
	if name != "" { // for all it would read a manifest of each
		if err := packages.AddModuleProblems(r.store); err != nil {
			return nil, err
		}
	}
	s := &Status{Status: *packages}
	if s.Purges, err = notify.ReadPurges(snapshot); err != nil {
		return nil, err
	}
	if short, _ := r.findShortfall(); short != nil {
		s.Degraded = short.Error()
	}
	if behind := r.store.Behind(); behind != nil {
		s.Behind = behind.String()
	}
	s.Purges = slices.DeleteFunc(s.Purges, func(j notify.Purge) bool { return name != "" && j.Package != name })
	return s, nil
}
