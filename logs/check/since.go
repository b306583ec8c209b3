package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// checksVersion is raised when a deep check finds more than it did before, so that older records do not count.
const checksVersion = 1

// verified is the record of a deep check that found nothing wrong. It is about the first Size entries of a log with that root, so it
// does not count for another log. It is in the folder of the store, so an older copy of that has the record of its own time.
type verified struct {
	Checks int `json:"checks"`
	logs.Checkpoint
}

// verifiedEntries returns how many first entries an earlier deep check has verified, so that this one may skip them: 0 unless the options allow it
// and the log begins with the entries of its record. signed is the last signed checkpoint.
func (c *check) verifiedEntries(signed logs.Checkpoint) int64 {
	if !c.options.Deep || !c.options.Record || c.options.All || c.repair != nil {
		return 0
	}
	var v verified
	raw, err := c.store.ReadVerified()
	if err != nil || json.Unmarshal(raw, &v) != nil || v.Checks != checksVersion || v.Size <= 0 || v.Size > signed.Size {
		return 0
	}
	have, err := logs.ReadCheckpoint(c.snapshot)
	if err != nil || have.Size < v.Size {
		return 0
	}
	if root, err := tlog.TreeHash(v.Size, logs.Hashes(c.snapshot)); err != nil || root != v.Root {
		return 0
	}
	return v.Size
}

// writeRecord records in the store's folder that this deep check has verified everything up to the signed checkpoint, and in the summary how far. If
// something is wrong it removes the record, so that the next deep check reads everything. A check that is not deep, or of a log that is not signed,
// records nothing.
func (c *check) writeRecord(signed logs.Checkpoint) {
	var err error
	switch {
	case c.summary.Findings > 0:
		err = c.store.RemoveVerified()
	case c.options.Deep && signed.Size > 0:
		var data []byte
		if data, err = json.Marshal(verified{checksVersion, signed}); err == nil {
			err = c.store.WriteVerified(append(data, '\n'))
		}
		if err == nil {
			c.summary.Verified = signed.Size
		}
	}
	if err != nil {
		c.summary.Unrecorded = err.Error()
	}
}

// replayEarlier applies entry e to the replayed map of live releases. Before the first new entry about a release it applies the release's entries
// before the index from, to the map, to the second set of views and to c.live: these follow from all of them.
func (c *check) replayEarlier(ctx context.Context, e logs.Indexed, from int64) error {
	id := release{e.Package, e.Version}
	if _, done := c.recalled[id]; !done && e.Version != "" {
		c.recalled[id] = struct{}{}
		earlier, err := entriesBefore(ctx, c.snapshot, id, from)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		for _, e := range earlier {
			change, err := views.Load(c.store, e)
			if err == nil {
				err = c.derived.apply(change)
			}
			if err != nil {
				c.reportUnderivable(Log, fmt.Sprintf("entry %d", e.Index), err)
				continue
			}
			c.updateStanding(e)
			if err := errors.Join(logs.ApplyLive(c.replayed.live, e.Index, e.Entry), c.derived.commitIfLarge()); err != nil {
				return err
			}
		}
	}
	return logs.ApplyLive(c.replayed.live, e.Index, e.Entry)
}

// entriesBefore returns the entries about a release with a lower index than before, oldest first.
func entriesBefore(ctx context.Context, r kvstore.Reader, id release, before int64) (all []logs.Indexed, err error) {
	for e, err := range (logs.Query{Package: id.pkg, Version: id.version, Before: before}).Newest(r) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	slices.Reverse(all)
	return all, nil
}

// compareChangedLive compares what the stored map of live releases says about the releases of new entries with what follows from their entries, and
// reports differences.
func (c *check) compareChangedLive(ctx context.Context) error {
	rows := Rows{View: "live", Rows: int64(len(c.recalled))}
	defer func() { c.summary.Rows += rows.Rows; c.summary.Views = append(c.summary.Views, rows) }()
	stored, err := logs.ReadLiveMap(c.snapshot, c.summary.Checkpoint.Size)
	if err != nil {
		rows.Differing++
		c.reportf(View, rows.View, "%v", err)
		return nil
	}
	for id := range c.recalled {
		if err := ctx.Err(); err != nil {
			return err
		}
		key := logs.LiveKey(id.pkg, id.version)
		want, err := c.replayed.live.Get(key)
		if err != nil {
			return err
		}
		where := fmt.Sprintf("live/%s/%s", id.pkg, id.version)
		switch have, err := stored.Get(key); {
		case err != nil:
			rows.Differing++
			c.reportf(View, where, "%v", err)
		case (have == nil) != (want == nil) || have != nil && *have != *want:
			rows.Differing++
			c.reportf(View, where, "the map of live releases differs from what the log says")
		}
	}
	return nil
}
