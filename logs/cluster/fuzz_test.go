package cluster

import (
	"encoding/binary"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

func FuzzCommit(f *testing.F) {
	c := Commit{Number: 3, Epoch: 1, Nonce: "n", After: logs.Checkpoint{Size: 1}, Entries: [][]byte{[]byte("{}")},
		Packs: []PackName{{Key: packPrefix(1) + "x", Size: 5}}}
	data, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"number":3,"epoch":1,"nonce":"n","before":{"size":-1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeCommit(3, data)
		if err != nil {
			return
		}
		again, err := c.encode()
		if err == nil {
			_, err = decodeCommit(3, again)
		}
		if err != nil {
			t.Errorf("what was read cannot be written and read again: %v", err)
		}
	})
}

func FuzzUnpack(f *testing.F) {
	index := `{"format":1,"contents":[{"hash":"` + kvstore.Sum([]byte("hello")).String() + `","size":5,"forms":[{"coding":0,"length":5}]}]}`
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(index))), index+"hello"...))
	index = `{"format":1,"contents":[],"deltas":[{"hash":"` + kvstore.Sum([]byte("hello")).String() + `","length":5}]}`
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(index))), index+"delta"...))
	f.Add([]byte{0, 0, 0, 9, '{'})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, pack []byte) {
		unpack(pack, func(c packContent, coded []kvstore.Coded) error { //nolint:errcheck // of most packs there is an error
			if c.Size == 0 || len(coded) == 0 {
				return nil
			}
			for _, form := range coded {
				if form.Coding == 0 && kvstore.Sum(form.Bytes) != c.Hash {
					t.Errorf("content %s has other bytes", c.Hash)
				}
			}
			return nil
		}, func(kvstore.Hash, []byte) error { return nil })
	})
}
