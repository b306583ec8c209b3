package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// roomsOptions are what distinguishes the waiting rooms of one role from those of another.
type roomsOptions struct {
	cluster  roomsCluster
	readOnly bool // for read-only mode: the store is only read
	webhooks bool // webhooks are notified of the rooms
}

// A roomsCluster has what waiting rooms share with other nodes: it is a [clusterNode], or [standaloneRooms] without other nodes.
type roomsCluster interface {
	// nodeName returns the name of this node, which identifies it to the other nodes and names it as the origin of a change of
	// settings.
	nodeName() string
	// recordBackends returns where the versions of the rooms' settings are stored. folder is a place for them in the data folder.
	recordBackends(folder bucket.Bucket) waitingroom.RecordBackends
	// recordLeader returns a Changer that has the leader of the cluster change the rooms' settings, nil if this process changes
	// them itself.
	recordLeader() waitingroom.RecordChanger
	// shareState returns the options of rooms that share their state with other nodes, and the function that exchanges it. alone
	// are the options of rooms that share nothing, and known the names of the rooms whose state this process has had before.
	shareState(ctx context.Context, alone waitingroom.Options, known []string) (waitingroom.Options, runRooms, error)
}

// runRooms is a function that runs beside open waiting rooms until its context ends.
type runRooms func(context.Context, *waitingroom.Rooms)

// standaloneRooms is the roomsCluster of a process that shares its rooms with no other node.
type standaloneRooms struct{}

// nodeName implements [roomsCluster] with the host name of this machine.
func (standaloneRooms) nodeName() string {
	host, _ := os.Hostname()
	return host
}

// recordBackends implements [roomsCluster]: the versions of the rooms' settings are stored in folder only.
func (standaloneRooms) recordBackends(folder bucket.Bucket) waitingroom.RecordBackends {
	return waitingroom.LocalRecord(folder)
}

// recordLeader implements [roomsCluster] with nil: this process changes the settings itself.
func (standaloneRooms) recordLeader() waitingroom.RecordChanger { return nil }

// shareState implements [roomsCluster]: it returns the options alone, to which it adds that the rooms in known have had state
// here, and a function that does nothing.
func (standaloneRooms) shareState(_ context.Context, alone waitingroom.Options, known []string) (waitingroom.Options, runRooms, error) {
	alone.Known = func(name string) bool { return slices.Contains(known, name) }
	return alone, func(context.Context, *waitingroom.Rooms) {}, nil
}

// openRooms opens the waiting rooms, puts them in front of a site and its fast lane by setting them in the options site, and
// adds their operations and parts to the run. It also subscribes the rooms to changes of their settings and to reloads. In
// read-only mode the part of the rooms does nothing.
func (r *roleRun) openRooms(ctx context.Context, folder *Reader, site *siteOptions, o roomsOptions) error {
	roomRecord, err := r.openRoomRecord(ctx, o)
	if err != nil {
		return err
	}
	rooms, runBeside, err := r.newRooms(ctx, folder, roomRecord, o)
	if err != nil {
		return err
	}
	site.rooms, site.pages.Rooms, site.api.Rooms = rooms, rooms, rooms
	roomRecord.Subscribe(func(configured []config.Room) error { return r.applyRooms(rooms, configured, o) })
	r.subscribe(func(ctx context.Context, fresh *settings.Settings) error {
		file, on, err := readRooms(fresh)
		if err != nil || !on {
			return err
		}
		return roomRecord.Reload(ctx, file)
	})
	r.console.addOperations(func(all operations) {
		if o.webhooks {
			checkWebhookRooms(all, rooms, roomRecord)
		}
		addRoomOperations(all, rooms, roomRecord)
	})
	r.parts.Add(parts.Part{Name: "waiting rooms", Run: parts.RunUntilDone(func(ctx context.Context) {
		if o.readOnly {
			return
		}
		defer context.AfterFunc(r.supervisor.ending, rooms.EndStreams)()
		var all sync.WaitGroup
		all.Go(func() { roomRecord.Run(ctx) })
		all.Go(func() { runBeside(ctx, rooms) })
		rooms.Run(ctx)
		all.Wait()
	})})
	return nil
}

// openRoomRecord opens the versioned record of the rooms' settings. The rooms file becomes its first version, and a changed
// file the next one. If the file cannot be read, it passes the error on to the record, which decides whether that matters. In
// read-only mode a node of a cluster refuses changes of the settings; another process stores them.
func (r *roleRun) openRoomRecord(ctx context.Context, o roomsOptions) (*waitingroom.Record, error) {
	file, _, broken := r.settings.ReadRooms()
	return waitingroom.OpenRecord(ctx, waitingroom.RecordOptions{
		Data: r.settings.Data, Node: o.cluster.nodeName(), Leader: o.cluster.recordLeader(), File: file, FileErr: broken, Logger: r.logger.With("part", "rooms"),
		Backends: o.cluster.recordBackends, ReadOnly: o.readOnly && r.settings.Bucket != "",
	})
}

// applyRooms applies configured, a version of the rooms' settings, to the open rooms. Before, it records the names of the rooms
// in the key folder, unless o is read-only. If the rooms cannot change while they are open, it requests a restart of the role and
// returns [waitingroom.ErrReopenRooms]. Other errors say why the version could not be applied.
func (r *roleRun) applyRooms(rooms *waitingroom.Rooms, configured []config.Room, o roomsOptions) error {
	if !o.readOnly {
		if _, err := waitingroom.AddKnown(r.settings.KeyFolder(), configured); err != nil {
			return err
		}
	}
	err := rooms.Change(configured)
	if errors.Is(err, waitingroom.ErrEachNode) {
		r.requestRestart(restart{}) // or the role restarts for another reason
		return waitingroom.ErrReopenRooms
	}
	return err
}

// newRooms creates the waiting rooms by the version of their settings in force, without running them, and returns the function
// that exchanges their state with other nodes while they run. Unless o is read-only, it creates the key of the
// tickets in the key folder if that has none, and records the names of the rooms there.
func (r *roleRun) newRooms(ctx context.Context, folder *Reader, roomRecord *waitingroom.Record, o roomsOptions) (*waitingroom.Rooms, runRooms, error) {
	configured, err := roomRecord.Rooms()
	if err != nil {
		return nil, nil, err
	}
	keyFolder := r.settings.KeyFolder()
	keys, err := waitingroom.OpenKeys(keyFolder, o.readOnly)
	if err != nil {
		return nil, nil, err
	}
	var known []string
	if !o.readOnly {
		if known, err = waitingroom.AddKnown(keyFolder, configured); err != nil {
			return nil, nil, err
		}
	}
	options, runBeside, err := o.cluster.shareState(ctx, waitingroom.Options{
		Rooms: configured, Keys: keys, Runtime: folder.runtime, Logger: r.logger.With("part", "rooms"), Registerer: r.metrics,
		Revision: roomRecord.Revision, Versions: roomRecord.Versions, Frozen: o.readOnly,
		StreamMemory: r.settings.MemoryLimit / 4,
	}, known)
	if err != nil {
		return nil, nil, err
	}
	if o.webhooks {
		outbox, err := folder.outbox.get()
		if err != nil {
			return nil, nil, err
		}
		options.Notify = func(ctx context.Context, n waitingroom.Notification) error {
			return outbox.Webhooks.NotifyRoom(ctx, n.Status.Name, n.Kind, n.Time, n.Status)
		}
	}
	rooms, err := waitingroom.New(options)
	return rooms, runBeside, err
}

// checkRooms returns a mistake in the rooms file if the process needs the file to start, else nil. A process that may have a
// record of the rooms' settings does not: it has a bucket, or the record is in the data folder. Then the record stays in force,
// and a reload checks the file.
func checkRooms(s *settings.Settings) error {
	if s.Bucket != "" || waitingroom.RecordExists(s.Data) {
		return nil
	}
	_, _, err := readRooms(s)
	return err
}

// readRooms reads the rooms file, or the rooms that take its place, and checks them. on is false if the settings turn rooms
// off; then nothing is checked. A mistake in the rooms is a [settings.Mistake].
func readRooms(s *settings.Settings) (file config.File, on bool, err error) {
	if file, on, err = s.ReadRooms(); err != nil || !on {
		return file, on, err
	}
	if _, err = config.Parse(file.Name, file.Text); err != nil {
		err = settings.Mistake{Err: err}
	}
	return file, on, err
}

// Requests about waiting rooms.
type (
	// A RoomsRequest requests the status of waiting rooms.
	RoomsRequest struct {
		Room string `json:"room,omitempty"` // "" for all
	}
	// A SetRoomRequest changes settings of one room.
	SetRoomRequest = waitingroom.SetRoomRequest
	// An ApplyRoomsRequest replaces the settings of all rooms by those of a file.
	ApplyRoomsRequest = waitingroom.ApplyRoomsRequest
	// An UndoRoomsRequest restores an older version of the settings of all rooms.
	UndoRoomsRequest = waitingroom.UndoRoomsRequest
	// A RoomHistoryRequest requests the versions of the settings of all rooms.
	RoomHistoryRequest struct {
		Version int64 `json:"version,omitempty"` // the version that the response has in File; 0 for none
	}
)

// A RoomVersion describes a version of the settings of all rooms.
type RoomVersion = waitingroom.Version

// A RoomHistory is the versions of the settings of all rooms, newest first.
type RoomHistory struct {
	Versions []RoomVersion `json:"versions"`
	File     string        `json:"file,omitempty"` // the settings of the requested version, as a file of rooms; "" if none was requested
}

// Operations about waiting rooms.
const (
	OpRooms       Operation[RoomsRequest, any, []waitingroom.Status] = "rooms"
	OpSetRoom     Operation[SetRoomRequest, any, RoomVersion]        = "set-room"
	OpApplyRooms  Operation[ApplyRoomsRequest, any, RoomVersion]     = "apply-rooms"
	OpUndoRooms   Operation[UndoRoomsRequest, any, RoomVersion]      = "undo-rooms"
	OpRoomHistory Operation[RoomHistoryRequest, any, RoomHistory]    = "room-history"
)

// addRoomOperations adds to all the operations that return the status of rooms and the history of their settings, and that change
// these.
func addRoomOperations(all operations, rooms *waitingroom.Rooms, roomRecord *waitingroom.Record) {
	addRequest(all, OpRooms, func(_ context.Context, q RoomsRequest) ([]waitingroom.Status, error) {
		if q.Room == "" {
			return rooms.Statuses(), nil
		}
		status, ok := rooms.Status(q.Room)
		if !ok {
			return nil, roomRecord.UnknownRoom(q.Room)
		}
		return []waitingroom.Status{status}, nil
	})
	addRequest(all, OpRoomHistory, func(ctx context.Context, q RoomHistoryRequest) (RoomHistory, error) {
		versions, file, err := roomRecord.History(ctx, q.Version)
		return RoomHistory{versions, string(file)}, err
	})
	addRequest(all, OpSetRoom, roomRecord.Set)
	addRequest(all, OpApplyRooms, roomRecord.Apply)
	addRequest(all, OpUndoRooms, roomRecord.Undo)
}

// checkWebhookRooms changes the operation in all that adds webhooks, if all has it, so that it returns an error for a webhook
// of a room that is not in rooms. roomRecord makes that error, which names a room with a similar name.
func checkWebhookRooms(all operations, rooms *waitingroom.Rooms, roomRecord *waitingroom.Record) {
	add := all[string(OpWebhookAdd)]
	if add == nil {
		return
	}
	all[string(OpWebhookAdd)] = func(ctx context.Context, request api.OperationRequest, report func(any)) (any, error) {
		var q WebhookAddRequest
		if json.Unmarshal(request.JSON, &q) == nil && q.Room != "" && q.Room != "*" { // add reports the mistakes in others
			if _, ok := rooms.Status(q.Room); !ok {
				return nil, roomRecord.UnknownRoom(q.Room)
			}
		}
		return add(ctx, request, report)
	}
}

// remoteRooms has the leader of the cluster change the rooms' settings. It implements [waitingroom.RecordChanger].
type remoteRooms struct{ node *clusterNode }

// Set implements [waitingroom.RecordChanger]: it has the leader change the settings of one room, and returns the new version.
func (f remoteRooms) Set(ctx context.Context, q SetRoomRequest) (RoomVersion, error) {
	return forwardRoomChange(ctx, f, OpSetRoom, q)
}

// Apply implements [waitingroom.RecordChanger]: it has the leader replace the settings of all rooms, and returns the new version.
func (f remoteRooms) Apply(ctx context.Context, q ApplyRoomsRequest) (RoomVersion, error) {
	return forwardRoomChange(ctx, f, OpApplyRooms, q)
}

// Undo implements [waitingroom.RecordChanger]: it has the leader restore an older version of the rooms' settings as a new one,
// which it returns.
func (f remoteRooms) Undo(ctx context.Context, q UndoRoomsRequest) (RoomVersion, error) {
	return forwardRoomChange(ctx, f, OpUndoRooms, q)
}

// forwardRoomChange has the leader carry out the operation o, which changes the rooms' settings, and returns the new version.
func forwardRoomChange[Request any](ctx context.Context, f remoteRooms, o Operation[Request, any, RoomVersion], q Request) (v RoomVersion, err error) {
	request, err := json.Marshal(q)
	if err != nil {
		return v, err
	}
	result, err := f.node.forwardToLeader(ctx, string(o), api.OperationRequest{JSON: request, Contents: http.NoBody}, func(any) {})
	if err == nil {
		err = json.Unmarshal(result, &v)
	}
	return v, err
}
