package witness

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs/signing"
)

// The files of a folder, besides a file with the cosigned checkpoint of each log.
const (
	lockFile        = "LOCK"
	signingKeysFile = "witness.key"       // secret
	pubFile         = "witness.pub"       // for those who verify
	forkName        = "fork-%.8x-%d.json" // of a log, and which one
	maxForks        = 16                  // of each log: the first is proof enough
)

// A folder is the open and locked folder of a witness.
type folder struct {
	dir   string
	close func() error // it may be called again
	// replace is [disk.Replace], whose file is on the disk when it returns.
	replace func(path string, data []byte, mode fs.FileMode) error
}

// openFolder opens and locks the folder of a witness, and creates it if necessary.
func openFolder(dir string) (*folder, error) {
	if err := disk.MakeFolder(vfs.Default, dir); err != nil {
		return nil, fmt.Errorf("couldn't create the witness's folder: %w", err)
	}
	lock, err := vfs.Default.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("couldn't lock the witness's folder %s; another witness may use it: %w", dir, err)
	}
	return &folder{dir, sync.OnceValue(lock.Close), disk.Replace}, nil
}

// path returns the path of a file in the folder.
func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// checkpointFile returns the path of the file with the last cosigned checkpoint of a log.
func (f *folder) checkpointFile(origin string) string {
	return f.path(fmt.Sprintf("%x.checkpoint", sha256.Sum256([]byte(origin))))
}

// readSigners returns signers for the witness's two keys and their verifier keys. If their file is
// missing it creates both, unless the folder has cosigned checkpoints, which is an error. name is that of
// the keys: required for new ones; existing ones of another name are an error, unless name is "".
func (f *folder) readSigners(name string) (signers []note.Signer, keys []string, err error) {
	data, err := os.ReadFile(f.path(signingKeysFile))
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = f.createKeys(name); err != nil {
			return nil, nil, fmt.Errorf("couldn't create the witness's keys: %w", err)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("couldn't read the witness's keys: %w", err)
	}
	lines := strings.Fields(string(data))
	if len(lines) != 4 {
		return nil, nil, fmt.Errorf("%s does not have four lines; put a good copy of it there", f.path(signingKeysFile))
	}
	classic, err := cosignature.NewSignerForCosignatureV1(lines[0])
	if err == nil {
		var lattice *cosignature.SubtreeSigner
		if lattice, err = cosignature.NewMLDSASigner(lines[2]); err == nil {
			signers, keys = []note.Signer{classic, lattice}, []string{lines[1], lines[3]}
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the keys in %s cannot be read: %w; put a good copy of it there", f.path(signingKeysFile), err)
	}
	if name != "" && classic.Name() != name {
		return nil, nil, fmt.Errorf("the keys in %s are those of the witness %s, not of %s; use that name, or another folder", f.dir, classic.Name(), name)
	}
	return signers, keys, nil
}

// createKeys creates the witness's keys, Ed25519 and ML-DSA, with a name, writes them to the folder, the verifier keys also
// to a file of their own, and returns the content of the file with the private keys. An empty name is an error. So are
// cosigned checkpoints in the folder, because their keys were lost.
func (f *folder) createKeys(name string) ([]byte, error) {
	if name == "" {
		return nil, errors.New("a witness needs a name for its keys, such as witness.example.com/larder")
	}
	if left, err := filepath.Glob(f.path("*.checkpoint")); len(left) > 0 || err != nil {
		return nil, fmt.Errorf("%s has checkpoints that were cosigned, but not the keys; put %s back", f.dir, signingKeysFile)
	}
	classic, verifier, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return nil, err
	}
	if verifier, err = cosignature.VKeyToCosignatureV1(verifier); err != nil {
		return nil, err
	}
	lattice, latticeVerifier, err := cosignature.GenerateMLDSAKey(name)
	if err != nil {
		return nil, err
	}
	data := fmt.Appendf(nil, "%s\n%s\n%s\n%s\n", classic, verifier, lattice, latticeVerifier)
	if err := disk.Create(f.path(signingKeysFile), data, 0o600); err != nil {
		return nil, err
	}
	return data, disk.Replace(f.path(pubFile), fmt.Appendf(nil, "%s\n%s\n", verifier, latticeVerifier), 0o644)
}

// readCheckpoint reads the last cosigned checkpoint of a log from the folder, verifies it with the log's keys, and sets it
// in l. Without a stored checkpoint it does nothing.
func (f *folder) readCheckpoint(l *witnessed) error {
	data, err := os.ReadFile(f.checkpointFile(l.origin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var latest signing.Signed
	if err == nil {
		latest, err = l.openCheckpoint(data)
	}
	if err != nil {
		return fmt.Errorf("couldn't read what was cosigned of the log %s, in %s: %w; put a good copy there: without it the witness would sign another history", l.origin, f.checkpointFile(l.origin), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest, l.note = latest, data
	return nil
}

// storeEvidence stores the proof that the log with the name origin has signed two checkpoints which contradict each other.
// It stores each proof once, and no more than maxForks of a log; one beyond that is dropped without an error.
func (f *folder) storeEvidence(origin string, proof []byte) error {
	for n := range maxForks {
		path := f.path(fmt.Sprintf(forkName, sha256.Sum256([]byte(origin)), n))
		err := disk.Create(path, proof, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if had, err := os.ReadFile(path); err == nil && bytes.Equal(had, proof) {
			return nil
		}
	}
	return nil
}
