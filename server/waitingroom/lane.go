package waitingroom

import "github.com/larder-cdn/larder/server/lane"

// Lane returns the rooms in front of the fast lane: what one of them covers is left to
// net/http, and so to [Rooms.Handler].
func (r *Rooms) Lane(next lane.Handler) lane.Handler { return &uncovered{r, next} }

type uncovered struct {
	rooms *Rooms
	next  lane.Handler
}

// Answer implements lane.Handler.
func (u *uncovered) Answer(x *lane.Exchange) bool {
	return !u.rooms.Covers(x.Host, x.Path) && u.next.Answer(x)
}
