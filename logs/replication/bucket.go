package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A Bucket is the source that a cluster publishes in its bucket.
type Bucket struct {
	Bucket bucket.Bucket
	// Interval is the time between two requests for the checkpoint. Default: 250 ms.
	Interval time.Duration

	requests, received atomic.Int64
}

// Name implements [Source]: it returns the name of the bucket.
func (s *Bucket) Name() string { return s.Bucket.String() }

// Spent returns how many requests the source has sent, and how many bytes of objects it has received.
func (s *Bucket) Spent() (requests, bytes int64) { return s.requests.Load(), s.received.Load() }

// Get implements [Log]: it reads the object at a path of the published log, up to three times, and does not verify it. If none exists, the error is
// [fs.ErrNotExist]. More than limit bytes are another error.
func (s *Bucket) Get(ctx context.Context, path string, limit int64) (data []byte, err error) {
	final := func(err error) bool {
		return errors.Is(err, bucket.ErrNotFound) || errors.Is(err, bucket.ErrTooLarge)
	}
	err = retry.Transient(ctx, final, func(ctx context.Context) (err error) {
		data, _, err = s.Bucket.Get(ctx, tiles.PublicPrefix+path, limit)
		s.requests.Add(1)
		s.received.Add(int64(len(data)))
		return err
	})
	if errors.Is(err, bucket.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return data, err
}

// Content implements [Contents]: it reads the object with a content by hash, unencoded, and does not verify it. Of w it
// uses Hash and Limit: more bytes are an error, and a missing object is [fs.ErrNotExist]. Beside an error the result means nothing.
func (s *Bucket) Content(ctx context.Context, w Wanted) (Found, error) {
	data, err := s.Get(ctx, tiles.HashPath(w.Hash), w.Limit)
	return Found{Coded: []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}}, err
}

// Await implements [Log]: it polls the bucket, at once for the first time, until it has another checkpoint than the given one.
// Its only error is that of ctx; a poll that fails is repeated after the interval.
func (s *Bucket) Await(ctx context.Context, checkpoint []byte) error {
	interval := s.Interval
	if interval == 0 {
		interval = 250 * time.Millisecond
	}
	for {
		data, _, err := s.Bucket.Get(ctx, tiles.PublicPrefix+checkpointPath, maxCheckpoint)
		if err == nil && !bytes.Equal(data, checkpoint) {
			return nil
		}
		if err := retry.Sleep(ctx, interval); err != nil {
			return err
		}
	}
}
