package fallback

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// How often mirrored releases are looked after.
const (
	lookEvery  = time.Minute
	firstPause = time.Minute // between two comparisons of a release with npm
	mostPause  = 6 * time.Hour
)

// A follower looks after releases that were mirrored: what their origin withdraws or restores is withdrawn or
// restored, and those for which nothing but its word vouches are compared with npm. It is for one goroutine.
type follower struct {
	*Fallback
	pauses  map[release]pause
	cursors map[*larder]int64 // entries of an origin's log that were read
	heard   map[release]bool  // of which what follows the cursor is enough
	heeded  map[release]int64 // the origin's entry that was heeded last
}

type pause struct {
	until time.Time
	last  time.Duration
}

// Run looks after mirrored releases until ctx ends.
func (f *Fallback) Run(ctx context.Context) {
	for {
		f.Look(ctx)
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return
		}
	}
}

// Look looks after all mirrored releases once. It is called by one goroutine at a time.
func (f *Fallback) Look(ctx context.Context) {
	bySource := map[string]map[release]views.Version{}
	var sum int64
	for v, err := range f.mirrored() {
		if err != nil || ctx.Err() != nil {
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
			f.follow.compare(ctx, id)
		}
	}
	f.recount(sum)
	for _, o := range f.origins {
		source, ok := o.origin.(*larder)
		if !ok || len(bySource[source.String()]) == 0 {
			continue
		}
		if err := f.follow.heed(ctx, source, bySource[source.String()]); err != nil && ctx.Err() == nil {
			f.o.Logger.Warn("couldn't learn what an origin has withdrawn and restored", "origin", source.String(), "err", err)
		}
	}
}

// mirrored iterates over the versions whose files are here as they were mirrored, served or withdrawn, and not erased.
func (f *Fallback) mirrored() iter.Seq2[views.Version, error] {
	return func(yield func(views.Version, error) bool) {
		seen := map[release]bool{}
		for query := (logs.Query{Kinds: []logs.Kind{logs.Mirrored}, Limit: 1000}); ; {
			page, err := logs.Read(f.o.Store, query)
			if err != nil {
				yield(views.Version{}, err)
				return
			}
			for _, e := range page.Entries {
				id := release{e.Package, e.Version}
				if seen[id] {
					continue
				}
				seen[id] = true
				v, err := views.LookupVersion(f.o.Store, id.pkg, id.version)
				if errors.Is(err, kvstore.ErrNotFound) || err == nil && v.Mirror == nil {
					continue
				}
				if err == nil && v.Withdrawn != nil {
					var erased bool
					if erased, err = f.erased(id); erased {
						continue
					}
				}
				if !yield(v, err) {
					return
				}
			}
			if page.Next == 0 {
				return
			}
			query.Before = page.Next
		}
	}
}

// erased reports whether files of a withdrawn release were erased since it was served.
func (f *Fallback) erased(id release) (bool, error) {
	kinds := append([]logs.Kind{logs.Erased, logs.Restored}, logs.Publications...)
	page, err := logs.Read(f.o.Store, logs.Query{Package: id.pkg, Version: id.version, Kinds: kinds, Limit: 1})
	return err == nil && len(page.Entries) > 0 && page.Entries[0].Kind == logs.Erased, err
}

// compare holds a release against npm's, if it is time.
func (f *follower) compare(ctx context.Context, id release) {
	now := f.o.Now()
	p := f.pauses[id]
	if now.Before(p.until) {
		return
	}
	settled, err := f.o.Bot.Compare(ctx, id.pkg, id.version)
	if settled || ctx.Err() != nil {
		delete(f.pauses, id)
		return
	}
	f.o.Logger.Debug("not compared with npm yet", "package", id.pkg, "version", id.version, "err", err)
	p.last = min(max(2*p.last, firstPause), mostPause)
	p.until = now.Add(p.last)
	f.pauses[id] = p
}

// heed withdraws what an origin's log has withdrawn since a release was taken from it, and restores what it has restored
// of that.
func (f *follower) heed(ctx context.Context, o *larder, ours map[release]views.Version) error {
	log, err := o.open(ctx)
	if err != nil {
		return err
	}
	cursor, ok := f.cursors[o]
	if !ok {
		cursor = log.Size()
	}
	from := cursor
	for id, v := range ours {
		if !f.heard[id] {
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
		reason := text.Short(fmt.Sprintf("%s at its origin %s (entry %d of its log): %s", e.Kind, o, e.Index, text.Plain(e.Reason)), 1000)
		switch e.Kind {
		case logs.Withdrawn:
			at := e.Time
			if e.Index >= cursor && e.Index != f.heeded[id] { // news since the last look, whatever the origin's clock says
				at = f.o.Now()
			}
			err = f.o.Bot.WithdrawMirrored(id.pkg, id.version, at, reason)
		case logs.Restored:
			err = f.o.Bot.RestoreMirrored(id.pkg, id.version, e.Manifest, reason)
		} // npm's files took their place: comparing will find that too
		if err != nil {
			return err
		}
		f.heeded[id] = e.Index
	}
	for id := range ours {
		f.heard[id] = true
	}
	f.cursors[o] = log.Size()
	return nil
}
