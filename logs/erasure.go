package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
)

// ErasureFormat is the version of the erasures' JSON schema that this package
// writes.
const ErasureFormat = 1

// An Erasure lists contents that were removed from the store for good. It is
// itself a content, named in an Erased entry. It never lists a content that an
// entry names, nor one that a release needs which was being served then: should
// such a content be missing, that is damage and no erasure.
type Erasure struct {
	Format   int            `json:"format"`
	Package  string         `json:"package"`
	Version  string         `json:"version"`
	Contents []kvstore.Hash `json:"contents"` // in order, each once
}

// Encode returns the erasure's bytes, the same for equal erasures. It sets the format of e, and sorts its contents and drops
// duplicates. It does not check e; the error is that of encoding JSON.
func (e *Erasure) Encode() ([]byte, error) {
	e.Format = ErasureFormat
	e.Contents = slices.Clone(e.Contents)
	slices.SortFunc(e.Contents, func(a, b kvstore.Hash) int { return bytes.Compare(a[:], b[:]) })
	e.Contents = slices.Compact(e.Contents)
	return json.Marshal(e)
}

// DecodeErasure decodes an erasure. It returns an error for unknown formats.
func DecodeErasure(data []byte) (*Erasure, error) {
	e := new(Erasure)
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("logs: malformed erasure: %w", err)
	}
	if e.Format != ErasureFormat {
		return nil, fmt.Errorf("logs: erasure format %d is not known to this release of Larder, which writes format %d", e.Format, ErasureFormat)
	}
	return e, nil
}

// ReadErasure reads and decodes the erasure with the hash h, which an Erased entry names.
func ReadErasure(store *kvstore.Store, h kvstore.Hash) (*Erasure, error) {
	return readDocument(store, h, "erasure", DecodeErasure)
}
