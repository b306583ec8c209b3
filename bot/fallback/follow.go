package fallback

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// How often mirrored releases are checked.
const (
	checkInterval = time.Minute
	minBackoff    = time.Minute // between two comparisons of a release with npm
	maxBackoff    = 6 * time.Hour
)

// A follower follows the origins of mirrored releases: it withdraws and restores what they withdraw and restore, and compares
// releases that nothing else proves with npm. It is for one goroutine.
type follower struct {
	*Fallback
	backoffs map[release]backoff
	caughtUp map[release]bool  // releases for which the entries after the cursor are enough
	applied  map[release]int64 // the last entry of the origin's log that was applied
	stale    map[string]bool   // origins whose log is reported to be too old
}

// Run keeps mirrored releases up to date, at once and then every minute, until ctx ends: it withdraws and restores them as their
// origins do, and compares those that nothing proves with npm's, which confirms, replaces or withdraws them.
func (f *Fallback) Run(ctx context.Context) {
	f.CheckMirrored(ctx)
	for retry.Sleep(ctx, checkInterval) == nil {
		f.CheckMirrored(ctx)
	}
}

// CheckMirrored withdraws and restores mirrored releases as their origins have done since the last check, and compares those that
// nothing proves with npm's, once. It also counts the bytes of all mirrored releases. It logs errors; after one of reading which
// releases were mirrored it does nothing more. One goroutine at a time calls it.
func (f *Fallback) CheckMirrored(ctx context.Context) {
	bySource := map[string]map[release]views.Version{}
	before := f.stored.Load()
	var sum int64
	for v, err := range f.mirroredVersions(ctx) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.o.Logger.Warn("couldn't read which releases were mirrored", "err", err)
			return
		}
		sum += v.Bytes
		id := release{v.Package, v.Version}
		if bySource[v.Mirror.Source] == nil {
			bySource[v.Mirror.Source] = map[release]views.Version{}
		}
		bySource[v.Mirror.Source][id] = v
		if v.Mirror.Provisional() && v.Withdrawn == nil {
			f.follow.compareWithNpm(ctx, id)
		}
	}
	f.setStored(before, sum)
	for _, o := range f.origins {
		source, ok := o.origin.(*larder)
		if !ok {
			continue
		}
		if len(bySource[source.String()]) == 0 { // it can have withdrawn nothing that is here
			if old := source.age.Load(); old.opened {
				source.age.CompareAndSwap(old, &logAge{cosigned: old.cosigned})
			}
			continue
		}
		if err := f.follow.applyChanges(ctx, source, bySource[source.String()]); err != nil && ctx.Err() == nil {
			f.o.Logger.Warn("couldn't learn what an origin has withdrawn and restored", "origin", source.String(), "err", err)
		}
		f.follow.reportAge(source)
	}
}

// reportAge logs an error when the newest cosignature of an origin's checkpoint becomes too old, so that withdrawals may be
// missing here, and a message when a newer one comes. Releases are still taken from the origin.
func (f *follower) reportAge(o *larder) {
	err := o.checkAge(f.o.Now())
	switch reported := f.stale[o.String()]; {
	case err != nil && !reported:
		f.o.Logger.Error("withdrawals of an origin may be missing here", "origin", o.String(), "err", err)
	case err == nil && reported:
		f.o.Logger.Info("the log of an origin is cosigned again", "origin", o.String(), "cosigned", o.age.Load().cosigned)
	}
	f.stale[o.String()] = err != nil
}

// mirroredVersions iterates over the versions that were mirrored and whose files are stored, also if they are withdrawn, each
// once, the last mirrored first. It goes on after an error about a version. An error of reading the log, or that of ctx, is the
// last thing that it yields, after the versions of the entries that it could read.
func (f *Fallback) mirroredVersions(ctx context.Context) iter.Seq2[views.Version, error] {
	return func(yield func(views.Version, error) bool) {
		seen := map[release]bool{}
		var ids []release
		var failure error
		for e, err := range (logs.Query{Kinds: []logs.Kind{logs.Mirrored}}).Newest(f.o.Store) {
			if failure = errors.Join(err, ctx.Err()); failure != nil {
				break
			}
			if id := (release{e.Package, e.Version}); !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			if v, here, err := f.lookupMirrored(id); (here || err != nil) && !yield(v, err) {
				return
			}
		}
		if failure != nil {
			yield(views.Version{}, failure)
		}
	}
}

// lookupMirrored returns the row of a version. here reports whether the version was mirrored and its files are stored: a
// withdrawn one may be erased. An unknown version is not an error.
func (f *Fallback) lookupMirrored(id release) (v views.Version, here bool, err error) {
	v, err = views.LookupVersion(f.o.Store, id.pkg, id.version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return v, false, nil
	}
	if err != nil || v.Mirror == nil || v.Withdrawn == nil {
		return v, v.Mirror != nil, err
	}
	erased, err := ingest.IsErased(f.o.Store, id.pkg, id.version)
	return v, !erased, err
}

// compareWithNpm compares a mirrored release with npm's, unless it waits after an earlier failure. If npm's has other bytes, the
// release is replaced by npm's or, if that must not be published, withdrawn; if they are equal, the log gets npm's proof. It only
// logs a failure, and waits longer until the next try, also if the replacement could not be stored.
func (f *follower) compareWithNpm(ctx context.Context, id release) {
	now := f.o.Now()
	wait := f.backoffs[id]
	if now.Before(wait.until) {
		return
	}
	compared, err := f.o.Bot.ReconcileWithNpm(ctx, id.pkg, id.version)
	if compared || ctx.Err() != nil {
		delete(f.backoffs, id)
		return
	}
	f.o.Logger.Debug("not compared with npm yet", "package", id.pkg, "version", id.version, "err", err)
	wait.extend(now, minBackoff, maxBackoff)
	f.backoffs[id] = wait
}

// applyChanges withdraws and restores the mirrored releases of an origin as the origin's log says. ours are these releases. It
// reads the entries of that log since the last check, after a start also those since the releases were mirrored, and stores how
// far it has read. After an error, a later call reads them again.
func (f *follower) applyChanges(ctx context.Context, o *larder, ours map[release]views.Version) error {
	log, err := o.openLog(ctx)
	if err != nil {
		return err
	}
	cursor, err := f.readCursor(o)
	first := errors.Is(err, kvstore.ErrNotFound) // the first check
	switch {
	case first:
		cursor = log.Size()
	case err != nil:
		return err
	}
	from := cursor
	for id, v := range ours {
		if !f.caughtUp[id] {
			from = min(from, v.Mirror.Size)
		}
	}
	last := map[release]logs.Indexed{}
	for i := from; i < log.Size(); i++ {
		e, err := log.Entry(ctx, i)
		if err != nil {
			return err
		}
		id := release{e.Package, e.Version}
		if v, ok := ours[id]; ok && i >= v.Mirror.Size && (e.Kind == logs.Withdrawn || e.Kind.Serves()) {
			last[id] = e
		}
	}
	for id, e := range last {
		var err error
		reason := text.Short(fmt.Sprintf("%s at its origin %s (entry %d of its log): %s", e.Kind, o, e.Index, text.Plain(e.Reason)), 1000)
		switch e.Kind {
		case logs.Withdrawn:
			at := e.Time
			if e.Index >= cursor && e.Index != f.applied[id] { // new since the last check, whatever the origin's clock says
				at = f.o.Now()
			}
			err = f.o.Bot.WithdrawMirrored(id.pkg, id.version, at, reason)
		case logs.Restored:
			err = f.o.Bot.RestoreMirrored(id.pkg, id.version, e.Manifest, reason)
		} // npm's files took their place: comparing will find that too
		if err != nil {
			return err
		}
		f.applied[id] = e.Index
	}
	for id := range ours {
		f.caughtUp[id] = true
	}
	if !first && cursor == log.Size() {
		return nil
	}
	b := f.o.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, cursorKey(o), binary.AppendUvarint(nil, uint64(log.Size())))
	return b.Commit()
}

// cursorKey returns the key of the row in the Meta namespace that says how many entries of an origin's log were read.
func cursorKey(o *larder) []byte { return kvstore.Key("fallback", "cursor", o.String()) }

// readCursor returns how many entries of an origin's log were read, or [kvstore.ErrNotFound] before the first time. A malformed
// row is another error.
func (f *follower) readCursor(o *larder) (int64, error) {
	row, err := f.o.Store.Get(kvstore.Meta, cursorKey(o))
	if err != nil {
		return 0, err
	}
	n, length := binary.Uvarint(row)
	if length != len(row) || n > math.MaxInt64 {
		return 0, fmt.Errorf("the row that says how much of the log of %s was read is malformed: %x", o, row)
	}
	return int64(n), nil
}
