package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/verify"
)

// How a server is asked.
const (
	tries       = 3
	firstPause  = 200 * time.Millisecond
	longPause   = 2 * time.Second
	answerTime  = time.Minute // of one answer, and a second more for each slowest bytes
	slowest     = 100 << 10
	failuresEnd = 64 // requests in a row that failed, after which it is asked no more
)

// peer is another Larder, which is asked as any client would.
type peer struct {
	fetcher *verify.Fetcher
	name    string

	once    sync.Once
	size    int64 // of its log
	noLog   error
	failing atomic.Int32 // requests in a row that failed
}

// NewPeer returns the Larder at a URL as a source, with the name that messages call it. Of the options it takes Server,
// Client and UserAgent.
func NewPeer(name string, o verify.Options) Source {
	return &peer{fetcher: verify.NewFetcher(o), name: name}
}

func (p *peer) Name() string          { return p.name }
func (p *peer) Spent() (int64, int64) { return p.fetcher.Spent() }
func (p *peer) Close() error          { return nil }

func (p *peer) Entries(ctx context.Context, index int64) (entries [][]byte, err error) {
	p.once.Do(func() {
		p.noLog = p.ask(ctx, 0, func(ctx context.Context) (err error) {
			p.size, err = p.fetcher.Size(ctx)
			return err
		})
	})
	switch {
	case p.noLog != nil:
		return nil, p.noLog
	case index >= p.size:
		return nil, fmt.Errorf("%s has signed %d entries: %w", p.name, p.size, fs.ErrNotExist)
	}
	err = p.ask(ctx, 0, func(ctx context.Context) (err error) {
		entries, err = p.fetcher.Entries(ctx, index, p.size)
		return err
	})
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, err
}

func (p *peer) Content(ctx context.Context, w Wanted) (found Found, err error) {
	// Of a content that is damaged there, another coding may be sound.
	for _, accept := range []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity} {
		err = p.ask(ctx, w.limit(), func(ctx context.Context) error {
			coded, err := p.fetcher.Content(ctx, w.Hash, w.limit(), accept)
			found.Coded = []kvstore.Coded{coded}
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			return Found{}, err
		}
		if err == nil {
			if _, _, err = w.check(found); err == nil {
				return found, nil
			}
		}
	}
	return Found{}, err
}

// ask tries a few times, unless the server has failed too often in a row.
func (p *peer) ask(ctx context.Context, size int64, do func(context.Context) error) (err error) {
	for attempt := 1; ; attempt++ {
		if p.failing.Load() >= failuresEnd {
			return errors.Join(fmt.Errorf("%s has failed %d times in a row, and is not asked any more", p.name, failuresEnd), err)
		}
		limited, cancel := context.WithTimeout(ctx, answerTime+time.Duration(size/slowest)*time.Second)
		err = do(limited)
		cancel()
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			p.failing.Store(0)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.failing.Add(1)
		if attempt == tries {
			return err
		}
		if err := retry.Sleep(ctx, retry.After(attempt, firstPause, longPause)); err != nil {
			return err
		}
	}
}
