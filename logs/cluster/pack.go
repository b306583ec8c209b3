package cluster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// PackFormat is the version of the packs' index that this package writes.
const PackFormat = 1

// Limits of packs. One has a content that is larger than fullPack alone.
const (
	maxPack      = 1 << 30
	maxPackIndex = 64 << 20
	maxContent   = 256 << 20
	fullPack     = 8 << 20
)

// packPrefix returns the prefix of the keys of the packs that the leader of an epoch creates. A leader names no pack of another epoch in a commit.
func packPrefix(epoch int64) string { return fmt.Sprintf("pack/%020d/", epoch) }

// A packIndex begins a pack, after its length in four bytes; the coded bytes follow in its order, then the deltas, at most [kvstore.MaxDeltas] of a content.
type packIndex struct {
	Format   int           `json:"format"`
	Contents []packContent `json:"contents"`
	Deltas   []packDelta   `json:"deltas,omitempty"` // a node that does not know them ignores them
}

type packContent struct {
	Hash     kvstore.Hash `json:"hash"`
	Size     int64        `json:"size"`
	Squeezed bool         `json:"squeezed,omitempty"`
	Forms    []packForm   `json:"forms"`
}

type packForm struct {
	Coding coding.Coding `json:"coding"`
	Length int64         `json:"length"`
}

// A packDelta is a delta of a content that the receiver has.
type packDelta struct {
	Hash   kvstore.Hash `json:"hash"`
	Length int64        `json:"length"`
}

// A packer puts contents and deltas of a store into packs.
type packer struct {
	store  *kvstore.Store
	index  packIndex
	body   []byte
	deltas []byte
	full   func(pack []byte) error // takes a pack that is full
}

// add adds a content to the pack, in all encodings that the store has. If the pack would be too large, it calls full with it first, and starts
// another.
func (p *packer) add(h kvstore.Hash) error {
	for {
		err := p.addOnce(h)
		if !errors.Is(err, errReplaced) {
			return err
		}
	}
}

// errReplaced says that a coding was replaced by a smaller one between two reads.
var errReplaced = errors.New("the content changes")

// addOnce does the work of add once. If an encoding is replaced by a smaller one meanwhile, it adds nothing, and the error is errReplaced.
func (p *packer) addOnce(h kvstore.Hash) error {
	content, err := p.store.Content(h)
	if err != nil {
		return err
	}
	if content.Size > maxContent {
		return fmt.Errorf("content %s has %d bytes, and a cluster takes %d at most", h, content.Size, maxContent)
	}
	c := packContent{Hash: h, Size: content.Size, Squeezed: content.Squeezed}
	var coded []byte
	for _, r := range content.Representations {
		data, err := p.store.Read(h, r)
		if errors.Is(err, kvstore.ErrNotFound) {
			return errReplaced
		}
		if err != nil {
			return err
		}
		coded = append(coded, data...)
		c.Forms = append(c.Forms, packForm{r.Coding, r.Length})
	}
	if err := p.makeRoom(len(coded)); err != nil {
		return err
	}
	p.index.Contents, p.body = append(p.index.Contents, c), append(p.body, coded...)
	return nil
}

// addDelta adds the delta of the content h against a dictionary to the pack. If the pack would be too large, or have too many deltas of h, it calls
// full with it first, and starts another.
func (p *packer) addDelta(h, dictionary kvstore.Hash) error {
	delta, err := p.store.FindDelta(h, dictionary)
	if err == nil {
		err = p.makeRoom(len(delta))
	}
	if last := len(p.index.Deltas) - kvstore.MaxDeltas; err == nil && last >= 0 && p.index.Deltas[last].Hash == h { // one was replaced while its content was packed
		err = p.flush()
	}
	if err != nil {
		return err
	}
	p.index.Deltas, p.deltas = append(p.index.Deltas, packDelta{h, int64(len(delta))}), append(p.deltas, delta...)
	return nil
}

// makeRoom calls flush if the pack would have more than fullPack bytes with length more.
func (p *packer) makeRoom(length int) error {
	if len(p.body)+len(p.deltas)+length > fullPack {
		return p.flush()
	}
	return nil
}

// flush completes the pack, calls full with its bytes and starts another, unless the pack is empty.
func (p *packer) flush() error {
	if len(p.index.Contents)+len(p.index.Deltas) == 0 {
		return nil
	}
	p.index.Format = PackFormat
	index, err := json.Marshal(p.index)
	if err != nil {
		return err
	}
	pack := binary.BigEndian.AppendUint32(nil, uint32(len(index)))
	pack = slices.Concat(pack, index, p.body, p.deltas)
	if len(pack) > maxPack {
		return fmt.Errorf("a content of %d bytes is too large for a cluster: a pack has at most %d", len(p.body), maxPack)
	}
	p.index, p.body, p.deltas = packIndex{}, nil, nil
	return p.full(pack)
}

// unpack reads a pack. It calls fn for each content, with encodings that it has decoded and that have the content's hash, and then takeDelta, unless
// it is nil, for each delta of a content h, which is not verified. The first error ends it. An unknown format is a [FormatError].
func unpack(pack []byte, fn func(c packContent, coded []kvstore.Coded) error, takeDelta func(h kvstore.Hash, delta []byte) error) error {
	if len(pack) < 4 {
		return errors.New("the pack is malformed: it has no index")
	}
	n := int64(binary.BigEndian.Uint32(pack))
	if pack = pack[4:]; n > int64(len(pack)) || n > maxPackIndex {
		return errors.New("the pack is malformed: its index is cut off")
	}
	var index packIndex
	if err := json.Unmarshal(pack[:n], &index); err != nil {
		return fmt.Errorf("the pack is malformed: %w", err)
	}
	if index.Format != PackFormat {
		return &FormatError{"a pack", index.Format}
	}
	rest := pack[n:]
	for _, c := range index.Contents {
		var coded []kvstore.Coded
		for _, f := range c.Forms {
			if f.Length < 0 || f.Length > int64(len(rest)) {
				return errors.New("the pack is malformed: its bytes are cut off")
			}
			form := kvstore.Coded{Coding: f.Coding, Bytes: rest[:f.Length:f.Length]}
			rest = rest[f.Length:]
			if err := verifyEncoding(c, form); err != nil {
				return err
			}
			coded = append(coded, form)
		}
		if len(coded) == 0 {
			return fmt.Errorf("the pack has content %s in no coding", c.Hash)
		}
		if err := fn(c, coded); err != nil {
			return err
		}
	}
	if takeDelta == nil {
		return nil
	}
	deltas := make(map[kvstore.Hash]int)
	for _, d := range index.Deltas {
		if deltas[d.Hash]++; deltas[d.Hash] > kvstore.MaxDeltas {
			return fmt.Errorf("the pack is malformed: it has over %d deltas of content %s", kvstore.MaxDeltas, d.Hash)
		}
		if d.Length < 0 || d.Length > int64(len(rest)) {
			return errors.New("the pack is malformed: its deltas are cut off")
		}
		if err := takeDelta(d.Hash, rest[:d.Length:d.Length]); err != nil {
			return err
		}
		rest = rest[d.Length:]
	}
	return nil
}

// storeDelta stores a delta of the content h from a pack, unless dictionaries are disabled. If it does not decode to the content, it is logged and
// skipped without an error.
func (n *Node) storeDelta(h kvstore.Hash, delta []byte) error {
	if !n.Dictionaries {
		return nil
	}
	_, err := n.Store.PutDelta(h, delta)
	if errors.Is(err, kvstore.ErrBadDelta) || errors.Is(err, kvstore.ErrCorrupt) {
		n.Logger.Warn("refused a delta between two versions of a file in the bucket", "content", h, "err", err)
		return nil
	}
	return err
}

// verifyEncoding returns an error unless an encoding decodes to the bytes of the content c: its size and its hash.
func verifyEncoding(c packContent, form kvstore.Coded) error {
	if c.Size < 0 || c.Size > maxContent {
		return fmt.Errorf("content %s has %d bytes by the pack", c.Hash, c.Size)
	}
	identity, err := coding.Decode(form.Coding, form.Bytes, c.Size)
	if err == nil && (int64(len(identity)) != c.Size || kvstore.Sum(identity) != c.Hash) {
		err = errors.New("it decodes to other bytes")
	}
	if err != nil {
		return fmt.Errorf("content %s in %v: %w", c.Hash, form.Coding, err)
	}
	return nil
}
