package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// Options say which log to verify, and by whose word.
type Options struct {
	// Server is the URL in front of /log/, without a slash at the end. Required.
	Server string
	Trust  Trust
	// Seen, where set, returns the signed checkpoint that was seen last of the log that
	// a key signs, nil for none. It is asked for the trusted key and for the present one.
	Seen func(key string) []byte
	// All has every entry read, also of a large log; see [Release.Complete].
	All bool
	// Progress, where set, is called while all entries are read.
	Progress func(entries, of int64)
	// Client and UserAgent are for requests. Default: one that follows redirects and
	// waits two minutes for each answer, and "larder".
	Client    *http.Client
	UserAgent string
}

// A Log is a log whose checkpoint was verified. It is for one goroutine.
type Log struct {
	options Options
	remote  *remote
	checkpoint
	tree  tlog.Tree
	key   string
	seen  int64
	proof map[tlog.Tile][]byte
	last  struct {
		n       int64
		entries []logs.Indexed
	}
}

// Limits of what a server may answer.
const (
	maxCheckpoint = 1 << 20
	maxKeys       = 4 << 20
)

// FetchKey returns the verifier key that a server says is its log's. Nothing makes
// that trustworthy.
func FetchKey(ctx context.Context, o Options) (string, error) {
	data, err := o.remote().get(ctx, "/log/key", 64<<10)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	return key, CheckKey(key)
}

func (o Options) remote() *remote {
	r := &remote{base: strings.TrimSuffix(o.Server, "/"), client: o.Client, agent: o.UserAgent}
	if r.client == nil {
		r.client = http.DefaultClient
	}
	if r.agent == "" {
		r.agent = "larder"
	}
	return r
}

// Open fetches the log's checkpoint and verifies it.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{options: o, remote: o.remote(), proof: map[tlog.Tile][]byte{}}
	signed, err := l.remote.get(ctx, "/log/checkpoint", maxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("couldn't get the log's checkpoint: %w", err)
	}
	changes, err := l.keyChanges(ctx)
	if err != nil {
		return nil, fmt.Errorf("couldn't learn which keys the log has had: %w", err)
	}
	c, key, used, err := o.Trust.open(signed, changes)
	if err != nil {
		return nil, err
	}
	l.checkpoint, l.tree, l.key = c, c.Tree, key
	if err := l.follows(ctx); err != nil {
		return nil, err
	}
	for _, change := range used { // what was signed for somebody must be there for everybody
		e, err := l.Entry(ctx, change.Index)
		if err != nil {
			return nil, fmt.Errorf("couldn't find the change of the key in the log: %w", err)
		}
		if e.Kind != logs.KeyChanged || e.Key != change.Key {
			return nil, differs("the key %s took over, and entry %d does not say so", change.Key, change.Index)
		}
	}
	return l, nil
}

// keyChanges returns which keys took over as the server tells it. The changes carry
// their own proofs. A server need not know of such things.
func (l *Log) keyChanges(ctx context.Context) ([]signing.KeyChange, error) {
	data, err := l.remote.get(ctx, "/log/keys", maxKeys)
	if errors.Is(err, errNotThere) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var keys struct {
		Changes []signing.KeyChange `json:"changes"`
	}
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, fmt.Errorf("%s/log/keys: %w", l.remote.base, err)
	}
	return keys.Changes, nil
}

// follows returns a [ForkError] where the log does not contain what was seen before.
func (l *Log) follows(ctx context.Context) error {
	before := l.remembered()
	if before == nil {
		return nil
	}
	seen, err := parseSeen(before, l.Origin())
	if err != nil {
		return fmt.Errorf("couldn't read the checkpoint that was seen before: %w", err)
	}
	l.seen = seen.N
	fork := func(format string, args ...any) error {
		return &ForkError{Seen: before, Shown: l.note, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case seen.N > l.tree.N:
		return fork("the server shows a log of %d entries, and one of %d was signed and seen before: entries are kept back, or an old backup was restored", l.tree.N, seen.N)
	case seen.N == 0:
		return nil
	}
	hash, err := tlog.TreeHash(seen.N, l.hashes(ctx))
	if err != nil {
		return fmt.Errorf("couldn't prove that the log contains what was seen before: %w", err)
	}
	if hash != seen.Hash {
		return fork("the log has forked: its first %d entries are not those that were signed and seen before", seen.N)
	}
	return nil
}

// remembered returns what was seen of the log, by whichever of its keys.
func (l *Log) remembered() []byte {
	if l.options.Seen == nil {
		return nil
	}
	if before := l.options.Seen(l.key); before != nil {
		return before
	}
	return l.options.Seen(l.options.Trust.Key)
}

func (l *Log) tiles(ctx context.Context) *tileReader {
	return &tileReader{ctx: ctx, remote: l.remote, cache: l.proof}
}

// hashes reads the tree's hashes, each of which is proven.
func (l *Log) hashes(ctx context.Context) tlog.HashReader {
	reader := l.tiles(ctx)
	proven := tlog.TileHashReader(l.tree, reader)
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		hashes, err := proven.ReadHashes(indexes)
		switch {
		case reader.err != nil:
			return nil, reader.err
		case err != nil:
			return nil, differs("the log's tiles do not belong to the tree of %d entries that is signed: %v", l.tree.N, err)
		}
		return hashes, nil
	})
}

// Origin is what the log is called.
func (l *Log) Origin() string {
	origin, _, _ := strings.Cut(l.key, "+")
	return origin
}

// Key is the verifier key that signs now, to which the pinned one has led.
func (l *Log) Key() string { return l.key }

// Size is the number of entries that are signed.
func (l *Log) Size() int64 { return l.tree.N }

// Seen is the size of the log that was seen before, which this one contains; 0 where
// none was.
func (l *Log) Seen() int64 { return l.seen }

// Root is the hash of the tree over them.
func (l *Log) Root() tlog.Hash { return l.tree.Hash }

// Note is the signed checkpoint, for the next time.
func (l *Log) Note() []byte { return l.note }

// Cosignatures are those of the given witnesses.
func (l *Log) Cosignatures() []Cosignature { return l.cosignatures }
