package views

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// content checks one content, once. name says which it is, and file is a
// manifest's line about it, or nil.
func (c *check) content(ctx context.Context, h kvstore.Hash, name string, file *logs.File) {
	if _, ok := c.seen[h]; ok {
		if where, gone := c.lacks(h); gone && file == nil {
			c.forgive(h)
			c.broken(h, where, "an entry of the log names it, and it is not in the store")
		}
		return
	}
	c.seen[h] = struct{}{}
	c.summary.Contents++
	where := fmt.Sprintf("%s (%s)", h, name)
	content, err := c.store.Content(h)
	if file != nil && errors.Is(err, kvstore.ErrNotFound) {
		c.lack(h, where)
		return
	}
	if err != nil {
		c.broken(h, where, "%v", err)
		return
	}
	if file != nil && content.Size != file.Size {
		c.broken(h, where, "the manifest says %d bytes, the store %d", file.Size, content.Size)
	}
	if !c.options.Deep {
		return
	}
	c.decoding.Go(func() error {
		if ctx.Err() == nil {
			c.decode(h, content, where, file)
		}
		return nil
	})
}

// decode holds every coding of a content against its hash and its integrity.
func (c *check) decode(h kvstore.Hash, content kvstore.Content, where string, file *logs.File) {
	for _, r := range content.Representations {
		_, coded, err := c.store.Coded(h, r.Coding)
		if file != nil && errors.Is(err, kvstore.ErrNotFound) {
			if _, err := c.store.Content(h); errors.Is(err, kvstore.ErrNotFound) {
				c.lack(h, where) // erased meanwhile
				return
			}
		}
		if err != nil {
			// A coding that was replaced meanwhile is read again as it is now.
			c.broken(h, where, "%s: %v", r.Coding, err)
			continue
		}
		identity, err := coding.Decode(r.Coding, coded, content.Size)
		switch {
		case err != nil:
			c.broken(h, where, "%s does not decode: %v", r.Coding, err)
		case kvstore.Sum(identity) != h:
			c.broken(h, where, "%s decodes to other bytes, of hash %s", r.Coding, kvstore.Sum(identity))
		case file != nil && logs.SumSRI(identity) != file.SRI:
			c.broken(h, where, "the integrity in the manifest is %s, that of the bytes %s", file.SRI, logs.SumSRI(identity))
		}
	}
	if c.options.Decoded != nil {
		c.options.Decoded(content.Size)
	}
}

// broken tells what is wrong with a content.
func (c *check) broken(h kvstore.Hash, where, format string, args ...any) {
	c.found("content", where, format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.damaged[h] = where
}

func (c *check) lack(h kvstore.Hash, where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[h] = where
}

func (c *check) lacks(h kvstore.Hash) (where string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	where, ok = c.gone[h]
	return where, ok
}

func (c *check) forgive(h kvstore.Hash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gone, h)
}

// sharers names the other files of damaged contents, each of which was told of
// under one name only.
func (c *check) sharers(ctx context.Context) error {
	if len(c.damaged) == 0 {
		return nil
	}
	for e, err := range logs.Entries(c.snapshot, 0) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err != nil {
			return nil // told before
		}
		if e.Kind != logs.Published {
			continue
		}
		change, err := Load(c.store, e)
		if err != nil {
			continue // told before
		}
		for i := range change.Manifest.Files {
			file := &change.Manifest.Files[i]
			name := fileName(e, file)
			where := fmt.Sprintf("%s (%s)", file.SHA256, name)
			if told, ok := c.damaged[file.SHA256]; ok && told != where {
				c.found("content", where, "it has the same content as %s", strings.TrimPrefix(told, file.SHA256.String()+" "))
			}
		}
	}
	return nil
}

// label says what an entry is about.
func label(e logs.Indexed) string {
	return strings.TrimRight(fmt.Sprintf("%s %s %s", e.Kind, e.Package, e.Version), " ")
}

func fileName(e logs.Indexed, file *logs.File) string {
	return strings.Join([]string{e.Package, e.Version, file.Path}, "/")
}
