package app

import (
	"context"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server/lane"
)

// The steps that roles with a data folder have in common, in the order in which a role takes them.

// openBase opens the admin socket, which it returns, and adds the parts that limit the memory of the process and watch the
// store's disk.
func (s Server) openBase(r *roleRun, folder *Reader) (net.Listener, error) {
	socket, err := r.openAdminSocket()
	if err != nil {
		return nil, err
	}
	r.addMemoryLimit(s.Serve)
	r.watchDisk(folder.store)
	return socket, nil
}

// addMemoryLimit adds the part that sets Go's memory limit by the settings in force. serve says that the process serves the site,
// which has caches.
func (r *roleRun) addMemoryLimit(serve bool) {
	r.parts.Add(parts.Part{Name: "memory limit", Run: parts.RunUntilDone(func(ctx context.Context) {
		settings.LimitMemory(ctx, r.supervisor.configuration.inForce.Get, serve, r.logger)
	})})
}

// openSiteWithRooms opens the public site of a folder, with the handlers of site.beforeRooms and behind waiting rooms, unless the
// settings turn rooms off.
func (s Server) openSiteWithRooms(ctx context.Context, r *roleRun, folder *Reader, site *siteOptions, rooms roomsOptions) (*published, error) {
	if s.hasRooms(r.settings) {
		if err := r.openRooms(ctx, folder, site, rooms); err != nil {
			return nil, err
		}
	}
	for _, add := range site.beforeRooms {
		add(site)
	}
	return r.openSite(folder, site)
}

// announceSite registers a function that the run calls once all parts work: it calls s.Serving and writes the ready file. For a
// node of a cluster it calls s.Serving only in the first run.
func (s Server) announceSite(r *roleRun, folder *Reader) {
	r.announce = append(r.announce, func() error {
		if !r.again || !s.isClusterNode(r.settings) {
			s.Serving(r.self.Address, func() (string, error) { return library.Example(folder.store) })
		}
		return r.addReadyFile()
	})
}

// A gate returns the response to requests that must not reach the site at the moment, nil if they may.
type gate func() http.Handler

// addGate puts the gate refusal in front of the site and of the fast lane. If refusal returns a handler, that responds to the
// request instead; if it returns nil, the request passes.
func (o *siteOptions) addGate(refusal gate) {
	o.putInFront(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if handler := refusal(); handler != nil {
				handler.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	o.inFrontLane = append(o.inFrontLane, func(next lane.Handler) lane.Handler { return gatedLane{next, refusal} })
}

// A gatedLane is a fast lane behind a gate.
type gatedLane struct {
	lane.Handler
	gate gate
}

// Answer overrides [lane.Handler]: it returns false while the gate is closed, so that net/http handles the request, which then
// gets the gate's response. Otherwise the lane behind the gate decides.
func (g gatedLane) Answer(x *lane.Exchange) bool { return g.gate() == nil && g.Handler.Answer(x) }
