package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server/waitingroom"
)

const (
	backupRecords   = "backup/" // followed by the number of log entries, in 20 digits, "-" and the time
	maxBackupRecord = 1 << 30
	backupTime      = "20060102T150405Z"
	// backupKeyFile has the key of the records of a folder whose key folder has no key of the log, such as a mirror's.
	backupKeyFile = "backup.key"
)

// A backupRecord is the object that a run adds to a backup besides the log.
type backupRecord struct {
	Rows  []check.CarriedRow
	Rooms map[string][]byte // versions of the waiting rooms' settings, by file name
}

// backupKeys are the keys of a key folder that encrypt and authenticate records.
type backupKeys struct {
	dir  string
	keys []cipher.AEAD // the first one encrypts new records; all decrypt
}

// openBackupKeys derives the keys that encrypt backup records from the private keys (*.key) in the key folder dir. New records
// are encrypted with that of log.key or, if the folder has none, of [backupKeyFile]. If that file is needed and missing,
// openBackupKeys creates it if create is true. Otherwise the result can only decrypt, and has no key at all if dir has none or
// is missing. A key file that cannot be read is an error.
func openBackupKeys(dir string, create bool) (*backupKeys, error) {
	k := &backupKeys{dir: dir}
	files, err := filepath.Glob(filepath.Join(escapeGlob(dir), "*.key"))
	if err != nil {
		return nil, err
	}
	sealing := filepath.Join(dir, backupKeyFile)
	if signing.HasKey(dir) {
		sealing = filepath.Join(dir, "log.key")
	}
	files = slices.DeleteFunc(files, func(file string) bool { return file == sealing })
	for i, file := range append([]string{sealing}, files...) {
		secret, err := os.ReadFile(file)
		if i == 0 && errors.Is(err, fs.ErrNotExist) {
			if !create {
				continue
			}
			secret = []byte(rand.Text())
			err = errors.Join(os.MkdirAll(dir, 0o700), disk.Create(file, secret, 0o600))
		}
		if err != nil {
			return nil, fmt.Errorf("couldn't read the key that seals backups: %w", err)
		}
		key, err := hkdf.Key(sha256.New, bytes.TrimSpace(secret), nil, "larder backup", 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, aead)
	}
	return k, nil
}

// putRecord writes the record content to the backup in b as the object name. It is compressed, encrypted with the first key,
// and authenticated together with its name. k must have been opened with create. A record of over maxBackupRecord bytes is an
// error.
func (k *backupKeys) putRecord(ctx context.Context, b bucket.Bucket, name string, content backupRecord) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if err := errors.Join(gob.NewEncoder(z).Encode(content), z.Close()); err != nil {
		return err
	}
	sealed := k.keys[0].Seal(nil, nil, packed.Bytes(), []byte(name))
	if len(sealed) > maxBackupRecord {
		return fmt.Errorf("the record of the backup has over %d bytes", maxBackupRecord)
	}
	return b.Put(ctx, name, sealed)
}

// readRecord reads the record of a backup that is the object name in b: the rows that do not follow from the log, and the settings of the
// waiting rooms. A record that was changed or renamed, or encrypted with a
// key that the key folder lacks, is an error, the same for all three.
func (k *backupKeys) readRecord(ctx context.Context, b bucket.Bucket, name string) (content backupRecord, err error) {
	sealed, _, err := b.Get(ctx, name, maxBackupRecord)
	if err != nil {
		return content, err
	}
	for _, key := range k.keys {
		packed, err := key.Open(nil, nil, sealed, []byte(name))
		if err != nil {
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err == nil {
			err = gob.NewDecoder(io.LimitReader(z, 4*maxBackupRecord)).Decode(&content)
		}
		return content, err
	}
	return content, fmt.Errorf("%s: the record %s was not sealed with a key in %s, or was changed: name the key folder of the backed-up Larder with --keys, or delete the record to go on with the one before", b, name, k.dir)
}

// pruneBackup deletes all records of the backup target except the keep newest, keep > 0, and before that the contents that
// entries of the log between the sizes of the oldest deleted record and the oldest one that stays have erased. It does nothing
// if there are at most keep records. After an error some of this may be deleted; the next call deletes the rest.
func pruneBackup(ctx context.Context, target cluster.PublicCopy, keep int) error {
	names, err := listBackupRecords(ctx, target.Bucket)
	if err != nil || len(names) <= keep {
		return err
	}
	old, kept := names[:len(names)-keep], names[len(names)-keep]
	var from, to int64
	_, err = fmt.Sscanf(old[0], backupRecords+"%020d", &from)
	if err == nil {
		_, err = fmt.Sscanf(kept, backupRecords+"%020d", &to)
	}
	if err != nil {
		return err
	}
	if err := target.Prune(ctx, from, to); err != nil {
		return err
	}
	for _, name := range slices.Backward(old) { // the oldest, whose size the next run needs, last
		if err := target.Bucket.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// listBackupRecords returns the object keys of the records of the backup in b, oldest first.
func listBackupRecords(ctx context.Context, b bucket.Bucket) (names []string, err error) {
	for o, err := range b.List(ctx, backupRecords, "") {
		if err != nil {
			return nil, err
		}
		names = append(names, o.Key)
	}
	return names, nil
}

// A backupSource is a backup as a source of the log and its contents, and of what its newest record has.
type backupSource struct {
	replication.Source
	bucket bucket.Bucket
	keys   *backupKeys
	// newest returns the newest record. A backup without one, such as what a cluster publishes, has the zero record.
	newest func() (backupRecord, error)
}

// newBackupSource returns the backup in b as a source of log, contents and carried rows. keys decrypt its newest record, which is
// read on first use.
func newBackupSource(b bucket.Bucket, keys *backupKeys) *backupSource {
	s := &backupSource{Source: &replication.Bucket{Bucket: b}, bucket: b, keys: keys}
	s.newest = sync.OnceValues(func() (content backupRecord, err error) {
		ctx := context.Background() // several calls share the result
		names, err := listBackupRecords(ctx, b)
		if err != nil || len(names) == 0 {
			return content, err
		}
		return keys.readRecord(ctx, b, names[len(names)-1])
	})
	return s
}

// CarriedRows implements [check.RowSource]: it returns the rows of the backup's newest record, which cannot be derived from the
// log; nil if the backup has no record. The record is read once, without the context; later calls return the same result or
// error.
func (s *backupSource) CarriedRows(context.Context) ([]check.CarriedRow, error) {
	content, err := s.newest()
	return content.Rows, err
}

// restoreRooms writes the settings of waiting rooms in the newest record of a backup to the data folder data. The backup is the
// first one among the sources; others are not looked at. restoreRooms does nothing if the data folder has such settings, or if
// the record has none.
func restoreRooms(data string, sources []check.Source) error {
	for _, source := range sources {
		backup, ok := source.(*backupSource)
		if !ok || waitingroom.RecordExists(data) {
			continue
		}
		content, err := backup.newest()
		if err == nil && len(content.Rooms) > 0 {
			err = waitingroom.WriteRecordVersions(data, content.Rooms)
		}
		return err
	}
	return nil
}
