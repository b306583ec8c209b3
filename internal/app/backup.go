package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rogpeppe/go-internal/lockedfile"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// A backup in a bucket or a folder has the log with its contents below public/, as a cluster's bucket has it, and for each run a
// record of the data that cannot be derived from the log. Runs share the contents, by their hashes. `larder repair --from` restores
// from it.
const (
	restoreTestAge = 30 * 24 * time.Hour
	backupRetry    = 15 * time.Minute
)

// BackupRequest names the target of a backup: the absolute path of a folder, or the URL of a bucket or folder (s3: or file:). Region
// is that of the bucket. If Endpoint, the URL of its object store, is "", the process uses endpoint and region of its settings.
type BackupRequest struct {
	Target   string `json:"target"`
	Endpoint string `json:"endpoint,omitempty"`
	Region   string `json:"region,omitempty"`
}

// EntryProgress counts the log entries whose contents are in a backup or a bundle so far, of all that it gets.
type EntryProgress struct {
	Entries int64 `json:"entries"`
	Of      int64 `json:"of"`
}

// BackupResult says what a backup has.
type BackupResult struct {
	Entries  int64 `json:"entries"`            // of the log
	Unsigned int64 `json:"unsigned,omitempty"` // newer entries, which are not in it because they are not signed
	// Tested is when a backup of the data folder was last restored as a test with success, zero for never. JustTested says that
	// this run did that.
	Tested     time.Time `json:"tested"`
	JustTested bool      `json:"justTested,omitempty"`
	// Keys is the key folder of the process that made the backup. The backup does not contain it, and a restore needs it.
	Keys string `json:"keys"`
}

// OpBackup makes a backup of the data folder, and restores it to a temporary folder as a test if that is due.
const OpBackup Operation[BackupRequest, EntryProgress, BackupResult] = "backup"

// errUnsigned is why a log without a signed checkpoint is neither backed up nor put into a bundle.
var errUnsigned = errors.New("the log is not signed, so a copy of it would prove nothing; start `larder up` once, which signs it")

// backUpToBucket copies what the backup in b lacks of the folder's signed log and its contents, and adds a record, encrypted with
// keys, with the data that does not follow from the log. Then it deletes all records but the newest, as many as the settings
// keep, and the contents that were erased before the oldest record that stays. It returns how many log entries the backup has.
// The error is errUnsigned if the log is not signed.
func (r *Reader) backUpToBucket(ctx context.Context, b bucket.Bucket, keys *backupKeys, report func(EntryProgress)) (size int64, err error) {
	note, key, err := signing.PublishedNote(r.store, keys.dir)
	if err != nil {
		return 0, err
	}
	if note == nil {
		return 0, errUnsigned
	}
	signed, _, err := signing.ReadNote(note, []string{key})
	if err != nil {
		return 0, err
	}
	from, err := r.backedUpSize(ctx, b, signed.Size)
	if err != nil {
		return 0, err
	}
	target := cluster.PublicCopy{Store: r.store, Bucket: b, Retain: true, Progress: func(entries, of int64) { report(EntryProgress{entries, of}) }}
	if err := target.Update(ctx, from, signed); err != nil {
		return 0, err
	}
	content, err := r.readBackupRecord(ctx)
	if err != nil {
		return 0, err
	}
	name := fmt.Sprintf("%s%020d-%s", backupRecords, signed.Size, time.Now().UTC().Format(backupTime))
	if err := keys.putRecord(ctx, b, name, content); err != nil {
		return 0, err
	}
	return signed.Size, pruneBackup(ctx, target, r.settings.BackupKeep)
}

// readBackupRecord reads the record for a backup that is made now: the rows of the store and the settings of waiting rooms that
// cannot be derived from the log.
func (r *Reader) readBackupRecord(ctx context.Context) (content backupRecord, err error) {
	snapshot := r.store.Snapshot()
	defer snapshot.Close()
	for row, err := range check.CarriedRows(snapshot) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return content, err
		}
		content.Rows = append(content.Rows, row)
	}
	content.Rooms, err = waitingroom.ReadRecordVersions(r.settings.Data)
	return content, err
}

// backedUpSize returns how many log entries the backup in b has, 0 for a new backup. size is how many entries of the folder's log
// are signed. The checkpoint of another log, or of more than size entries, is an error.
func (r *Reader) backedUpSize(ctx context.Context, b bucket.Bucket, size int64) (int64, error) {
	note, _, err := b.Get(ctx, tiles.PublicPrefix+tiles.Prefix+"checkpoint", 64<<10)
	if errors.Is(err, bucket.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	have, err := logs.CheckpointSize(note)
	if err == nil && have <= size {
		var root tlog.Hash
		if root, err = tlog.TreeHash(have, logs.Hashes(r.store)); err == nil && !bytes.Contains(note, []byte("\n"+root.String()+"\n")) {
			err = errors.New("its checkpoint has another root")
		}
	} else if err == nil {
		err = fmt.Errorf("it has %d log entries, and here are %d", have, size)
	}
	if err != nil {
		return 0, fmt.Errorf("%s has a backup of another log or of a newer state: %w; choose another target", b, err)
	}
	return have, nil
}

// testRestore restores the log and the contents of the backup in b to a new folder in temp as a mirror does, which verifies
// every byte, and removes that folder. It also decrypts the newest record with keys, but restores nothing from it. It returns
// an error if one of these fails, or if the backup has fewer than size log entries. key is the verifier key that signed the
// log.
func testRestore(ctx context.Context, b bucket.Bucket, keys *backupKeys, key string, size int64, temp string, logger *slog.Logger) (err error) {
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(temp, "restore-test-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := kvstore.Open(storeDir(dir), kvstore.Options{CacheBytes: 16 << 20, Logger: logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	keyFolder := filepath.Join(dir, "keys")
	if err := os.Mkdir(keyFolder, 0o700); err != nil {
		return err
	}
	source := newBackupSource(b, keys)
	f, err := replication.Open(replication.Options{Source: source, Trust: verify.Trust{Key: key}, Store: store, Log: log, Keys: keyFolder, Logger: logger})
	if err != nil {
		return err
	}
	err = errors.Join(f.CatchUp(ctx), f.Close())
	if have := log.Checkpoint().Size; err == nil && have < size {
		err = fmt.Errorf("the backup has %d log entries of %d", have, size)
	}
	if err == nil {
		_, err = source.CarriedRows(ctx)
	}
	return err
}

// isBackup reports whether the folder dir has a backup, which is in a subfolder that a data folder does not have.
func isBackup(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(tiles.PublicPrefix)))
	return err == nil && info.IsDir()
}

// folderURL returns the file: URL of the folder dir, which names it as the target of a backup.
func folderURL(dir string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
}

// backUp makes a backup as [Reader.backUpNow] does, and returns how many log entries it has, how many are missing because they
// are not signed, when a backup was last restored as a test, and the key folder that a restore needs. The target may also be
// the absolute path of a folder. report is called with the progress.
func (r *Reader) backUp(ctx context.Context, q BackupRequest, report func(EntryProgress)) (result BackupResult, err error) {
	if filepath.IsAbs(q.Target) {
		q.Target = folderURL(q.Target)
	}
	result.Keys = r.settings.KeyFolder()
	start := time.Now()
	if result.Entries, err = r.backUpNow(ctx, q, report); err != nil {
		return result, err
	}
	result.Unsigned = r.log.Checkpoint().Size - result.Entries
	tested, err := readUpkeep(r.settings.Data, upkeepRestore)
	result.Tested, result.JustTested = tested.Succeeded, tested.Succeeded.After(start)
	return result, err
}

// backUpNow makes a backup in the target of q, a URL, and returns how many log entries it has. Then it restores the backup as a
// test, unless the last test that succeeded was of this target and within 30 days, and none has failed since; a failed test is
// an error. It records the outcomes for `larder doctor`, but not errUnsigned or the end of ctx. While another backup of the
// data folder is made, it waits, also after ctx has ended.
func (r *Reader) backUpNow(ctx context.Context, q BackupRequest, report func(EntryProgress)) (size int64, err error) {
	target := q.Target
	if q.Endpoint == "" {
		q.Endpoint, q.Region = r.settings.BucketEndpoint, r.settings.BucketRegion
	}
	defer func() {
		if ctx.Err() == nil && !errors.Is(err, errUnsigned) {
			r.recordUpkeep(upkeepBackup, target, err)
		}
	}()
	if err := r.checkBackupTarget(target); err != nil {
		return 0, err
	}
	unlock, err := lockBackups(r.settings.Data)
	if err != nil {
		return 0, err
	}
	defer unlock()
	keys, err := openBackupKeys(r.settings.KeyFolder(), true)
	if err != nil {
		return 0, err
	}
	b, err := bucket.Open(target, q.Endpoint, q.Region)
	if err == nil {
		size, err = r.backUpToBucket(ctx, b, keys, report)
	}
	if err != nil {
		return 0, fmt.Errorf("couldn't back up to %s: %w", target, err)
	}
	last, err := readUpkeep(r.settings.Data, upkeepRestore)
	if err == nil && last.Problem == "" && last.Detail == target && time.Since(last.Succeeded) < restoreTestAge {
		return size, nil
	}
	key, err := signing.SignedBy(r.store)
	if err != nil {
		return 0, err
	}
	tested := testRestore(ctx, b, keys, key, size, tmpDir(r.settings.Data), r.logger.With("part", "restore test"))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	r.recordUpkeep(upkeepRestore, target, tested)
	if tested != nil {
		return 0, fmt.Errorf("couldn't restore the backup in %s, which was made just now: %w", target, tested)
	}
	return size, nil
}

// checkBackupTarget returns an error if target is the URL of a folder (file:) in which no backup can be made. The folder has to
// be outside of the data folder. It has a backup, or is empty but for hidden files and lost+found, or is missing and its parent
// exists. Any other target is left to [bucket.Open] and is no error here. checkBackupTarget creates nothing.
func (r *Reader) checkBackupTarget(target string) error {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "file" {
		return nil // which opening it refuses
	}
	dir := filepath.FromSlash(u.Path)
	switch inside, err := r.isInDataFolder(dir); {
	case err != nil:
		return fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case inside:
		return fmt.Errorf("%s is inside the data folder %s; choose a folder outside, best on another disk", dir, r.settings.Data)
	}
	have, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The parent is not made: if it is missing, a disk may not be mounted.
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			return fmt.Errorf("couldn't back up to %s: %w; make that folder first", dir, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("couldn't back up to %s: %w", dir, err)
	case isBackup(dir):
		return nil
	case slices.ContainsFunc(have, func(e fs.DirEntry) bool { return e.Name() == filepath.Base(storeDir(dir)) }):
		return fmt.Errorf("%s is a data folder, or a copy of one that Larder 0.1.0 made; name another folder, to which each backup adds what is new", dir)
	case slices.ContainsFunc(have, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") && e.Name() != "lost+found" }):
		return fmt.Errorf("%s is not empty; a backup needs a folder of its own", dir)
	}
	return nil
}

// escapeGlob returns a pattern of [filepath.Glob] that matches only path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// explainPermission adds to a permission error that process, which is this one, writes the file, not the command. It returns
// other errors, and nil, unchanged.
func explainPermission(process *Process, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; the running larder process (%d) writes the file and has no permission", err, process.PID)
	}
	return err
}

// isInDataFolder reports whether dir, which need not exist, is the data folder or a folder in it. It follows symbolic links. The
// error says why it cannot decide.
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
	for ; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		inside := err == nil && os.SameFile(info, data)
		if err != nil || inside || at == filepath.Dir(at) {
			return inside, err
		}
	}
}

// lockBackups waits without a limit until no process makes a backup of the data folder data, and locks out others until the
// caller calls unlock. It creates the lock file if that is missing.
func lockBackups(data string) (unlock func(), err error) {
	file := upkeepFile(data, upkeepBackup) + ".lock"
	if err := disk.MakeFolder(vfs.Default, filepath.Dir(file)); err != nil {
		return nil, err
	}
	return lockedfile.MutexAt(file).Lock()
}

// backupPart returns the part that makes a backup in the target of the settings at the interval of the settings, counted from
// the last success that is recorded for this target; without one it starts at once, but not before the log has an entry. It
// signs the newest entries before; if that fails, it logs that and makes the backup without them. After a failed backup it logs
// the error and tries again after backupRetry.
func (r *roleRun) backupPart(w *Writer) parts.Part {
	return parts.Part{Name: "backups", Run: parts.RunUntilDone(func(ctx context.Context) {
		logger := r.logger.With("part", "backup")
		if _, err := w.folder.log.Wait(ctx, 0); err != nil {
			return
		}
		for {
			wait := time.Duration(0)
			if last, err := readUpkeep(r.settings.Data, upkeepBackup); err == nil && last.Detail == r.settings.Backup {
				wait = time.Until(last.Succeeded.Add(r.settings.BackupEvery))
				if last.Problem != "" {
					wait = min(wait, time.Until(last.Failed.Add(backupRetry)))
				}
			}
			if retry.Sleep(ctx, max(wait, 0)) != nil {
				return
			}
			err := w.signature.signer.Sign()
			if err != nil {
				logger.Warn("couldn't sign the newest entries, so the backup has only those before", "err", err)
			}
			size, err := w.folder.backUpNow(ctx, BackupRequest{Target: r.settings.Backup}, func(EntryProgress) {})
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				logger.Error("couldn't make the scheduled backup; trying again", "err", err, "after", backupRetry)
				if retry.Sleep(ctx, backupRetry) != nil {
					return
				}
			default:
				logger.Info("made the scheduled backup", "target", r.settings.Backup, "entries", size)
			}
		}
	})}
}
