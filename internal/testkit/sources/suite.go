// Package sources has the tests that every [replication.Contents] passes.
package sources

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/logs/replication"
)

// Contents tests a kind of source. open returns a source that has sent as the bytes of a content, nothing of it if sent is nil, and the
// request for the content, whose bytes are body.
func Contents(t *testing.T, body []byte, open func(t *testing.T, sent []byte) (replication.Contents, replication.Wanted)) {
	t.Run("honest", func(t *testing.T) {
		source, wanted := open(t, body)
		if source.Name() == "" {
			t.Error("the source has no name")
		}
		var fetching sync.WaitGroup
		for range 4 {
			fetching.Go(func() {
				got, found, err := replication.Fetch(t.Context(), source, wanted)
				if err != nil || !bytes.Equal(got, body) || len(found.Coded) == 0 {
					t.Errorf("fetched %q in %d encodings, %v", got, len(found.Coded), err)
				}
			})
		}
		fetching.Wait()
	})
	changed := bytes.Clone(body)
	changed[len(changed)-1] ^= 1
	for _, test := range []struct {
		name string
		sent []byte
	}{
		{"other bytes", changed},
		{"truncated", body[:len(body)/2]},
		{"longer", append(bytes.Clone(body), body...)},
		{"missing", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			source, wanted := open(t, test.sent)
			got, found, err := replication.Fetch(t.Context(), source, wanted)
			if err == nil || got != nil || found.Coded != nil {
				t.Errorf("fetched %q in %d encodings, %v", got, len(found.Coded), err)
			}
			if test.sent == nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %v, want an fs.ErrNotExist", err)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		source, wanted := open(t, body)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got, _, err := replication.Fetch(ctx, source, wanted); err == nil || got != nil {
			t.Errorf("fetched %q, %v", got, err)
		}
	})
}
