package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// checkContent checks that a content is stored and, for a file, has the size in the manifest, once for each content; a deep check also decodes it, in
// the background. name says for messages what needs it; file is the line of a manifest that names it, or nil if an entry does. A missing file is
// recorded, and reported later unless it was erased.
func (c *check) checkContent(ctx context.Context, h kvstore.Hash, name string, file *logs.File) {
	if _, ok := c.seen[h]; ok {
		c.mu.Lock()
		where, gone := c.gone[h]
		if file == nil {
			delete(c.gone, h)
		}
		c.mu.Unlock()
		if gone && file == nil {
			c.reportContent(h, where, "an entry of the log names it, and it is not in the store")
		}
		return
	}
	c.seen[h] = struct{}{}
	c.summary.Contents++
	where := fmt.Sprintf("%s (%s)", h, name)
	content, err := c.store.Content(h)
	if file != nil && errors.Is(err, kvstore.ErrNotFound) {
		c.addMissing(h, where)
		return
	}
	if err != nil {
		c.reportContent(h, where, "%v", err)
		return
	}
	if file != nil && content.Size != file.Size {
		c.reportContent(h, where, "the manifest says %d bytes, the store %d", file.Size, content.Size)
	}
	if !c.options.Deep {
		return
	}
	c.decoding.Go(func() error {
		if ctx.Err() == nil {
			c.checkEncodings(h, content, where, file)
		}
		return nil
	})
}

// checkEncodings decodes every stored encoding of a content, and compares the result with the hash and the integrity in the manifest. It reports what
// is wrong, for the place where, and counts the decoded bytes.
func (c *check) checkEncodings(h kvstore.Hash, content kvstore.Content, where string, file *logs.File) {
	for _, r := range content.Representations {
		_, coded, err := c.store.Coded(h, r.Coding)
		if file != nil && errors.Is(err, kvstore.ErrNotFound) {
			if _, err := c.store.Content(h); errors.Is(err, kvstore.ErrNotFound) {
				c.addMissing(h, where) // erased meanwhile
				return
			}
		}
		if err != nil {
			// Coded has read again what was replaced meanwhile, so this is an error.
			c.reportContent(h, where, "%s: %v", r.Coding, err)
			continue
		}
		var wrong string
		priority.Compute(func() { wrong = describeDamage(h, r.Coding, coded, content.Size, file) })
		if wrong != "" {
			c.reportContent(h, where, "%s", wrong)
		}
	}
	c.mu.Lock()
	before := c.progress.Decoded
	c.progress.Decoded += content.Size
	due := c.progress.Decoded/bytesPerProgress > before/bytesPerProgress
	c.mu.Unlock()
	if due {
		c.reportProgress()
	}
}

// describeDamage decodes coded, the content h in an encoding, and says in a sentence what is wrong with it; "" if nothing is. size is the content's
// size in the store, in bytes. file, if not nil, is the manifest's, with whose integrity the bytes are compared.
func describeDamage(h kvstore.Hash, c coding.Coding, coded []byte, size int64, file *logs.File) string {
	identity, err := coding.Decode(c, coded, size)
	if err != nil {
		return fmt.Sprintf("%s does not decode: %v", c, err)
	}
	if got := kvstore.Sum(identity); got != h {
		return fmt.Sprintf("%s decodes to other bytes, of hash %s", c, got)
	}
	if file != nil {
		if got := logs.SumSRI(identity); got != file.SRI {
			return fmt.Sprintf("the integrity in the manifest is %s, that of the bytes %s", file.SRI, got)
		}
	}
	return ""
}

// checkDeltas reports each stored delta whose content or dictionary is missing or, in a deep check, that does not decode to its content.
func (c *check) checkDeltas(ctx context.Context) error {
	return c.store.DamagedDeltas(ctx, c.options.Deep, func(d kvstore.DamagedDelta) error {
		c.reportf(Content, placeOfDelta(d), "%s", d)
		return nil
	})
}

// placeOfDelta returns the hash of the content of a damaged delta, or its malformed key in hexadecimal, for messages.
func placeOfDelta(d kvstore.DamagedDelta) string {
	if d.Key != nil {
		return fmt.Sprintf("%x", d.Key)
	}
	return d.Content.String()
}

// reportContent reports what is wrong with the content h, which where names, and records it for reportSharedFiles.
func (c *check) reportContent(h kvstore.Hash, where, format string, args ...any) {
	c.reportf(Content, where, format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.damaged[h] = where
}

// addMissing records that the content h of a file is not in the store. where names the file.
func (c *check) addMissing(h kvstore.Hash, where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[h] = where
}

// reportSharedFiles reports the other files that have a damaged content, which was reported under the name of one only.
func (c *check) reportSharedFiles(ctx context.Context) error {
	if len(c.damaged) == 0 {
		return nil
	}
	_ = forEachContent(ctx, c.snapshot, c.store, func(e logs.Indexed, h kvstore.Hash, file *logs.File) { // errors of entries were reported before
		if file == nil {
			return
		}
		where := fmt.Sprintf("%s (%s)", h, fileName(e, file))
		if reported, ok := c.damaged[h]; ok && reported != where {
			c.reportf(Content, where, "it has the same content as %s", strings.TrimPrefix(reported, h.String()+" "))
		}
	})
	return ctx.Err()
}

// reportMissing reports contents of files that are not in the store, unless an entry erases them and no served file needs them. Contents are read as
// they are now and not from the snapshot, so the log is too.
func (c *check) reportMissing(ctx context.Context) error {
	if len(c.gone) == 0 {
		return nil
	}
	erased, err := readErasures(ctx, c.store, 0)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		erased.contents = nil // the damaged entry has been reported
	}
	for _, h := range slices.SortedFunc(maps.Keys(c.gone), func(a, b kvstore.Hash) int { return bytes.Compare(a[:], b[:]) }) {
		if _, ok := erased.contents[h]; !ok {
			c.reportf(Content, c.gone[h], "it is not in the store, and no entry erases it")
			delete(c.gone, h)
		}
	}
	if len(c.gone) == 0 {
		return nil
	}
	for item, err := range c.store.Scan(kvstore.Files, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		f, err := views.DecodeFile(item.Value)
		if err != nil {
			continue // reported by views
		}
		if _, gone := c.gone[f.Hash]; gone {
			c.reportf(Content, f.Hash.String(), "%s is served, and its content was erased", rowName(kvstore.Files, item.Key))
			delete(c.gone, f.Hash)
		}
	}
	return nil
}

// countOrphans counts the stored contents that nothing in the log names, and reports malformed keys. An error of reading is a finding, after which it
// ends; it always returns nil.
func (c *check) countOrphans(context.Context) error {
	for item, err := range c.snapshot.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			c.reportf(Content, "all", "%v", err)
			return nil
		}
		if len(item.Key) != len(kvstore.Hash{}) {
			c.reportf(Content, fmt.Sprintf("%x", item.Key), "the key is not a hash")
			continue
		}
		if _, ok := c.seen[kvstore.Hash(item.Key)]; !ok {
			c.summary.Orphans++
		}
	}
	return nil
}

// describeEntry returns an entry's kind, package and version, for messages.
func describeEntry(e logs.Indexed) string {
	return strings.TrimRight(fmt.Sprintf("%s %s %s", e.Kind, e.Package, e.Version), " ")
}

// fileName returns a file's package, version and path, for messages.
func fileName(e logs.Indexed, file *logs.File) string {
	return strings.Join([]string{e.Package, e.Version, file.Path}, "/")
}
