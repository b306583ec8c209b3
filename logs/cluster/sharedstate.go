package cluster

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// Limits of the shared state, and where its key is in the key folder.
const (
	maxSharedState    = 256 << 20
	sharedStatePrefix = "side/"
	clusterKeyFile    = "cluster.key"
	clusterKeySize    = 32
)

// A Key is the secret that all nodes of a cluster have. It encrypts and authenticates their shared state in the bucket, which does not follow from
// the log and must survive the leader.
type Key struct {
	aead   cipher.AEAD
	secret []byte
}

// Derive returns 32 bytes for a purpose, which is any text: the same for each call, and only those who have the cluster's key can derive them.
func (k *Key) Derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, k.secret, nil, "larder cluster: "+purpose, 32)
}

// OpenKey reads the cluster's key from the key folder keys; all candidates need the same. If it is missing, it is created if create is set, which
// it is for the node that starts the cluster; otherwise the error is an [fs.ErrNotExist].
func OpenKey(keys string, create bool) (*Key, error) {
	path := filepath.Join(keys, clusterKeyFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && create {
		secret = make([]byte, clusterKeySize)
		rand.Read(secret)
		if err = disk.Create(path, secret, 0o600); errors.Is(err, fs.ErrExist) { // by another process
			secret, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't open the key of the cluster's own state: %w", err)
	}
	if len(secret) != clusterKeySize {
		return nil, fmt.Errorf("%s has %d bytes, and a key has %d; bring the file of another candidate", path, len(secret), clusterKeySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Key{aead, secret}, err
}

// open returns the decrypted form of what was encrypted with the key and authenticated together with these bytes.
func (k *Key) open(encrypted, authenticated []byte) ([]byte, error) {
	data, err := k.aead.Open(nil, nil, encrypted, authenticated)
	if err != nil {
		return nil, fmt.Errorf("it was not written with the key in this node's %s, or was changed; bring the file of the node that wrote it: %w",
			clusterKeyFile, err)
	}
	return data, nil
}

// A sealed is the content of side/N. The number and the epoch are authenticated with the state.
type sealed struct {
	Format int    `json:"format"`
	Epoch  int64  `json:"epoch"`
	State  []byte `json:"state"`
}

// sharedStateKey returns the key of the object in the bucket that has the version of the shared state with a number.
func sharedStateKey(number int64) string { return fmt.Sprintf("%s%020d", sharedStatePrefix, number) }

// sharedStateData returns the bytes that are authenticated, but not stored, with a version of the shared state: its number and its epoch.
func sharedStateData(number, epoch int64) []byte {
	return fmt.Appendf(nil, "larder side %d %d", number, epoch)
}

// SaveSharedState encrypts state, the shared state of the cluster beside the log, and stores it in the bucket as a new version. After it has returned
// nil, a node that takes over reads this version or a later one. It deletes the version before the previous one. If this node does not lead, or
// another has taken over, the error is a [NotWriterError]. If the bucket does not confirm the new version, the error is [ErrUnavailable]; the version
// may be stored all the same.
func (n *Node) SaveSharedState(ctx context.Context, key *Key, state []byte) error {
	epoch, leads := n.leadingEpoch()
	if !leads {
		return n.notLeaderError()
	}
	for ctx.Err() == nil {
		last, err := n.lastSharedState(ctx)
		if err != nil {
			return err
		}
		number := last + 1
		data, err := json.Marshal(sealed{CommitFormat, epoch, key.aead.Seal(nil, nil, state, sharedStateData(number, epoch))})
		if err != nil {
			return err
		}
		if len(data) > maxSharedState {
			return fmt.Errorf("the cluster's own state has %d bytes, over the limit of %d", len(data), maxSharedState)
		}
		_, err = n.Bucket.Create(ctx, sharedStateKey(number), data)
		exists := errors.Is(err, bucket.ErrExists)
		if err != nil && !exists {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// A node that takes over claims its epoch first, and reads the state then. So if there is no
		// later epoch now, it reads this one.
		if now, err := n.latestEpoch(ctx); err != nil || now != epoch {
			return errors.Join(err, n.notLeaderError())
		}
		if exists {
			continue // an unconfirmed one of this node, or one of the leader before
		}
		if last > 0 {
			// The one before stays, for a node that reads it now. An older one does no harm.
			if err := n.Bucket.Delete(ctx, sharedStateKey(last-1)); err != nil {
				n.Logger.Debug("couldn't remove an old state", "number", last-1, "err", err)
			}
		}
		return nil
	}
	return ctx.Err()
}

// LoadSharedState returns the last version of the shared state, decrypted, or nil if none exists. It ignores versions that a replaced leader wrote
// late. A version that cannot be decrypted with the key is an error, one of an unknown format a [FormatError].
func (n *Node) LoadSharedState(ctx context.Context, key *Key) ([]byte, error) {
	var best sealed
	var state []byte
	for o, err := range n.Bucket.List(ctx, sharedStatePrefix, "") {
		if err != nil {
			return nil, err
		}
		number, err := parseSharedStateKey(o.Key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Bucket, err)
		}
		s, err := readJSON[sealed](ctx, n.Bucket, o.Key, maxSharedState)
		if errors.Is(err, bucket.ErrNotFound) {
			continue // replaced meanwhile
		}
		if err != nil {
			return nil, err
		}
		if s.Format != CommitFormat {
			return nil, &FormatError{o.Key, s.Format}
		}
		opened, err := key.open(s.State, sharedStateData(number, s.Epoch))
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", n.Bucket, o.Key, err)
		}
		if s.Epoch >= best.Epoch {
			best, state = s, opened
		}
	}
	return state, nil
}

// lastSharedState returns the greatest number of a version of the shared state in the bucket, or 0.
func (n *Node) lastSharedState(ctx context.Context) (last int64, err error) {
	for o, err := range n.Bucket.List(ctx, sharedStatePrefix, "") {
		if err != nil {
			return 0, err
		}
		if last, err = parseSharedStateKey(o.Key); err != nil {
			return 0, fmt.Errorf("%s: %w", n.Bucket, err)
		}
	}
	return last, nil
}

// parseSharedStateKey returns the number in the key of an object with a version of the shared state, and an error for another key.
func parseSharedStateKey(key string) (int64, error) {
	number, err := strconv.ParseInt(strings.TrimPrefix(key, sharedStatePrefix), 10, 64)
	if err != nil || sharedStateKey(number) != key {
		return 0, fmt.Errorf("%q is not the key of a state", key)
	}
	return number, nil
}
