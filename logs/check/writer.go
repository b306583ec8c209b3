package check

import "github.com/larder-cdn/larder/kvstore"

// A writer adds rows to a store, and commits a batch of them now and then, because each commit waits for the disk. A batch is bounded
// by both.
type writer struct {
	store *kvstore.Store
	batch *kvstore.Batch
	most  int // rows of a batch
	rows  int // in the batch, about
	bytes int // of the rows that replace has added
}

const (
	rowsPerCommit      = 50_000
	rowsPerReplacement = 1_000 // in a store that others use
	bytesPerCommit     = 4 << 20
)

func newWriter(store *kvstore.Store, most int) *writer {
	return &writer{store: store, batch: store.NewBatch(), most: most}
}

// replace sets a row, or deletes it unless it is wanted.
func (w *writer) replace(ns kvstore.Namespace, row kvstore.Item, wanted bool) error {
	if wanted {
		w.batch.Set(ns, row.Key, row.Value)
	} else {
		w.batch.Delete(ns, row.Key)
	}
	w.bytes += len(row.Key) + len(row.Value)
	return w.added(1)
}

// added counts rows that were added to the batch, and commits it if it is large.
func (w *writer) added(rows int) error {
	if w.rows += rows; w.rows < w.most && w.bytes < bytesPerCommit {
		return nil
	}
	return w.commit()
}

func (w *writer) commit() error {
	if w.rows == 0 {
		return nil
	}
	err := w.batch.Commit()
	w.batch.Close()
	w.batch, w.rows, w.bytes = w.store.NewBatch(), 0, 0
	return err
}
