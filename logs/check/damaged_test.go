package check

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// storeWith makes a data folder of which the store has a row.
func storeWith(t *testing.T, ns kvstore.Namespace, key, value []byte) *engine {
	t.Helper()
	e := newEngine(RepairOptions{Data: t.TempDir(), Progress: func(RepairProgress) {}})
	store, err := kvstore.Open(e.path(storeName), e.storeOptions(storeName, false))
	if err != nil {
		t.Fatal(err)
	}
	batch := store.NewBatch()
	batch.Set(ns, key, value)
	if err := errors.Join(batch.Commit(), store.Close()); err != nil {
		t.Fatal(err)
	}
	return e
}

// A checkpoint that someone has forged does not decide how much memory a repair takes.
func TestForgedCheckpoint(t *testing.T) {
	forged := binary.BigEndian.AppendUint64([]byte{1}, 1<<40)
	forged = append(forged, make([]byte, 32)...)
	e := storeWith(t, kvstore.LogState, kvstore.Key("checkpoint"), forged)
	damaged, err := e.scanStore(t.Context()) // in the system's folder for temporary files
	if err != nil || damaged == nil {
		t.Fatalf("%v, %v", damaged, err)
	}
	defer damaged.scan.Close()
	if c, err := logs.ReadCheckpoint(damaged.scan); err != nil || c.Size != 1<<40 {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := damaged.readLog(t.Context(), logs.Checkpoint{}); err != nil || damaged.tree.size != 0 {
		t.Errorf("the log has %d entries, %v", damaged.tree.size, err)
	}
}

// A folder for temporary files that cannot be used is not a store that is missing.
func TestScanWithoutScratchFolder(t *testing.T) {
	e := storeWith(t, kvstore.Meta, []byte("row"), nil)
	e.Temp = "\x00"
	if damaged, err := e.scanStore(t.Context()); err == nil || damaged != nil {
		t.Errorf("%v, %v", damaged, err)
	}
	e = newEngine(RepairOptions{Data: t.TempDir()})
	if damaged, err := e.scanStore(t.Context()); err != nil || damaged != nil {
		t.Errorf("without a store: %v, %v", damaged, err)
	}
}
