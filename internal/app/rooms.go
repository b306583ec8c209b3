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
	"syscall"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/settings"
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

// setFile has, in the data folder, what `larder room set` has set.
const setFile = "rooms-set.json"

func setRooms(data string) (config.Set, error) {
	set := config.Set{}
	text, err := os.ReadFile(filepath.Join(data, setFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // the folder itself is looked at later
		return set, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &set)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read what was set of the waiting rooms; repair %s, or delete it for what the file of rooms says: %w", filepath.Join(data, setFile), err)
	}
	return set, nil
}

// waitingRooms reads the waiting rooms, as they were set since.
func waitingRooms(s *settings.Settings) ([]config.Room, error) {
	set, err := setRooms(s.Data)
	if err != nil {
		return nil, err
	}
	rooms, err := s.WaitingRooms(set)
	if err != nil && len(set) > 0 {
		err = fmt.Errorf("with what `larder room set` has set, which is in %s: %w", filepath.Join(s.Data, setFile), err)
	}
	return rooms, err
}

// A roomSetter changes the waiting rooms of a process that runs.
type roomSetter struct {
	*serving
	rooms *waitingroom.Rooms

	mu       sync.Mutex
	settings *settings.Settings // that count for rooms
}

// reload has the rooms be those of other settings.
func (r *roomSetter) reload(fresh *settings.Settings) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rooms, err := waitingRooms(fresh)
	if err == nil {
		err = r.change(rooms)
	}
	if err == nil {
		r.settings = fresh
	}
	return err
}

func (r *roomSetter) change(rooms []config.Room) error {
	keyFolder, err := r.settings.KeyFolder()
	if err != nil {
		return err
	}
	if r.lacking == nil {
		if _, err := noteRooms(keyFolder, rooms); err != nil {
			return err
		}
	}
	return r.rooms.Change(rooms)
}

// set sets fields of a room: all of them, or where something is wrong, none.
func (r *roomSetter) set(q SetRoomRequest) (status waitingroom.Status, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.rooms.Status(q.Room); !ok {
		return status, unknownRoom(q.Room)
	}
	set, err := setRooms(r.settings.Data)
	if err != nil {
		return status, err
	}
	if set[q.Room] == nil {
		set[q.Room] = map[string]string{}
	}
	for field, value := range q.Fields {
		if value == "" {
			delete(set[q.Room], field)
		} else {
			set[q.Room][field] = value
		}
	}
	rooms, err := r.settings.WaitingRooms(set)
	if err != nil {
		return status, err
	}
	text, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return status, err
	}
	if err := disk.Replace(filepath.Join(r.settings.Data, setFile), append(text, '\n'), 0o600); err != nil {
		return status, fmt.Errorf("couldn't keep what is set of the waiting rooms, so nothing was changed: %w", err)
	}
	if err := r.change(rooms); err != nil {
		return status, err
	}
	r.logger.Info("a waiting room was set", "room", q.Room, "fields", q.Fields)
	status, _ = r.rooms.Status(q.Room)
	return status, nil
}

func unknownRoom(name string) error {
	return fmt.Errorf("there is no waiting room %q; `larder room status` lists all of them", name)
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
			setter := &roomSetter{serving: s, rooms: rooms, settings: s.settings}
			s.changeRooms = setter.reload
			s.answers = append(s.answers, func(all operations) {
				answer(all, OpSetRoom, func(_ context.Context, q SetRoomRequest, _ func(any)) (waitingroom.Status, error) {
					return setter.set(q)
				})
				answer(all, OpRooms, func(_ context.Context, q RoomsRequest, _ func(any)) ([]waitingroom.Status, error) {
					if q.Room == "" {
						return rooms.Statuses(), nil
					}
					status, ok := rooms.Status(q.Room)
					if !ok {
						return nil, unknownRoom(q.Room)
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
	var tell func(context.Context, waitingroom.Happening) error
	if s.tells {
		tell = func(ctx context.Context, h waitingroom.Happening) error {
			return errands.webhooks.TellRoom(ctx, h.Status.Name, h.Kind, h.Time, h.Status)
		}
	}
	return waitingroom.New(waitingroom.Options{
		Rooms: rooms, Keys: keys, Runtime: errands.runtime, Logger: s.logger.With("part", "rooms"), Registerer: s.metrics,
		Tell: tell, Frozen: s.lacking != nil, Known: func(name string) bool { return slices.Contains(known, name) },
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
