package rendering

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A cache has two generations of entries in the store. New entries go into the younger one; once that has half of the bytes that
// the cache may have, the older one is deleted and another begins. An entry of the older generation that is read moves to the younger one, so
// what is in use stays. A row's key is the generation (4 bytes, big endian) and the document's key.
type cache struct {
	store *kvstore.Store
	most  int64

	mu    sync.Mutex // held while rows are written
	state *generation
}

// A generation is the younger one.
type generation struct {
	number uint32
	bytes  int64 // of its values
}

// stateKey is the row that has number and bytes of the younger generation, in uvarints. It sorts after all others.
var stateKey = []byte{0xff, 's'}

// The first byte of a row's value says what follows.
const (
	storedResult  = 1 // a result in Brotli
	storedRefusal = 2 // why there is no result
)

func rowKey(generation uint32, key document.Key) []byte {
	return append(binary.BigEndian.AppendUint32(nil, generation), key[:]...)
}

// get returns the entry of a document. What cannot be read is rendered again.
func (c *cache) get(kind document.Kind, key document.Key) (entry, bool) {
	c.mu.Lock()
	number := c.current().number
	c.mu.Unlock()
	for _, g := range []uint32{number, number - 1} {
		value, err := c.store.Get(kvstore.Renderings, rowKey(g, key))
		if err != nil {
			continue
		}
		e, err := decode(kind, value)
		if err != nil {
			continue
		}
		if g != number {
			_ = c.write(key, value) // it stays where it is
		}
		return e, true
	}
	return entry{}, false
}

// current returns the younger generation; the caller holds mu.
func (c *cache) current() *generation {
	if c.state != nil {
		return c.state
	}
	c.state = &generation{number: 1}
	if value, err := c.store.Get(kvstore.Renderings, stateKey); err == nil {
		number, n := binary.Uvarint(value)
		size, m := binary.Uvarint(value[max(n, 0):])
		if n > 0 && m > 0 && number < 1<<31 && size < 1<<62 {
			c.state = &generation{uint32(number), int64(size)}
		}
	}
	return c.state
}

func (c *cache) put(key document.Key, e entry) error {
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

func decode(kind document.Kind, value []byte) (entry, error) {
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

// write stores a value in the younger generation.
func (c *cache) write(key document.Key, value []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *c.current()
	batch := c.store.NewBatch()
	defer batch.Close()
	if next.bytes+int64(len(value)) > c.most/2 {
		if err := c.remove(batch, next.number-1); err != nil {
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

// remove deletes a generation and those before it.
func (c *cache) remove(batch *kvstore.Batch, last uint32) error {
	for item, err := range c.store.Scan(kvstore.Renderings, kvstore.Range{To: binary.BigEndian.AppendUint32(nil, last+1)}) {
		if err != nil {
			return err
		}
		batch.Delete(kvstore.Renderings, bytes.Clone(item.Key))
	}
	return nil
}
