package library

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A renderCache has two generations of entries in the store. New entries go into the younger one. Once that has half of the limit
// of bytes, the cache deletes the older generation and starts another. Reading an entry of the older generation copies it to
// the younger one, so entries in use stay. A row's key is the generation (4 bytes, big endian) and the document's key.
type renderCache struct {
	kv   *kvstore.Store
	most int64

	mu    sync.Mutex // held while rows are written
	state *generation
}

// A generation is the state of the younger generation.
type generation struct {
	number uint32
	bytes  int64 // of its values
}

// stateKey is the row that has number and bytes of the younger generation, in uvarints. It sorts after all others.
var stateKey = []byte{0xff, 's'}

// The first byte of a row's value.
const (
	storedResult  = 1 // before an encoded result, compressed with Brotli
	storedRefusal = 2 // before the reason why there is no result
)

// rowKey returns the key of the row that has a document's entry in a generation.
func rowKey(generation uint32, key document.Key) []byte {
	return append(binary.BigEndian.AppendUint32(nil, generation), key[:]...)
}

// load returns the stored entry of a document of a kind, and true. If it is in the older generation, load copies it to the
// younger one, so that it stays, and ignores if that fails. It returns false if there is no entry, or none that can be read.
func (c *renderCache) load(kind document.Kind, key document.Key) (entry, bool) {
	c.mu.Lock()
	number := c.youngest().number
	c.mu.Unlock()
	for _, g := range []uint32{number, number - 1} {
		value, err := c.kv.Get(kvstore.Renderings, rowKey(g, key))
		if err != nil {
			continue
		}
		e, err := decodeEntry(kind, value)
		if err != nil {
			continue
		}
		if g != number {
			_ = c.write(key, value) // if that fails, the entry stays in the older generation
		}
		return e, true
	}
	return entry{}, false
}

// youngest returns the state of the younger generation. The first call reads it from the store; without a valid one there,
// it is generation 1 with no entries. The caller holds mu, and does not change the state.
func (c *renderCache) youngest() *generation {
	if c.state != nil {
		return c.state
	}
	c.state = &generation{number: 1}
	if value, err := c.kv.Get(kvstore.Renderings, stateKey); err == nil {
		number, n := binary.Uvarint(value)
		size, m := binary.Uvarint(value[max(n, 0):])
		if n > 0 && m > 0 && number < 1<<31 && size < 1<<62 {
			c.state = &generation{uint32(number), int64(size)}
		}
	}
	return c.state
}

// store encodes the entry of a document, a result (compressed) or a refusal, and commits it to the younger generation in the
// store, see write.
func (c *renderCache) store(key document.Key, e entry) error {
	if e.refused != "" {
		return c.write(key, append([]byte{storedRefusal}, e.refused...))
	}
	data, err := e.result.Encode()
	if err != nil {
		return err
	}
	coded, err := coding.Encode(coding.Brotli, coding.Quick, data)
	if err != nil {
		return err
	}
	return c.write(key, append([]byte{storedResult}, coded...))
}

// decodeEntry decodes the value of a row into the entry of a document of a kind. It returns an error if the value is
// malformed, or its result is not what pages accept.
func decodeEntry(kind document.Kind, value []byte) (entry, error) {
	switch {
	case len(value) > 1 && value[0] == storedRefusal:
		return entry{refused: string(value[1:])}, nil
	case len(value) > 1 && value[0] == storedResult:
		data, err := coding.DecodeUpTo(coding.Brotli, value[1:], int64(kind.MaxOutput()+1000))
		if err != nil {
			return entry{}, err
		}
		result, err := document.Decode(kind, data)
		return entry{result: result}, err
	}
	return entry{}, fmt.Errorf("a rendered document in the store begins with %x", value[:min(len(value), 1)])
}

// write commits the value of a document's row to the younger generation. If that has no room for it, write starts a new
// generation and deletes the older one in the same batch. With an error, nothing changes.
func (c *renderCache) write(key document.Key, value []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *c.youngest()
	batch := c.kv.NewBatch()
	defer batch.Close()
	if next.bytes+int64(len(value)) > c.most/2 {
		if err := c.removeUpTo(batch, next.number-1); err != nil {
			return err
		}
		next = generation{number: next.number + 1}
	}
	next.bytes += int64(len(value))
	batch.Set(kvstore.Renderings, rowKey(next.number, key), value)
	batch.Set(kvstore.Renderings, stateKey, binary.AppendUvarint(binary.AppendUvarint(nil, uint64(next.number)), uint64(next.bytes)))
	if err := batch.Commit(); err != nil {
		return err
	}
	c.state = &next
	return nil
}

// removeUpTo adds to the batch the deletion of all rows of the generation with the number last and of those before it. It
// reads the rows from the store, so rows that the batch has already added stay. The error is one of reading; the batch then has only
// some of the deletions. The caller commits the batch.
func (c *renderCache) removeUpTo(batch *kvstore.Batch, last uint32) error {
	for item, err := range c.kv.Scan(kvstore.Renderings, kvstore.Range{To: binary.BigEndian.AppendUint32(nil, last+1)}) {
		if err != nil {
			return err
		}
		batch.Delete(kvstore.Renderings, bytes.Clone(item.Key))
	}
	return nil
}
