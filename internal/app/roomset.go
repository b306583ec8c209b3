package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// setFile has, in the data folder, what `larder room set` has set.
const setFile = "rooms-set.json"

const (
	// mostSet bounds what is set of all rooms, in bytes: nodes tell each other all of it.
	mostSet = maxAsked / 4
	// lastAt is the latest time of a word that another node may tell: no clock shows it, and later ones are numbers, too.
	lastAt = 1 << 53
)

// roomsSet is what `larder room set` has set: by room and field. In a cluster the last word about a field counts, so
// that all nodes come to the same, whichever hears of it first.
type roomsSet map[string]map[string]fieldSet

// fieldSet is a field of a room.
type fieldSet struct {
	Value string `json:"value"` // in YAML; "" for what the file says
	At    int64  `json:"at"`    // when it was set, in milliseconds since 1970, and later than what was known to be set before
}

// after reports whether a word about a field comes after another. Of two at one time, all nodes take the same.
func (f fieldSet) after(other fieldSet) bool {
	return f.At > other.At || f.At == other.At && f.Value > other.Value
}

func (s roomsSet) clone() roomsSet {
	fresh := roomsSet{}
	for room, fields := range s {
		fresh[room] = maps.Clone(fields)
	}
	return fresh
}

// of is what is set of some rooms.
func (s roomsSet) of(rooms []string) roomsSet {
	part := roomsSet{}
	for _, room := range rooms {
		if fields, ok := s[room]; ok {
			part[room] = maps.Clone(fields)
		}
	}
	return part
}

// put sets fields of a room.
func (s roomsSet) put(room string, fields map[string]string, now time.Time) {
	if s[room] == nil {
		s[room] = map[string]fieldSet{}
	}
	for field, value := range fields {
		s[room][field] = fieldSet{value, max(now.UnixMilli(), s[room][field].At+1)}
	}
}

// merge takes up what came later, and returns the rooms of which something did.
func (s roomsSet) merge(other roomsSet) (rooms []string) {
	for _, room := range slices.Sorted(maps.Keys(other)) {
		for field, word := range other[room] {
			if word.At > lastAt || !word.after(s[room][field]) {
				continue
			}
			if s[room] == nil {
				s[room] = map[string]fieldSet{}
			}
			s[room][field] = word
			if !slices.Contains(rooms, room) {
				rooms = append(rooms, room)
			}
		}
	}
	return rooms
}

// counts are the values that count instead of the file's.
func (s roomsSet) counts() config.Set {
	set := config.Set{}
	for room, fields := range s {
		set[room] = map[string]string{}
		for field, word := range fields {
			if word.Value != "" {
				set[room][field] = word.Value
			}
		}
	}
	return set
}

// readRoomsSet reads what was set of the rooms of a data folder.
func readRoomsSet(data string) (roomsSet, error) {
	set := roomsSet{}
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
	rooms, _, err := roomsAsSet(s)
	return rooms, err
}

func roomsAsSet(s *settings.Settings) ([]config.Room, roomsSet, error) {
	set, err := readRoomsSet(s.Data)
	if err != nil {
		return nil, nil, err
	}
	rooms, err := s.WaitingRooms(set.counts())
	if err != nil && len(set) > 0 {
		err = fmt.Errorf("with what `larder room set` has set, which is in %s: %w", filepath.Join(s.Data, setFile), err)
	}
	return rooms, set, err
}

// A roomSetter changes the waiting rooms of a process that runs.
type roomSetter struct {
	*serving
	rooms *waitingroom.Rooms

	mu       sync.Mutex
	settings *settings.Settings // that count for rooms
	set      roomsSet           // never changed in place
	failed   string             // digest of what other nodes have set that could not count here, and was logged

	shared atomic.Pointer[sharedSet]
}

// sharedSet is what is set of the rooms that the nodes of a cluster have in common.
type sharedSet struct {
	set    roomsSet
	digest string // two nodes that have the same have set the same
}

func newRoomSetter(s *serving, rooms *waitingroom.Rooms) (*roomSetter, error) {
	set, err := readRoomsSet(s.settings.Data)
	if err != nil {
		return nil, err
	}
	r := &roomSetter{serving: s, rooms: rooms, settings: s.settings, set: set}
	return r, r.share()
}

// share has other nodes hear what is set. A room that is each node's own is not theirs, nor is one that is gone.
func (r *roomSetter) share() error {
	shared := r.set.of(r.rooms.Shared())
	digest, err := shared.digest()
	if err == nil {
		r.shared.Store(&sharedSet{shared, digest})
	}
	return err
}

func (s roomsSet) digest() (string, error) {
	text, err := json.Marshal(s) // with sorted keys
	return kvstore.Sum(text).String(), err
}

// reload has the rooms be those of other settings.
func (r *roomSetter) reload(fresh *settings.Settings) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rooms, set, err := roomsAsSet(fresh)
	if err == nil {
		err = r.change(rooms)
	}
	if err != nil {
		return err
	}
	r.settings, r.set, r.failed = fresh, set, ""
	return r.share()
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

// put sets fields of a room: all of them, or where something is wrong, none.
func (r *roomSetter) put(q SetRoomRequest) (status waitingroom.Status, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.rooms.Status(q.Room); !ok {
		return status, unknownRoom(r.rooms, q.Room)
	}
	set := r.set.clone()
	set.put(q.Room, q.Fields, time.Now())
	if err := r.keep(set); err != nil {
		return status, err
	}
	r.logger.Info("a waiting room was set", "room", q.Room, "fields", q.Fields)
	status, _ = r.rooms.Status(q.Room)
	return status, nil
}

// adopt takes up what another node has heard of the rooms that both have. What cannot count here is logged once, and tried again each time that the
// node tells it: a full disk passes.
func (r *roomSetter) adopt(other roomsSet) {
	if len(other) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	set := r.set.clone()
	rooms := set.merge(other.of(r.rooms.Shared()))
	digest, err := set.digest()
	if len(rooms) == 0 || err != nil {
		return
	}
	if err := r.keep(set); err != nil {
		if digest == r.failed {
			return
		}
		r.failed = digest
		advice := "it is tried again"
		if errors.As(err, new(settings.Mistake)) {
			advice = "give all nodes the same --rooms, and run larder reload here"
		}
		r.logger.Error("what was set of waiting rooms on another node cannot count on this one: "+advice, "rooms", rooms, "err", err)
		return
	}
	r.logger.Info("waiting rooms were set on another node", "rooms", rooms)
}

// keep has a set count, and stores it.
func (r *roomSetter) keep(set roomsSet) error {
	rooms, err := r.settings.WaitingRooms(set.counts())
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return err
	}
	if len(text) > mostSet {
		return fmt.Errorf("what is set of the waiting rooms would have %d bytes, of %d at most; put long values into the file of rooms", len(text), mostSet)
	}
	if err := disk.Replace(filepath.Join(r.settings.Data, setFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("couldn't keep what is set of the waiting rooms, so nothing was changed: %w", err)
	}
	r.set = set
	return errors.Join(r.change(rooms), r.share())
}
