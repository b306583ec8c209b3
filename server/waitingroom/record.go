package waitingroom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// RecordFolder is the folder in the data folder that has the versions, and what a node remembers of its rooms file.
const RecordFolder = "rooms"

const (
	recordVersionsPrefix = "version/"        // of the versions in RecordFolder
	ownRecordPrefix      = "own-version/"    // of those of a node that cannot read the cluster's
	sharedRecordPrefix   = "settings/rooms/" // of the versions in the bucket of a cluster
	openRecordTimeout    = 10 * time.Second  // for the bucket to say at a start which version is in force
)

// RecordBackends are where the versions are: [LocalRecord], [IsolatedRecord] or [SharedRecord].
type RecordBackends struct {
	authority, local *configstore.Backend
	isolated         bool // the node cannot read the versions of its cluster
}

// LocalRecord returns the backends of a process that is not in a cluster: a folder has the versions of the rooms' settings. It
// reads nothing.
func LocalRecord(folder bucket.Bucket) RecordBackends {
	local := configstore.NewBackend(folder, recordVersionsPrefix, configstore.Checksum{})
	return RecordBackends{authority: local, local: local}
}

// IsolatedRecord returns the backends of a node that cannot read the versions of its cluster. It uses its own rooms file, with versions
// of its own in a folder.
func IsolatedRecord(folder bucket.Bucket) RecordBackends {
	local := configstore.NewBackend(folder, ownRecordPrefix, configstore.Checksum{})
	return RecordBackends{authority: local, local: local, isolated: true}
}

// SharedRecord returns the backends of a node whose cluster has the versions in a bucket, sealed by sealer, with a copy in a folder.
func SharedRecord(folder, cluster bucket.Bucket, sealer configstore.Sealer) RecordBackends {
	return RecordBackends{
		authority: configstore.NewBackend(cluster, sharedRecordPrefix, sealer),
		local:     configstore.NewBackend(folder, recordVersionsPrefix, configstore.Checksum{}),
	}
}

// RecordOptions say how a record is opened.
type RecordOptions struct {
	// Data is the data folder, Node the name of this node for the origin of changes.
	Data, Node string
	// Backends returns where the versions are, of which the data folder has some.
	Backends func(folder bucket.Bucket) RecordBackends
	// Leader changes the record for a node that follows. Default: this process changes it.
	Leader RecordChanger
	// File is the rooms file as it was read at the start, and FileErr why it cannot be read.
	File    config.File
	FileErr error
	Logger  *slog.Logger
	// ReadOnly refuses changes on a node that cannot take part in its cluster at the moment.
	ReadOnly bool
}

// A Record has the settings of all waiting rooms as one record with versions, on this node. The rooms file of a process only seeds it.
//
// One process owns the record: it is alone, or leads its cluster. Every node follows the record, also while its leader cannot be
// reached, and has the leader change it.
//
// A start, another role, a repair or an upgrade changes nothing that is in force; a file is offered once, and becomes a version only
// as a whole; of two changes of one version the second fails; a version that this release cannot use leaves the one before in force.
type Record struct {
	logger  *slog.Logger
	data    string // folder
	node    string
	store   *configstore.Store
	file    config.File
	fileErr error
	// changer makes changes, and offers has this node's rooms file become the next version. The two differ in an isolated node, whose file
	// counts here only.
	changer, offers RecordChanger
	follows         bool // the leader of the cluster owns the record
	isolated        bool

	mu       sync.Mutex
	enforced configstore.Version // that the rooms here follow, without its content
	document config.Document     // its content
	problem  string              // why the rooms here follow an older version; "" where they do not
}

// OpenRecord opens the record of the rooms' settings and chooses the version that applies here. If this process owns the record,
// or is isolated, OpenRecord creates the first version if it is missing, and otherwise offers the rooms file as the next version
// if the file has changed; it logs that either could not be stored. A follower offers its file in [Record.Run]. OpenRecord waits
// up to 10 seconds for the bucket. It fails if the versions cannot be read or none is usable, or if there is none and the file is
// not valid.
func OpenRecord(ctx context.Context, o RecordOptions) (*Record, error) {
	r := &Record{logger: o.Logger, data: o.Data, node: o.Node, file: o.File, fileErr: o.FileErr, follows: o.Leader != nil}
	folder, err := bucket.FolderAt(filepath.Join(o.Data, RecordFolder))
	if err != nil {
		return nil, err
	}
	if o.ReadOnly {
		folder = configstore.ReadOnly{Bucket: folder, Why: errors.New("this node cannot take part in the cluster at the moment; change the rooms on another node")}
	}
	b := o.Backends(folder)
	if r.isolated = b.isolated; r.isolated {
		r.logger.Warn("this node cannot read the settings of the cluster's waiting rooms without the cluster's key, and goes by its own file; copy cluster.key from the key folder of another node")
	}
	own := recordOwner{r}
	r.changer, r.offers = own, own
	if r.follows {
		r.changer = o.Leader
	}
	offersToLeader := r.follows && !r.isolated
	if offersToLeader {
		r.offers = o.Leader
	}
	ctx, cancel := context.WithTimeout(ctx, openRecordTimeout)
	defer cancel()
	if r.store, err = configstore.Open(ctx, configstore.Options{Authority: b.authority, Copy: b.local, Logger: r.logger, Now: time.Now}); err != nil {
		return nil, fmt.Errorf("couldn't read the settings of the waiting rooms (%s): %w", filepath.Join(o.Data, RecordFolder), err)
	}
	if !offersToLeader {
		if err := own.start(ctx); err != nil {
			return nil, err
		}
	}
	return r, r.chooseVersion(ctx)
}

// chooseVersion sets which version applies here: the newest that this release understands. If that is an older one, it logs why
// and sets the problem. Without any version it is the rooms file. It fails if no version, or the file, can be used.
func (r *Record) chooseVersion(ctx context.Context) error {
	v, ok := r.store.Get()
	if !ok {
		document, err := r.seedDocument()
		if err == nil {
			_, err = document.Rooms()
		}
		r.document, r.enforced.Origin = document, r.file.Name+", which is no version yet"
		return err
	}
	document, _, err := decodeRecordVersion(v)
	for _, older := range r.store.History() {
		if err == nil {
			break
		}
		if older.Number >= v.Number {
			continue
		}
		r.logger.Error("a version of the rooms cannot be used by this release of Larder; an older one is used", "version", v.Number, "err", err)
		r.problem = fmt.Sprintf("version %d cannot be used here: %v", v.Number, err)
		if v, err = r.store.Read(ctx, older.Number); err == nil {
			document, _, err = decodeRecordVersion(v)
		}
	}
	v.Content = nil
	r.document, r.enforced = document, v
	return err
}

// decodeRecordVersion returns the document in a version, and the rooms that it describes, nil if it has no list. The error names
// the version.
func decodeRecordVersion(v configstore.Version) (document config.Document, rooms []config.Room, err error) {
	if err = json.Unmarshal(v.Content, &document); err == nil {
		rooms, err = document.Rooms()
	}
	if err != nil {
		err = fmt.Errorf("version %d: %w", v.Number, err)
	}
	return document, rooms, err
}

// ErrReopenRooms is the error of a subscriber ([Record.Subscribe]) that can follow a version only after the rooms are opened again, and
// that has requested this itself.
var ErrReopenRooms = errors.New("the waiting rooms have to be opened again")

// Subscribe has apply called with the rooms of each version that comes into force from now on, one call after the other. If apply
// returns an error, the rooms here keep the version before, the status says why, and [Record.Run] has apply called again later.
// [ErrReopenRooms] counts as no error, but the version before stays the one that is displayed.
func (r *Record) Subscribe(apply func([]config.Room) error) {
	r.store.Subscribe(func(v configstore.Version) error { return r.applyVersion(v, apply) })
}

// applyVersion brings a version into force on this node by the function apply. If that fails, the version before stays in force
// here, the problem is recorded, and applyVersion returns the error; with [ErrReopenRooms] nothing is recorded and it returns
// nil.
func (r *Record) applyVersion(v configstore.Version, apply func([]config.Room) error) error {
	document, rooms, err := decodeRecordVersion(v)
	if err != nil {
		return r.reject(v, err)
	}
	revert := r.setApplied(v, document) // first, because webhooks about the change name the version
	switch err = apply(rooms); {
	case errors.Is(err, ErrReopenRooms):
		revert()
		r.logger.Info("the node opens its waiting rooms again, because each_node of one has changed", "version", v.Number)
		return nil
	case err != nil:
		revert()
		return r.reject(v, err)
	}
	r.logger.Info("a version of the settings of the waiting rooms is in force", "version", v.Number, "origin", v.Origin)
	return nil
}

// Run keeps this node's copy of the record current until ctx ends, and applies new versions ([Record.Subscribe]). It also runs on
// a leader, because the previous leader may still have created a version. It repeats what failed at the start: to create the
// first version, or to offer the rooms file to the leader.
func (r *Record) Run(ctx context.Context) {
	var both sync.WaitGroup
	defer both.Wait()
	switch {
	case !r.follows:
		both.Go(func() { recordOwner{r}.seedLater(ctx) })
	case !r.isolated:
		both.Go(func() { r.offerToLeader(ctx) })
	}
	r.store.Follow(ctx)
}

// refresh reads from the bucket of a cluster which version is in force, so that a change is not based on an older one. It logs an
// error, and does nothing without a cluster.
func (r *Record) refresh(ctx context.Context) {
	if !r.store.Shared() {
		return
	}
	if err := r.store.Refresh(ctx); err != nil {
		r.logger.Warn("couldn't read which version of the rooms is in force", "err", err)
	}
}

// Rooms parses the settings of the version that applies on this node, and returns the rooms, nil if it has no list. Each call
// returns new ones.
func (r *Record) Rooms() ([]config.Room, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.document.Rooms()
}

// Revision returns which version of the rooms is in force on this node, its problem if it has one, and whether a newer one may be
// in force elsewhere. It reads only memory.
func (r *Record) Revision() Revision {
	state := r.store.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := Revision{Version: r.enforced.Number, Time: r.enforced.Time, Origin: r.enforced.Origin, Problem: r.problem}
	if state.Problem != nil {
		v.Problem = limitOrigin(strings.TrimPrefix(v.Problem+"\n"+state.Problem.Error(), "\n"))
	}
	if v.Unconfirmed = state.Unconfirmed; v.Unconfirmed {
		v.Confirmed = state.Confirmed
	}
	return v
}

// setApplied sets which version applies here, with its document and without a problem, and returns a function that restores what
// was set before.
func (r *Record) setApplied(v configstore.Version, document config.Document) (revert func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	enforced, was, problem := r.enforced, r.document, r.problem
	r.enforced, r.document, r.problem = v, document, ""
	r.enforced.Content = nil
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.enforced, r.document, r.problem = enforced, was, problem
	}
}

// reject records that a version cannot be applied here because of err, logs that unless it was recorded already, and returns err.
func (r *Record) reject(v configstore.Version, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.problem
	if r.problem = limitOrigin(fmt.Sprintf("version %d cannot be used here: %v", v.Number, err)); r.problem != known {
		r.logger.Error("a version of the rooms cannot be used on this node; the one before stays in force here", "version", v.Number, "origin", v.Origin, "err", err)
	}
	return err
}

// rejection returns why the version with a number was rejected here; nil if that or a newer one is in force here, or if no
// problem is recorded.
func (r *Record) rejection(number int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.enforced.Number >= number || r.problem == "" {
		return nil
	}
	return errors.New(r.problem)
}

// maxRecordOrigin bounds the origin and the problem that are stored and displayed, in bytes.
const maxRecordOrigin = 500

// limitOrigin cuts a text to at most maxRecordOrigin bytes, the length of a stored origin or problem.
func limitOrigin(s string) string { return text.Cut(s, maxRecordOrigin) }

// Versions returns all versions of the settings that are stored, newest first; an empty list for none.
func (r *Record) Versions() []Version {
	current, _ := r.store.Get()
	all := []Version{}
	for _, v := range r.store.History() {
		all = append(all, toDisplayedVersion(v, current.Number))
	}
	return all
}

// History returns all versions, newest first, and the settings of the version with a number as a file of rooms in YAML. With
// number 0 the file is nil. In a cluster it first reads which version is in force. The error is [configstore.ErrNoVersion] for an
// unknown number, or says that the version cannot be read; the versions are returned also then.
func (r *Record) History(ctx context.Context, number int64) (all []Version, file []byte, err error) {
	r.refresh(ctx) // a change by a command is of the version that is in force here
	all = r.Versions()
	if number == 0 {
		return all, nil, nil
	}
	v, err := r.store.Read(ctx, number)
	if err != nil {
		return all, nil, err
	}
	var document config.Document
	if err := json.Unmarshal(v.Content, &document); err != nil {
		return all, nil, err
	}
	file, err = document.YAML()
	return all, file, err
}

// toDisplayedVersion returns what is displayed of a version; current is the number of the one in force.
func toDisplayedVersion(v configstore.Version, current int64) Version {
	return Version{Number: v.Number, Time: v.Time, Origin: v.Origin, Restores: v.Restores, InForce: v.Number == current}
}
