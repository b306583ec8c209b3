package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/verify"
)

const (
	responseTime = 30 * time.Second // for one response, and a second more for every slowestRate bytes
	slowestRate  = 100 << 10
	pollInterval = time.Second // between two requests for the checkpoint
)

// A Server is a Larder behind a URL, requested as by any client.
type Server struct {
	// MaxFailures is how many requests in a row may fail, after which the server is not requested any more. Default: any number.
	MaxFailures int

	name     string
	fetcher  *verify.Fetcher
	failures atomic.Int64 // requests in a row that failed
}

// NewServer returns the Larder at a URL as a source. It sends no request. Of the options it uses Server (the URL), Client, UserAgent and, if
// it is set, Read in place of the requests of [Server.Get].
func NewServer(o verify.Options) *Server {
	return &Server{name: o.Server, fetcher: verify.NewFetcher(o)}
}

// Name implements [Source]: it returns the URL.
func (s *Server) Name() string { return s.name }

// Spent returns how many requests the source has sent, and how many bytes of bodies it has received.
func (s *Server) Spent() (requests, bytes int64) { return s.fetcher.Traffic() }

// Get implements [Log]: it requests a path of the log, up to three times. It returns [fs.ErrNotExist] if the server does not have it. It verifies
// nothing but that the response has at most limit bytes.
func (s *Server) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return requestRetried(ctx, s, limit, func(ctx context.Context) ([]byte, error) { return s.fetcher.Get(ctx, path, limit) })
}

// Content implements [Contents]: it requests a content by hash, up to three times, in the encoding that w names if the server has it, else unencoded.
// It does not verify the bytes: see [Fetch].
func (s *Server) Content(ctx context.Context, w Wanted) (Found, error) {
	return requestRetried(ctx, s, w.Limit, func(ctx context.Context) (Found, error) {
		coded, dictionaries, err := s.fetcher.Content(ctx, w.Hash, w.Limit, w.Encoding)
		return Found{Coded: []kvstore.Coded{coded}, Dictionaries: dictionaries}, err
	})
}

// Delta implements deltaSource: it requests the delta of the content h, of at most size bytes, against a dictionary. The delta is not verified. If
// the server does not have it, the error is [fs.ErrNotExist].
func (s *Server) Delta(ctx context.Context, h, dictionary kvstore.Hash, size int64) ([]byte, error) {
	return requestRetried(ctx, s, size, func(ctx context.Context) ([]byte, error) { return s.fetcher.Delta(ctx, h, dictionary, size) })
}

// Await implements [Log]: it polls the server every second, for the first time after a second, until it has another checkpoint than the given one. A
// request that fails is repeated as by requestRetried, up to three times; then Await returns its error.
func (s *Server) Await(ctx context.Context, checkpoint []byte) error {
	for {
		if err := retry.Sleep(ctx, pollInterval); err != nil {
			return err
		}
		changed, err := requestRetried(ctx, s, 0, func(ctx context.Context) (bool, error) { return s.fetcher.CheckpointChanged(ctx, checkpoint) })
		if err != nil || changed {
			return err
		}
	}
}

// requestRetried calls do, with a time limit for a response of size bytes, until it succeeds or fails permanently, three times at most, and
// returns what the last call returned. After [Server.MaxFailures] failures in a row, of any requests to the server, this call and later ones return
// an error without a request.
func requestRetried[T any](ctx context.Context, s *Server, size int64, do func(context.Context) (T, error)) (result T, err error) {
	final := func(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGivenUp) }
	err = retry.Transient(ctx, final, func(ctx context.Context) (err error) {
		if failed := s.failures.Load(); s.MaxFailures > 0 && failed >= int64(s.MaxFailures) {
			return fmt.Errorf("%s %w: the last %d requests failed", s.name, errGivenUp, failed)
		}
		limited, cancel := context.WithTimeout(ctx, responseTime+time.Duration(size/slowestRate)*time.Second)
		defer cancel()
		result, err = do(limited)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist):
			s.failures.Store(0)
		case ctx.Err() == nil:
			s.failures.Add(1)
		}
		return err
	})
	return result, err
}

var errGivenUp = errors.New("is not requested any more")
