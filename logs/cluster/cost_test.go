package cluster

import (
	"encoding/binary"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
	"github.com/larder-cdn/larder/kvstore"
)

func TestCost(t *testing.T) {
	words := []string{"{", "}", "[", "]", ":", ",", `"entries":[`, `"e30=",`, `"packs":[`, `{"key":"a","size":1},`, `{"hash":"a","size":5,"forms":[{"coding":0,"length":5}]},`, `"contents":[`, `{"coding":0,"length":0},`, "\"", "1", "\n", `{"a":`, "[["}
	cost.Check(t,
		cost.Parser{Name: "commit", Parse: func(data []byte) { _, _ = decodeCommit(3, data) }, Seeds: []string{`{"format":1,"number":3,"epoch":1,"nonce":"n","entries":["e30="],"packs":[]}`}, Words: words, MaxMilliseconds: 5, MaxKiB: 500},
		cost.Parser{Name: "pack", Parse: func(data []byte) {
			_ = unpack(data, func(packContent, []kvstore.Coded) error { return nil }, func(kvstore.Hash, []byte) error { return nil })
		}, Wrap: func(text string) []byte {
			return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), "hello"...)
		}, Seeds: []string{`{"format":1,"contents":[{"hash":"` + kvstore.Sum([]byte("hello")).String() + `","size":5,"forms":[{"coding":0,"length":5}]}]}`}, Words: words, MaxMilliseconds: 5, MaxKiB: 500},
	)
}
