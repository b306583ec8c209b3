package replication_test

import (
	"context"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera/client"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A tile client that knows nothing of Larder reads the mirror as it reads the source: by the source's key.
func TestClientsOfOthers(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url)
	server := httptest.NewServer(handler(t, m.Store, m))
	defer server.Close()
	ctx := t.Context()
	root, err := url.Parse(server.URL + tiles.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	fetcher, err := client.NewHTTPFetcher(root, server.Client())
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(u.signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetcher.ReadCheckpoint(ctx); err == nil {
		t.Error("it shows a checkpoint before it has caught up")
	}
	m.catchUp(t)
	tracker, err := client.NewLogStateTracker(ctx, fetcher.ReadTile, nil, verifier, origin, client.UnilateralConsensus(fetcher.ReadCheckpoint))
	if err != nil {
		t.Fatal(err)
	}
	for range 300 { // over the border of a tile
		u.Register("vue", `{"name":"vue"}`)
	}
	u.signNow(t)
	m.catchUp(t)
	if _, _, _, err := tracker.Update(ctx); err != nil {
		t.Fatal(err)
	}
	latest := tracker.Latest()
	if int64(latest.Size) != u.Log.Checkpoint().Size {
		t.Fatalf("the client sees %d entries", latest.Size)
	}
	builder, err := client.NewProofBuilder(ctx, latest.Size, fetcher.ReadTile)
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{0, 7, 255, 256, latest.Size - 1} {
		bundle, err := client.GetEntryBundle(ctx, fetcher.ReadEntryBundle, index/256, latest.Size)
		if err != nil {
			t.Fatal(err)
		}
		path, err := builder.InclusionProof(ctx, index)
		if err != nil {
			t.Fatal(err)
		}
		leaf := rfc6962.DefaultHasher.HashLeaf(bundle.Entries[index%256])
		if err := proof.VerifyInclusion(rfc6962.DefaultHasher, index, latest.Size, leaf, path, latest.Hash); err != nil {
			t.Errorf("entry %d: %v", index, err)
		}
	}
}

// What is published at the source arrives by itself.
func TestRun(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	caught := make(chan struct{}, 1)
	m := newMirror(t, u.url, func(o *replication.Options) {
		o.Changed = func(s replication.State) {
			if s.Ready && s.Entries == s.Of {
				select {
				case caught <- struct{}{}:
				default:
				}
			}
		}
	})
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	<-caught
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	for m.SignedInStore() != u.Log.Checkpoint() {
		<-caught
	}
	end()
	<-done
	m.same(t, u)
}
