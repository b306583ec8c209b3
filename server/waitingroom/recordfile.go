package waitingroom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// The rooms file of a process seeds the record, and is offered as the next version when it has changed.

// lastRecordFile has, in RecordFolder, the hash of the rooms file that this node read last.
const lastRecordFile = "last-file"

// legacyRecordFile has, in the data folder of Larder 0.1.0, the fields that `larder room set` has set.
const legacyRecordFile = "rooms-set.json"

// RecordExists reports whether a data folder has versions of the rooms' settings, so that a process can start without its rooms
// file. It is false if the folder cannot be read, and does not count versions of an isolated node.
func RecordExists(data string) bool {
	versions, err := os.ReadDir(filepath.Join(data, RecordFolder, recordVersionsPrefix))
	return err == nil && len(versions) > 0
}

// A SupersededFileError reports a rooms file from which an older version was created, and not the one in force.
type SupersededFileError struct {
	File             string
	Version, Current int64
}

func (e *SupersededFileError) Error() string {
	return fmt.Sprintf("%s: this file is version %d, replaced by version %d; restore it with `larder room apply FILE`", e.File, e.Version, e.Current)
}

// Reload offers a rooms file that was read again and is valid as the next version; nothing happens if the file has not changed.
// If this process owns the record, it first creates a missing first version. It returns a [*SupersededFileError] if the file is
// that of an older version, and the errors of the offer.
func (r *Record) Reload(ctx context.Context, file config.File) error {
	r.refresh(ctx)
	if !r.follows {
		if err := (recordOwner{r}).seed(ctx); err != nil {
			r.logger.Error("couldn't store the settings of the waiting rooms", "err", err)
		}
	}
	return r.offer(ctx, file, "a reload")
}

// offer creates a version from a rooms file, in this process or on the leader, if needsOffer says so. Without an error it then
// stores that the node has read the file. when says at which occasion, for the origin of the change.
func (r *Record) offer(ctx context.Context, file config.File, when string) error {
	offer, err := r.needsOffer(file)
	if err == nil && offer {
		base, _ := r.store.Get()
		_, err = r.offers.Apply(ctx, ApplyRoomsRequest{
			Name: file.Name, Text: file.Text, File: file.Hash(), Base: base.Number, Origin: fmt.Sprintf("%s on %s, read at %s", file.Name, r.node, when),
		})
	}
	if err == nil {
		r.setLastReadFile(file)
	}
	return err
}

// needsOffer reports whether this node should offer its rooms file as the next version: the file has changed since the node last
// read it, and is not in force. If a version exists, a default file that no setting names is not offered, nor a file that the
// node reads for the first time. An isolated node offers any other file that is not in force. If no version exists, a file is
// offered that differs from the one in use. needsOffer returns a [*SupersededFileError] if the file is that of an older version.
func (r *Record) needsOffer(file config.File) (offer bool, err error) {
	hash, last := file.Hash(), r.lastReadFile()
	current, ok := r.store.Get()
	switch {
	case !ok:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.document.Text != string(file.Text), nil
	case r.isolated && current.File != hash && !file.Default:
		return true, nil
	case current.File == hash || file.Default:
		return false, nil
	}
	if version := recordVersionOf(hash, r.store.History()); version > 0 {
		return false, &SupersededFileError{file.Name, version, current.Number}
	}
	return last != "" && last != hash, nil
}

// recordVersionOf returns the number of the newest version that was created from a file with that hash, 0 for none. newestFirst
// has all versions. It does not count versions in which fields were changed, and those that restore another version, although
// they have the same hash, unless the history has no other.
func recordVersionOf(hash string, newestFirst []configstore.Version) (number int64) {
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

// offerAtStart offers this node's rooms file as the next version by the function offer, which gets the file and the occasion. If
// that fails, if the file could not be read, or if the node reads it for the first time and it is not in force, it only logs a
// warning. It stores that the node has read the file of an older version.
func (r *Record) offerAtStart(ctx context.Context, offer func(context.Context, config.File, string) error) {
	current, _ := r.store.Get()
	if r.fileErr != nil {
		r.logger.Warn("the file of rooms of this node cannot be read; the settings that are stored stay in force", "version", current.Number, "err", r.fileErr)
		return
	}
	known := r.lastReadFile() != ""
	err := offer(ctx, r.file, "a start")
	switch superseded := (*SupersededFileError)(nil); {
	case errors.As(err, &superseded):
		r.logger.Warn(err.Error())
		r.setLastReadFile(r.file)
	case err != nil:
		r.logger.Warn("the file of rooms of this node has changed and is not in force; restore or apply it with `larder room apply FILE`", "file", r.file.Name, "version", current.Number, "err", err)
	case !known && !r.file.Default && current.File != r.file.Hash():
		r.logger.Warn("the file of rooms of this node is not what is in force; apply it with `larder room apply FILE` if it should be", "file", r.file.Name, "version", current.Number)
	}
}

// offerTimeout is how long a follower offers a file to the leader that has changed while the follower did not run.
const offerTimeout = 2 * time.Minute

// offerToLeader offers a follower's rooms file to the leader when the follower starts. If that fails, it tries again for two
// minutes, as long as no other version comes into force. It does nothing if this node knows no version. It logs the last error.
func (r *Record) offerToLeader(ctx context.Context) {
	base, ok := r.store.Get()
	if !ok {
		return // the leader seeds the record with its own file
	}
	r.offerAtStart(ctx, func(ctx context.Context, file config.File, when string) error {
		for deadline := time.Now().Add(offerTimeout); ; {
			err := r.offer(ctx, file, when)
			now, _ := r.store.Get()
			if err == nil || errors.As(err, new(*SupersededFileError)) || now.Number != base.Number || time.Now().After(deadline) {
				return err
			}
			if retry.Sleep(ctx, seedRetryInterval) != nil {
				return err
			}
		}
	})
}

// lastReadFile returns the stored hash of the rooms file that this node read last, "" if it is not known. It logs an error.
func (r *Record) lastReadFile() string {
	hash, err := os.ReadFile(filepath.Join(r.data, RecordFolder, lastRecordFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.logger.Warn("couldn't read which file of rooms this node read last; it offers none", "err", err)
	}
	return strings.TrimSpace(string(hash))
}

// setLastReadFile durably stores the hash of the rooms file that this node has read. It logs an error.
func (r *Record) setLastReadFile(file config.File) {
	hash := file.Hash()
	if r.lastReadFile() == hash {
		return
	}
	path := filepath.Join(r.data, RecordFolder, lastRecordFile)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = disk.Replace(path, []byte(hash+"\n"), 0o600)
	}
	if err != nil {
		r.logger.Warn("couldn't store which file of rooms this node has read; it may offer the same one again", "err", err)
	}
}

// seedDocument returns the settings of the first version: the rooms file, and the fields that were set under Larder 0.1.0. It
// fails if either cannot be read, or if the fields make the settings not valid. It does not check a file without such fields.
func (r *Record) seedDocument() (config.Document, error) {
	document := config.Document{Name: r.file.Name, Text: string(r.file.Text)}
	if r.fileErr != nil {
		return document, r.fileErr
	}
	path := filepath.Join(r.data, legacyRecordFile)
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

// retireLegacyFile renames the file of fields that were set under Larder 0.1.0, if there is one, so that it is not used a second
// time. The caller calls it when a record exists, which it does not check. It logs an error.
func (r *Record) retireLegacyFile() {
	path := filepath.Join(r.data, legacyRecordFile)
	err := os.Rename(path, path+".taken-over")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		r.logger.Warn("couldn't rename a file of Larder 0.1.0 that is not read any more; remove it", "file", path, "err", err)
	}
}

// ReadRecordVersions returns the contents of the files of the versions in a data folder by their names, for a backup; nil for
// none. It does not return which rooms file the node has read, so that a start on a restored folder does not offer that file.
func ReadRecordVersions(data string) (map[string][]byte, error) {
	dir := filepath.Join(data, RecordFolder, recordVersionsPrefix)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	versions := map[string][]byte{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		switch {
		case err == nil:
			versions[e.Name()] = text
		case !errors.Is(err, fs.ErrNotExist): // else pruned meanwhile
			return nil, err
		}
	}
	return versions, err
}

// WriteRecordVersions writes the files that [ReadRecordVersions] returned, by their names, to a data folder that has no versions.
// It replaces no file: the error is [fs.ErrExist] then. After an error some files are written.
func WriteRecordVersions(data string, versions map[string][]byte) error {
	dir := filepath.Join(data, RecordFolder, recordVersionsPrefix)
	if err := disk.MakeFolder(vfs.Default, dir); err != nil {
		return err
	}
	for name, text := range versions {
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return fmt.Errorf("%q is not the name of a version of the waiting rooms", name)
		}
		if err := disk.Create(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
