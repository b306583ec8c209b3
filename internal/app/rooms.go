package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A RoomsRequest asks for the status of waiting rooms.
type RoomsRequest struct {
	Room string `json:"room,omitempty"` // "" for all
}

// OpRooms returns the status of waiting rooms.
const OpRooms Operation[RoomsRequest, any, []waitingroom.Status] = "rooms"

// A SetRoomRequest sets fields of a waiting room, as the file of rooms has them.
type SetRoomRequest struct {
	Room   string            `json:"room"`
	Fields map[string]string `json:"fields"` // values in YAML; "" for what the file says
}

// OpSetRoom sets fields of a waiting room at once and for good, and returns its status.
const OpSetRoom Operation[SetRoomRequest, any, waitingroom.Status] = "set-room"

var errNoRooms = errors.New("no larder process serves waiting rooms on this data folder; `larder up` and `larder serve` do")

func noRooms(all operations) {
	answer(all, OpRooms, func(context.Context, RoomsRequest, func(any)) ([]waitingroom.Status, error) { return nil, errNoRooms })
	answer(all, OpSetRoom, func(context.Context, SetRoomRequest, func(any)) (s waitingroom.Status, err error) {
		return s, errNoRooms
	})
}

// unknownRoom says that the process has no room of that name.
func unknownRoom(rooms *waitingroom.Rooms, name string) error {
	var names []string
	for _, status := range rooms.Statuses() {
		names = append(names, status.Name)
	}
	if best, ok := text.Nearest(name, names); ok {
		return fmt.Errorf("there is no waiting room %q; did you mean %s?", name, best)
	}
	return fmt.Errorf("there is no waiting room %q; `larder room status` lists all of them", name)
}

// knownRooms has webhooks be only for rooms that there are.
func knownRooms(all operations, rooms *waitingroom.Rooms) {
	add := all[string(OpWebhookAdd)]
	if add == nil {
		return
	}
	all[string(OpWebhookAdd)] = func(ctx context.Context, request json.RawMessage, report func(any)) (any, error) {
		var q WebhookAddRequest
		if json.Unmarshal(request, &q) == nil && q.Room != "" && q.Room != "*" { // add says what is wrong with others
			if _, ok := rooms.Status(q.Room); !ok {
				return nil, unknownRoom(rooms, q.Room)
			}
		}
		return add(ctx, request, report)
	}
}

// rooms puts waiting rooms in front of the site.
func (s *serving) rooms(configured []config.Room) part {
	var rooms *waitingroom.Rooms
	return part{
		name: "waiting rooms",
		start: func(ctx context.Context) (err error) {
			if rooms, err = s.openRooms(ctx, configured); err != nil {
				return err
			}
			s.pages.Rooms, s.api.Rooms = rooms, rooms
			s.inFront = append(s.inFront, rooms.Handler)
			s.inFrontOfLane = append(s.inFrontOfLane, rooms.Lane)
			setter, err := newRoomSetter(s, rooms)
			if err != nil {
				return err
			}
			if s.shared != nil {
				s.shared.setter = setter
			}
			s.changeRooms = setter.reload
			s.answers = append(s.answers, func(all operations) {
				if s.tells {
					knownRooms(all, rooms)
				}
				answer(all, OpSetRoom, func(_ context.Context, q SetRoomRequest, _ func(any)) (waitingroom.Status, error) {
					return setter.put(q)
				})
				answer(all, OpRooms, func(_ context.Context, q RoomsRequest, _ func(any)) ([]waitingroom.Status, error) {
					if q.Room == "" {
						return rooms.Statuses(), nil
					}
					status, ok := rooms.Status(q.Room)
					if !ok {
						return nil, unknownRoom(rooms, q.Room)
					}
					return []waitingroom.Status{status}, nil
				})
			})
			return nil
		},
		run: func(ctx context.Context) error {
			if s.lacking != nil {
				return nil
			}
			var all sync.WaitGroup
			if s.shared != nil {
				all.Go(func() { s.shared.run(ctx) })
			}
			rooms.Run(ctx)
			all.Wait()
			return nil
		},
	}
}

// openRooms opens waiting rooms.
func (s *serving) openRooms(ctx context.Context, rooms []config.Room) (*waitingroom.Rooms, error) {
	keyFolder, err := s.settings.KeyFolder()
	if err != nil {
		return nil, err
	}
	keys, err := waitingroom.OpenKeys(keyFolder)
	if err != nil {
		return nil, err
	}
	var known []string
	if s.lacking == nil {
		if known, err = noteRooms(keyFolder, rooms); err != nil {
			return nil, err
		}
	}
	var shared *waitingroom.Cluster
	if s.node != nil {
		if keys, err = s.node.ticketKeys(keys); err != nil {
			return nil, err
		}
		s.shared, known = s.node.shareRooms(ctx, rooms, known)
		shared = &waitingroom.Cluster{Member: s.shared.member, Carry: s.shared.carry}
	}
	errands, err := s.folder.errands.get()
	if err != nil {
		return nil, err
	}
	var tell func(context.Context, waitingroom.Happening) error
	if s.tells {
		tell = func(ctx context.Context, h waitingroom.Happening) error {
			return errands.webhooks.TellRoom(ctx, h.Status.Name, h.Kind, h.Time, h.Status)
		}
	}
	opened, err := waitingroom.New(waitingroom.Options{
		Rooms: rooms, Keys: keys, Cluster: shared, Runtime: errands.runtime, Logger: s.logger.With("part", "rooms"), Registerer: s.metrics,
		Tell: tell, Frozen: s.lacking != nil, Known: func(name string) bool { return slices.Contains(known, name) },
	})
	if s.shared != nil {
		s.shared.rooms = opened
	}
	return opened, err
}

// roomsFile lists, in the key folder, the rooms that have had state. It is outside the data folder, so that a room
// whose state is lost with that folder is recognised.
const roomsFile = "waiting-rooms.txt"

// noteRooms returns the rooms that have had state, and adds the new ones.
func noteRooms(keyFolder string, rooms []config.Room) (known []string, err error) {
	file := filepath.Join(keyFolder, roomsFile)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("couldn't read the list of waiting rooms: %w", err)
	}
	known = strings.Fields(string(text))
	all := slices.Clone(known)
	for _, r := range rooms {
		if !slices.Contains(all, r.Name) {
			all = append(all, r.Name)
		}
	}
	if len(all) == len(known) {
		return known, nil
	}
	fresh := file + ".new"
	if err = os.WriteFile(fresh, []byte(strings.Join(all, "\n")+"\n"), 0o600); err == nil {
		err = os.Rename(fresh, file)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't write the list of waiting rooms: %w", err)
	}
	return known, nil
}
