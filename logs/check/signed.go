package check

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// readSigned returns the last signed checkpoint from the key folder, the zero one if none exists; it checks its signature and reports what is
// wrong. A log that was signed needs its key folder: if a folder without a key were accepted, a wrong --keys would look like a log that was never
// signed.
func (c *check) readSigned() logs.Checkpoint {
	signed, key, err := signing.Signed{}, "", error(fs.ErrNotExist)
	if c.options.Keys != "" {
		if err := signing.CheckKey(c.options.Keys); err != nil {
			c.reportf(Key, "log.key", "%v", err)
		}
		signed, key, err = signing.ReadFolder(c.options.Keys)
	}
	if key != "" || !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			c.reportf(Checkpoint, "signed", "%v", err)
		}
		c.summary.Signed = signed.Size
		c.summary.Origin, _, _ = strings.Cut(key, "+")
		return signed.Checkpoint
	}
	switch key, err := signing.SignedBy(c.store); {
	case err != nil:
		c.reportf(Checkpoint, "signed", "%v", err)
	case key != "":
		c.summary.KeyMissing = true
		c.reportf(Checkpoint, "signed", "the log was signed with %s, but no key is in the key folder %s; name the one that has it with --keys, which no backup of the data folder has in it", key, c.options.Keys)
	}
	return logs.Checkpoint{}
}

// checkContinues reports a finding unless the log begins with exactly the entries of an earlier checkpoint. where is the finding's place, and what
// describes the checkpoint. It does nothing for the zero checkpoint.
func (c *check) checkContinues(where, what string, before logs.Checkpoint) {
	if before == (logs.Checkpoint{}) {
		return
	}
	if max(before.Size, c.summary.Checkpoint.Size) > logs.MaxSize {
		c.reportf(Checkpoint, where, "%s has %d entries and the log %d, and %d is the most", what, before.Size, c.summary.Checkpoint.Size, int64(logs.MaxSize))
		return
	}
	if before.Size > c.summary.Checkpoint.Size {
		c.reportf(Checkpoint, where, "%s has %d entries, the log %d", what, before.Size, c.summary.Checkpoint.Size)
		return
	}
	switch root, err := tlog.TreeHash(before.Size, logs.Hashes(c.snapshot)); {
	case err != nil:
		c.reportf(Checkpoint, where, "couldn't compare the log with it: %v", err)
	case root != before.Root:
		c.reportf(Checkpoint, where, "the first %d entries are not those of %s", before.Size, what)
	}
}
