package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A RoomsRequest asks for the status of waiting rooms.
type RoomsRequest struct {
	Room string `json:"room,omitempty"` // "" for all
}

// A SetRoomRequest sets fields of a waiting room, as the file of rooms has them.
type SetRoomRequest struct {
	Room   string            `json:"room"`
	Fields map[string]string `json:"fields"`           // values in YAML; "" for what the file says
	Base   int64             `json:"base,omitempty"`   // the version that is changed; 0 for the one in force
	Origin string            `json:"origin,omitempty"` // who or what makes the change; "" for the command on this node
}

// An ApplyRoomsRequest has a file of rooms become the next version.
type ApplyRoomsRequest struct {
	Name   string `json:"name"` // of the file
	Text   []byte `json:"text"`
	File   string `json:"file,omitempty"` // identifies the content; "" for the hash of Text
	Base   int64  `json:"base,omitempty"`
	Origin string `json:"origin,omitempty"`
}

// An UndoRoomsRequest has an older version become the next one.
type UndoRoomsRequest struct {
	To     int64  `json:"to,omitempty"` // 0 for the one before
	Base   int64  `json:"base,omitempty"`
	Origin string `json:"origin,omitempty"`
}

// A RoomHistoryRequest asks for the versions of the settings of all rooms.
type RoomHistoryRequest struct {
	Version int64 `json:"version,omitempty"` // that File has; 0 for none
}

// A RoomVersion describes a version of the settings of all rooms.
type RoomVersion = waitingroom.Version

// A RoomHistory is the versions of the settings of all rooms, newest first.
type RoomHistory struct {
	Versions []RoomVersion `json:"versions"`
	File     string        `json:"file,omitempty"` // the settings of the version that was asked for, as a file of rooms
}

// Operations about waiting rooms.
const (
	OpRooms       Operation[RoomsRequest, any, []waitingroom.Status] = "rooms"
	OpSetRoom     Operation[SetRoomRequest, any, RoomVersion]        = "set-room"
	OpApplyRooms  Operation[ApplyRoomsRequest, any, RoomVersion]     = "apply-rooms"
	OpUndoRooms   Operation[UndoRoomsRequest, any, RoomVersion]      = "undo-rooms"
	OpRoomHistory Operation[RoomHistoryRequest, any, RoomHistory]    = "room-history"
)

var errNoRooms = errors.New("no larder process serves waiting rooms on this data folder; `larder up` and `larder serve` do")

func noRooms(all operations) {
	answer(all, OpRooms, func(context.Context, RoomsRequest, func(any)) ([]waitingroom.Status, error) { return nil, errNoRooms })
	answer(all, OpSetRoom, func(context.Context, SetRoomRequest, func(any)) (v RoomVersion, err error) { return v, errNoRooms })
	answer(all, OpApplyRooms, func(context.Context, ApplyRoomsRequest, func(any)) (v RoomVersion, err error) { return v, errNoRooms })
	answer(all, OpUndoRooms, func(context.Context, UndoRoomsRequest, func(any)) (v RoomVersion, err error) { return v, errNoRooms })
	answer(all, OpRoomHistory, func(context.Context, RoomHistoryRequest, func(any)) (h RoomHistory, err error) { return h, errNoRooms })
}

// unknownRoom reports that there is no room of that name.
func unknownRoom(rooms []config.Room, name string) error {
	var names []string
	for i := range rooms {
		names = append(names, rooms[i].Name)
	}
	if best, ok := text.Nearest(name, names); ok {
		return fmt.Errorf("there is no waiting room %q; did you mean %s?", name, best)
	}
	return fmt.Errorf("there is no waiting room %q; `larder room status` lists all of them", name)
}

func (r *roomRecord) unknownRoom(name string) error {
	rooms, err := r.rooms()
	if err != nil {
		return err
	}
	return unknownRoom(rooms, name)
}

// checkWebhookRooms refuses webhooks for rooms that do not exist.
func (r *roomRecord) checkWebhookRooms(all operations, rooms *waitingroom.Rooms) {
	add := all[string(OpWebhookAdd)]
	if add == nil {
		return
	}
	all[string(OpWebhookAdd)] = func(ctx context.Context, request admin.Request, report func(any)) (any, error) {
		var q WebhookAddRequest
		if json.Unmarshal(request.JSON, &q) == nil && q.Room != "" && q.Room != "*" { // add reports the mistakes in others
			if _, ok := rooms.Status(q.Room); !ok {
				return nil, r.unknownRoom(q.Room)
			}
		}
		return add(ctx, request, report)
	}
}

// operations adds the operations about rooms.
func (r *roomRecord) operations(all operations, rooms *waitingroom.Rooms) {
	answer(all, OpRooms, func(_ context.Context, q RoomsRequest, _ func(any)) ([]waitingroom.Status, error) {
		if q.Room == "" {
			return rooms.Statuses(), nil
		}
		status, ok := rooms.Status(q.Room)
		if !ok {
			return nil, r.unknownRoom(q.Room)
		}
		return []waitingroom.Status{status}, nil
	})
	answer(all, OpRoomHistory, func(ctx context.Context, q RoomHistoryRequest, _ func(any)) (RoomHistory, error) {
		return r.history(ctx, q.Version)
	})
	answer(all, OpSetRoom, func(ctx context.Context, q SetRoomRequest, _ func(any)) (RoomVersion, error) {
		return r.changed(ctx)(r.owner.set(ctx, q))
	})
	answer(all, OpApplyRooms, func(ctx context.Context, q ApplyRoomsRequest, _ func(any)) (RoomVersion, error) {
		return r.changed(ctx)(r.owner.apply(ctx, q))
	})
	answer(all, OpUndoRooms, func(ctx context.Context, q UndoRoomsRequest, _ func(any)) (RoomVersion, error) {
		return r.changed(ctx)(r.owner.undo(ctx, q))
	})
}

// changed takes over a version that the owner has made, so that it is in force here when the operation returns.
func (r *roomRecord) changed(ctx context.Context) func(RoomVersion, error) (RoomVersion, error) {
	return func(v RoomVersion, err error) (RoomVersion, error) {
		if have, _ := r.store.Get(); err == nil && have.Number < v.Number {
			if late := r.store.Refresh(ctx); late != nil {
				r.logger.Warn("the rooms were changed, and this node has yet to take over the new version", "version", v.Number, "err", late)
			}
			if wrong := r.rejected(v.Number); wrong != nil {
				err = fmt.Errorf("the rooms were changed, but not on this node: %w", wrong)
			}
		}
		return v, err
	}
}

// versions returns all versions, newest first.
func (r *roomRecord) versions() []RoomVersion {
	current, _ := r.store.Get()
	all := []RoomVersion{}
	for _, v := range r.store.History() {
		all = append(all, describe(v, current.Number))
	}
	return all
}

// history returns the versions, and one of them as a file.
func (r *roomRecord) history(ctx context.Context, number int64) (h RoomHistory, err error) {
	r.refresh(ctx) // a change by a command is of the version that is in force here
	h.Versions = r.versions()
	if number == 0 {
		return h, nil
	}
	v, err := r.store.Read(ctx, number)
	if err != nil {
		return h, err
	}
	var document config.Document
	if err := json.Unmarshal(v.Content, &document); err != nil {
		return h, err
	}
	file, err := document.YAML()
	h.File = string(file)
	return h, err
}

// describe returns a version for display.
func describe(v configstore.Version, current int64) RoomVersion {
	return RoomVersion{Number: v.Number, Time: v.Time, Origin: v.Origin, Restores: v.Restores, InForce: v.Number == current}
}
