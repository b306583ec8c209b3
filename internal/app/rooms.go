package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A RoomsRequest asks for the status of waiting rooms.
type RoomsRequest struct {
	Room string `json:"room,omitempty"` // "" for all
}

// OpRooms returns the status of waiting rooms.
const OpRooms Operation[RoomsRequest, any, []waitingroom.Status] = "rooms"

func noRooms(context.Context, RoomsRequest, func(any)) ([]waitingroom.Status, error) {
	return nil, errors.New("no larder process serves waiting rooms on this data folder; `larder up` and `larder serve` do")
}

// rooms puts waiting rooms in front of the site.
func (s *serving) rooms(configured []config.Room) part {
	var rooms *waitingroom.Rooms
	return part{
		name: "waiting rooms",
		start: func(context.Context) (err error) {
			if rooms, err = s.openRooms(configured); err != nil {
				return err
			}
			s.pages.Rooms, s.api.Rooms = rooms, rooms
			s.inFront = append(s.inFront, rooms.Handler)
			s.inFrontOfLane = append(s.inFrontOfLane, rooms.Lane)
			s.answers = append(s.answers, func(all operations) {
				answer(all, OpRooms, func(_ context.Context, q RoomsRequest, _ func(any)) ([]waitingroom.Status, error) {
					if q.Room == "" {
						return rooms.Statuses(), nil
					}
					status, ok := rooms.Status(q.Room)
					if !ok {
						return nil, fmt.Errorf("there is no waiting room %q; `larder room status` lists all of them", q.Room)
					}
					return []waitingroom.Status{status}, nil
				})
			})
			return nil
		},
		run: func(ctx context.Context) error {
			if s.lacking == nil {
				rooms.Run(ctx)
			}
			return nil
		},
	}
}

// openRooms opens waiting rooms.
func (s *serving) openRooms(rooms []config.Room) (*waitingroom.Rooms, error) {
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
	errands, err := s.folder.errands.get()
	if err != nil {
		return nil, err
	}
	return waitingroom.New(waitingroom.Options{
		Rooms: rooms, Keys: keys, Runtime: errands.runtime, Logger: s.logger.With("part", "rooms"), Registerer: s.metrics,
		Frozen: s.lacking != nil, Known: func(name string) bool { return slices.Contains(known, name) },
	})
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
