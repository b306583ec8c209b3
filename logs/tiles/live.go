package tiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// LivePrefix is where the proofs are that a release is live.
const LivePrefix = Prefix + "live/"

// LivePath returns the path of the proof of whether a release is live, for the checkpoint of that size. The server has it for
// the newest checkpoint, and for those up to some thousand entries before it.
func LivePath(pkg, version string, size int64) string {
	return LivePrefix + url.PathEscape(pkg) + "/" + url.PathEscape(version) + "?size=" + strconv.FormatInt(size, 10)
}

// A LiveProof shows, by the root of the map of live releases in the last entry of a signed
// log, whether a release is live.
type LiveProof struct {
	// Size is that of the checkpoint to which all the proofs lead.
	Size int64 `json:"size"`
	// Last is the log's last entry, whose root the map has.
	Last ProvenEntry       `json:"last"`
	Map  logs.LiveMapProof `json:"map"`
	// About are the last entry that published the release, the last one that confirmed it, the last one that withdrew or restored
	// it, and the last one that says that upstream has changed it, if there are any, oldest first.
	About []ProvenEntry `json:"about"`
}

// A ProvenEntry is an entry with the proof that it is in the tree.
type ProvenEntry struct {
	Index int64            `json:"index"`
	Entry string           `json:"entry"` // its bytes
	Proof tlog.RecordProof `json:"proof"` // from the leaf up
}

// Check returns an error unless the proof shows that the entry is in the tree.
func (e ProvenEntry) Check(tree tlog.Tree) error {
	if e.Index < 0 || e.Index >= tree.N {
		return fmt.Errorf("the tree of %d entries has no entry %d", tree.N, e.Index)
	}
	return tlog.CheckRecord(e.Proof, tree.N, tree.Hash, e.Index, tlog.RecordHash([]byte(e.Entry)))
}

// A file is the subject of a proof: a file, or without a path the release.
type file struct{ pkg, version, path string }

// parseFile parses {package}/{version}/{path} or {package}/{version}, decodes each percent-encoded segment, and reports
// whether that succeeded. A scoped package may be one segment or two. An empty segment is malformed.
func parseFile(escaped string) (f file, ok bool) {
	parts := strings.Split(escaped, "/")
	for i, part := range parts {
		plain, err := url.PathUnescape(part)
		if err != nil || plain == "" || strings.ContainsRune(plain, 0) {
			return file{}, false
		}
		parts[i] = plain
	}
	if strings.HasPrefix(parts[0], "@") && !strings.Contains(parts[0], "/") && len(parts) > 2 {
		parts = append([]string{parts[0] + "/" + parts[1]}, parts[2:]...)
	}
	if len(parts) < 2 {
		return file{}, false
	}
	return file{parts[0], parts[1], strings.Join(parts[2:], "/")}, true
}

// parseLive parses the rest of a path after live/: a package and a version. A malformed rest is the zero target.
func parseLive(rest string) target {
	f, ok := parseFile(rest)
	if !ok || f.path != "" {
		return target{}
	}
	return target{kind: live, file: f}
}

// errNoLiveMap is that the map of live releases is not there as it was then.
var errNoLiveMap = errors.New("the map of live releases is not kept for that size")

// prove returns the proof of a file, or that of whether a release is live. The proof leads to the signed tree; that of a release leads to an earlier
// one if the query names its size. refused is why no newer tree will be signed, or nil; then there are no proofs unless the store has the signed
// tree. The error for what cannot be proven is an [answers.Failure].
func (h *handler) prove(r *http.Request, t target, signed signing.Signed, refused error) ([]byte, error) {
	if signed.Size == 0 {
		return nil, newFailure(http.StatusNotFound, "The log has no entries")
	}
	if refused != nil && h.Signer.SignedInStore() != signed.Checkpoint {
		return nil, newFailure(http.StatusServiceUnavailable, "That part of the log is not here: "+publicReason(refused))
	}
	if t.kind == proof {
		return h.proveLiveFile(t.file, signed)
	}
	tree := signed.Checkpoint
	if text := r.URL.Query().Get("size"); text != "" {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || size <= 0 || size > signed.Size {
			return nil, newFailure(http.StatusNotFound, fmt.Sprintf("The log has %d entries, and no tree of that size", signed.Size))
		}
		if size < signed.Size {
			tree.Size = size
			if tree.Root, err = tlog.TreeHash(size, logs.Hashes(h.Store)); err != nil {
				return nil, err
			}
		}
	}
	p, err := proveLive(h.Store, tree, t.file)
	if errors.Is(err, errNoLiveMap) && tree.Size < signed.Size {
		return nil, newFailure(http.StatusNotFound, fmt.Sprintf("The log has grown since it had %d entries; there are proofs for its newest checkpoint", tree.Size))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(p)
}

// proveLive returns the proof of whether a release is live in a tree, which it checks as clients do. It includes the last
// entries by which the release was published, confirmed, withdrawn or restored, and found changed upstream. If the map of
// live releases is no longer stored as it was then, the error is errNoLiveMap.
func proveLive(r kvstore.Reader, tree logs.Checkpoint, f file) (LiveProof, error) {
	p := LiveProof{Size: tree.Size, About: []ProvenEntry{}}
	last, err := logs.ReadEntry(r, tree.Size-1)
	if err != nil {
		return p, err
	}
	m, err := logs.ReadLiveMap(r, tree.Size)
	if err != nil {
		return p, fmt.Errorf("%w: %w", errNoLiveMap, err)
	}
	if p.Map, err = m.Prove(logs.LiveKey(f.pkg, f.version)); err != nil {
		return p, fmt.Errorf("%w: %w", errNoLiveMap, err)
	}
	if err := p.Map.Check(last.Live, f.pkg, f.version); err != nil {
		return p, err
	}
	if p.Last, err = proveEntry(r, tree, last); err != nil {
		return p, err
	}
	for _, kinds := range [][]logs.Kind{logs.Publications, {logs.Confirmed}, {logs.Withdrawn, logs.Restored}, {logs.UpstreamChanged}} {
		page, err := logs.Read(r, logs.Query{Package: f.pkg, Version: f.version, Kinds: kinds, Before: tree.Size, Limit: 1})
		if err != nil {
			return p, err
		}
		for _, e := range page.Entries {
			about, err := proveEntry(r, tree, e)
			if err != nil {
				return p, err
			}
			p.About = append(p.About, about)
		}
	}
	slices.SortFunc(p.About, func(a, b ProvenEntry) int { return cmp.Compare(a.Index, b.Index) })
	return p, nil
}

// proveEntry returns the proof that an entry is in a tree. It checks the proof as clients do.
func proveEntry(r kvstore.Reader, tree logs.Checkpoint, e logs.Indexed) (ProvenEntry, error) {
	proof, err := tlog.ProveRecord(tree.Size, e.Index, logs.Hashes(r))
	if err != nil {
		return ProvenEntry{}, err
	}
	proven := ProvenEntry{e.Index, string(e.Raw), proof}
	return proven, proven.Check(tlog.Tree{N: tree.Size, Hash: tree.Root})
}
