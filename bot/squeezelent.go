package bot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
)

// Other nodes of a cluster squeeze what is far from its turn here. A row that is lent stays in the queue, so nothing is lost
// with a node that never comes back.

const (
	// mostLent bounds the rows that are lent. The one that was lent first is free again when there are more.
	mostLent = 64
	// lendLook is how many rows are looked at for one that can be lent.
	lendLook = 1000
)

// HelperMemory is what a process needs that squeezes for another one.
func HelperMemory() int64 { return encoderMemory(hugeSize) }

// lentAt returns where a content is among those that are lent, -1 for nowhere; the caller holds mu.
func (q *squeezeQueue) lentAt(h kvstore.Hash) int {
	return slices.IndexFunc(q.lent, func(row queueRow) bool { return row.hash == h })
}

// Lend returns a content that another node is to squeeze, if there is one to spare. Huge ones, and those whose encoders were
// killed before, stay here.
func (b *Bot) Lend() (h kvstore.Hash, ok bool, err error) {
	q := &b.squeeze
	q.mu.Lock()
	defer q.mu.Unlock()
	looked := 0
	rows, err := b.freeRows(1, func(row queueRow) bool {
		looked++
		content, err := b.store.Content(row.hash)
		return looked > lendLook || err == nil && !content.Squeezed && content.Size <= hugeSize && row.turn.crashes == 0
	})
	if err != nil || len(rows) == 0 || looked > lendLook {
		return h, false, err
	}
	q.lent = append(q.lent, rows...)
	if len(q.lent) > mostLent {
		q.lent = slices.Delete(q.lent, 0, 1)
	}
	return rows[0].hash, true, nil
}

// TakeSqueezed takes the codings that another node has made of a content which was lent; of any other it takes none, because
// then that content would not be squeezed here. The caller has decoded them, and found that content.
func (b *Bot) TakeSqueezed(ctx context.Context, h kvstore.Hash, size int64, coded []kvstore.Coded) error {
	b.squeeze.mu.Lock()
	lent := b.squeeze.lentAt(h) >= 0
	b.squeeze.mu.Unlock()
	if !lent {
		return nil // or an answer to the node was lost, and it tells again
	}
	before, err := b.store.Content(h)
	if err == nil {
		err = b.store.ImproveContent(h, size, true, coded)
	}
	var after kvstore.Content
	if err == nil {
		after, err = b.store.Content(h)
	}
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // erased meanwhile
	}
	if err != nil {
		return fmt.Errorf("bot: the codings of another node: %w", err)
	}
	if row, ok := b.takeLent(h); ok {
		b.squeeze.added(-1)
		if err := b.dropRows([]*queueRow{&row}); err != nil {
			return err
		}
	}
	if !before.Squeezed {
		b.tellSqueezed(ctx, h, squeezed{before: codedBytes(before), after: codedBytes(after)})
	}
	return nil
}

// takeLent has a row be in hand here that was lent, unless a goroutine has it in hand.
func (b *Bot) takeLent(h kvstore.Hash) (row queueRow, ok bool) {
	q := &b.squeeze
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.lentAt(h)
	if i < 0 {
		return row, false
	}
	row, row.done = q.lent[i], true
	q.lent = slices.Delete(q.lent, i, i+1)
	if _, busy := q.busy[h]; busy { // it is hot
		return row, false
	}
	q.busy[h] = struct{}{}
	return row, true
}
