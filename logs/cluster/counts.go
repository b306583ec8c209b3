package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// The counts of a node for a day are in the object usage/DAY/NAME, which only that node replaces, always by all its counts of the day.
// So other nodes have them even if the node is lost.

const (
	countsPrefix = "usage/"
	maxCounts    = 64 << 20
	maxCounted   = 1 << 20 // objects that are listed
)

// PutCounts stores in the bucket the encoded request counts of a day, all of them, from the node with that name. It replaces those of an earlier
// call.
func (n *Node) PutCounts(ctx context.Context, name string, day time.Time, counts []byte) error {
	if len(counts) > maxCounts {
		return fmt.Errorf("the counts of %s have %d bytes, and %d are the most", day.Format(time.DateOnly), len(counts), maxCounts)
	}
	return n.Bucket.Put(ctx, countsPrefix+day.Format(time.DateOnly)+"/"+name, counts)
}

// A CountsReader reads what other nodes have counted. It is for one goroutine.
type CountsReader struct {
	Node *Node
	Name string // of this node, whose own counts are left out

	known map[string]seen // of what was taken
}

// A seen version of an object is sure where it was that of two reads: see [bucket.Bucket].
type seen struct {
	bucket.Version
	sure bool
}

// ReadNew calls take with the encoded counts of each other node and day that have changed since the last call, for the days from since on up to one
// after today, the present day. The last change may be delivered twice. It does not read the counts of a day before yesterday again once two reads
// were the same. If an object cannot be read, or take fails, it goes on with the others and joins the errors; the next call tries again. An error
// of listing the objects ends it at once.
func (h *CountsReader) ReadNew(ctx context.Context, since, today time.Time, take func(name string, day time.Time, counts []byte) error) error {
	if h.known == nil {
		h.known = map[string]seen{}
	}
	after := countsPrefix + since.Format(time.DateOnly)
	maps.DeleteFunc(h.known, func(key string, _ seen) bool { return key <= after })
	fresh := countsPrefix + today.AddDate(0, 0, -1).Format(time.DateOnly)
	unborn := countsPrefix + today.AddDate(0, 0, 2).Format(time.DateOnly) // a clock may be a little ahead, and a wrong one fills years
	listed := 0
	var failed error
	for o, err := range h.Node.Bucket.List(ctx, countsPrefix, after) {
		if err != nil {
			return err
		}
		if listed++; listed > maxCounted {
			return fmt.Errorf("%s has over %d objects below %s", h.Node.Bucket, maxCounted, countsPrefix)
		}
		at, name, _ := strings.Cut(strings.TrimPrefix(o.Key, countsPrefix), "/")
		day, err := time.Parse(time.DateOnly, at)
		last := h.known[o.Key]
		if err != nil || name == h.Name || last.sure && o.Key < fresh || o.Key >= unborn {
			continue
		}
		var known bucket.Version
		if last.sure {
			known = last.Version
		}
		counts, version, err := h.Node.Bucket.GetOther(ctx, o.Key, maxCounts, known)
		if errors.Is(err, bucket.ErrNotFound) || err == nil && counts == nil {
			continue
		}
		if err == nil {
			err = take(name, day, counts)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", o.Key, err))
			continue
		}
		h.known[o.Key] = seen{version, version == last.Version}
	}
	return failed
}

// DeleteCounts deletes from the bucket the counts of all nodes for the days earlier than before.
func (n *Node) DeleteCounts(ctx context.Context, before time.Time) error {
	for o, err := range n.Bucket.List(ctx, countsPrefix, "") {
		if err != nil || o.Key >= countsPrefix+before.Format(time.DateOnly) {
			return err
		}
		if err := n.Bucket.Delete(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}
