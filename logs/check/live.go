package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// replayed is the map of live releases, made again from the log, and what was found of the
// roots in the entries.
type replayed struct {
	live        *logs.LiveMap
	right       bool  // whether the last entry has the map's root
	first, last int64 // entries in a row that have another one, none where last is less
	problem     string
}

// checkLiveRoot applies an entry to the replayed map of live releases and compares the map's root with the one in the entry. It reports consecutive
// entries with a wrong root together, when a right one follows.
func (c *check) checkLiveRoot(e logs.Indexed) error {
	if err := logs.ApplyLive(c.replayed.live, e.Index, e.Entry); err != nil {
		return err
	}
	root := c.replayed.live.Root()
	if c.replayed.right = root == e.Live; c.replayed.right {
		c.reportWrongRoots()
		return nil
	}
	if c.replayed.last < c.replayed.first {
		c.replayed.first = e.Index
		c.replayed.problem = fmt.Sprintf("the root of the map of live releases is %s, and the entries up to it make %s", e.Live, root)
	}
	c.replayed.last = e.Index
	return nil
}

// reportWrongRoots reports the consecutive entries with a wrong root that checkLiveRoot found last, if there are any that were not reported.
func (c *check) reportWrongRoots() {
	r := &c.replayed
	switch {
	case r.last < r.first:
		return
	case r.last == r.first:
		c.reportf(Log, fmt.Sprintf("entry %d", r.first), "%s", r.problem)
	default:
		c.reportf(Log, fmt.Sprintf("entry %d", r.first), "%s; those up to entry %d have wrong roots too", r.problem, r.last)
	}
	r.first, r.last = 0, -1
}

// compareLive compares the stored map of live releases with the replayed one, and reports and counts the rows that differ. If there are any, a repair
// replaces the whole map. It compares nothing if the log is damaged, or its last entry has another root of the map.
func (c *check) compareLive(ctx context.Context) error {
	c.reportWrongRoots()
	if c.underivable != nil || c.summary.Entries > 0 && !c.replayed.right {
		return nil // there is nothing to compare with
	}
	rows := Rows{View: "live"}
	defer func() { c.summary.Rows += rows.Rows; c.summary.Views = append(c.summary.Views, rows) }()
	root, err := logs.LiveRootRow(c.snapshot, c.summary.Entries)
	if err != nil {
		c.reportf(View, rows.View, "%v", err)
		rows.Differing++
		return nil
	}
	explained := map[string]struct{}{}
	rows.Rows = c.replayed.live.Compare(root, func(row []byte) ([]byte, error) {
		explained[string(row)] = struct{}{}
		return c.snapshot.Get(kvstore.LogLive, row)
	}, func(row []byte, err error) {
		if errors.Is(err, kvstore.ErrNotFound) || root == nil {
			rows.Missing++
			c.reportLiveRow(row, "the row is missing")
			return
		}
		rows.Differing++
		c.reportLiveRow(row, err.Error())
	})
	if rows.Missing+rows.Differing > 0 { // what is below those is not explained either
		return c.storeLive(ctx)
	}
	if err := logs.ReplacedRows(c.snapshot, func(row []byte) { explained[string(row)] = struct{}{} }); err != nil {
		rows.Differing++
		c.reportLiveRow([]byte{0xff}, err.Error())
		return c.storeLive(ctx)
	}
	for item, err := range c.snapshot.Scan(kvstore.LogLive, kvstore.Range{To: []byte{0xff}}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if _, ok := explained[string(item.Key)]; ok {
			continue
		}
		rows.Unexplained++
		c.reportLiveRow(item.Key, "no entry of the log explains this row")
	}
	if rows.Unexplained > 0 {
		return c.storeLive(ctx)
	}
	return nil
}

// reportLiveRow reports a wrong row of the stored map of live releases, as repaired if this is a repair.
func (c *check) reportLiveRow(row []byte, problem string) {
	c.addFinding(Finding{Kind: View, Where: fmt.Sprintf("live/%x", row), Problem: problem, Repaired: c.repair != nil})
}

// storeLive replaces, in a repair, the stored map of live releases by the replayed one. It writes the root last, so that an incomplete map has no
// root. In a check it does nothing.
func (c *check) storeLive(ctx context.Context) error {
	if c.repair == nil {
		return nil
	}
	for item, err := range c.snapshot.Scan(kvstore.LogLive, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if err := c.repair.replace(kvstore.LogLive, item, false); err != nil {
			return err
		}
	}
	var failed error
	c.replayed.live.Write(c.summary.Entries-1, func(row, value []byte) {
		if failed == nil {
			failed = c.repair.replace(kvstore.LogLive, kvstore.Item{Key: row, Value: value}, true)
		}
	})
	return errors.Join(failed, c.repair.commit())
}
