package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// openAdminSocket opens the admin socket in the data folder, on which commands speak to the process. The socket is closed when the
// run ends.
func (r *roleRun) openAdminSocket() (net.Listener, error) {
	socket, err := admin.Listen(r.settings.Data)
	if err != nil {
		return nil, err
	}
	r.parts.Add(parts.Part{Name: "admin socket", Stop: parts.StopBy(func() { socket.Close() })}) // harmless where the server has closed it
	return socket, nil
}

// serveAdmin serves the admin socket until the run ends: the operations in all, reload and upgrade, and below schedulePath the
// handler schedule, which lists and changes scheduled requests. The folder is not closed while an operation in all runs. check
// returns an error for settings that a reload must refuse.
func (r *roleRun) serveAdmin(socket net.Listener, folder *Reader, all operations, schedule http.Handler, check func(*settings.Settings) error) {
	counted := folder.trackOperations(all)
	r.addProcessOperations(counted, check) // not counted: the folder is closed while an upgrade is under way
	s := newAdminServer(r.parts.Context(), counted, schedule, acceptForwarded(r.supervisor.late.succession), r.logger)
	r.addServer("admin server", s, []net.Listener{socket})
}

// newAdminServer returns the server of the admin socket, which is not started. The handler schedule has the paths from
// schedulePath on, and the handler late the requests that an earlier process forwards after an upgrade. The contexts of
// operations end when ctx does.
func newAdminServer(ctx context.Context, operations map[string]admin.Operation, schedule, late http.Handler, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "admin")
	mux := http.NewServeMux()
	mux.Handle("/", admin.Handler(operations, logger))
	mux.Handle(schedulePath, schedule)
	mux.Handle(schedulePath+"/", schedule)
	mux.Handle(forwardPath, late)
	s := server.NewHTTPServer(mux, server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return s
}
