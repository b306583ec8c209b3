package waitingroom

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// While the site behind a room is down, the room admits no visitor: a slot would be spent on an error. A site counts as down if none
// of its servers accepts a connection, or if most of its recent responses are errors.

const (
	// contactInterval is how long the room trusts that the site accepts connections, or does not, before it tries again.
	contactInterval = time.Second
	// probeTimeout is how long a server may take to accept the connection of a probe.
	probeTimeout = 2 * time.Second
	// errorWindow is the time over which responses are counted, and errorMinimum how many it takes to judge a site by them.
	errorWindow  = 10 * time.Second
	errorMinimum = 20
	// errorClients is how many clients must get errors, because one client could provoke errors to close the room for all. In a room for
	// fewer users, as many clients as users suffice.
	errorClients = mostFailed
)

// originHealth is the health of the site behind a balancer.
type originHealth struct {
	down atomic.Bool // by the last call of probe

	mu        sync.Mutex
	probing   chan struct{}      // closed when the probe that is under way is over; nil if none exists
	contact   time.Time          // of the last attempt to connect
	connected bool               // that attempt succeeded
	start     time.Time          // of the newer one of two windows
	counts    [2]OriginResponses // in the older and the newer window
}

// countResponse records that the site has accepted a connection and responded to a client with a status, from 500 on an error,
// after the time took. So no probe is needed for contactInterval. remote is the client's address with its port.
func (h *originHealth) countResponse(now time.Time, took time.Duration, status int, remote string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.contact, h.connected = now, true
	h.rotateWindow(now)
	h.counts[1].Count(took, status, remote)
}

// countUnreachable records that no server of the site accepted a connection just now. So no probe is made for contactInterval.
func (h *originHealth) countUnreachable(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.contact, h.connected = now, false
}

// rotateWindow makes the newer window of counts the older one, and starts another, if the newer one is over. The caller holds the
// lock.
func (h *originHealth) rotateWindow(now time.Time) {
	switch age := now.Sub(h.start); {
	case age < errorWindow:
		return
	case age < 2*errorWindow:
		h.counts[0], h.start = h.counts[1], h.start.Add(errorWindow)
	default:
		h.counts[0], h.start = OriginResponses{}, now
	}
	h.counts[1] = OriginResponses{}
}

// lastContact returns whether the last attempt to connect to the site succeeded, whether that is recent enough to rely on, and
// whether more than half of the recent responses were errors: of errorMinimum or more, with errors for as many different clients
// as the argument says or more.
func (h *originHealth) lastContact(now time.Time, clients int) (connected, recent, failing bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rotateWindow(now)
	var all OriginResponses
	for _, window := range h.counts {
		window.Times = nil // how long they took does not matter here
		all.Add(&window)
	}
	failing = all.Total >= errorMinimum && 2*all.Errors > all.Total && len(all.Failed) >= clients
	return h.connected, now.Sub(h.contact) < contactInterval, failing
}

// probe updates whether the site is down, before a visitor is admitted to it. If no request has reached a server lately, and the
// site is not down by its errors, it connects to the servers and closes the connections. One such attempt is under way at a time;
// probe waits for it until ctx ends. But while the site counts as down, probe only starts the attempt and returns, unless wait is
// set.
func (u *upstream) probe(ctx context.Context, wait bool) {
	if _, recent, failing := u.health.lastContact(u.now(), u.errorClients()); !recent && !failing {
		over := u.startConnecting()
		if !wait && u.health.down.Load() {
			return
		}
		select {
		case <-over:
		case <-ctx.Done():
			return
		}
	}
	u.updateDown()
}

// errorClients returns how many clients must get errors for the site to count as down: a small number, or the room's limit if
// that is smaller.
func (u *upstream) errorClients() int { return min(errorClients, u.room.Load().TotalActiveUsers) }

// updateDown sets whether the site counts as down, by the last attempt to connect and the recent responses, and logs a change.
func (u *upstream) updateDown() {
	connected, _, failing := u.health.lastContact(u.now(), u.errorClients())
	down := failing || !connected
	switch was := u.health.down.Swap(down); {
	case down && !was:
		u.logger.Warn("waitingroom: the site behind a room is down; no visitor is admitted until it responds again", "room", u.room.Load().Name, "errors", failing)
	case was && !down:
		u.logger.Info("waitingroom: the site behind a room is up again; visitors are admitted", "room", u.room.Load().Name)
	}
}

// startConnecting starts an attempt to connect to the site in a new goroutine, unless one is under way. It returns a channel that
// is closed when the attempt is over.
func (u *upstream) startConnecting() <-chan struct{} {
	h := &u.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probing == nil {
		h.probing = make(chan struct{})
		go func() {
			connected := u.canConnect()
			h.mu.Lock()
			h.contact, h.connected = u.now(), connected
			over := h.probing
			h.probing = nil
			h.mu.Unlock()
			u.updateDown()
			close(over)
		}()
	}
	return h.probing
}

// canConnect reports whether a server that has not failed its health check accepts a connection. It tries all at once, for two
// seconds.
func (u *upstream) canConnect() bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	accepted := make(chan bool, len(u.servers))
	for _, s := range u.servers {
		go func() { accepted <- !s.ill.Load() && s.tryConnect(ctx) }()
	}
	for range u.servers {
		if <-accepted {
			return true
		}
	}
	return false
}

// tryConnect reports whether the server accepts a TCP connection, and closes that. After a success the server's backoff is over.
func (s *server) tryConnect(ctx context.Context) bool {
	at := s.url.Host
	if s.url.Port() == "" {
		at = net.JoinHostPort(s.url.Hostname(), map[string]string{"http": "80", "https": "443"}[s.url.Scheme])
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		return false
	}
	_ = conn.Close()
	s.until.Store(0)
	return true
}

// isDown reports whether the site behind the room is down, by the last probe; false for a room without upstreams.
func (r *room) isDown() bool { return r.upstream != nil && r.upstream.health.down.Load() }

// settingsFor returns the settings s for decisions about visitors: while the site behind the room is down, all of them have to
// wait.
func (r *room) settingsFor(s queue.Settings) queue.Settings {
	s.QueueAll = s.QueueAll || r.isDown()
	return s
}

// sendUnreachable responds with a status to a visitor whose request no upstream could answer. A browser's page view gets a page
// in the visitor's language that repeats the request by itself after 20 seconds, all others get text.
func (u *upstream) sendUnreachable(w http.ResponseWriter, req *http.Request, status int, text string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	body := []byte(text)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	if isPageView(req) && pageFormOf(req.Header["Accept"], false) == formHTML {
		made := unreachablePage(req.Header.Get("Accept-Language"), u.room.Load().Language, u.now())
		made.setHeader(h)
		h.Set("Refresh", "20")
		body = made.HTML
	}
	sendBody(w, req, status, body)
}
