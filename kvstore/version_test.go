package kvstore

import (
	"encoding/binary"
	"errors"
	"testing"
)

// TestUnknownTableField tests that nothing behind an unknown field of a table is decoded as fields of the edit.
func TestUnknownTableField(t *testing.T) {
	v := newVersion()
	known := placed{level: 6, table: 5}
	v.tables[known] = 5
	var edit []byte
	for _, n := range []uint64{
		tagTable, 0, 7, 100, // level, number and size
		0, 0, 1, 1, // no keys, and sequence numbers
		99,                                        // no tag that Larder knows
		tagDeletedTable, known.level, known.table, // may be its value
	} {
		edit = binary.AppendUvarint(edit, n)
	}
	if err := v.applyEdit(edit); !errors.Is(err, errEdit) {
		t.Errorf("the edit is applied with %v, want %v", err, errEdit)
	}
	if _, ok := v.tables[known]; !ok {
		t.Error("a table is deleted by what follows an unknown tag")
	}
}
