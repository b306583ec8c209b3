package server_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/usage"
)

// BenchmarkMiss is what a file costs that is not in memory, on the fast lane and without the
// system: where it is (row), and its bytes too (body). The store is on the disk, with the
// block cache that Larder has by default; nothing that is asked for was asked for lately.
func BenchmarkMiss(b *testing.B) {
	const packages, versions, perRelease = 5, 5, 40
	rng := rand.New(rand.NewPCG(1, 2))
	var releases []testkit.Release
	var paths []string
	size := 0
	for i := range packages * versions {
		r := testkit.Release{Package: fmt.Sprintf("library-%d", i/versions), Version: fmt.Sprintf("1.%d.0", i%versions), Files: map[string][]byte{}}
		for n := range perRelease {
			path := fmt.Sprintf("dist/components/module-%d.min.js", n)
			// Coded they have a mean of 18 KB, as what cdnjs sends.
			text := hexadecimal(rng, int(math.Exp(9.8+1.2*rng.NormFloat64())))
			r.Files[path] = text
			paths = append(paths, fmt.Sprintf("/ajax/libs/%s/%s/%s", r.Package, r.Version, path))
			size += len(text) / 2
		}
		releases = append(releases, r)
	}
	rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	store := onDisk(b, releases)
	b.Logf("%d files of %d bytes each", len(paths), size/len(paths))

	for _, test := range []struct{ name, method string }{{"row", "HEAD"}, {"body", "GET"}} {
		b.Run(test.name, func(b *testing.B) {
			assets := newAssets(b, server.Options{
				Store: store, CacheBytes: 1 << 20, CacheTags: true, Usage: usage.Open(usage.Options{Store: store}),
			})
			var requests [][]byte
			for _, path := range paths {
				requests = append(requests, []byte(test.method+" "+path+" HTTP/1.1\r\n"+browser+"\r\n"))
			}
			conn := &listed{requests: requests, repeated: repeated{closed: make(chan struct{})}}
			listener := make(pipes, 1)
			b.ReportAllocs()
			b.ResetTimer()
			conn.left = b.N
			listener <- conn
			front := lane.New(listener, lane.Options{Handler: assets, HeaderTimeout: 1e12, IdleTimeout: 1e12, WriteTimeout: 1e12, StallTimeout: 1e12})
			<-conn.closed
			front.Abort()
			close(listener)
		})
	}
}

// A listed connection asks one after the other.
type listed struct {
	repeated
	requests [][]byte
}

func (c *listed) Read(p []byte) (int, error) {
	c.request = c.requests[c.left%len(c.requests)]
	return c.repeated.Read(p)
}

// hexadecimal is text of n bytes or a few more that takes half as much when it is coded.
func hexadecimal(rng *rand.Rand, n int) []byte {
	var text []byte
	for len(text) < n {
		text = fmt.Appendf(text, "%016x", rng.Uint64())
	}
	return text
}

// onDisk publishes releases in a store of their own that has been written out.
func onDisk(b *testing.B, releases []testkit.Release) *kvstore.Store {
	b.Helper()
	dir := b.TempDir()
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := testkit.Publish(store, releases); err != nil {
		b.Fatal(err)
	}
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	if store, err = kvstore.Open(dir, kvstore.Options{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	return store
}
