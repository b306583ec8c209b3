package check

import (
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// A rowWriter adds rows to a store, and commits a batch of them now and then, because each commit waits for the disk. A batch is bounded
// by both.
type rowWriter struct {
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

// newRowWriter returns a writer that commits after about every most rows. The caller calls commit at the end. It closes w.batch in a
// deferred function that reads the field then, because each commit closes the batch and puts another one in its place.
func newRowWriter(store *kvstore.Store, most int) *rowWriter {
	return &rowWriter{store: store, batch: store.NewBatch(), most: most}
}

// replace adds to the batch that a row is set if wanted is true, and deleted otherwise, and commits a batch of w.most rows or of
// bytesPerCommit.
func (w *rowWriter) replace(ns kvstore.Namespace, row kvstore.Item, wanted bool) error {
	if wanted {
		w.batch.Set(ns, row.Key, row.Value)
	} else {
		w.batch.Delete(ns, row.Key)
	}
	w.bytes += len(row.Key) + len(row.Value)
	return w.countAdded(1)
}

// apply adds to the batch the rows of the views that follow from an entry's change, and counts them. The caller calls countAdded, which commits a
// large batch.
func (w *rowWriter) apply(c views.Change) error {
	w.rows += 4
	if c.Manifest != nil {
		w.rows += 4 * len(c.Manifest.Files)
	}
	return views.Apply(w.batch, c)
}

// countAdded counts rows that the caller has added to the batch, and commits a batch of w.most rows or of bytesPerCommit.
func (w *rowWriter) countAdded(rows int) error {
	if w.rows += rows; w.rows < w.most && w.bytes < bytesPerCommit {
		return nil
	}
	return w.commit()
}

// commit commits and closes the batch, if rows were counted, and starts another one, also after an error.
func (w *rowWriter) commit() error {
	if w.rows == 0 {
		return nil
	}
	err := w.batch.Commit()
	w.batch.Close()
	w.batch, w.rows, w.bytes = w.store.NewBatch(), 0, 0
	return err
}
