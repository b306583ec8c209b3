package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// Options say which log to verify, and by whose word.
type Options struct {
	// Server is the URL in front of /log/, without a slash at the end. Required.
	Server string
	Trust  Trust
	// Known, where set, returns what is remembered of the log that a key signs, or signed:
	// [Known.OfKey]. It is asked for the present key and for the trusted one.
	Known func(key string) (KnownLog, bool)
	// KnownList, where set, returns the newest signed list of a root key that was seen: [Known.ListOf].
	KnownList func(root string) []byte
	// KeepList, where set, is called with the signed list that counts, as the server has it: [Known.KeepList].
	KeepList func(root string, signed []byte) error
	// All has every entry read, however many there are; see [Release.Complete].
	All bool
	// Upstream, where set, compares the releases of files that are proven with what their upstream has. What it does not
	// find to be the same is not [Proven].
	Upstream Upstream
	// Auditors are those whose statements are compared with what the log says of files, of which NeedAuditors must have found
	// a file to be upstream's. One with several statements counts once: [CountAuditors].
	Auditors     []Auditor
	NeedAuditors int
	// Progress, where set, is called while entries are read.
	Progress func(entries, of int64)
	// Client and UserAgent are for requests. Default: that of [NewClient], and "larder".
	Client    *http.Client
	UserAgent string
	// Read, where set, returns what the log has under a path such as /log/checkpoint, of at
	// most limit bytes, or [fs.ErrNotExist], in the place of requests. Then files cannot be
	// verified by their URLs.
	Read func(ctx context.Context, path string, limit int64) ([]byte, error)
}

// A Log is a log whose checkpoint was verified. It is for one goroutine.
type Log struct {
	options Options
	remote  *remote
	checkpoint
	tree    tlog.Tree
	key     string
	changes []signing.KeyChange // as the server tells them; they carry their own proofs
	trusted []string            // verifier keys by which checkpoints count, the oldest first
	seen    int64
	// unverified is why nothing that the log says is proven, nil if it may be.
	unverified *UnverifiedError
	kept       []string // signed checkpoints that are still to be compared with the log
	settled    []string // those that were kept and that it contains
	audits     []audit
	keyList    *signing.KeyList // nil if no root key is pinned
	proof      map[tlog.Tile][]byte
	releases   map[[2]string]*Release
	history    *history // nil before the log was read whole
	last       struct {
		n       int64
		entries []logs.Indexed
	}
}

// Limits of what a server may answer.
const (
	maxCheckpoint = 64 << 10
	maxKey        = 4 << 10
	maxKeys       = 1 << 20
)

// FetchKey returns the verifier key that a server says is its log's. Nothing makes
// that trustworthy.
func FetchKey(ctx context.Context, o Options) (string, error) {
	data, err := o.remote().get(ctx, "/log/key", maxKey)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	return key, CheckKey(key)
}

func (o Options) remote() *remote {
	r := &remote{base: strings.TrimSuffix(o.Server, "/"), client: o.Client, agent: o.UserAgent, read: o.Read}
	if r.client == nil {
		r.client = NewClient()
	}
	if r.agent == "" {
		r.agent = "larder"
	}
	return r
}

// Open fetches the log's checkpoint and verifies it. If it is right, but proves
// nothing, [Log.Unverified] says why. The caller bounds the time that it takes.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{options: o, remote: o.remote(), proof: map[tlog.Tile][]byte{}, releases: map[[2]string]*Release{}}
	if err := l.readKeys(ctx); err != nil {
		return nil, err
	}
	signed, err := l.remote.get(ctx, "/log/checkpoint", maxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("couldn't get the log's checkpoint: %w", err)
	}
	c, key, used, err := l.openServed(signed)
	if err != nil {
		return nil, err
	}
	l.checkpoint, l.tree, l.key = c, c.Tree, key
	if err := l.follow(ctx); err != nil {
		return nil, err
	}
	if l.keyList != nil {
		if err := l.checkList(ctx); err != nil {
			return nil, err
		}
	}
	if missing := o.Trust.Need - len(l.cosignatures); missing > 0 && l.unverified == nil {
		l.unverified = &UnverifiedError{Unproven, fmt.Sprintf("%d of the given witnesses have signed the checkpoint, and %d are required", len(l.cosignatures), o.Trust.Need)}
		l.keep(string(l.note))
	}
	if o.Trust.MaxAge > 0 && l.unverified == nil {
		if err := CheckAge(l.cosigned, o.Trust.now(), o.Trust.MaxAge); err != nil {
			l.unverified = &UnverifiedError{Expired, err.Error()}
			l.keep(string(l.note))
		}
	}
	if err := l.readAudits(ctx); err != nil {
		return nil, err
	}
	for _, change := range used { // what was signed for one client must be there for all
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
	if errors.Is(err, fs.ErrNotExist) {
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

func (l *Log) tiles(ctx context.Context, cache map[tlog.Tile][]byte) *tileReader {
	return &tileReader{ctx: ctx, remote: l.remote, cache: cache}
}

// hashes reads the tree's hashes, each of which is proven.
func (l *Log) hashes(ctx context.Context) tlog.HashReader {
	return l.tiles(ctx, l.proof).of(l.tree)
}

// Origin is what the log is called.
func (l *Log) Origin() string {
	origin, _, _ := strings.Cut(l.key, "+")
	return origin
}

// Key is the verifier key that signs now, to which the pinned one has led.
func (l *Log) Key() string { return l.key }

// KeyChanges are the changes of the key that the server names. They carry their own proofs.
func (l *Log) KeyChanges() []signing.KeyChange { return l.changes }

// Size is the number of entries that are signed.
func (l *Log) Size() int64 { return l.tree.N }

// Seen is the size of the log that was seen before, which this one contains; 0 where
// none was.
func (l *Log) Seen() int64 { return l.seen }

// Root is the hash of the tree over them.
func (l *Log) Root() tlog.Hash { return l.tree.Hash }

// Note is the signed checkpoint, for the next time.
func (l *Log) Note() []byte { return l.note }

// Unverified returns why nothing that the log says is proven, nil if it may be.
func (l *Log) Unverified() *UnverifiedError { return l.unverified }

// Cosigned returns as of when the checkpoint is vouched to be the newest, for [CheckAge]; zero if nothing says so.
func (l *Log) Cosigned() time.Time { return l.cosigned }

// Cosignatures are those of the given witnesses.
func (l *Log) Cosignatures() []Cosignature { return l.cosignatures }
