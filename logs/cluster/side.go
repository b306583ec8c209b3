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

// Derive returns 32 bytes that only those know who have the key, for one purpose.
func (k *SideKey) Derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, k.secret, nil, "larder cluster: "+purpose, 32)
}

// OpenSideKey reads the key from a key folder. Every candidate needs the same. Where there is none, it
// makes one if the node founds the cluster, and else returns an [fs.ErrNotExist].
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

// A sealed is what side/N has. The number and the epoch are authenticated with the state.
type sealed struct {
	Format int    `json:"format"`
	Epoch  int64  `json:"epoch"`
	State  []byte `json:"state"`
}

func sideName(number int64) string { return fmt.Sprintf("%s%020d", sidePrefix, number) }

func sideData(number, epoch int64) []byte {
	return fmt.Appendf(nil, "larder side %d %d", number, epoch)
}

// SaveSide keeps a state in the place of the last one, if this node writes. When it has returned nil,
// the node that takes over gets it.
func (n *Node) SaveSide(ctx context.Context, key *SideKey, state []byte) error {
	epoch, leads := n.epoch()
	if !leads {
		return n.notWriter()
	}
	for ctx.Err() == nil {
		last, err := n.lastSide(ctx)
		if err != nil {
			return err
		}
		number := last + 1
		data, err := json.Marshal(sealed{CommitFormat, epoch, key.aead.Seal(nil, nil, state, sideData(number, epoch))})
		if err != nil {
			return err
		}
		if len(data) > maxSide {
			return fmt.Errorf("the cluster's own state has %d bytes, over the limit of %d", len(data), maxSide)
		}
		_, err = n.Bucket.Create(ctx, sideName(number), data)
		if errors.Is(err, bucket.ErrExists) {
			if now, err := n.latestEpoch(ctx); err != nil || now != epoch {
				return errors.Join(err, n.notWriter())
			}
			continue // one of this node's that was in doubt, or of the writer before
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// A node that takes over claims its epoch first, and reads the state then. So where there is no
		// later epoch now, it reads this one.
		if now, err := n.latestEpoch(ctx); err != nil || now != epoch {
			return errors.Join(err, n.notWriter())
		}
		if last > 0 {
			n.dropSide(ctx, last-1) // the one before stays, for a node that reads it now
		}
		return nil
	}
	return ctx.Err()
}

// dropSide removes a state that two later ones have replaced. One that stays does no harm.
func (n *Node) dropSide(ctx context.Context, number int64) {
	if err := n.Bucket.Delete(ctx, sideName(number)); err != nil {
		n.Logger.Debug("couldn't remove an old state", "number", number, "err", err)
	}
}

// LoadSide returns the state that was saved last, nil where there is none. Of a writer that was
// replaced, what came late does not count.
func (n *Node) LoadSide(ctx context.Context, key *SideKey) ([]byte, error) {
	var best sealed
	var state []byte
	for o, err := range n.Bucket.List(ctx, sidePrefix, "") {
		if err != nil {
			return nil, err
		}
		number, err := sideNumber(o.Key)
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
		opened, err := key.aead.Open(nil, nil, s.State, sideData(number, s.Epoch))
		if err != nil {
			return nil, fmt.Errorf("%s: %s was not written with the key in this node's %s, or was changed; bring the file of the node that wrote it: %w", n.Bucket, o.Key, sideKeyFile, err)
		}
		if s.Epoch >= best.Epoch {
			best, state = s, opened
		}
	}
	return state, nil
}

// lastSide returns the greatest number of a state, 0 where there is none.
func (n *Node) lastSide(ctx context.Context) (last int64, err error) {
	for o, err := range n.Bucket.List(ctx, sidePrefix, "") {
		if err != nil {
			return 0, err
		}
		if last, err = sideNumber(o.Key); err != nil {
			return 0, fmt.Errorf("%s: %w", n.Bucket, err)
		}
	}
	return last, nil
}

func sideNumber(key string) (int64, error) {
	number, err := strconv.ParseInt(strings.TrimPrefix(key, sidePrefix), 10, 64)
	if err != nil || sideName(number) != key {
		return 0, fmt.Errorf("%q is not the key of a state", key)
	}
	return number, nil
}
