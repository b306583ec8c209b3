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

// A Fetcher fetches parts of a log, and contents, without verifying them: the caller has the hashes. It bounds responses as a [Log]
// does. The error for what the server does not have is [fs.ErrNotExist]. A Fetcher is safe for concurrent use.
type Fetcher struct {
	remote   *remote
	requests atomic.Int64
	bytes    atomic.Int64
}

// NewFetcher returns a Fetcher. It uses Server, Client and UserAgent of the options.
func NewFetcher(o Options) *Fetcher {
	f := &Fetcher{remote: o.newRemote()}
	client := *f.remote.client
	client.Transport = countingTransport{client.Transport, f}
	f.remote.client = &client
	return f
}

// Traffic returns the number of requests so far, and of bytes of bodies that were read.
func (f *Fetcher) Traffic() (requests, bytes int64) { return f.requests.Load(), f.bytes.Load() }

// Content fetches a content by its hash, in one of the accepted encodings, as the server chooses. size is the number of
// decoded bytes, by which the body is bounded. The body is neither decoded nor compared with the hash. The error for a
// missing content is [fs.ErrNotExist].
func (f *Fetcher) Content(ctx context.Context, h kvstore.Hash, size int64, accept ...coding.Coding) (kvstore.Coded, error) {
	url := f.remote.base + tiles.HashPath(h)
	var accepted []string
	for _, c := range accept {
		accepted = append(accepted, c.String())
	}
	response, err := f.remote.sendGet(ctx, url, strings.Join(accepted, ", "))
	if err != nil {
		return kvstore.Coded{}, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return kvstore.Coded{}, fmt.Errorf("%s: %w", url, fs.ErrNotExist)
	default:
		return kvstore.Coded{}, fmt.Errorf("%s: the server answered %s%s", url, statusLine(response), excerpt(response))
	}
	coded, err := encodingOf(response)
	if err == nil && !slices.Contains(append(accept, coding.Identity), coded) {
		err = fmt.Errorf("the response has the encoding %s, which was not requested", coded)
	}
	if err != nil {
		return kvstore.Coded{}, fmt.Errorf("%s: %w", url, err)
	}
	limit := maxEncodedSize(size)
	if response.ContentLength > limit {
		return kvstore.Coded{}, fmt.Errorf("%s has %d bytes, over the limit of %d", url, response.ContentLength, limit)
	}
	in := &limitedBody{rest: response.Body, limit: limit}
	var body bytes.Buffer
	if n := response.ContentLength; n > 0 && n <= maxPreallocation {
		body.Grow(int(n) + bytes.MinRead)
	}
	if _, err := io.Copy(&body, in); err != nil {
		return kvstore.Coded{}, fmt.Errorf("%s: %w", url, err)
	}
	return kvstore.Coded{Coding: coded, Bytes: body.Bytes()}, nil
}

// maxPreallocation bounds the memory that is allocated before the body of a response has arrived, in bytes.
const maxPreallocation = 1 << 20

// Get returns what the server has under a path, such as /log/checkpoint, of at most limit bytes. It does not verify it.
func (f *Fetcher) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return f.remote.get(ctx, path, limit)
}

// CheckpointChanged reports whether the server has another checkpoint now than this signed one, without fetching it.
func (f *Fetcher) CheckpointChanged(ctx context.Context, note []byte) (bool, error) {
	response, err := f.remote.sendGet(ctx, f.remote.base+"/log/checkpoint", "", "If-None-Match", tiles.CheckpointTag(note))
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
	return false, fmt.Errorf("%s/log/checkpoint: the server answered %s%s", f.remote.base, statusLine(response), excerpt(response))
}

// A countingTransport counts the requests and bytes of a Fetcher.
type countingTransport struct {
	http.RoundTripper
	fetcher *Fetcher
}

// RoundTrip sends a request and counts it, and has the bytes of the response's body counted.
func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.fetcher.requests.Add(1)
	transport := c.RoundTripper
	if transport == nil {
		transport = http.DefaultTransport
	}
	response, err := transport.RoundTrip(r)
	if err == nil {
		response.Body = countingBody{response.Body, c.fetcher}
	}
	return response, err
}

type countingBody struct {
	io.ReadCloser
	fetcher *Fetcher
}

// Read reads from the body and counts the bytes.
func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.fetcher.bytes.Add(int64(n))
	return n, err
}
