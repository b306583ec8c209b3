package git

import (
	"bytes"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

func TestCost(t *testing.T) {
	dir := t.TempDir()
	cost.Check(t,
		cost.Parser{Name: "pack", Parse: func(data []byte) {
			if p, err := receivePack(t.Context(), bytes.NewReader(data), dir, semaphore.NewWeighted(1)); err == nil {
				p.close()
			}
		}, Wrap: func(text string) []byte {
			p := newPacked(uint32(1 + len(text)/64))
			p.object(plumbing.BlobObject, len(text), nil, []byte(text))
			for range len(text) / 64 { // each copies all of the object before it
				p.delta(0, append(uvarints(uint64(len(text)), 5), 0x90, 5))
			}
			return p.end()
		}, Seeds: []string{"a"}, Words: []string{"a", "b", "\x00"}, Size: 4 << 10, MaxMilliseconds: 60, MaxKiB: 5000},
		cost.Parser{Name: "tree", Parse: func(data []byte) {
			for len(data) > 0 {
				_, rest, err := parseTreeEntry(data)
				if err != nil {
					return
				}
				data = rest
			}
		}, Seeds: []string{"100644 a\x00aaaaaaaaaaaaaaaaaaaa"}, Words: []string{"100644 a\x00", "40000 ", "a", "\x00", "/", " ", "aaaaaaaaaaaaaaaaaaaa"}, MaxMilliseconds: 5, MaxKiB: 500},
		cost.Parser{Name: "large file's pointer", Parse: func(data []byte) { parsePointer(data) }, Seeds: []string{"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"},
			Words: []string{"\n", "size ", "1", "oid ", "a", "\r\n"}, MaxMilliseconds: 5, MaxKiB: 500},
	)
}
