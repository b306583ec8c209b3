package verify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A Fetcher gets what a server has of a log and its files, of which nothing is proven: the
// caller has the hashes. Answers are bounded as those for a [Log] are. What the server says
// it does not have is [fs.ErrNotExist]. It is safe for concurrent use.
type Fetcher struct {
	remote   *remote
	requests atomic.Int64
	bytes    atomic.Int64
}

// NewFetcher returns a Fetcher; of the options it takes Server, Client and UserAgent.
func NewFetcher(o Options) *Fetcher {
	f := &Fetcher{remote: o.remote()}
	client := *f.remote.client
	client.Transport = counting{client.Transport, f}
	f.remote.client = &client
	return f
}

// Spent returns how many requests there were, and the bytes of the bodies that were read.
func (f *Fetcher) Spent() (requests, bytes int64) { return f.requests.Load(), f.bytes.Load() }

// Content returns a content by its hash, in the coding that the server likes best of those
// that are accepted. size is the most bytes that it may have.
func (f *Fetcher) Content(ctx context.Context, h kvstore.Hash, size int64, accept ...coding.Coding) (kvstore.Coded, error) {
	url := f.remote.base + tiles.ByHash(h)
	var accepted []string
	for _, c := range accept {
		accepted = append(accepted, c.String())
	}
	response, err := f.remote.ask(ctx, url, strings.Join(accepted, ", "))
	if err != nil {
		return kvstore.Coded{}, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return kvstore.Coded{}, fmt.Errorf("%s: %w", url, fs.ErrNotExist)
	default:
		return kvstore.Coded{}, fmt.Errorf("%s: the server answered %s%s", url, status(response), excerpt(response))
	}
	token := response.Header.Get("Content-Encoding")
	if token == "" {
		token = coding.Identity.String()
	}
	coded, ok := coding.Parse(token)
	if !ok || !slices.Contains(append(accept, coding.Identity), coded) {
		return kvstore.Coded{}, fmt.Errorf("%s: the server answered in the coding %.40q, which was not asked for", url, token)
	}
	limit := codedLimit(size)
	if response.ContentLength > limit {
		return kvstore.Coded{}, fmt.Errorf("%s has %d bytes, and %d are the most", url, response.ContentLength, limit)
	}
	in := &counted{rest: response.Body, limit: limit}
	var body bytes.Buffer
	if n := response.ContentLength; n > 0 && n <= maxAhead {
		body.Grow(int(n) + bytes.MinRead)
	}
	if _, err := io.Copy(&body, in); err != nil {
		return kvstore.Coded{}, fmt.Errorf("%s: %w", url, err)
	}
	return kvstore.Coded{Coding: coded, Bytes: body.Bytes()}, nil
}

// maxAhead is the most memory that a server gets by only saying how long an answer is.
const maxAhead = 1 << 20

// Get returns what the server has under a path of its log, of at most limit bytes.
func (f *Fetcher) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return f.remote.get(ctx, path, limit)
}

// Changed reports whether the server shows another checkpoint than this one.
func (f *Fetcher) Changed(ctx context.Context, note []byte) (bool, error) {
	response, err := f.remote.ask(ctx, f.remote.base+"/log/checkpoint", "", "If-None-Match", tiles.CheckpointTag(note))
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotModified:
		return false, nil
	case http.StatusOK:
		return true, nil
	}
	return false, fmt.Errorf("%s/log/checkpoint: the server answered %s%s", f.remote.base, status(response), excerpt(response))
}

// counting counts what a Fetcher costs.
type counting struct {
	http.RoundTripper
	fetcher *Fetcher
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.fetcher.requests.Add(1)
	transport := c.RoundTripper
	if transport == nil {
		transport = http.DefaultTransport
	}
	response, err := transport.RoundTrip(r)
	if err == nil {
		response.Body = countedBody{response.Body, c.fetcher}
	}
	return response, err
}

type countedBody struct {
	io.ReadCloser
	fetcher *Fetcher
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.fetcher.bytes.Add(int64(n))
	return n, err
}
