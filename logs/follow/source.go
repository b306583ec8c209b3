package follow

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/verify"
)

// A Source has a signed log and the contents that it names. Nothing that it answers is
// trusted. It is safe for concurrent use, bounds how long each call takes, and tries again by
// itself what may pass.
type Source interface {
	// Name is what messages call it, and under which its key is remembered: such as its URL.
	Name() string
	// Get returns what the source has under a path of the log as a Larder serves it
	// (/log/checkpoint, /log/key, /log/keys, /log/tile/…), of at most limit bytes, or
	// [fs.ErrNotExist].
	Get(ctx context.Context, path string, limit int64) ([]byte, error)
	// Content returns a content in a coding that the source has, or [fs.ErrNotExist]. size is
	// the most bytes that the content may have.
	Content(ctx context.Context, h kvstore.Hash, size int64) (kvstore.Coded, error)
	// Await returns when the source may show another checkpoint than this one.
	Await(ctx context.Context, checkpoint []byte) error
}

// How a server is asked.
const (
	tries      = 3
	firstPause = 200 * time.Millisecond
	longPause  = 2 * time.Second
	answerTime = 20 * time.Second // of one answer, and a second more for each slowest bytes
	slowest    = 100 << 10
	look       = time.Second // between two looks at the checkpoint
)

// server is a Larder, asked as any client would.
type server struct {
	name    string
	fetcher *verify.Fetcher
}

// HTTP returns the Larder at a URL as a source. Of the options it takes Server, Client and
// UserAgent.
func HTTP(o verify.Options) Source {
	return &server{o.Server, verify.NewFetcher(o)}
}

func (s *server) Name() string { return s.name }

func (s *server) Get(ctx context.Context, path string, limit int64) (data []byte, err error) {
	err = ask(ctx, limit, func(ctx context.Context) (err error) {
		data, err = s.fetcher.Get(ctx, path, limit)
		return err
	})
	return data, err
}

func (s *server) Content(ctx context.Context, h kvstore.Hash, size int64) (coded kvstore.Coded, err error) {
	err = ask(ctx, size, func(ctx context.Context) (err error) {
		coded, err = s.fetcher.Content(ctx, h, size, coding.Brotli)
		return err
	})
	return coded, err
}

func (s *server) Await(ctx context.Context, checkpoint []byte) error {
	for {
		if err := retry.Sleep(ctx, look); err != nil {
			return err
		}
		var changed bool
		err := ask(ctx, 0, func(ctx context.Context) (err error) {
			changed, err = s.fetcher.Changed(ctx, checkpoint)
			return err
		})
		if err != nil || changed {
			return err
		}
	}
}

// ask tries a few times.
func ask(ctx context.Context, size int64, do func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, answerTime+time.Duration(size/slowest)*time.Second)
		err := do(limited)
		cancel()
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || attempt == tries:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if err := retry.Sleep(ctx, retry.After(attempt, firstPause, longPause)); err != nil {
			return err
		}
	}
}
