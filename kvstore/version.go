package kvstore

import (
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// version is the state that a MANIFEST describes: the files that hold the store's tables and large values,
// and which write-ahead logs are needed beside them. A MANIFEST is a list of edits, and
// Pebble exports nothing that reads one, so applyEdit does, as far as it is needed here.
type version struct {
	tables   map[placed]uint64 // where each table is, and the file that it is in
	blobs    map[uint64]uint64 // the file of each blob file's identity
	sizes    map[uint64]int64  // of both kinds of files
	edits    int
	log      uint64 // the first write-ahead log that is needed
	logEdit  int    // which edit said so
	sequence uint64 // no lower than that of any change in the tables
}

// placed is a table at its level. A virtual table has a number of its own, and is a part of another file.
type placed struct{ level, table uint64 }

// newVersion returns a version without files, to which the edits of a MANIFEST are applied.
func newVersion() *version {
	return &version{tables: make(map[placed]uint64), blobs: make(map[uint64]uint64), sizes: make(map[uint64]int64)}
}

// The tags with which the fields of an edit begin.
const (
	tagComparer       = 1
	tagLog            = 2
	tagNextFile       = 3
	tagSequence       = 4
	tagDeletedTable   = 6
	tagPreviousLog    = 9
	tagTable          = 103
	tagTableRanges    = 104 // with range keys
	tagBacking        = 105
	tagRemovedBacking = 106
	tagBlob           = 107
	tagDeletedBlob    = 108

	tableEnd        = 1 // ends the optional fields of a table
	tableVirtual    = 66
	tableReferences = 69
	mustKnow        = 64 // from here on, an optional field cannot be skipped
)

var errEdit = errors.New("an edit is written in a way that this larder does not know")

// applyEdit changes v by edit, the next record of the MANIFEST. It returns errEdit if the edit is not in a form that Larder knows; v may then have a
// part of the edit.
func (v *version) applyEdit(edit []byte) error {
	d := decoder{row: edit}
	index := v.edits
	v.edits++
	for len(d.row) > 0 {
		switch tag := d.number(); tag {
		case tagComparer:
			d.skipBytes()
		case tagLog:
			v.log, v.logEdit = d.number(), index
		case tagNextFile, tagPreviousLog, tagRemovedBacking:
			d.number()
		case tagSequence:
			v.sequence = max(v.sequence, d.number()) // the first edit has none
		case tagDeletedTable:
			level := d.number()
			delete(v.tables, placed{level, d.number()})
		case tagTable, tagTableRanges:
			v.applyTable(&d, tag == tagTableRanges)
		case tagBacking:
			file := d.number()
			v.sizes[file] = d.length()
		case tagBlob:
			id, file, size := d.number(), d.number(), d.length()
			d.number() // bytes of values
			d.number() // time
			v.blobs[id], v.sizes[file] = file, size
		case tagDeletedBlob:
			if id, file := d.number(), d.number(); v.blobs[id] == file {
				delete(v.blobs, id)
			}
		default:
			return errEdit
		}
	}
	if d.failed {
		return errEdit
	}
	return nil
}

// applyTable reads the table that an edit adds from d, and adds it to v. ranges says that the edit may have bounds of range keys. After an
// error, d.failed is set.
func (v *version) applyTable(d *decoder, ranges bool) {
	level, table, size := d.number(), d.number(), d.length()
	file := table
	if ranges && d.number()&1 != 0 { // it has other keys too
		d.skipBytes()
		d.skipBytes()
	}
	d.skipBytes() // smallest key
	d.skipBytes() // largest
	d.number()
	d.number() // sequence numbers
	virtual := false
	for !d.failed {
		tag := d.number()
		if tag == tableEnd {
			break
		}
		switch {
		case tag == tableVirtual:
			virtual = true
			file = d.number()
		case tag == tableReferences:
			d.number() // depth
			for n := d.number(); n > 0 && !d.failed; n-- {
				d.number()
				d.number()
			}
		case tag < mustKnow || tag == 67 || tag == 68: // prefix and suffix of its keys
			d.skipBytes()
		default:
			d.row, d.failed = nil, true // what follows the tag is not decoded as fields of the edit
		}
	}
	v.tables[placed{level, table}] = file
	if !virtual {
		v.sizes[file] = size
	}
}

// fileSizes returns the sizes in bytes of all tables and blob files that the version needs, by file name.
func (v *version) fileSizes() map[string]int64 {
	files := make(map[string]int64, len(v.tables)+len(v.blobs))
	for _, file := range v.tables {
		files[fmt.Sprintf("%06d.sst", file)] = v.sizes[file]
	}
	for _, file := range v.blobs {
		files[fmt.Sprintf("%06d.blob", file)] = v.sizes[file]
	}
	return files
}

// tableSizes returns the sizes in bytes of the tables that the version needs, by file name.
func (v *version) tableSizes() map[string]int64 {
	files := v.fileSizes()
	maps.DeleteFunc(files, func(name string, _ int64) bool { return isBlobFile(name) })
	return files
}

// readVersion returns the version that the first length bytes of a MANIFEST in dir describe. With an error of reading it also returns the version up
// to there, and nil if the file cannot be opened.
func readVersion(fs vfs.FS, dir, manifest string, length int64) (*version, error) {
	f, err := fs.Open(fs.PathJoin(dir, manifest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v := newVersion()
	_, err = newChunkReader(io.LimitReader(f, length), 0).readRecords(0, v.applyEdit)
	return v, err
}
