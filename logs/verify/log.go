package verify

import (
	"cmp"
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

// Options say which log to verify, and whose signatures count.
type Options struct {
	// Server is the URL in front of /log/, without a slash at the end. Required.
	Server string
	Trust  Trust
	// Known, where set, returns what is stored about the log that is, or was, signed with a key: [Known.ByKey]. It is called with the
	// present key and with the trusted one, or, if a root key is pinned, with the keys in its list.
	Known func(key string) (KnownLog, bool)
	// KnownKeyList, where set, returns the newest signed list of a root key that was seen: [Known.KeyList].
	KnownKeyList func(root string) []byte
	// StoreKeyList, where set, is called with the signed list that counts, as the server has it: [Known.StoreKeyList].
	StoreKeyList func(root string, signed []byte) error
	// All has every entry of the log read, also of a large log; see [Release.Complete].
	All bool
	// Upstream, where set, compares the releases of files that are proven with what their upstream has. What it does not
	// find to be the same is not [Proven].
	Upstream Upstream
	// Auditors are those whose statements are compared with what the log says of files, of which NeedAuditors must have found
	// a file to be upstream's. One with several statements counts once: [CountAuditors].
	Auditors     []Auditor
	NeedAuditors int
	// Progress, where set, is called while all entries are read, with the number of those that were read, and of all.
	Progress func(entries, of int64)
	// Client and UserAgent are for requests. Default: that of [NewClient], and "larder".
	Client    *http.Client
	UserAgent string
	// Read, where set, returns what the log has under a path such as /log/checkpoint, of at
	// most limit bytes, or [fs.ErrNotExist], in the place of requests. Requests for the URL
	// of a file or of an auditor's statement are sent all the same.
	Read func(ctx context.Context, path string, limit int64) ([]byte, error)
}

// A Log is a log whose checkpoint was verified. It is for one goroutine.
type Log struct {
	options Options
	remote  *remote
	checkpoint
	changes []signing.KeyChange // as the server lists them; they carry their own proofs
	trusted []string            // verifier keys by which checkpoints count, the oldest first
	seen    int64               // size of the largest checkpoint that earlier runs have seen, and when
	seenAt  time.Time
	// unverified is why nothing that the log says is proven, nil if it may be.
	unverified *UnverifiedError
	deferred   []string // signed checkpoints that a later run has to compare with the log
	resolved   []string // those that earlier runs deferred and that the log contains
	audits     []AuditVerdict
	keyList    *signing.KeyList // nil if no root key is pinned
	proof      map[tlog.Tile][]byte
	releases   map[[2]string]*Release
	history    *history       // nil before the log was read whole
	last       []logs.Indexed // the bundle of entries that was read last, by [Log.Entry]
}

// Limits of a server's responses, in bytes.
const (
	maxCheckpoint = 64 << 10
	maxKey        = 4 << 10
	maxKeys       = 1 << 20
)

// FetchKey fetches the verifier key that the server names as its log's. Nothing proves that it is. Anything but a verifier
// key is an error; then the result must not be used.
func FetchKey(ctx context.Context, o Options) (string, error) {
	data, err := o.newRemote().get(ctx, "/log/key", maxKey)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	return key, CheckKey(key)
}

// newRemote returns an object that sends requests to the server in the options, with their client and user agent or the
// defaults, or that calls their Read in the place of requests.
func (o Options) newRemote() *remote {
	r := &remote{base: strings.TrimSuffix(o.Server, "/"), client: o.Client, agent: cmp.Or(o.UserAgent, "larder"), read: o.Read}
	if r.client == nil {
		r.client = NewClient()
	}
	return r
}

// fetchURL returns the body of the response for any URL, with the client and user agent in the options, and never by
// Options.Read. A body of over limit bytes, or a status other than 200, is an error; for 404 and 410 it is
// [fs.ErrNotExist].
func (o Options) fetchURL(ctx context.Context, url string, limit int64) ([]byte, error) {
	r := o.newRemote()
	r.base, r.read = url, nil
	return r.get(ctx, "", limit)
}

// Open fetches the log's checkpoint and verifies it, compares it with what earlier runs and auditors have seen, and
// verifies that the log contains the changes of keys that led to its key. An error may be a [Difference] or a [ForkError],
// see [OutcomeOf]; then the Log is nil. If nothing is wrong with the checkpoint but it proves nothing, such as an old one,
// there is no error, and [Log.Unverified] says why. Open stores nothing but the list of keys, by Options.StoreKeyList; see
// [Known.Open]. The caller must bound the time with ctx.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{options: o, remote: o.newRemote(), proof: map[tlog.Tile][]byte{}, releases: map[[2]string]*Release{}}
	if err := l.readKeys(ctx); err != nil {
		return nil, err
	}
	signed, err := l.remote.get(ctx, "/log/checkpoint", maxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("couldn't get the log's checkpoint: %w", err)
	}
	if l.checkpoint, err = l.openCheckpoint(signed); err != nil {
		return nil, err
	}
	if err := l.compareWithSeen(ctx); err != nil {
		return nil, err
	}
	if l.keyList != nil {
		if err := l.checkKeyList(ctx); err != nil {
			return nil, err
		}
	}
	if l.unverified == nil {
		if l.unverified = o.Trust.checkCosignatures(l.checkpoint); l.unverified != nil {
			l.deferComparison(string(l.note))
		}
	}
	if err := l.readAuditStatements(ctx); err != nil {
		return nil, err
	}
	for _, change := range l.used { // what was signed for one client must be there for all
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

// fetchKeyChanges fetches the list of key changes from the server. If the server has no list, it returns nil without an
// error. The caller must verify the changes, each of which carries its own proof.
func (l *Log) fetchKeyChanges(ctx context.Context) ([]signing.KeyChange, error) {
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

// hashReader returns a reader of the hashes of the log's tree, each of which is proven. It fetches tiles and caches the
// proven ones in l.
func (l *Log) hashReader(ctx context.Context) tlog.HashReader {
	return newHashReader(ctx, l.remote, l.Tree, l.proof)
}

// Origin returns the name of the log.
func (l *Log) Origin() string {
	origin, _, _ := strings.Cut(l.key, "+")
	return origin
}

// Key returns the verifier key that has signed the log's checkpoint: the pinned one, one to which that has led, one in the
// root key's list, or, if the log is [Stale], possibly a former one.
func (l *Log) Key() string { return l.key }

// KeyChanges returns the changes of the log's key that the server names, unverified. Each carries its own proof. It returns
// nil if a root key is pinned, whose list counts in their place.
func (l *Log) KeyChanges() []signing.KeyChange { return l.changes }

// Size returns the number of entries in the tree of the log's verified checkpoint, whose cosignatures may be too few: see [Log.Unverified].
func (l *Log) Size() int64 { return l.Tree.N }

// Seen returns the size of the largest verified checkpoint that earlier runs have stored, and when they last verified the
// log; 0 and the zero time if they have stored none. The log may be smaller; then it is [Stale].
func (l *Log) Seen() (size int64, at time.Time) { return l.seen, l.seenAt }

// Root returns the root hash of the log's tree.
func (l *Log) Root() tlog.Hash { return l.Tree.Hash }

// Note returns the signed checkpoint as a note, with the cosignatures that the server sent.
func (l *Log) Note() []byte { return l.note }

// Unverified returns why nothing is proven by the log: it is [Stale] if the server shows an older log than was seen before or the root key
// says, [Expired] if the newest cosignature is too old, or [Unproven] for lack of witnesses or of a list of keys that has not expired. It
// returns nil if its files may be proven. A fork or a difference is an error of [Open].
func (l *Log) Unverified() *UnverifiedError { return l.unverified }

// Cosigned returns the time as of which the checkpoint is vouched to be the newest, for [CheckAge]: zero if nothing says
// so, and in the future if only cosignatures with such a time do.
func (l *Log) Cosigned() time.Time { return l.cosigned }

// Cosignatures returns the verified cosignatures of the checkpoint by witnesses in the options; nil if there are none.
// Those of the log's own key are not among them.
func (l *Log) Cosignatures() []Cosignature { return l.cosignatures }
