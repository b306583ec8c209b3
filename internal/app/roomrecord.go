package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// The settings of all waiting rooms are one record with versions. The rooms file only seeds it.

const (
	roomsFolder    = "rooms"           // of the data folder: the versions, and what this node remembers of its rooms file
	versionsPrefix = "version/"        // of the versions in it
	ownPrefix      = "own-version/"    // of those of a node that cannot read the cluster's
	sharedPrefix   = "settings/rooms/" // of the versions in the bucket of a cluster
	lastFile       = "last-file"       // in roomsFolder: the hash of the rooms file that this node read last
	recordTime     = 10 * time.Second  // that the bucket has at a start to say which version is in force
)

// A roomRecord is the record of the rooms on this node, and the rooms that follow it.
type roomRecord struct {
	logger *slog.Logger
	data   string // folder
	node   string // this one's name, for the origin of changes
	store  *configstore.Store
	owner  roomOwner
	file   settings.RoomsFile // as it was read at the start
	broken error              // why it could not be read then
	// offers has this node's rooms file become the next version. alone says that it does so in this process only, because the
	// node cannot read the cluster's record.
	offers func(context.Context, ApplyRoomsRequest) (RoomVersion, error)
	alone  bool

	mu       sync.Mutex
	enforced configstore.Version // that the rooms here follow, without its content
	document config.Document     // its content
	problem  string              // why the rooms here follow an older version; "" where they do not
}

func hashOf(text []byte) string { return kvstore.Sum(text).String() }

// fileHash identifies the content of a rooms file. Rooms in the configuration file are identified by their canonical form, which
// no release of the YAML encoder changes.
func fileHash(file settings.RoomsFile) string {
	if file.Canonical != nil {
		return hashOf(file.Canonical)
	}
	return hashOf(file.Text)
}

// openRoomRecord opens the record, seeds it if this process owns it, and offers the rooms file.
func (s *roomsSite) openRoomRecord(ctx context.Context) (*roomRecord, error) {
	file, _, broken := s.settings.ReadRooms()
	r := &roomRecord{logger: s.logger.With("part", "rooms"), data: s.settings.Data, node: s.cluster.dataCentre(), file: file, broken: broken}
	dir, err := bucket.FolderAt(filepath.Join(s.settings.Data, roomsFolder))
	if err != nil {
		return nil, err
	}
	if s.frozen && s.settings.Bucket != "" {
		dir = configstore.ReadOnly{Bucket: dir, Why: errors.New("this node cannot take part in the cluster at the moment; change the rooms on another node")}
	}
	authority, local, shared := s.cluster.recordBackends(dir)
	if r.alone = !shared; r.alone {
		r.logger.Warn("this node cannot read the settings of the cluster's waiting rooms without the cluster's key, and goes by its own file; copy cluster.key from the key folder of another node")
	}
	patient, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	if r.store, err = configstore.Open(patient, configstore.Options{Authority: authority, Copy: local, Logger: r.logger, Now: time.Now}); err != nil {
		return nil, fmt.Errorf("couldn't read the settings of the waiting rooms (%s): %w", filepath.Join(s.settings.Data, roomsFolder), err)
	}
	if err := r.begin(patient, s.cluster); err != nil {
		return nil, err
	}
	return r, r.chooseVersion(patient)
}

// begin chooses who changes the record. If this process does, it seeds the record and offers the rooms file.
func (r *roomRecord) begin(ctx context.Context, c roomsCluster) error {
	own := &ownedRooms{r}
	leader, follows := c.recordLeader(r.node)
	if !follows {
		r.owner, r.offers = own, own.apply
		return own.begin(ctx)
	}
	r.owner, r.offers = leader, leader.apply
	if r.alone {
		r.offers = own.apply
		return own.begin(ctx)
	}
	return nil
}

// chooseVersion has the newest version be enforced that this release understands, or without a record, the rooms file.
func (r *roomRecord) chooseVersion(ctx context.Context) error {
	v, ok := r.store.Get()
	if !ok {
		document, err := r.seedDocument()
		if err == nil {
			_, err = document.Rooms()
		}
		r.document, r.enforced.Origin = document, r.file.Name+", which is no version yet"
		return err
	}
	document, _, err := decodeRooms(v)
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
			document, _, err = decodeRooms(v)
		}
	}
	v.Content = nil
	r.document, r.enforced = document, v
	return err
}

// decodeRooms returns what a version has.
func decodeRooms(v configstore.Version) (document config.Document, rooms []config.Room, err error) {
	if err = json.Unmarshal(v.Content, &document); err == nil {
		rooms, err = document.Rooms()
	}
	if err != nil {
		err = fmt.Errorf("version %d: %w", v.Number, err)
	}
	return document, rooms, err
}

// legacyFile has, in the data folder of Larder 0.1.0, the fields that `larder room set` has set.
const legacyFile = "rooms-set.json"

// retireLegacyFile renames that file once a record exists, so that it is not taken over a second time.
func (r *roomRecord) retireLegacyFile() {
	path := filepath.Join(r.data, legacyFile)
	err := os.Rename(path, path+".taken-over")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		r.logger.Warn("couldn't rename a file of Larder 0.1.0 that is not read any more; remove it", "file", path, "err", err)
	}
}

// seedDocument returns the settings of the first version: the file, and what was set under Larder 0.1.0.
func (r *roomRecord) seedDocument() (config.Document, error) {
	document := config.Document{Name: r.file.Name, Text: string(r.file.Text)}
	if r.broken != nil {
		return document, r.broken
	}
	path := filepath.Join(r.data, legacyFile)
	stored, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // the folder itself is checked later
		return document, nil
	}
	var set map[string]map[string]struct {
		Value string `json:"value"`
	}
	if err == nil {
		err = json.Unmarshal(stored, &set)
	}
	if err != nil {
		return document, fmt.Errorf("couldn't read what was set of the waiting rooms; repair %s, or delete it for what the file of rooms says: %w", path, err)
	}
	for room, fields := range set {
		values := map[string]string{}
		for field, value := range fields {
			values[field] = value.Value
		}
		if document, err = document.With(room, values); err != nil {
			return document, err
		}
	}
	if _, err := document.Rooms(); err != nil && len(document.Set) > 0 {
		return document, fmt.Errorf("with what `larder room set` has set, which is in %s: %w", path, err)
	}
	return document, nil
}

// checkRooms finds the mistakes in the rooms file that a process needs to start. If there may be a record, it does not need the
// file: the record stays in force, and [roomRecord.reload] checks the file of a reload.
func checkRooms(s *settings.Settings) error {
	if versions, err := os.ReadDir(filepath.Join(s.Data, roomsFolder, versionsPrefix)); s.Bucket != "" || err == nil && len(versions) > 0 {
		return nil
	}
	_, _, err := readRooms(s)
	return err
}

// readRooms reads the rooms file, and checks it. on is false where the settings turn rooms off.
func readRooms(s *settings.Settings) (file settings.RoomsFile, on bool, err error) {
	if file, on, err = s.ReadRooms(); err != nil || !on {
		return file, on, err
	}
	if _, err = config.Parse(file.Name, file.Text); err != nil {
		err = settings.Mistake{Err: err}
	}
	return file, on, err
}

// A SupersededError reports a rooms file that equals an older version.
type SupersededError struct {
	File             string
	Version, Current int64
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s: this file is version %d, replaced by version %d; restore it with `larder room apply FILE`", e.File, e.Version, e.Current)
}

// consider decides whether this node offers its rooms file. The error is a [*SupersededError].
func (r *roomRecord) consider(file settings.RoomsFile) (offer bool, err error) {
	hash, last := fileHash(file), r.lastRead()
	current, ok := r.store.Get()
	switch {
	case !ok:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.document.Text != string(file.Text), nil
	case r.alone && current.File != hash && !file.Default:
		return true, nil
	case current.File == hash || file.Default:
		return false, nil
	}
	if version := versionOf(hash, r.store.History()); version > 0 {
		return false, &SupersededError{file.Name, version, current.Number}
	}
	return last != "" && last != hash, nil
}

// versionOf returns the newest version that a file was made, 0 for none. Versions with fields that were set later have the hash
// of the same file, and so do those that restore another one.
func versionOf(hash string, newestFirst []configstore.Version) (number int64) {
	for i, v := range newestFirst {
		if v.File != hash {
			continue
		}
		number = v.Number
		if v.Restores == 0 && (i+1 == len(newestFirst) || newestFirst[i+1].File != hash) {
			break
		}
	}
	return number
}

// lastRead returns the hash of the rooms file that this node read last, "" where it does not remember.
func (r *roomRecord) lastRead() string {
	hash, err := os.ReadFile(filepath.Join(r.data, roomsFolder, lastFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.logger.Warn("couldn't read which file of rooms this node read last; it offers none", "err", err)
	}
	return strings.TrimSpace(string(hash))
}

// remember stores which rooms file this node has read.
func (r *roomRecord) remember(file settings.RoomsFile) {
	hash := fileHash(file)
	if r.lastRead() == hash {
		return
	}
	path := filepath.Join(r.data, roomsFolder, lastFile)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = disk.Replace(path, []byte(hash+"\n"), 0o600)
	}
	if err != nil {
		r.logger.Warn("couldn't store which file of rooms this node has read; it may offer the same one again", "err", err)
	}
}

// offer considers a rooms file, and has it become the next version if it is new.
func (r *roomRecord) offer(ctx context.Context, file settings.RoomsFile, when string) error {
	offer, err := r.consider(file)
	if err == nil && offer {
		base, _ := r.store.Get()
		_, err = r.offers(ctx, ApplyRoomsRequest{
			Name: file.Name, Text: file.Text, File: fileHash(file), Base: base.Number, Origin: fmt.Sprintf("%s on %s, read at %s", file.Name, r.node, when),
		})
	}
	if err == nil {
		r.remember(file)
	}
	return err
}

// reload takes up the rooms file of other settings.
func (r *roomRecord) reload(ctx context.Context, fresh *settings.Settings) error {
	file, on, err := readRooms(fresh)
	if err != nil || !on {
		return err
	}
	r.refresh(ctx)
	if err := r.owner.seed(ctx); err != nil {
		r.logger.Error("couldn't store the settings of the waiting rooms", "err", err)
	}
	return r.offer(ctx, file, "a reload")
}

// refresh has this node know which version is in force, so that a change is not based on an older one.
func (r *roomRecord) refresh(ctx context.Context) {
	if !r.store.Shared() {
		return
	}
	if err := r.store.Refresh(ctx); err != nil {
		r.logger.Warn("couldn't read which version of the rooms is in force", "err", err)
	}
}

// rooms parses the settings that are enforced.
func (r *roomRecord) rooms() ([]config.Room, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.document.Rooms()
}

// revision says which version is enforced here.
func (r *roomRecord) revision() waitingroom.Revision {
	state := r.store.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := waitingroom.Revision{Version: r.enforced.Number, Time: r.enforced.Time, Origin: r.enforced.Origin, Problem: r.problem}
	if state.Problem != nil {
		v.Problem = cutText(errors.Join(errorOf(v.Problem), state.Problem).Error())
	}
	if v.Unconfirmed = state.Unconfirmed; v.Unconfirmed {
		v.Confirmed = state.Confirmed
	}
	return v
}

// follow sets which version the rooms here follow, and returns what has them follow the one before again.
func (r *roomRecord) follow(v configstore.Version, document config.Document) (revert func()) {
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

// reject reports that the rooms here cannot follow a version.
func (r *roomRecord) reject(v configstore.Version, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.problem
	if r.problem = cutText(fmt.Sprintf("version %d cannot be used here: %v", v.Number, err)); r.problem != known {
		r.logger.Error("a version of the rooms cannot be used on this node; the one before stays in force here", "version", v.Number, "origin", v.Origin, "err", err)
	}
	return err
}

// rejected returns why the rooms here do not follow a version, nil if they do.
func (r *roomRecord) rejected(number int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.enforced.Number >= number || r.problem == "" {
		return nil
	}
	return errors.New(r.problem)
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// maxOrigin bounds the origin and the problem that are stored and displayed, in bytes.
const maxOrigin = 500

func cutText(s string) string { return text.Cut(s, maxOrigin) }

// encode returns a document as a version has it, if it is valid.
func (r *roomRecord) encode(document config.Document) ([]byte, error) {
	if _, err := document.Rooms(); err != nil {
		return nil, settings.Mistake{Err: err}
	}
	return json.Marshal(document)
}

// origin is where a change comes from.
func (r *roomRecord) origin(given, what string) string {
	if given == "" {
		given = what + " on " + r.node
	}
	return cutText(text.Plain(given))
}

// considerAtStart offers the rooms file, and only warns where that fails.
func (r *roomRecord) considerAtStart(ctx context.Context, offer func(context.Context, settings.RoomsFile, string) error) {
	current, _ := r.store.Get()
	if r.broken != nil {
		r.logger.Warn("the file of rooms of this node cannot be read; the settings that are stored stay in force", "version", current.Number, "err", r.broken)
		return
	}
	known := r.lastRead() != ""
	err := offer(ctx, r.file, "a start")
	switch superseded := (*SupersededError)(nil); {
	case errors.As(err, &superseded):
		r.logger.Warn(err.Error())
		r.remember(r.file)
	case err != nil:
		r.logger.Warn("the file of rooms of this node has changed and is not in force; restore or apply it with `larder room apply FILE`", "file", r.file.Name, "version", current.Number, "err", err)
	case !known && !r.file.Default && current.File != fileHash(r.file):
		r.logger.Warn("the file of rooms of this node is not what is in force; apply it with `larder room apply FILE` if it should be", "file", r.file.Name, "version", current.Number)
	}
}

// copyRooms copies the versions of a data folder to that of a backup. What the node remembers of its rooms file stays behind, so
// that a start on an old backup does not offer that file.
func copyRooms(data, to string) error {
	from, target := filepath.Join(data, roomsFolder, versionsPrefix), filepath.Join(to, roomsFolder, versionsPrefix)
	versions, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = disk.MakeFolder(vfs.Default, target)
	}
	for _, v := range versions {
		if err != nil || strings.HasPrefix(v.Name(), ".") {
			continue
		}
		var text []byte
		if text, err = os.ReadFile(filepath.Join(from, v.Name())); err == nil {
			err = disk.Create(filepath.Join(target, v.Name()), text, 0o600)
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil // pruned meanwhile
		}
	}
	return err
}
