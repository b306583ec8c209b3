package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/larder-cdn/larder/server/waitingroom"
)

// Rooms are the waiting rooms that can be asked about.
type Rooms interface {
	// Status returns how a room is, false where there is none of that name.
	Status(name string) (waitingroom.Status, bool)
	// Analytics returns what happened in a room in the last so many minutes, false where
	// there is none of that name.
	Analytics(name string, minutes int) ([]waitingroom.Minute, bool)
}

var (
	noRoom     = &failure{status: http.StatusNotFound, message: "Waiting room not found", cached: notCached}
	badMinutes = &failure{status: http.StatusBadRequest, message: "minutes must be a whole number from 1 to " + strconv.Itoa(waitingroom.MaxMinutes), cached: notCached}
)

// roomStatus answers /rooms/{room}/status.
func (p *public) roomStatus(_ context.Context, r *request) (*body, caching, error) {
	name, err := param(r.c, "room")
	if err != nil {
		return nil, caching{}, err
	}
	if p.Rooms == nil {
		return nil, caching{}, noRoom
	}
	status, ok := p.Rooms.Status(name)
	if !ok {
		return nil, caching{}, noRoom
	}
	return newJSONOf(status), notCached, nil
}

// roomAnalytics answers /rooms/{room}/analytics.
func (p *public) roomAnalytics(_ context.Context, r *request) (*body, caching, error) {
	name, err := param(r.c, "room")
	if err != nil {
		return nil, caching{}, err
	}
	minutes := 60
	if text := r.query.Get("minutes"); text != "" {
		if minutes, err = strconv.Atoi(text); err != nil || minutes < 1 || minutes > waitingroom.MaxMinutes {
			return nil, caching{}, badMinutes
		}
	}
	if p.Rooms == nil {
		return nil, caching{}, noRoom
	}
	all, ok := p.Rooms.Analytics(name, minutes)
	if !ok {
		return nil, caching{}, noRoom
	}
	return newJSONOf(all), notCached, nil
}
