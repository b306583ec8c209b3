package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A roomOwner changes the record: this process does, or the leader of the cluster does it on request.
type roomOwner interface {
	set(context.Context, SetRoomRequest) (RoomVersion, error)
	apply(context.Context, ApplyRoomsRequest) (RoomVersion, error)
	undo(context.Context, UndoRoomsRequest) (RoomVersion, error)
	// seed creates the first version if there is none and this process owns the record.
	seed(context.Context) error
	// run keeps this node's copy of the record current until ctx ends.
	run(context.Context, *roomRecord)
}

// ownedRooms changes the record in this process: it is alone, or leads the cluster.
type ownedRooms struct{ record *roomRecord }

// begin seeds the record where there is none, and offers the rooms file.
func (o *ownedRooms) begin(ctx context.Context) error {
	if err := o.record.store.Share(ctx); err != nil {
		o.record.logger.Error("couldn't give the cluster the settings of the rooms that are here; trying again", "err", err)
	}
	if _, ok := o.record.store.Get(); !ok {
		if _, err := o.firstVersion(); err != nil {
			return err
		}
		if err := o.seed(ctx); err != nil {
			o.record.logger.Error("couldn't store the settings of the waiting rooms; the file is in force, and storing it is tried again", "err", err)
		}
		return nil
	}
	o.record.retireLegacyFile()
	o.record.considerAtStart(ctx, o.record.offer)
	return nil
}

// firstVersion returns what the first version is made of, if that is valid.
func (o *ownedRooms) firstVersion() (c configstore.Change, err error) {
	document, err := o.record.seedDocument()
	if err != nil {
		return c, err
	}
	content, err := o.record.encode(document)
	if err != nil {
		return c, err
	}
	origin := o.record.file.Name + ", the first file"
	if len(document.Set) > 0 {
		origin += ", and what larder room set has set in " + legacyFile
	}
	return configstore.Change{Origin: o.record.origin("", origin), File: fileHash(o.record.file), Content: content}, nil
}

func (o *ownedRooms) seed(ctx context.Context) error {
	if _, ok := o.record.store.Get(); ok {
		return nil
	}
	first, err := o.firstVersion()
	if err == nil {
		_, err = o.record.store.Propose(ctx, 0, first)
	}
	if errors.As(err, new(*configstore.ConflictError)) {
		return nil // another process was faster
	}
	if err == nil || errors.As(err, new(*configstore.ApplyError)) {
		o.record.retireLegacyFile()
		o.record.remember(o.record.file)
	}
	return err
}

// base returns the version that a change is based on: number, or with 0 the one in force.
func (o *ownedRooms) base(ctx context.Context, number int64) (configstore.Version, error) {
	if err := o.seed(ctx); err != nil {
		return configstore.Version{}, fmt.Errorf("nothing was changed, because the settings of the waiting rooms cannot be stored: %w", err)
	}
	v, _ := o.record.store.Get()
	if number != 0 && number != v.Number {
		v.Content = nil
		return v, &configstore.ConflictError{Base: number, Current: v}
	}
	return v, nil
}

func (o *ownedRooms) set(ctx context.Context, q SetRoomRequest) (v RoomVersion, err error) {
	base, err := o.base(ctx, q.Base)
	if err != nil {
		return v, err
	}
	document, before, err := decodeRooms(base)
	if err != nil {
		return v, err
	}
	if !slices.ContainsFunc(before, func(r config.Room) bool { return r.Name == q.Room }) {
		return v, unknownRoom(before, q.Room)
	}
	if document, err = document.With(q.Room, q.Fields); err != nil {
		return v, err
	}
	content, err := o.record.encode(document)
	if err != nil {
		return v, err
	}
	// Values may be secrets, such as the header by which a rule lets requests bypass a room.
	origin := o.record.origin(q.Origin, "larder room set "+q.Room+" "+strings.Join(slices.Sorted(maps.Keys(q.Fields)), " "))
	return o.propose(ctx, base.Number, configstore.Change{Origin: origin, File: base.File, Content: content})
}

func (o *ownedRooms) apply(ctx context.Context, q ApplyRoomsRequest) (v RoomVersion, err error) {
	base, err := o.base(ctx, 0)
	if err != nil {
		return v, err
	}
	hash := q.File
	if hash == "" {
		hash = hashOf(q.Text)
	}
	before, _, _ := decodeRooms(base)              // a version that this release does not understand can be replaced
	if base.File == hash && len(before.Set) == 0 { // as when another node has reloaded the same file
		return describe(base, base.Number), nil
	}
	if base, err = o.base(ctx, q.Base); err != nil {
		return v, err
	}
	content, err := o.record.encode(config.Document{Name: text.Plain(q.Name), Text: string(q.Text)})
	if err != nil {
		return v, err
	}
	for room, fields := range before.Set {
		o.record.logger.Warn("a file of rooms replaces what larder room set has set", "room", room, "fields", slices.Sorted(maps.Keys(fields)), "file", q.Name)
	}
	origin := o.record.origin(q.Origin, "larder room apply "+q.Name)
	return o.propose(ctx, base.Number, configstore.Change{Origin: origin, File: hash, Content: content})
}

func (o *ownedRooms) undo(ctx context.Context, q UndoRoomsRequest) (v RoomVersion, err error) {
	base, err := o.base(ctx, q.Base)
	if err != nil {
		return v, err
	}
	made, err := o.record.store.Undo(ctx, base.Number, q.To, o.record.origin(q.Origin, "larder room undo"), func(v configstore.Version) error {
		if _, _, err := decodeRooms(v); err != nil {
			return fmt.Errorf("nothing was changed, because this release of Larder cannot use the older settings; choose others by --to, as larder room history lists them: %w", err)
		}
		return nil
	})
	return o.done(made, err)
}

func (o *ownedRooms) propose(ctx context.Context, base int64, c configstore.Change) (RoomVersion, error) {
	v, err := o.record.store.Propose(ctx, base, c)
	return o.done(v, err)
}

func (o *ownedRooms) done(v configstore.Version, err error) (RoomVersion, error) {
	if err != nil {
		return RoomVersion{}, err
	}
	o.record.logger.Info("changed the settings of the waiting rooms", "version", v.Number, "origin", v.Origin)
	return describe(v, v.Number), nil
}

// run follows the record: a leader that was replaced may still have created a version. It repeats what has failed.
func (o *ownedRooms) run(ctx context.Context, r *roomRecord) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		for _, ok := r.store.Get(); !ok && retry.Sleep(ctx, offerEvery) == nil; _, ok = r.store.Get() {
			if o.seed(ctx) == nil {
				o.record.logger.Info("the settings of the waiting rooms are stored")
			}
		}
	})
	r.store.Follow(ctx)
}

// followedRooms has the leader of the cluster change the record.
type followedRooms struct {
	node *clusterNode
	name string
}

func (f *followedRooms) set(ctx context.Context, q SetRoomRequest) (RoomVersion, error) {
	return forwardRooms(ctx, f, OpSetRoom, q)
}

func (f *followedRooms) apply(ctx context.Context, q ApplyRoomsRequest) (RoomVersion, error) {
	return forwardRooms(ctx, f, OpApplyRooms, q)
}

func (f *followedRooms) undo(ctx context.Context, q UndoRoomsRequest) (RoomVersion, error) {
	return forwardRooms(ctx, f, OpUndoRooms, q)
}

// forwardRooms has the leader do an operation.
func forwardRooms[Request any](ctx context.Context, f *followedRooms, o Operation[Request, any, RoomVersion], q Request) (v RoomVersion, err error) {
	request, err := json.Marshal(q)
	if err != nil {
		return v, err
	}
	result, err := f.node.forward(ctx, string(o), admin.Request{JSON: request, Contents: http.NoBody}, func(any) {})
	if err == nil {
		raw, ok := result.(json.RawMessage)
		if !ok {
			return v, fmt.Errorf("the leader returned %T", result)
		}
		err = json.Unmarshal(raw, &v)
	}
	return v, err
}

// Times of a follower whose rooms file has changed while it did not run.
const (
	offerEvery = 5 * time.Second
	offerFor   = 2 * time.Minute
)

// run offers the rooms file to the leader, and follows the record.
func (f *followedRooms) run(ctx context.Context, r *roomRecord) {
	var both sync.WaitGroup
	defer both.Wait()
	if !r.alone {
		both.Go(func() { f.offerAtStart(ctx, r) })
	}
	r.store.Follow(ctx)
}

// seed leaves it to the leader, which has its own file.
func (f *followedRooms) seed(context.Context) error { return nil }

func (f *followedRooms) offerAtStart(ctx context.Context, r *roomRecord) {
	base, ok := r.store.Get()
	if !ok {
		return // the leader seeds the record with its own file
	}
	r.considerAtStart(ctx, func(ctx context.Context, file settings.RoomsFile, when string) error {
		for deadline := time.Now().Add(offerFor); ; {
			err := r.offer(ctx, file, when)
			now, _ := r.store.Get()
			if err == nil || errors.As(err, new(*SupersededError)) || now.Number != base.Number || time.Now().After(deadline) {
				return err
			}
			if retry.Sleep(ctx, offerEvery) != nil {
				return err
			}
		}
	})
}
