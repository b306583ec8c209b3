package api

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Readiness says what a process can do.
type Readiness struct {
	// Serve is why the process cannot serve files; nil if it can.
	Serve error
	// Publish is why the process cannot publish although it can serve; nil if it can.
	Publish error
	// Notes are further facts for the operator.
	Notes []string
}

// PrivateOptions are the options of the private routes.
type PrivateOptions struct {
	// Metrics are the metrics at /metrics. Required.
	Metrics prometheus.Gatherer
	// Ready returns what the process can do at the moment. Required.
	Ready func() Readiness
	// Hosts returns the names, with or without a port, under which the operator reaches the listener. Requests to any address
	// and to localhost are always handled. Default: there are none.
	Hosts func() []string
	// Site returns the handler of all other paths, with what only the operator may see, or nil while no site is served. Default:
	// there is no site.
	Site func() http.Handler
	// Logger logs what goes wrong. Required.
	Logger *slog.Logger
}

// MaxProfile is the longest time that a profile or a trace may take. After twice that, the response ends, even if its client
// has not read it.
const MaxProfile = time.Minute

// Private returns the handler for the operator of the process: /metrics, /debug/pprof/, /livez (the process responds),
// /readyz (it can serve), /readyz?publish (it can publish), and the site. The responses contain secrets and take processor
// time on request, so clients outside must not reach the listener.
//
// A web page that the operator visits must not reach it either. A page can resolve its own name to the listener's address
// (DNS rebinding), so requests to other names are refused. A page can also send requests across origins, so those are
// refused, too.
func Private(o PrivateOptions) http.Handler {
	e := newEngine(o.Logger)
	e.Use(o.refuseForeign)
	addGet(e, "/metrics", gin.WrapH(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelError)})))
	addGet(e, "/livez", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	addGet(e, "/readyz", o.serveReadyz)
	e.GET("/debug/pprof/", gin.WrapF(pprof.Index))
	e.GET("/debug/pprof/:profile", serveProfile)
	e.POST("/debug/pprof/symbol", gin.WrapF(pprof.Symbol))
	if o.Site != nil {
		e.NoRoute(func(c *gin.Context) {
			if site := o.Site(); site != nil {
				c.Writer.WriteHeader(http.StatusOK) // gin has noted 404
				site.ServeHTTP(c.Writer, c.Request)
			}
		})
	}
	return e
}

// refuseForeign is a middleware that refuses requests that a web page of another origin may have sent: with 421 if the Host
// is none of the operator's, and with 403 if a browser says so.
func (o *PrivateOptions) refuseForeign(c *gin.Context) {
	switch r := c.Request; {
	case !o.isTrustedHost(r.Host) && !isNoBrowser(r):
		refusePrivately(c, http.StatusMisdirectedRequest, "The private listener responds only to requests whose Host is an address, localhost or a name in the setting private-hosts.")
	case isForeign(r):
		refusePrivately(c, http.StatusForbidden, "The private listener does not respond to requests of web pages with another origin.")
	}
}

// isNoBrowser reports whether no browser can have sent the request: it has no Host, as those of some health checks over
// HTTP/1.0, or came over a Unix socket.
func isNoBrowser(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return r.Host == "" || local != nil && local.Network() == "unix"
}

// refusePrivately responds with a status and a message as plain text, and stops gin from calling further handlers. Unlike
// public failures, scripts of other origins cannot read this one.
func refusePrivately(c *gin.Context, status int, message string) {
	c.Abort()
	c.String(status, "%s\n", message)
}

// isTrustedHost reports whether a Host field, with or without a port, is an IP address, localhost or one of o.Hosts. A
// foreign DNS name is none of these.
func (o *PrivateOptions) isTrustedHost(host string) bool {
	name, _ := splitPort(host)
	if strings.EqualFold(name, "localhost") {
		return true
	}
	bare := name
	if inner, ok := strings.CutPrefix(name, "["); ok {
		bare = strings.TrimSuffix(inner, "]")
	}
	if _, err := netip.ParseAddr(bare); err == nil {
		return true
	}
	return o.Hosts != nil && slices.ContainsFunc(o.Hosts(), func(want string) bool { return isHost(host, want) })
}

// isForeign reports whether a browser sends the request for a page of another origin, as its fields Origin and
// Sec-Fetch-Site say. Following a link to the listener is no such request: the page cannot read the response. A link to a
// path below /debug/ is one, since making a profile takes time and memory.
func isForeign(r *http.Request) bool {
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site": // which may be another port of this machine
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead
		link := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" // and no frame
		return !safe || !link || strings.HasPrefix(r.URL.Path, "/debug/")
	}
	return false
}

// serveReadyz handles /readyz: it responds with 200 and "ok" if the process can serve files, with ?publish only if it can
// also publish, and otherwise with 503 and the reason. Lines with notes for the operator follow, without ?publish also why
// the process cannot publish.
func (o *PrivateOptions) serveReadyz(c *gin.Context) {
	r := o.Ready()
	problem, notes := r.Serve, r.Notes
	if c.Request.URL.Query().Has("publish") && problem == nil {
		problem = r.Publish
	} else if r.Publish != nil {
		notes = append([]string{"cannot publish: " + r.Publish.Error()}, notes...)
	}
	status, first := http.StatusOK, "ok"
	if problem != nil {
		status, first = http.StatusServiceUnavailable, problem.Error()
	}
	c.String(status, "%s\n", strings.Join(append([]string{first}, notes...), "\n"))
}

// serveProfile handles /debug/pprof/NAME. It refuses a profile over more than MaxProfile (the query's seconds) with status
// 400, and limits the time to make and send one to twice MaxProfile.
func serveProfile(c *gin.Context) {
	limit := MaxProfile.Seconds()
	if text := c.Query("seconds"); text != "" {
		if n, err := strconv.ParseFloat(text, 64); err != nil || !(n >= 0 && n <= limit) { // nor NaN
			refusePrivately(c, http.StatusBadRequest, fmt.Sprintf("seconds must be a number from 0 to %d.", int(limit)))
			return
		}
	}
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(2 * MaxProfile)) // a recorder in tests has none
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
}
