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

// openAdminSocket opens the socket on which commands speak to the process.
func (r *roleRun) openAdminSocket() (net.Listener, error) {
	socket, err := admin.Listen(r.settings.Data)
	if err != nil {
		return nil, err
	}
	r.parts.Add(parts.Part{Name: "admin socket", Stop: parts.Closing(func() { socket.Close() })}) // harmless where the server has closed it
	return socket, nil
}

// serveAdmin answers commands, and programs that have something to schedule. Its operations end with the role. check finds the mistakes in
// settings that a reload reads.
func (r *roleRun) serveAdmin(socket net.Listener, folder *Reader, all operations, schedule http.Handler, check func(*settings.Settings) error) {
	counted := folder.counted(all)
	r.addProcessOperations(counted, check) // not counted: the folder is closed while an upgrade is under way
	s := newAdminServer(r.parts.Context(), counted, schedule, acceptForwarded(r.supervisor.late.succession), r.logger)
	r.serve("admin server", s, []net.Listener{socket})
}

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
