// Package audit is how an operator verifies a log: everything in the store against
// the log, and the log against what was signed and what was seen of it before.
//
// It takes neither the store's word nor the key folder's for anything: a log that
// was written anew, with all that is served from it, is consistent in itself, and
// only somebody who remembers finds that. So what was seen is best kept elsewhere.
//
// The package must not know who asks, nor how the log is served.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// Options say what is verified, and against what.
type Options struct {
	views.CheckOptions
	// Keys is the key folder, "" for none.
	Keys string
	// Seen is what an earlier run came to, the zero value for none.
	Seen logs.Checkpoint
}

// A Summary is what a run came to.
type Summary struct {
	views.CheckSummary
	// Checkpoint is that of the log, for the next run. It is right where Sound is true.
	Checkpoint logs.Checkpoint `json:"checkpoint"`
	// KeyMissing tells that the log was signed, and that the key folder has no key: what
	// was signed is not known, so the log is not sound, whatever else it is.
	KeyMissing bool `json:"keyMissing,omitempty"`
	// Sound tells that tree and entries are as they were hashed, and continue what was
	// signed and seen.
	Sound bool `json:"sound"`
	// Signed is the size of the last signed checkpoint, 0 where there is none.
	Signed int64  `json:"signed"`
	Origin string `json:"origin,omitempty"`
	// Seen is the size of what was seen before.
	Seen int64 `json:"seen"`
}

// Run verifies a store and calls report for whatever is wrong. Findings are those of
// [views.Check], and of the kind "checkpoint". The error is for what kept it from
// verifying.
func Run(ctx context.Context, store *kvstore.Store, o Options, report func(views.Finding)) (Summary, error) {
	summary := Summary{Sound: true, Seen: o.Seen.Size}
	tell := func(f views.Finding) {
		if f.What == "log" || f.What == checkpoint {
			summary.Sound = false
		}
		report(f)
	}
	found := func(where, format string, args ...any) {
		summary.Findings++
		tell(views.Finding{What: checkpoint, Where: where, Problem: fmt.Sprintf(format, args...)})
	}
	// What is signed is in the store already, and what is read first is in the snapshot
	// that Check takes then.
	signed, origin, err := readSigned(o.Keys)
	if err != nil {
		found("signed", "%v", err)
	} else if origin == "" {
		// A key folder that is not named, or gone, must not look like a log that nobody
		// has signed: the comparison with what was signed is what is asked for.
		switch key, err := signing.SignedBy(store); {
		case err != nil:
			found("signed", "%v", err)
		case key != "":
			summary.KeyMissing = true
			found("signed", "the log was signed with %s, but no key is in the key folder %s; name the one that has it with --keys, which no backup of the data folder has in it", key, o.Keys)
		}
	}
	summary.Signed, summary.Origin = signed.Size, origin
	if summary.Checkpoint, err = logs.ReadCheckpoint(store); err != nil {
		found("state", "%v", err)
	}
	ahead := summary.Findings
	if summary.CheckSummary, err = views.Check(ctx, store, o.CheckOptions, tell); err != nil {
		return summary, err
	}
	summary.Findings += ahead
	for _, before := range []struct {
		where, what string
		logs.Checkpoint
	}{{"signed", "the last signed checkpoint", signed}, {"seen", "the checkpoint that was seen before", o.Seen}} {
		if before.Checkpoint == (logs.Checkpoint{}) {
			continue
		}
		switch contains, err := contains(store, summary.Checkpoint, before.Checkpoint); {
		case err != nil:
			found(before.where, "couldn't hold the log against it: %v", err)
		case before.Size > summary.Checkpoint.Size:
			found(before.where, "%s has %d entries, the log %d", before.what, before.Size, summary.Checkpoint.Size)
		case !contains:
			found(before.where, "the first %d entries are not those of %s", before.Size, before.what)
		}
	}
	return summary, nil
}

// checkpoint is what such findings are about.
const checkpoint = "checkpoint"

// contains reports whether the log begins with the tree of before. Where the stored
// hashes are damaged, Check has told of it.
func contains(store *kvstore.Store, log, before logs.Checkpoint) (bool, error) {
	if before.Size > log.Size {
		return false, nil
	}
	hash, err := tlog.TreeHash(before.Size, logs.Hashes(store))
	return hash == before.Root, err
}

// readSigned reads the last signed checkpoint. Where there is no key, nothing is signed.
func readSigned(keys string) (logs.Checkpoint, string, error) {
	if keys == "" {
		return logs.Checkpoint{}, "", nil
	}
	signed, key, err := signing.ReadFolder(keys)
	if key == "" && errors.Is(err, fs.ErrNotExist) {
		return logs.Checkpoint{}, "", nil
	}
	origin, _, _ := strings.Cut(key, "+")
	return signed.Checkpoint, origin, err
}
