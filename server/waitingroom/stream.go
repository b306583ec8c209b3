package waitingroom

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A visitor who waits may hold a stream of server-sent events (HTML §9.2), instead of requesting the page again and again: a GET of
// the same address that accepts text/event-stream, with the ticket. The data centre then knows that the visitor is there, and calls
// it as soon as a slot is reserved.

const (
	// maxStreams bounds the event streams of a process. Further visitors poll.
	maxStreams = 100_000
	// streamMemory is the memory of a stream and its connection, in bytes.
	streamMemory = 48 << 10
	// maxTicketStreams bounds those of one ticket, which several tabs of a browser share.
	maxTicketStreams = 8
	// streamDuration is how long a stream lasts at most. The browser then opens another one, whose header renews the ticket.
	streamDuration = 2 * time.Minute
	// placeInterval is the least time between two events with a visitor's place, and beatInterval the longest.
	placeInterval = 5 * time.Second
	beatInterval  = 15 * time.Second
	// streamRetry is when a browser opens another stream, in milliseconds.
	streamRetry = "1000"
)

// mostStreams returns how many event streams the process may have, by the memory that the options allow for them, and maxStreams
// at most.
func (o *Options) mostStreams() int64 {
	if o.StreamMemory == 0 {
		return maxStreams
	}
	return min(maxStreams, o.StreamMemory/streamMemory)
}

// streams are the event streams of a room.
type streams struct {
	mu       sync.Mutex
	byTicket map[queue.TicketID][]*stream
	updated  time.Time // when their places were computed
}

// A stream is one event stream.
type stream struct {
	id     queue.TicketID
	events chan event // one at a time: a later event replaces one that was not sent yet
}

// An event is the next message of a stream.
type event struct {
	call     *queue.Call // the visitor may come; nil for a place
	changed  bool        // the settings of the room have changed
	estimate queue.Estimate
}

// add adds and returns an event stream for a ticket, or returns nil if the ticket has too many.
func (s *streams) add(id queue.TicketID) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byTicket[id]) >= maxTicketStreams {
		return nil
	}
	if s.byTicket == nil {
		s.byTicket = map[queue.TicketID][]*stream{}
	}
	added := &stream{id: id, events: make(chan event, 1)}
	s.byTicket[id] = append(s.byTicket[id], added)
	return added
}

// remove removes an event stream. last says that its ticket has no other one.
func (s *streams) remove(gone *stream) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := slices.DeleteFunc(s.byTicket[gone.id], func(other *stream) bool { return other == gone })
	s.byTicket[gone.id] = others
	if len(others) == 0 {
		delete(s.byTicket, gone.id)
	}
	return len(others) == 0
}

// replace makes e the next event of the stream, instead of one that has not been sent yet. But a call that has not been sent
// stays the next event, and the mark that the settings have changed stays on it. The caller holds the lock of streams. replace
// never blocks.
func (s *stream) replace(e event) {
	select {
	case before := <-s.events:
		if before.call != nil {
			e = before
		}
		e.changed = e.changed || before.changed
	default:
	}
	s.events <- e // only called with the lock of streams, so there is room
}

// deliver queues events for the room's event streams: for visitors whom the data centre has called, that they may come now; for
// the others, at most every 5 seconds or if changed is set, their place in line. In a cluster it also records the calls for the
// leader. It runs in the turn of the durable object of c.
func (s *streams) deliver(c *centre, now time.Time, changed bool) {
	calls := c.machine.TakeCalls()
	if c.remote != nil && len(calls) > 0 {
		for _, call := range calls {
			c.remote.redemptions.AddCalled(now, call.ID)
		}
		c.room.reportAtOnce()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range calls {
		for _, each := range s.byTicket[calls[i].ID] {
			each.replace(event{call: &calls[i]})
		}
	}
	if len(s.byTicket) == 0 || !changed && now.Sub(s.updated) < placeInterval {
		return
	}
	s.updated = now
	for id, all := range s.byTicket {
		estimate, waits := c.machine.EstimateOf(id)
		if !waits {
			continue
		}
		for _, each := range all {
			each.replace(event{estimate: estimate, changed: changed})
		}
	}
}

// wantsStream reports whether a request is for an event stream of the waiting page: a GET whose Accept field begins with
// text/event-stream.
func wantsStream(req *http.Request) bool {
	return req.Method == http.MethodGet && strings.HasPrefix(req.Header.Get("Accept"), "text/event-stream")
}

// EndStreams ends all event streams and refuses new ones from now on, with 204, after which a visitor polls. It does not wait for
// their end.
func (r *Rooms) EndStreams() { r.endStreams() }

// serveStream responds with an event stream to a visitor who waits with ticket t, until the visitor is called or the stream's
// time is over. Its header renews the ticket. known is false if the client sent no ticket: it gets 429. If a stream is not
// possible, the response is 204, after which a browser opens no other stream and the visitor polls. m are the settings in force.
func (r *Rooms) serveStream(w http.ResponseWriter, req *http.Request, room *room, m *config.EffectiveSettings, t queue.Ticket, known bool) {
	if !known {
		sendTooMany(w, req, m.Settings.RefreshInterval)
		return
	}
	var s *stream
	if r.streaming.Add(1) <= r.options.mostStreams() && !r.options.Frozen && r.streamsEnd.Err() == nil {
		s = room.streams.add(t.ID)
	}
	defer r.streaming.Add(-1)
	standing := queue.Polls
	lasts := min(streamDuration, m.Settings.PlaceKept/2)
	if s != nil {
		defer room.closeStream(s)
		room.wakeReports()
		err := room.do(req.Context(), func(_ context.Context, _ *durable.State, c *centre) error {
			if c.stopped {
				return errStopped
			}
			now := room.now()
			if t, standing = c.machine.OpenStream(now, t, 2*lasts); standing == queue.InLine {
				estimate, _ := c.machine.EstimateOf(t.ID)
				room.streams.mu.Lock()
				defer room.streams.mu.Unlock()
				s.replace(event{estimate: estimate})
			}
			return nil
		})
		if err != nil {
			standing = queue.Polls
		}
	}
	h := w.Header()
	h.Set("Cache-Control", private)
	if standing == queue.Polls {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // else NGINX buffers events
	h.Set("X-Content-Type-Options", "nosniff")
	if standing == queue.InLine {
		h.Add("Set-Cookie", newSetCookie(room.config, room.codec.seal(&t), t.RefreshInterval+m.Settings.PlaceKept, overTLS(req)))
	}
	e := &eventWriter{w: w, c: http.NewResponseController(w)}
	_ = e.c.SetReadDeadline(time.Time{}) // the deadline of the request would end the stream
	e.send("retry: " + streamRetry + "\n\n")
	if standing == queue.Called {
		e.sendCalled()
		return
	}
	room.countOutcome(waiting)
	r.sendEvents(req, room, e, s, t, lasts-time.Duration(rand.Int64N(int64(lasts/8))))
}

// sendEvents writes the events of the stream s to the client as they come, for the duration lasts at most, or until the visitor
// is called, the streams of the process end, or the client is gone. t is the visitor's waiting ticket. A call is sent at its
// time.
func (r *Rooms) sendEvents(req *http.Request, room *room, e *eventWriter, s *stream, t queue.Ticket, lasts time.Duration) {
	end, beat := time.NewTimer(lasts), time.NewTicker(beatInterval)
	defer end.Stop()
	defer beat.Stop()
	var sent []byte
	spoken := parsedLanguages().choose(req.Header.Get("Accept-Language"), room.config.Language)
	for e.err == nil {
		select {
		case next := <-s.events:
			switch {
			case next.call != nil:
				_ = retry.Sleep(req.Context(), next.call.At.Sub(room.now())) // a client that has gone notices nothing
				e.sendCalled()
				return
			case next.changed:
				e.send("event: event\ndata: {}\n\n")
			}
			now := room.now()
			state := pageState{Moment: room.settingsAt(now), Now: now, Down: room.isDown(), Decision: queue.Decision{Outcome: queue.Wait, Ticket: t, Estimate: next.estimate}}
			if text := state.Place(spoken); !bytes.Equal(text, sent) {
				sent = text
				e.send("event: place\ndata: " + string(text) + "\n\n")
				beat.Reset(beatInterval)
			}
		case <-beat.C:
			e.send("event: place\ndata: " + string(sent) + "\n\n") // the page says when it was checked last
		case <-end.C:
			return
		case <-r.streamsEnd.Done():
			return
		case <-req.Context().Done():
			return
		}
	}
}

// closeStream removes an event stream. If it was the last of its ticket, the data centre keeps the visitor's place until shortly
// after the next check-in is due. It ignores errors: then the place ends by itself.
func (r *room) closeStream(s *stream) {
	if !r.streams.remove(s) {
		return
	}
	_ = r.do(context.Background(), func(_ context.Context, _ *durable.State, c *centre) error { // else the row ends by itself
		r.streams.mu.Lock()
		again := len(r.streams.byTicket[s.id]) > 0 // a browser has opened the next one
		r.streams.mu.Unlock()
		if !again {
			c.machine.CloseStream(r.now(), s.id)
		}
		return nil
	})
}

// An eventWriter writes events to a client that may be slow or gone.
type eventWriter struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	err error // the first
}

// send writes the text of an event to the client and flushes it. After an error, which e.err has, it does nothing.
func (e *eventWriter) send(text string) {
	if e.err != nil {
		return
	}
	// Only test writers have no deadlines. Between events the deadline is removed, since it would end an HTTP/2 stream.
	_ = e.c.SetWriteDeadline(time.Now().Add(stall))
	if _, e.err = e.w.Write([]byte(text)); e.err == nil {
		e.err = e.c.Flush()
	}
	_ = e.c.SetWriteDeadline(time.Time{})
}

// sendCalled sends the event that makes the page request the site again, because a slot is reserved for the visitor for 30
// seconds.
func (e *eventWriter) sendCalled() { e.send("event: called\ndata: {\"seconds\":30}\n\n") }
