package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A roomsSite has waiting rooms in front of a site.
type roomsSite struct {
	settings *settings.Settings
	logger   *slog.Logger
	run      *roleRun
	folder   *Reader
	site     *siteOptions
	cluster  roomsCluster
	frozen   bool // the data folder is only read
	tells    bool // webhooks are notified of the rooms
}

// A roomsCluster is what waiting rooms share with other nodes: a [clusterNode], or nothing.
type roomsCluster interface {
	// dataCentre names this node in the rooms, and in the origin of a change.
	dataCentre() string
	// recordBackends returns where the versions of the rooms' settings are, and this node's copy in a folder. shared is false if the node
	// cannot read those of its cluster.
	recordBackends(folder bucket.Bucket) (authority, local *configstore.Backend, shared bool)
	// recordLeader returns who changes the settings for a node with a name; follows is false if this process does.
	recordLeader(name string) (leader *followedRooms, follows bool)
	// share has the node take part in the rooms of the cluster. known are the rooms of which it had state, and keys its own.
	share(ctx context.Context, configured []config.Room, known []string, keys *waitingroom.Keyring) (roomShare, error)
}

// A roomShare is the part of a process in the rooms of a cluster.
type roomShare struct {
	keys    *waitingroom.Keyring
	known   []string             // rooms of which the node had state
	cluster *waitingroom.Cluster // nil for a process that is alone
	run     func(context.Context, *waitingroom.Rooms)
}

// roomsAlone is the roomsCluster of a process that has its rooms by itself.
type roomsAlone struct{}

func (roomsAlone) dataCentre() string {
	host, _ := os.Hostname()
	return host
}

func (roomsAlone) recordBackends(folder bucket.Bucket) (authority, local *configstore.Backend, shared bool) {
	local = configstore.NewBackend(folder, versionsPrefix, configstore.Checksum{})
	return local, local, true
}

func (roomsAlone) recordLeader(string) (*followedRooms, bool) { return nil, false }

func (roomsAlone) share(_ context.Context, _ []config.Room, known []string, keys *waitingroom.Keyring) (roomShare, error) {
	return roomShare{keys: keys, known: known, run: func(context.Context, *waitingroom.Rooms) {}}, nil
}

// open puts waiting rooms in front of the site.
func (s *roomsSite) open(ctx context.Context) error {
	record, err := s.openRoomRecord(ctx)
	if err != nil {
		return err
	}
	rooms, run, err := s.openRooms(ctx, record)
	if err != nil {
		return err
	}
	s.site.pages.Rooms, s.site.api.Rooms = rooms, rooms
	s.site.putInFront(rooms.Handler)
	s.site.inFrontLane = append(s.site.inFrontLane, rooms.Lane)
	record.store.Subscribe(func(v configstore.Version) error { return s.enforceRooms(record, rooms, v) })
	s.run.subscribe(record.reload)
	s.run.console.addOperations(func(all operations) {
		if s.tells {
			record.checkWebhookRooms(all, rooms)
		}
		record.operations(all, rooms)
	})
	s.run.parts.Add(parts.Part{Name: "waiting rooms", Run: parts.Until(func(ctx context.Context) {
		if s.frozen {
			return
		}
		var all sync.WaitGroup
		all.Go(func() { record.owner.run(ctx, record) })
		all.Go(func() { run(ctx, rooms) })
		rooms.Run(ctx)
		all.Wait()
	})})
	return nil
}

// enforceRooms has the rooms follow a version of their settings.
func (s *roomsSite) enforceRooms(record *roomRecord, rooms *waitingroom.Rooms, v configstore.Version) error {
	document, configured, err := decodeRooms(v)
	if err != nil {
		return record.reject(v, err)
	}
	revert := record.follow(v, document) // first, because webhooks about the change name the version
	err = s.changeRooms(rooms, configured)
	if errors.Is(err, waitingroom.ErrEachNode) {
		revert()
		s.logger.Info("the node opens its waiting rooms again, because each_node of one has changed", "version", v.Number)
		s.run.restart(restart{}) // or they are opened again for another reason
		return nil
	}
	if err != nil {
		revert()
		return record.reject(v, err)
	}
	s.logger.Info("a version of the settings of the waiting rooms is in force", "version", v.Number, "origin", v.Origin)
	return nil
}

func (s *roomsSite) changeRooms(rooms *waitingroom.Rooms, configured []config.Room) error {
	keyFolder, err := s.settings.KeyFolder()
	if err != nil {
		return err
	}
	if !s.frozen {
		if _, err := noteRooms(keyFolder, configured); err != nil {
			return err
		}
	}
	return rooms.Change(configured)
}

// openRooms opens waiting rooms, and returns what shares them with the cluster while they run.
func (s *roomsSite) openRooms(ctx context.Context, record *roomRecord) (*waitingroom.Rooms, func(context.Context, *waitingroom.Rooms), error) {
	rooms, err := record.rooms()
	if err != nil {
		return nil, nil, err
	}
	keyFolder, err := s.settings.KeyFolder()
	if err != nil {
		return nil, nil, err
	}
	keys, err := waitingroom.OpenKeys(keyFolder)
	if err != nil {
		return nil, nil, err
	}
	var known []string
	if !s.frozen {
		if known, err = noteRooms(keyFolder, rooms); err != nil {
			return nil, nil, err
		}
	}
	share, err := s.cluster.share(ctx, rooms, known, keys)
	if err != nil {
		return nil, nil, err
	}
	runtime, err := s.folder.runtime.get()
	if err != nil {
		return nil, nil, err
	}
	var tell func(context.Context, waitingroom.Happening) error
	if s.tells {
		outbox, err := s.folder.outbox.get()
		if err != nil {
			return nil, nil, err
		}
		tell = func(ctx context.Context, h waitingroom.Happening) error {
			return outbox.webhooks.TellRoom(ctx, h.Status.Name, h.Kind, h.Time, h.Status)
		}
	}
	opened, err := waitingroom.New(waitingroom.Options{
		Rooms: rooms, Keys: share.keys, Cluster: share.cluster, Runtime: runtime, Logger: s.logger.With("part", "rooms"), Registerer: s.run.metrics,
		Tell: tell, Revision: record.revision, Versions: record.versions, Frozen: s.frozen, Known: func(name string) bool { return slices.Contains(share.known, name) },
	})
	return opened, share.run, err
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
