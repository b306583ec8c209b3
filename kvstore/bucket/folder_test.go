package bucket_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/buckets"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

func TestFolder(t *testing.T) {
	b, err := bucket.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	buckets.Suite(t, b)
}

// careless is a store that decides on a condition and writes afterwards, as one without a lock.
type careless struct {
	bucket.Bucket
	mu     sync.Mutex
	create bool // whether it ignores If-None-Match
	match  bool // whether it ignores If-Match
	seldom int  // that only happens once in so many writes
	n      int
}

func (c *careless) now(ignores bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return ignores && c.n%c.seldom == 0
}

func (c *careless) Create(ctx context.Context, key string, data []byte) (bucket.Version, error) {
	if !c.now(c.create) {
		return c.Bucket.Create(ctx, key, data)
	}
	return c.overwrite(ctx, key, data)
}

func (c *careless) Replace(ctx context.Context, key string, data []byte, old bucket.Version) (bucket.Version, error) {
	if !c.now(c.match) {
		return c.Bucket.Replace(ctx, key, data, old)
	}
	return c.overwrite(ctx, key, data)
}

func (c *careless) overwrite(ctx context.Context, key string, data []byte) (bucket.Version, error) {
	if err := c.Put(ctx, key, data); err != nil {
		return "", err
	}
	_, v, err := c.Get(ctx, key, 1<<10)
	return v, err
}

func TestProbeRefusesByName(t *testing.T) {
	for name, c := range map[string]*careless{
		"ignores If-None-Match": {create: true, seldom: 1},
		"ignores If-Match":      {match: true, seldom: 1},
		"creates twice seldom":  {create: true, seldom: 40},
		"replaces twice seldom": {match: true, seldom: 40},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if c.Bucket, err = bucket.OpenFolder(t.TempDir()); err != nil {
				t.Fatal(err)
			}
			var unfit *bucket.UnfitError
			if err := bucket.Probe(t.Context(), c); !errors.As(err, &unfit) || !strings.Contains(err.Error(), c.String()) {
				t.Errorf("the probe says: %v", err)
			}
		})
	}
}
