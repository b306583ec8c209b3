package verify

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/larder-cdn/larder/internal/requests"
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

// NewFetcher returns a Fetcher for one server, which counts its traffic. Of the options it uses Server, UserAgent, Read and
// a copy of Client. Read replaces the requests of [Fetcher.Get] only, and is not counted.
func NewFetcher(o Options) *Fetcher {
	f := &Fetcher{remote: o.newRemote()}
	client := *f.remote.client
	client.Transport = countingTransport{client.Transport, f}
	f.remote.client = &client
	return f
}

// Traffic returns the number of requests so far, also those that failed or followed a redirect, and of bytes of bodies that
// were read. Bytes that the client itself decodes, as with [Fetcher.Get], count as decoded.
func (f *Fetcher) Traffic() (requests, bytes int64) { return f.requests.Load(), f.bytes.Load() }

// Content fetches a content by its hash, in one of the accepted encodings or without encoding, as the server chooses. size
// is the number of decoded bytes; a body of over twice that and 64 KiB is an error. The body is neither decoded nor
// compared with the hash. dictionaries are those against which the server says that it has deltas of the content. The error
// for a missing content is [fs.ErrNotExist]; with any error, the other results must not be used.
func (f *Fetcher) Content(ctx context.Context, h kvstore.Hash, size int64, accept ...coding.Coding) (coded kvstore.Coded, dictionaries []kvstore.Hash, err error) {
	var accepted []string
	for _, c := range accept {
		accepted = append(accepted, c.String())
	}
	url := f.remote.base + tiles.HashPath(h)
	response, err := f.remote.sendGetOK(ctx, url, strings.Join(accepted, ", "))
	if err != nil {
		return coded, nil, err
	}
	defer response.Body.Close()
	coded.Coding, err = encodingOf(response)
	if err == nil && !slices.Contains(append(accept, coding.Identity), coded.Coding) {
		err = fmt.Errorf("the response has the encoding %s, which was not requested", coded.Coding)
	}
	if err != nil {
		return kvstore.Coded{}, nil, fmt.Errorf("%s: %w", url, err)
	}
	coded.Bytes, err = readEncoded(response, url, size)
	return coded, tiles.ParseDictionaries(response.Header.Get(tiles.DictionariesField)), err
}

// Delta fetches the delta (dcz) of a content against a dictionary, both by their hashes. size is the number of decoded
// bytes of the content; a body of over twice that and 64 KiB is an error. The delta is neither applied nor verified. The
// error is [fs.ErrNotExist] if the server does not have the content or the delta.
func (f *Fetcher) Delta(ctx context.Context, h, dictionary kvstore.Hash, size int64) ([]byte, error) {
	url := f.remote.base + tiles.HashPath(h)
	response, err := f.remote.sendGetOK(ctx, url, coding.DCZ.String(), "Available-Dictionary", requests.FormatDictionary(dictionary))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.Header.Get("Content-Encoding") != coding.DCZ.String() {
		return nil, fmt.Errorf("%s: the server has no delta against %s: %w", url, dictionary, fs.ErrNotExist)
	}
	return readEncoded(response, url, size)
}

// readEncoded returns the body of a response without decoding it; the caller closes it. size is the number of decoded
// bytes; a body that is longer than [maxEncodedSize] of it is an error. url is for messages.
func readEncoded(response *http.Response, url string, size int64) ([]byte, error) {
	limit := maxEncodedSize(size)
	if response.ContentLength > limit {
		return nil, fmt.Errorf("%s has %d bytes, over the limit of %d", url, response.ContentLength, limit)
	}
	var body bytes.Buffer
	if n := response.ContentLength; n > 0 && n <= maxPreallocation {
		body.Grow(int(n) + bytes.MinRead)
	}
	if _, err := io.Copy(&body, &limitedBody{rest: response.Body, limit: limit}); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return body.Bytes(), nil
}

// maxPreallocation bounds the memory that is allocated before the body of a response has arrived, in bytes.
const maxPreallocation = 1 << 20

// Get returns what the server, or Options.Read, has under a path, such as /log/checkpoint; over limit bytes are an error.
// It does not verify it. The error for status 404 or 410 is [fs.ErrNotExist].
func (f *Fetcher) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return f.remote.get(ctx, path, limit)
}

// CheckpointChanged sends the tag of a signed checkpoint, note, to the server, and reports whether the server has another
// one now, which may differ only in its signatures. It does not read that. A response with a status other than 200 and 304
// is an error.
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

// RoundTrip implements [http.RoundTripper]: it counts a request before it sends it, and has the bytes of the response's
// body counted as they are read.
func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.fetcher.requests.Add(1)
	response, err := cmp.Or(c.RoundTripper, http.DefaultTransport).RoundTrip(r)
	if err == nil {
		response.Body = countingBody{response.Body, c.fetcher}
	}
	return response, err
}

type countingBody struct {
	io.ReadCloser
	fetcher *Fetcher
}

// Read implements io.Reader: it reads from the body of a response, and adds the bytes to those that the Fetcher has counted.
func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.fetcher.bytes.Add(int64(n))
	return n, err
}
