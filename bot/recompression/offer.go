package recompression

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
)

// Other nodes of a cluster recompress contents that are far from their turn here. A row that is offered to a node stays in the
// queue, so nothing is lost with a node that never reports back.

const (
	// maxOffered bounds the rows that other nodes have. The one that was offered first is free again when there are more.
	maxOffered = 64
	// maxOfferScan bounds the rows that one search for a row to offer reads.
	maxOfferScan = 1000
)

// HelperMemory returns how many bytes of memory a process needs to recompress the largest content that is offered to other nodes.
func HelperMemory() int64 { return worker.EncoderMemory(worker.HugeSize) }

// offeredIndex returns the index of a content in q.offered, the rows that other nodes work on, or -1. The caller holds mu.
func (q *queue) offeredIndex(h kvstore.Hash) int {
	return slices.IndexFunc(q.offered, func(row queueRow) bool { return row.hash == h })
}

// OfferContent returns the first queued content that another node of the cluster may recompress, and records that it is offered.
// Its row stays in the queue. ok is false if the queue's first 1,000 unclaimed rows have none to offer. Huge contents, and those
// whose encoder crashed before, are not offered. Beyond 64 offers, the oldest one is forgotten, so that its content may be
// recompressed here.
func (r *Recompressor) OfferContent() (h kvstore.Hash, ok bool, err error) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	scanned := 0
	rows, err := r.unclaimedRows(1, func(row queueRow) bool {
		scanned++
		content, err := r.store.Content(row.hash)
		return scanned > maxOfferScan || err == nil && !content.Squeezed && content.Size <= worker.HugeSize && row.turn.crashes == 0
	})
	if err != nil || len(rows) == 0 || scanned > maxOfferScan {
		return h, false, err
	}
	q.offered = append(q.offered, rows...)
	if len(q.offered) > maxOffered {
		q.offered = slices.Delete(q.offered, 0, 1)
	}
	return rows[0].hash, true, nil
}

// StoreOffered stores the encodings (coded) that another node has made of the offered content h of size bytes, and removes h from
// the queue. Unless h was recompressed before, it calls Options.Squeezed and emits an event. It ignores contents that are not
// offered (any more) or were erased. The caller has verified that the encodings decode to the content.
func (r *Recompressor) StoreOffered(ctx context.Context, h kvstore.Hash, size int64, coded []kvstore.Coded) error {
	r.queue.mu.Lock()
	offered := r.queue.offeredIndex(h) >= 0
	r.queue.mu.Unlock()
	if !offered {
		return nil // or a response to the node was lost, and it reports again
	}
	before, err := r.store.Content(h)
	if err == nil {
		err = r.store.ImproveContent(h, size, true, coded)
	}
	var after kvstore.Content
	if err == nil {
		after, err = r.store.Content(h)
	}
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // erased meanwhile
	}
	if err != nil {
		return fmt.Errorf("bot: the codings of another node: %w", err)
	}
	if row, ok := r.acquireOffered(h); ok {
		if err := r.finishRows([]*queueRow{&row}); err != nil {
			return err
		}
	}
	if !before.Squeezed {
		r.reportRecompressed(ctx, h, savedBytes{before: encodedBytes(before), after: encodedBytes(after)})
	}
	return nil
}

// acquireOffered removes a content from the offered ones, marks it as busy, and returns its queue row as done, so that the caller
// passes it to finishRows. ok is false if the content was not offered, or another goroutine works on it, which then finishes the
// row.
func (r *Recompressor) acquireOffered(h kvstore.Hash) (row queueRow, ok bool) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.offeredIndex(h)
	if i < 0 {
		return row, false
	}
	row, row.done = q.offered[i], true
	q.offered = slices.Delete(q.offered, i, i+1)
	if _, busy := q.busy[h]; busy { // it is hot
		return row, false
	}
	q.busy[h] = struct{}{}
	q.unclaimed--
	row.started = true
	return row, true
}
