package review

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/submission"
)

// Integrity is the SHA-512 of a file's bytes, as a tag's integrity has it.
type Integrity [sha512.Size]byte

// String returns "sha512-" and base64.
func (i Integrity) String() string { return "sha512-" + base64.StdEncoding.EncodeToString(i[:]) }

// Published is a release that is published.
type Published struct {
	Version string
	// Files has the integrity of each file by its path, "" where that is not known.
	Files map[string]string
}

// A difference is in what a preview differs from a published release.
type difference struct {
	added, removed, changed []string
}

// compare holds a release that would be published against one that is.
func compare(preview *submission.Release, published *Published) difference {
	var d difference
	has := map[string]bool{}
	for _, f := range preview.Files {
		has[f.Path] = true
		before, ok := published.Files[f.Path]
		now, known := preview.Integrity[f.Path]
		switch {
		case !ok:
			d.added = append(d.added, f.Path)
		case known && before != "" && before != Integrity(now).String():
			d.changed = append(d.changed, f.Path)
		}
	}
	for path := range published.Files {
		if !has[path] {
			d.removed = append(d.removed, path)
		}
	}
	slices.Sort(d.removed)
	return d
}

// PublishedBy returns what asks the API of a running Larder, or of cdnjs, what is published. base is the
// operator's word and may have any address.
func PublishedBy(client *fetch.Client, base string) (func(ctx context.Context, name string) (*Published, error), error) {
	home, err := url.Parse(base)
	if err != nil || home.Host == "" || home.User != nil {
		return nil, errors.New("the address of the API is no URL")
	}
	get := func(ctx context.Context, path string, to any) error {
		request := fetch.Request{
			URL:     strings.TrimRight(base, "/") + path,
			Trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, home) },
			Limit:   32 << 20,
		}
		return client.Get(ctx, request, func(r *fetch.Response) error {
			if err := json.NewDecoder(r.Body).Decode(to); err != nil {
				return fmt.Errorf("its answer is not that of the API: %w", err)
			}
			return nil
		})
	}
	return func(ctx context.Context, name string) (*Published, error) {
		var latest struct{ Version string }
		at := "/libraries/" + url.PathEscape(name)
		err := get(ctx, at+"?fields=version", &latest)
		if errors.Is(err, fetch.ErrNotFound) || err == nil && latest.Version == "" {
			return nil, nil
		}
		var release struct {
			RawFiles []string
			Files    []string
			SRI      map[string]string
		}
		if err == nil {
			err = get(ctx, at+"/"+url.PathEscape(latest.Version)+"?fields=rawFiles,files,sri", &release)
		}
		if err != nil {
			return nil, err
		}
		if release.RawFiles == nil {
			release.RawFiles = release.Files
		}
		p := &Published{Version: latest.Version, Files: make(map[string]string, len(release.RawFiles))}
		for _, file := range release.RawFiles {
			p.Files[file] = release.SRI[file]
		}
		return p, nil
	}, nil
}
