package waitingroom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A SetRoomRequest sets fields of a waiting room, under the names that the file of rooms has.
type SetRoomRequest struct {
	Room   string            `json:"room"`
	Fields map[string]string `json:"fields"`           // values in YAML; "" for that of the file
	Base   int64             `json:"base,omitempty"`   // the version that is changed; 0 for the one in force
	Origin string            `json:"origin,omitempty"` // who or what makes the change; "" for the command on this node
}

// An ApplyRoomsRequest has a file of rooms become the next version.
type ApplyRoomsRequest struct {
	Name   string `json:"name"` // of the file
	Text   []byte `json:"text"`
	File   string `json:"file,omitempty"`   // identifies the content; "" for the hash of Text
	Base   int64  `json:"base,omitempty"`   // as in SetRoomRequest
	Origin string `json:"origin,omitempty"` // as in SetRoomRequest
}

// An UndoRoomsRequest has an older version become the next one.
type UndoRoomsRequest struct {
	To     int64  `json:"to,omitempty"`     // 0 for the one before
	Base   int64  `json:"base,omitempty"`   // as in SetRoomRequest
	Origin string `json:"origin,omitempty"` // as in SetRoomRequest
}

// A RecordChanger makes the next version of the record: this process, or the leader of the cluster on request. Each method
// creates a version as its request says and returns it. If another version than the request's Base is in force, it fails: with a
// [*configstore.ConflictError] in this process, with an error of the same text if the leader was requested.
type RecordChanger interface {
	Set(context.Context, SetRoomRequest) (Version, error)
	Apply(context.Context, ApplyRoomsRequest) (Version, error)
	Undo(context.Context, UndoRoomsRequest) (Version, error)
}

// Set creates a version with fields of a room changed, in this process or on the leader, and brings it into force on this node.
// An error may mean that only this node cannot use it, so that the version exists. If this node cannot read the version yet, Set
// returns no error, and [Record.Run] brings it into force later.
func (r *Record) Set(ctx context.Context, q SetRoomRequest) (Version, error) {
	v, err := r.changer.Set(ctx, q)
	return r.awaitInForce(ctx, v, err)
}

// Apply creates a version from a file of rooms, in this process or on the leader, and brings it into force on this node. Fields
// that were set one by one are dropped. If the same file is in force, and no field was set, Apply returns that version. Errors
// are as those of [Record.Set].
func (r *Record) Apply(ctx context.Context, q ApplyRoomsRequest) (Version, error) {
	v, err := r.changer.Apply(ctx, q)
	return r.awaitInForce(ctx, v, err)
}

// Undo creates a version that restores an older one, in this process or on the leader, and brings it into force on this node.
// Errors are as those of [Record.Set].
func (r *Record) Undo(ctx context.Context, q UndoRoomsRequest) (Version, error) {
	v, err := r.changer.Undo(ctx, q)
	return r.awaitInForce(ctx, v, err)
}

// awaitInForce brings the version v, which a change has created, into force on this node if it is not yet. v and err are the
// results of the change; it returns them, or v and an error if this node cannot use the version. If it cannot read the version,
// it only logs that.
func (r *Record) awaitInForce(ctx context.Context, v Version, err error) (Version, error) {
	if have, _ := r.store.Get(); err == nil && have.Number < v.Number {
		if late := r.store.Refresh(ctx); late != nil {
			r.logger.Warn("the rooms were changed, and this node has yet to take over the new version", "version", v.Number, "err", late)
		}
		if wrong := r.rejection(v.Number); wrong != nil {
			err = fmt.Errorf("the rooms were changed, but not on this node: %w", wrong)
		}
	}
	return v, err
}

// UnknownRoom returns the error that there is no room with a name. It suggests a similar one. It does not check whether there is
// one. If the rooms cannot be parsed, it returns the error of that.
func (r *Record) UnknownRoom(name string) error {
	rooms, err := r.Rooms()
	if err != nil {
		return err
	}
	return unknownRoom(rooms, name)
}

// unknownRoom returns the error that there is no room with a name among rooms. It suggests a similar one.
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

// recordOwner changes the record in this process.
type recordOwner struct{ record *Record }

// start creates the first version if the record has none. Otherwise it offers the rooms file as the next version if the file has
// changed. Before, it copies versions that only this node has to the bucket of its cluster. It fails only if there is no version
// and the settings are not valid; it logs other errors.
func (o recordOwner) start(ctx context.Context) error {
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
	o.record.offerAtStart(ctx, o.record.offer)
	return nil
}

// firstVersion returns the content of the first version, from the rooms file and the fields set under Larder 0.1.0, or an error
// if the settings are not valid. It stores nothing.
func (o recordOwner) firstVersion() (c configstore.Change, err error) {
	document, err := o.record.seedDocument()
	if err != nil {
		return c, err
	}
	content, err := encodeRecordDocument(document)
	if err != nil {
		return c, err
	}
	origin := "initial settings: " + o.record.file.Name
	if len(document.Set) > 0 {
		origin += ", and what larder room set has set in " + legacyRecordFile
	}
	return configstore.Change{Origin: o.record.originOf("", origin), File: o.record.file.Hash(), Content: content}, nil
}

// seed creates the first version from the rooms file if the record has none. It returns nil if there is one, also if another
// process was faster. With a [*configstore.ApplyError] the version exists.
func (o recordOwner) seed(ctx context.Context) error {
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
		o.record.setLastReadFile(o.record.file)
	}
	return err
}

// seedRetryInterval is the time between two attempts to seed the record, and to offer a file to the leader.
const seedRetryInterval = 5 * time.Second

// seedLater tries to create the first version every 5 seconds until there is one or ctx ends. It returns at once if there is one.
// It logs no errors.
func (o recordOwner) seedLater(ctx context.Context) {
	for _, ok := o.record.store.Get(); !ok && retry.Sleep(ctx, seedRetryInterval) == nil; _, ok = o.record.store.Get() {
		if o.seed(ctx) == nil {
			o.record.logger.Info("the settings of the waiting rooms are stored")
		}
	}
}

// base returns the version in force, on which a change is based. It creates the first version if none exists. It returns a
// [*configstore.ConflictError], and the version without its content, if number is neither 0 nor that of the version in force.
func (o recordOwner) base(ctx context.Context, number int64) (configstore.Version, error) {
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

// Set implements [RecordChanger] in the process that owns the record. It creates a version with fields of a room changed. It
// fails, and changes nothing, if there is no such room or the settings are not valid.
func (o recordOwner) Set(ctx context.Context, q SetRoomRequest) (v Version, err error) {
	base, err := o.base(ctx, q.Base)
	if err != nil {
		return v, err
	}
	document, before, err := decodeRecordVersion(base)
	if err != nil {
		return v, err
	}
	if !slices.ContainsFunc(before, func(r config.Room) bool { return r.Name == q.Room }) {
		return v, unknownRoom(before, q.Room)
	}
	if document, err = document.With(q.Room, q.Fields); err != nil {
		return v, err
	}
	content, err := encodeRecordDocument(document)
	if err != nil {
		return v, err
	}
	// Values may be secrets, such as the header by which a rule lets requests bypass a room.
	origin := o.record.originOf(q.Origin, "larder room set "+q.Room+" "+strings.Join(slices.Sorted(maps.Keys(q.Fields)), " "))
	return o.propose(ctx, base.Number, configstore.Change{Origin: origin, File: base.File, Content: content})
}

// Apply implements [RecordChanger] in the process that owns the record. It creates a version from a file of rooms, without fields
// that were set one by one, which it logs. If the version in force is that same file without such fields, it returns that
// version, whatever q.Base is. It fails, and changes nothing, if the settings are not valid.
func (o recordOwner) Apply(ctx context.Context, q ApplyRoomsRequest) (v Version, err error) {
	base, err := o.base(ctx, 0)
	if err != nil {
		return v, err
	}
	hash := q.File
	if hash == "" {
		hash = config.Hash(q.Text)
	}
	before, _, _ := decodeRecordVersion(base)      // a version that this release does not understand can be replaced
	if base.File == hash && len(before.Set) == 0 { // as when another node has reloaded the same file
		return toDisplayedVersion(base, base.Number), nil
	}
	if base, err = o.base(ctx, q.Base); err != nil {
		return v, err
	}
	content, err := encodeRecordDocument(config.Document{Name: text.Plain(q.Name), Text: string(q.Text)})
	if err != nil {
		return v, err
	}
	for room, fields := range before.Set {
		o.record.logger.Warn("a file of rooms replaces what larder room set has set", "room", room, "fields", slices.Sorted(maps.Keys(fields)), "file", q.Name)
	}
	origin := o.record.originOf(q.Origin, "larder room apply "+q.Name)
	return o.propose(ctx, base.Number, configstore.Change{Origin: origin, File: hash, Content: content})
}

// Undo implements [RecordChanger] in the process that owns the record. It creates a version that restores an older one. It fails,
// and changes nothing, if this release cannot use that.
func (o recordOwner) Undo(ctx context.Context, q UndoRoomsRequest) (v Version, err error) {
	base, err := o.base(ctx, q.Base)
	if err != nil {
		return v, err
	}
	made, err := o.record.store.Undo(ctx, base.Number, q.To, o.record.originOf(q.Origin, "larder room undo"), func(v configstore.Version) error {
		if _, _, err := decodeRecordVersion(v); err != nil {
			return fmt.Errorf("nothing was changed, because this release of Larder cannot use the older settings; choose others by --to, as larder room history lists them: %w", err)
		}
		return nil
	})
	return o.logVersion(made, err)
}

// propose creates a version with the content of a change, if the version with the number base is in force, and logs it; otherwise
// it returns a [*configstore.ConflictError].
func (o recordOwner) propose(ctx context.Context, base int64, c configstore.Change) (Version, error) {
	v, err := o.record.store.Propose(ctx, base, c)
	return o.logVersion(v, err)
}

// logVersion logs a version that was created, and returns it as it is displayed. If err is not nil, it logs nothing and returns
// err with the zero Version.
func (o recordOwner) logVersion(v configstore.Version, err error) (Version, error) {
	if err != nil {
		return Version{}, err
	}
	o.record.logger.Info("changed the settings of the waiting rooms", "version", v.Number, "origin", v.Origin)
	return toDisplayedVersion(v, v.Number), nil
}

// encodeRecordDocument returns a document as the content of a version, or an error if its settings are not valid.
func encodeRecordDocument(document config.Document) ([]byte, error) {
	if _, err := document.Rooms(); err != nil {
		return nil, err
	}
	return json.Marshal(document)
}

// originOf returns the text that says who or what made a change, on one line and cut to maxRecordOrigin bytes: given, or if that
// is "", what was done and on which node.
func (r *Record) originOf(given, what string) string {
	if given == "" {
		given = what + " on " + r.node
	}
	return limitOrigin(text.Plain(given))
}
