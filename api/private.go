package api

import (
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// PrivateOptions is what the private routes need.
type PrivateOptions struct {
	// Metrics is what /metrics shows. Required.
	Metrics prometheus.Gatherer
	// Ready returns nil while the process can answer requests, or why it cannot. Required.
	Ready func() error
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
}

// Private returns the handler for whoever operates the process: /metrics, /debug/pprof/, /livez (the process answers)
// and /readyz (it serves). It tells secrets and takes CPU time on request, so it must not be reachable from outside.
func Private(o PrivateOptions) http.Handler {
	e := newEngine(o.Logger)
	get(e, "/metrics", gin.WrapH(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelError)})))
	get(e, "/livez", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	get(e, "/readyz", func(c *gin.Context) {
		if err := o.Ready(); err != nil {
			c.String(http.StatusServiceUnavailable, "%v\n", err)
			return
		}
		c.String(http.StatusOK, "ok\n")
	})
	e.GET("/debug/pprof/", gin.WrapF(pprof.Index))
	e.GET("/debug/pprof/:profile", func(c *gin.Context) {
		switch name := c.Param("profile"); name {
		case "cmdline":
			pprof.Cmdline(c.Writer, c.Request)
		case "profile":
			pprof.Profile(c.Writer, c.Request)
		case "symbol":
			pprof.Symbol(c.Writer, c.Request)
		case "trace":
			pprof.Trace(c.Writer, c.Request)
		default:
			pprof.Handler(name).ServeHTTP(c.Writer, c.Request)
		}
	})
	e.POST("/debug/pprof/symbol", gin.WrapF(pprof.Symbol))
	return e
}
