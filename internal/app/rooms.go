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
	"sync"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// rooms puts waiting rooms in front of the site.
func (s *serving) rooms() part {
	var rooms *waitingroom.Rooms
	var record *roomRecord
	return part{
		name: "waiting rooms",
		start: func(ctx context.Context) (err error) {
			if record, err = s.openRoomRecord(ctx); err != nil {
				return err
			}
			if rooms, err = s.openRooms(ctx, record); err != nil {
				return err
			}
			s.pages.Rooms, s.api.Rooms = rooms, rooms
			s.inFront = append(s.inFront, rooms.Handler)
			s.inFrontOfLane = append(s.inFrontOfLane, rooms.Lane)
			record.store.Subscribe(func(v configstore.Version) error { return s.enforceRooms(record, rooms, v) })
			s.reloadRooms = record.reload
			s.answers = append(s.answers, func(all operations) {
				if s.tells {
					record.checkWebhookRooms(all, rooms)
				}
				record.operations(all, rooms)
			})
			return nil
		},
		run: func(ctx context.Context) error {
			if s.lacking != nil {
				return nil
			}
			var all sync.WaitGroup
			all.Go(func() { record.owner.run(ctx, record) })
			if s.shared != nil {
				all.Go(func() { s.shared.run(ctx) })
			}
			rooms.Run(ctx)
			all.Wait()
			return nil
		},
	}
}

// enforceRooms has the rooms follow a version of their settings.
func (s *serving) enforceRooms(record *roomRecord, rooms *waitingroom.Rooms, v configstore.Version) error {
	document, configured, err := decodeRooms(v)
	if err != nil {
		return record.reject(v, err)
	}
	revert := record.follow(v, document) // first, because webhooks about the change name the version
	err = s.changeRooms(rooms, configured)
	if errors.Is(err, waitingroom.ErrEachNode) {
		revert()
		s.logger.Info("the node opens its waiting rooms again, because each_node of one has changed", "version", v.Number)
		s.again(func() error { return nil }) // or they are opened again for another reason
		return nil
	}
	if err != nil {
		revert()
		return record.reject(v, err)
	}
	s.logger.Info("a version of the settings of the waiting rooms is in force", "version", v.Number, "origin", v.Origin)
	return nil
}

func (s *serving) changeRooms(rooms *waitingroom.Rooms, configured []config.Room) error {
	keyFolder, err := s.settings.KeyFolder()
	if err != nil {
		return err
	}
	if s.lacking == nil {
		if _, err := noteRooms(keyFolder, configured); err != nil {
			return err
		}
	}
	return rooms.Change(configured)
}

// openRooms opens waiting rooms.
func (s *serving) openRooms(ctx context.Context, record *roomRecord) (*waitingroom.Rooms, error) {
	rooms, err := record.rooms()
	if err != nil {
		return nil, err
	}
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
		Tell: tell, Revision: record.revision, Versions: record.versions, Frozen: s.lacking != nil, Known: func(name string) bool { return slices.Contains(known, name) },
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
