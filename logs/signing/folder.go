package signing

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// The files of a key folder.
const (
	keyFile        = "log.key"    // the private key that signs; only its owner may read it
	publicFile     = "log.pub"    // its verifier key, for clients
	checkpointFile = "checkpoint" // the last signed checkpoint
	publishedFile  = "published"  // the last published one, of a log with witnesses
	nextKeyFile    = "next.key"   // a new key that is not in use yet
	oldKeyPattern  = "old-*.key"  // old keys, which sign beside the present one
	lockFile       = "LOCK"
)

// ErrInUse is the error of [Open] if another process has the key folder open.
var ErrInUse = errors.New("the key folder is in use")

// A folder is an open and locked key folder.
type folder struct {
	fs   vfs.FS
	dir  string
	lock io.Closer
}

// openFolder opens and locks a key folder, and creates it if necessary. If another process has it open, the error is
// [ErrInUse].
func openFolder(fs vfs.FS, dir string) (*folder, error) {
	if err := disk.MakeFolder(fs, dir); err != nil {
		return nil, fmt.Errorf("couldn't create the key folder: %w", err)
	}
	lock, err := fs.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		// The error for a lock of another process is a bare EAGAIN or EACCES, that for one of this process a message, and that for
		// a file that cannot be created a PathError.
		var path *os.PathError
		var errno syscall.Errno
		if errors.As(err, &path) || errors.As(err, &errno) && errno != syscall.EAGAIN && errno != syscall.EACCES {
			return nil, fmt.Errorf("couldn't lock the key folder: %w", err)
		}
		return nil, fmt.Errorf("%w: another larder process signs with the keys in %s", ErrInUse, dir)
	}
	return &folder{fs: fs, dir: dir, lock: lock}, nil
}

// unlock releases the lock of the folder.
func (f *folder) unlock() error { return f.lock.Close() }

// path returns the path of a file in the folder.
func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// maxFile bounds a file of a key folder, in bytes.
const maxFile = 1 << 20

// read returns the content of a file of the folder. A missing file is no error: the content is nil, while that of an empty
// file is not.
func (f *folder) read(name string) ([]byte, error) {
	file, err := f.fs.Open(f.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is over %d bytes", f.path(name), maxFile)
	}
	return data, err // never nil here
}

// write replaces a file atomically, by way of a file with the suffix .new, and returns when that is on the disk. Only the
// owner may read a private file.
func (f *folder) write(name string, data []byte, private bool) error {
	fresh := f.path(name + ".new")
	if err := f.writeTemporary(fresh, data, private); err != nil {
		return fmt.Errorf("couldn't write %s: %w", fresh, err)
	}
	return f.rename(name+".new", name)
}

// writeTemporary writes and syncs a file at path, which write then renames. It first removes one that a killed process has
// left there. Only the owner may read a private file.
func (f *folder) writeTemporary(path string, data []byte, private bool) (err error) {
	if err := f.fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a process that was killed
		return err
	}
	if private && f.fs == vfs.Default {
		// The file has its mode before it has content.
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	file, err := f.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Write may change its argument.
	if _, err := file.Write(append([]byte(nil), data...)); err != nil {
		return err
	}
	return file.Sync()
}

// rename renames a file of the folder, and returns when that is on the disk.
func (f *folder) rename(from, to string) error {
	if err := f.fs.Rename(f.path(from), f.path(to)); err != nil {
		return err
	}
	return disk.SyncFolder(f.fs, f.dir)
}

// remove removes a file of the folder, and returns when that is on the disk. A missing file is no error.
func (f *folder) remove(name string) error {
	err := f.fs.Remove(f.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return disk.SyncFolder(f.fs, f.dir)
}

// list returns the names of the files that match a pattern, in order.
func (f *folder) list(pattern string) ([]string, error) {
	names, err := f.fs.List(f.dir)
	return slices.DeleteFunc(names, func(name string) bool {
		ok, _ := filepath.Match(pattern, name)
		return !ok
	}), err
}

// ReadFolder reads the last signed checkpoint from a key folder, which a Signer may have open, and verifies it with the
// verifier key in the folder, as clients do. It takes no lock. If the file with the verifier key is missing, the error is
// [fs.ErrNotExist] and key is "". If only the checkpoint is missing, the error is [fs.ErrNotExist], too, and key is the
// verifier key. With any other error, key is what is in the file of the verifier key if it can be read, valid or not.
func ReadFolder(dir string) (_ Signed, key string, err error) {
	// The key is read first, because a checkpoint that is signed with a newer key is signed with this one too.
	verifier, key, err := readPublicFile(dir)
	if err != nil {
		return Signed{}, key, err
	}
	path := filepath.Join(dir, checkpointFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return Signed{}, key, fmt.Errorf("signing: couldn't read the last signed checkpoint: %w", err)
	}
	cosigner, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		return Signed{}, key, fmt.Errorf("signing: %s does not contain a verifier key: %w", filepath.Join(dir, publicFile), err)
	}
	signed, n, err := openNote(data, verifier.Name(), note.VerifierList(verifier, cosigner))
	if err == nil {
		err = checkSignatures(n, verifier, cosigner)
	}
	if err == nil {
		return signed, key, nil
	}
	if unknown := (*note.UnverifiedNoteError)(nil); errors.As(err, &unknown) {
		err = errors.New("it is not signed with the key in " + publicFile)
	}
	return Signed{}, key, fmt.Errorf("signing: %s: %w", path, err)
}

// readPublicFile reads the verifier key of a key folder. It fails if the file is missing or cannot be read, for which key is "", and if
// it contains anything but a verifier key, for which key is its text.
func readPublicFile(dir string) (_ note.Verifier, key string, err error) {
	public, err := os.ReadFile(filepath.Join(dir, publicFile))
	if err != nil {
		return nil, "", fmt.Errorf("signing: couldn't read the verifier key: %w", err)
	}
	key = strings.TrimSpace(string(public))
	verifier, err := note.NewVerifier(key)
	if err != nil || string(public) != publicFileText(verifier, key) {
		return nil, key, fmt.Errorf("signing: %s does not contain a verifier key", filepath.Join(dir, publicFile))
	}
	return verifier, key, nil
}

// publicFileText returns the content of the file log.pub: the verifier key in its canonical form, and a line break. v is the
// verifier of key.
func publicFileText(v note.Verifier, key string) string {
	_, data, _ := strings.Cut(strings.TrimPrefix(key, v.Name()+"+"), "+")
	return fmt.Sprintf("%s+%08x+%s\n", v.Name(), v.KeyHash(), data)
}

// checkSignatures returns an error if the key of verifier has not signed the note, or if a signature line is damaged: it has
// bits that verifiers ignore, or is the key's cosignature under another name or hash. cosigner verifies the key's
// cosignatures.
func checkSignatures(n *note.Note, verifier, cosigner note.Verifier) error {
	by := func(v note.Verifier) func(note.Signature) bool {
		return func(s note.Signature) bool { return s.Name == v.Name() && s.Hash == v.KeyHash() }
	}
	if !slices.ContainsFunc(n.Sigs, by(verifier)) {
		return &note.UnverifiedNoteError{Note: n}
	}
	cosigned := slices.ContainsFunc(n.Sigs, by(cosigner))
	for _, s := range append(n.Sigs[:len(n.Sigs):len(n.Sigs)], n.UnverifiedSigs...) {
		raw, err := base64.StdEncoding.Strict().DecodeString(s.Base64)
		if err == nil && !cosigned && (s.Hash == cosigner.KeyHash() || s.Name == cosigner.Name() && len(raw) == cosignatureSize) {
			err = errors.New("it is not that of the key in " + publicFile) // a signer with several keys cosigns with all of them
		}
		if err != nil {
			return fmt.Errorf("a signature of %s is not as it was written: %w", s.Name, err)
		}
	}
	return nil
}

// cosignatureSize is the length of a cosignature by Ed25519, with the hash of its key and its time.
const cosignatureSize = 4 + 8 + ed25519.SignatureSize

// StoredNotes returns the signed checkpoints that a scan of a damaged store's files has found, unverified.
func StoredNotes(s *kvstore.FileScan) iter.Seq[[]byte] {
	return s.Values(kvstore.LogState, logs.SignedRow)
}

// StoredNoteSeq returns the last signed checkpoint in a store, unverified, as a sequence of one, which is empty if the store
// has none or it cannot be read.
func StoredNoteSeq(store kvstore.Getter) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if note, err := StoredNote(store); err == nil && note != nil {
			yield(note)
		}
	}
}

// RepairFolder restores files of a key folder: a damaged verifier key from the private key, and a last signed checkpoint
// that is missing or damaged from the newest of the given notes that the key has signed. restored describes each file that
// was restored; it is empty if nothing was damaged, or if the private key cannot be used, which [CheckKey] reports. inUse
// says that this process has the folder open, so its lock is not taken.
func RepairFolder(dir string, notes iter.Seq[[]byte], inUse bool) (restored []string, err error) {
	_, _, err = ReadFolder(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) && !hasFile(dir, keyFile) && !hasFile(dir, publicFile) {
		return nil, nil
	}
	f := &folder{fs: vfs.Default, dir: dir, lock: io.NopCloser(nil)}
	if !inUse {
		if f, err = openFolder(vfs.Default, dir); err != nil {
			return nil, err
		}
	}
	defer func() { err = errors.Join(err, f.unlock()) }()
	if _, _, err := readPublicFile(dir); err != nil {
		data, err := f.read(keyFile)
		if err != nil || data == nil {
			return nil, err
		}
		k, err := parseKey(data)
		if err != nil {
			return nil, nil //nolint:nilerr // CheckKey reports it
		}
		if err := f.write(publicFile, []byte(k.public+"\n"), false); err != nil {
			return nil, err
		}
		restored = append(restored, publicFile+" was missing or damaged, and follows from "+keyFile)
	}
	_, key, err := ReadFolder(dir)
	if err == nil {
		return restored, nil
	}
	var newest Signed
	for data := range notes {
		if signed, _, err := ReadNote(data, []string{key}); err == nil && signed.Size >= newest.Size {
			newest = Signed{signed.Checkpoint, bytes.Clone(data)}
		}
	}
	if newest.Note == nil {
		return restored, err
	}
	if err := f.write(checkpointFile, newest.Note, false); err != nil {
		return restored, err
	}
	return append(restored, fmt.Sprintf("%s was missing or damaged (%v); the newest one that was found, of %d entries, takes its place", checkpointFile, err, newest.Size)), nil
}

// hasFile reports whether a key folder has a file. It is false if that cannot be determined.
func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// HasKey reports whether the folder dir has the private key of a log, so that a process may sign with it.
func HasKey(dir string) bool { return hasFile(dir, keyFile) }

// CheckKey returns why the private key in the folder dir cannot sign; nil if it can, or if the folder has none, such as a
// follower's.
func CheckKey(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = parseKey(data)
	}
	if err != nil {
		return fmt.Errorf("the log's key cannot be used: %s: %w; put a good copy of it there, because nothing can be signed without it", filepath.Join(dir, keyFile), err)
	}
	return nil
}
