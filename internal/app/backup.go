package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/waitingroom/record"
)

// BackupRequest names the copy.
type BackupRequest struct {
	Dir string `json:"dir"` // an absolute path
}

// BackupProgress reports how much was copied.
type BackupProgress struct {
	Bytes int64 `json:"bytes"`
	Of    int64 `json:"of"`
}

// BackupResult is what was copied.
type BackupResult struct {
	Bytes   int64 `json:"bytes"`
	Linked  int64 `json:"linked"` // of the bytes, those in hard links
	Files   int   `json:"files"`
	Entries int64 `json:"entries"` // of the log
	// Unfinished are folders of other backups to the same place that are being written, or were interrupted.
	Unfinished []string `json:"unfinished,omitempty"`
	// Keys is the key folder of the process that made the backup, which is not in it; "" if that does not sign.
	Keys string `json:"keys,omitempty"`
}

// OpBackup copies the data folder.
const OpBackup Operation[BackupRequest, BackupProgress, BackupResult] = "backup"

// backUp copies the store and the rooms' settings of the data folder to the folder dir, where they appear only when the copy is
// complete. dir must be outside of the data folder, and empty or missing. After an error the incomplete copy is removed. report is
// called with the progress about 256 times.
func (r *Reader) backUp(ctx context.Context, dir string, report func(BackupProgress)) (result BackupResult, err error) {
	exists, err := r.checkBackupTarget(dir)
	if err != nil {
		return result, err
	}
	// The copy is made under another name on the same file system. If dir exists, that is inside it, because dir has to
	// keep its owner and permissions and may be a mount point.
	beside, pattern := filepath.Dir(dir), "."+filepath.Base(dir)+".unfinished-"
	if exists {
		beside, pattern = dir, ".unfinished-"
	}
	others, err := filepath.Glob(filepath.Join(escapeGlob(beside), escapeGlob(pattern)+"*"))
	if err != nil {
		return result, err
	}
	unfinished, err := os.MkdirTemp(beside, pattern)
	if err != nil {
		return result, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(unfinished))
		}
	}()
	const steps = 256 // events, about
	var reported int64
	done, err := r.store.Backup(ctx, storeDir(unfinished), func(p kvstore.BackupProgress) {
		if reported == 0 || p.Bytes-reported > p.Of/steps {
			reported = max(1, p.Bytes)
			report(BackupProgress{Bytes: p.Bytes, Of: p.Of})
		}
	})
	if err != nil {
		return result, err
	}
	if err := record.Copy(r.settings.Data, unfinished); err != nil {
		return result, fmt.Errorf("couldn't back up the settings of the waiting rooms: %w", err)
	}
	result = BackupResult{Bytes: done.Bytes, Linked: done.Linked, Files: done.Files, Unfinished: others}
	if result.Entries, err = readLogSize(storeDir(unfinished)); err != nil {
		return result, fmt.Errorf("the backup cannot be read again, so it was removed: %w", err)
	}
	if err := moveBackup(unfinished, dir, exists); err != nil {
		return result, fmt.Errorf("couldn't give the finished backup its name: %w", err)
	}
	return result, nil
}

// escapeGlob returns a glob pattern that matches only path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// explainPermission adds to a permission error that the running process, not the command, may not write. It returns other errors,
// and nil, unchanged.
func explainPermission(process *Process, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; the running larder process (%d) writes the file and has no permission", err, process.PID)
	}
	return err
}

// checkBackupTarget returns an error unless a backup can be made at dir: outside of the data folder, and either an empty folder or
// a missing one whose parent exists. Without an error, exists reports whether dir exists. It creates nothing.
func (r *Reader) checkBackupTarget(dir string) (exists bool, err error) {
	switch inside, err := r.isInDataFolder(dir); {
	case err != nil:
		return false, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case inside:
		return false, fmt.Errorf("%s is inside the data folder %s; choose a folder outside, best on another disk", dir, r.settings.Data)
	}
	have, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The parent is not made: if it is missing, a disk may not be mounted.
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			return false, fmt.Errorf("couldn't back up to %s: %w; make that folder first", dir, err)
		}
		return false, nil
	case err != nil:
		return false, fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case len(have) > 0 && strings.HasPrefix(have[0].Name(), ".unfinished-"):
		return true, fmt.Errorf("%s holds %s, which another backup is writing, or left when it was killed; remove that if none is", dir, have[0].Name())
	case len(have) > 0:
		return true, fmt.Errorf("%s is not empty; a backup needs a folder of its own", dir)
	}
	return true, nil
}

// isInDataFolder reports whether dir, which need not exist, is the data folder or a folder in it. It follows symbolic links. The
// error says why it cannot tell.
func (r *Reader) isInDataFolder(dir string) (bool, error) {
	data, err := os.Stat(r.settings.Data)
	if err != nil {
		return false, err
	}
	at, err := filepath.EvalSymlinks(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		at, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return false, err
	}
	for {
		info, err := os.Stat(at)
		if err != nil {
			return false, err
		}
		if os.SameFile(info, data) {
			return true, nil
		}
		parent := filepath.Dir(at)
		if parent == at {
			return false, nil
		}
		at = parent
	}
}

// readLogSize opens the store in dir read-only, as a process that starts on it would, and returns how many entries its log has. An
// error means that the store cannot be used.
func readLogSize(dir string) (int64, error) {
	store, err := kvstore.Open(dir, kvstore.Options{ReadOnly: true, CacheBytes: 1 << 20})
	if err != nil {
		return 0, err
	}
	checkpoint, err := logs.ReadCheckpoint(store)
	return checkpoint.Size, errors.Join(err, store.Close())
}

// moveBackup durably moves a complete backup from its temporary folder, unfinished, to dir. If dir exists, it moves the contents
// into dir and removes unfinished; else it renames unfinished to dir.
func moveBackup(unfinished, dir string, exists bool) error {
	if !exists {
		return errors.Join(os.Rename(unfinished, dir), disk.SyncFolder(vfs.Default, filepath.Dir(dir)))
	}
	rooms := filepath.Join(dir, record.Folder)
	if err := os.Rename(filepath.Join(unfinished, record.Folder), rooms); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(storeDir(unfinished), storeDir(dir)); err != nil {
		return errors.Join(err, os.RemoveAll(rooms))
	}
	return errors.Join(os.Remove(unfinished), disk.SyncFolder(vfs.Default, dir))
}
