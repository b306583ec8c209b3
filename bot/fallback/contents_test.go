package fallback

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/sources"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
)

// The files of an origin with cdnjs's API pass the tests of all sources of contents.
func TestCdnjsContents(t *testing.T) {
	const body = "the file of a release"
	sources.Contents(t, []byte(body), func(t *testing.T, sent []byte) (replication.Contents, replication.Wanted) {
		origin := newCDN(t)
		origin.files["1.0.0"] = map[string]string{"a.js": body}
		r := newRig(t, origin.origin())
		offer, err := r.fallback.origins[0].origin.find(t.Context(), "a", "1.0.0", "a.js")
		if err != nil {
			t.Fatal(err)
		}
		origin.mu.Lock()
		defer origin.mu.Unlock()
		if origin.files["1.0.0"]["a.js"] = string(sent); sent == nil {
			delete(origin.files["1.0.0"], "a.js")
		}
		file := logs.File{Path: "a.js", SRI: logs.SumSRI([]byte(body))}
		return offer.contents, replication.Wanted{Limit: int64(len(body)), Manifest: offer.manifest, File: &file}
	})
}
