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

// Limits of the side state, and where its key is in the key folder.
const (
	maxSide     = 256 << 20
	sidePrefix  = "side/"
	sideKeyFile = "cluster.key"
	sideKeySize = 32
)

// A SideKey encrypts and authenticates what the nodes keep in the bucket beside the log: what does
// not follow from it, and must survive the node that writes.
type SideKey struct {
	aead   cipher.AEAD
	secret []byte
}

// Derive returns 32 bytes for a purpose, which only those who have the key can derive.
func (k *SideKey) Derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, k.secret, nil, "larder cluster: "+purpose, 32)
}

// OpenSideKey reads the cluster's key from a key folder; all candidates need the same. If it is missing, the node that founds the cluster
// creates it, and any other gets an [fs.ErrNotExist].
func OpenSideKey(keys string, founds bool) (*SideKey, error) {
	path := filepath.Join(keys, sideKeyFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && founds {
		secret = make([]byte, sideKeySize)
		rand.Read(secret)
		if err = disk.Create(path, secret, 0o600); errors.Is(err, fs.ErrExist) { // by another process
			secret, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't open the key of the cluster's own state: %w", err)
	}
	if len(secret) != sideKeySize {
		return nil, fmt.Errorf("%s has %d bytes, and a key has %d; bring the file of another candidate", path, len(secret), sideKeySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &SideKey{aead, secret}, err
}

// A sealed is the content of side/N. The number and the epoch are authenticated with the state.
type sealed struct {
	Format int    `json:"format"`
	Epoch  int64  `json:"epoch"`
	State  []byte `json:"state"`
}

// sideName returns the key of the object that has a version of the side state.
func sideName(number int64) string { return fmt.Sprintf("%s%020d", sidePrefix, number) }

// sideAdditionalData returns the number and the epoch of a version of the side state, which are authenticated with it.
func sideAdditionalData(number, epoch int64) []byte {
	return fmt.Appendf(nil, "larder side %d %d", number, epoch)
}

// SaveSide stores a new version of the side state, if this node leads. After it has returned nil, a node that takes over reads this version
// or a later one.
func (n *Node) SaveSide(ctx context.Context, key *SideKey, state []byte) error {
	epoch, leads := n.leadingEpoch()
	if !leads {
		return n.notLeader()
	}
	for ctx.Err() == nil {
		last, err := n.lastSide(ctx)
		if err != nil {
			return err
		}
		number := last + 1
		data, err := json.Marshal(sealed{CommitFormat, epoch, key.aead.Seal(nil, nil, state, sideAdditionalData(number, epoch))})
		if err != nil {
			return err
		}
		if len(data) > maxSide {
			return fmt.Errorf("the cluster's own state has %d bytes, over the limit of %d", len(data), maxSide)
		}
		_, err = n.Bucket.Create(ctx, sideName(number), data)
		if errors.Is(err, bucket.ErrExists) {
			if now, err := n.latestEpoch(ctx); err != nil || now != epoch {
				return errors.Join(err, n.notLeader())
			}
			continue // an unconfirmed one of this node, or one of the leader before
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// A node that takes over claims its epoch first, and reads the state then. So if there is no
		// later epoch now, it reads this one.
		if now, err := n.latestEpoch(ctx); err != nil || now != epoch {
			return errors.Join(err, n.notLeader())
		}
		if last > 0 {
			n.deleteSide(ctx, last-1) // the one before stays, for a node that reads it now
		}
		return nil
	}
	return ctx.Err()
}

// deleteSide deletes a version of the side state that two later ones have replaced. If that fails, the version stays and does no harm.
func (n *Node) deleteSide(ctx context.Context, number int64) {
	if err := n.Bucket.Delete(ctx, sideName(number)); err != nil {
		n.Logger.Debug("couldn't remove an old state", "number", number, "err", err)
	}
}

// LoadSide returns the last version of the side state, or nil. Versions that a replaced leader wrote late do not count.
func (n *Node) LoadSide(ctx context.Context, key *SideKey) ([]byte, error) {
	var best sealed
	var state []byte
	for o, err := range n.Bucket.List(ctx, sidePrefix, "") {
		if err != nil {
			return nil, err
		}
		number, err := parseSideName(o.Key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Bucket, err)
		}
		data, _, err := n.Bucket.Get(ctx, o.Key, maxSide)
		if errors.Is(err, bucket.ErrNotFound) {
			continue // replaced meanwhile
		}
		if err != nil {
			return nil, err
		}
		var s sealed
		if err := json.Unmarshal(data, &s); err != nil {
			return nil, fmt.Errorf("%s: %s is malformed: %w", n.Bucket, o.Key, err)
		}
		if s.Format != CommitFormat {
			return nil, &FormatError{o.Key, s.Format}
		}
		opened, err := key.aead.Open(nil, nil, s.State, sideAdditionalData(number, s.Epoch))
		if err != nil {
			return nil, fmt.Errorf("%s: %s was not written with the key in this node's %s, or was changed; bring the file of the node that wrote it: %w", n.Bucket, o.Key, sideKeyFile, err)
		}
		if s.Epoch >= best.Epoch {
			best, state = s, opened
		}
	}
	return state, nil
}

// lastSide returns the greatest number of a version of the side state, or 0.
func (n *Node) lastSide(ctx context.Context) (last int64, err error) {
	for o, err := range n.Bucket.List(ctx, sidePrefix, "") {
		if err != nil {
			return 0, err
		}
		if last, err = parseSideName(o.Key); err != nil {
			return 0, fmt.Errorf("%s: %w", n.Bucket, err)
		}
	}
	return last, nil
}

// parseSideName returns the number in the key of a version of the side state.
func parseSideName(key string) (int64, error) {
	number, err := strconv.ParseInt(strings.TrimPrefix(key, sidePrefix), 10, 64)
	if err != nil || sideName(number) != key {
		return 0, fmt.Errorf("%q is not the key of a state", key)
	}
	return number, nil
}
