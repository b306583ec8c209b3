package app

import (
	"context"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
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

// openSiteWithRooms opens the public site of a folder, behind waiting rooms if s serves and the settings do not turn rooms off,
// and adds the parts of both to the run. It returns the data that the site publishes.
func (s Server) openSiteWithRooms(ctx context.Context, r *roleRun, folder *Reader, site *siteOptions, rooms roomsOptions) (*published, error) {
	if s.Serve && r.settings.Rooms != settings.Off {
		if err := r.openRooms(ctx, folder, site, rooms); err != nil {
			return nil, err
		}
	}
	return r.openSite(folder, site)
}

// announceSite registers a function that the run calls once all parts work. It calls s.Serving, with the URL of the site and a
// function that returns the path of a file in folder as an example, and writes the ready file. For a node of a cluster it calls
// s.Serving only in the first run.
func (s Server) announceSite(r *roleRun, folder *Reader) {
	r.announce = append(r.announce, func() error {
		if !r.again || !s.isClusterNode(r.settings) {
			s.Serving(r.self.Address, func() (string, error) { return library.Example(folder.store) })
		}
		return r.addReadyFile()
	})
}

// behind is the response to clients until the node has caught up.
var behind = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "This node is behind: it has yet to catch up with the others; ask another one", Retry: 2}

// refuseUntil returns a handler that responds 503 to every request while mayServe returns false, and passes others to next.
func refuseUntil(mayServe func() bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !mayServe() {
			behind.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A gatedLane is a fast lane that responds only while mayServe returns true.
type gatedLane struct {
	lane.Handler
	mayServe func() bool
}

// Answer overrides [lane.Handler]: it returns false while the node may not serve, so that net/http handles the request, which
// then gets the response of [refuseUntil]. Otherwise the lane decides.
func (g gatedLane) Answer(x *lane.Exchange) bool { return g.mayServe() && g.Handler.Answer(x) }
