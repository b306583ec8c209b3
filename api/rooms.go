package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// Rooms has the state and history of the waiting rooms.
type Rooms interface {
	// Statuses returns the present state of each room.
	Statuses() []waitingroom.Status
	// Status returns the state of a room, or false for an unknown name.
	Status(name string) (waitingroom.Status, bool)
	// Analytics returns what happened in a room in the last minutes, in periods, and false for an unknown name.
	Analytics(ctx context.Context, name string, minutes int) ([]waitingroom.Period, bool, error)
	// Versions returns the history of the settings, newest first.
	Versions() []waitingroom.Version
}

var (
	noRoom     = newFailure(http.StatusNotFound, "Waiting room not found")
	badMinutes = newFailure(http.StatusBadRequest, "minutes must be a whole number from 1 to "+strconv.Itoa(waitingroom.MaxMinutes))
	badFormat  = newFailure(http.StatusBadRequest, "format must be json or csv")
)

// roomStatus returns the response to /rooms/{room}/status: the state of a waiting room as JSON. If there is none with that
// name, the error is a failure with status 404.
func (p *public) roomStatus(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	if p.Rooms == nil {
		return nil, answers.Caching{}, noRoom
	}
	status, ok := p.Rooms.Status(r.params["room"])
	if !ok {
		return nil, answers.Caching{}, noRoom
	}
	return encodeJSON(status), notCached, nil
}

// roomVersions returns the response to /rooms.history: the versions of the waiting rooms' settings, newest first. Without
// rooms the error is a failure with status 404.
func (p *public) roomVersions(context.Context, *request) (*answers.Body, answers.Caching, error) {
	if p.Rooms == nil {
		return nil, answers.Caching{}, noRoom
	}
	return encodeJSON(append([]waitingroom.Version{}, p.Rooms.Versions()...)), notCached, nil
}

// roomAnalytics returns the response to /rooms/{room}/analytics: what happened in a waiting room in the last minutes, 60 or
// the number in the query, as JSON or CSV. The error is a failure with status 400 for malformed parameters or 404 for an
// unknown room, or one of reading the room's history.
func (p *public) roomAnalytics(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	minutes := 60
	if text := r.query.Get("minutes"); text != "" {
		var err error
		if minutes, err = strconv.Atoi(text); err != nil || minutes < 1 || minutes > waitingroom.MaxMinutes {
			return nil, answers.Caching{}, badMinutes
		}
	}
	format := r.query.Get("format")
	if format != "" && format != "json" && format != "csv" {
		return nil, answers.Caching{}, badFormat
	}
	if p.Rooms == nil {
		return nil, answers.Caching{}, noRoom
	}
	all, ok, err := p.Rooms.Analytics(ctx, r.params["room"], minutes)
	switch {
	case err != nil:
		return nil, answers.Caching{}, err
	case !ok:
		return nil, answers.Caching{}, noRoom
	case format == "csv":
		return encodeCSV(all), notCached, nil
	}
	return encodeJSON(all), notCached, nil
}

// encodeCSV returns periods of a waiting room as a table in CSV (RFC 4180), with the names of the JSON fields.
func encodeCSV(periods []waitingroom.Period) *answers.Body {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.UseCRLF = true
	seconds := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	_ = w.Write([]string{"time", "minutes", "active_users", "queued_users", "new_users", "sessions_revoked", "time_waited_p50_seconds", "time_waited_p90_seconds", "time_on_origin_p50_seconds"})
	for _, p := range periods {
		_ = w.Write([]string{
			p.Time.Format(time.RFC3339), strconv.Itoa(p.Minutes), strconv.Itoa(p.Active), strconv.Itoa(p.Queued), strconv.Itoa(p.Admitted), strconv.Itoa(p.Revoked),
			seconds(p.WaitP50), seconds(p.WaitP90), seconds(p.OriginP50),
		})
	}
	w.Flush() // writing to a buffer does not fail
	return answers.NewBody("text/csv; charset=utf-8; header=present", b.Bytes())
}

// roomBeat is how often a stream compares the state of the rooms, which report every two seconds.
const roomBeat = 2 * time.Second

// streamRooms handles /rooms.stream: it sends the status of the waiting rooms, or of the one in the query, as server-sent
// events, each a JSON array: at once, when it has changed and each minute, until the context of openEventStream ends. It returns
// an error only if it has sent nothing; for an unknown room that is a failure with status 404.
func (p *public) streamRooms(r *request) error {
	if p.Rooms == nil {
		return noRoom
	}
	name := r.query.Get("room")
	if name != "" && len(p.roomStatuses(name)) == 0 {
		return noRoom
	}
	ctx, s, leave, err := p.openEventStream(r)
	if err != nil || s == nil {
		return err
	}
	defer leave()
	beat := time.NewTicker(p.roomBeat)
	defer beat.Stop()
	var sent []byte
	var minute int64
	var last time.Time
	for s.err == nil {
		now := time.Now()
		text, err := json.Marshal(p.roomStatuses(name))
		switch {
		case err != nil:
			return nil
		case !bytes.Equal(text, sent) || now.Unix()/60 != minute:
			sent, minute, last = text, now.Unix()/60, now
			s.send([]byte("data: " + string(text) + "\n\n"))
		case now.Sub(last) >= p.heartbeat:
			last = now
			s.send([]byte(": nothing has changed\n\n"))
		}
		select {
		case <-beat.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// roomStatuses returns the status of all waiting rooms if name is "", or else of the one with that name, none if it does not
// exist.
func (p *public) roomStatuses(name string) []waitingroom.Status {
	if name == "" {
		return p.Rooms.Statuses()
	}
	if status, ok := p.Rooms.Status(name); ok {
		return []waitingroom.Status{status}
	}
	return []waitingroom.Status{}
}
