package git

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/semaphore"
)

// A packed is a pack in the making, by the bytes (gitformat-pack).
type packed struct {
	bytes.Buffer

	at []int64 // where the objects begin
}

func newPacked(count uint32) *packed {
	p := &packed{}
	p.WriteString("PACK")
	binary.Write(p, binary.BigEndian, []uint32{2, count}) //nolint:errcheck // a buffer
	return p
}

// object adds an object that says to have size bytes.
func (p *packed) object(kind plumbing.ObjectType, size int, before, data []byte) {
	p.at = append(p.at, int64(p.Len()))
	b := byte(kind)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(b | 0x80)
		b = byte(size & 127)
	}
	p.WriteByte(b)
	p.Write(before)
	z := zlib.NewWriter(p)
	z.Write(data) //nolint:errcheck // a buffer
	z.Close()
}

func (p *packed) delta(base int, delta []byte) {
	offset := int64(p.Len()) - p.at[base]
	coded := []byte{byte(offset & 127)}
	for offset >>= 7; offset > 0; offset >>= 7 {
		offset--
		coded = append([]byte{byte(offset&127) | 0x80}, coded...)
	}
	p.object(plumbing.OFSDeltaObject, len(delta), coded, delta)
}

func (p *packed) end() []byte {
	sum := sha1.Sum(p.Bytes())
	p.Write(sum[:])
	return p.Bytes()
}

func uvarints(ns ...uint64) (out []byte) {
	for _, n := range ns {
		out = binary.AppendUvarint(out, n)
	}
	return out
}

func TestPacksOfStrangers(t *testing.T) {
	blob := []byte("hello, world")
	simple := func(change func(*packed)) []byte {
		p := newPacked(2)
		p.object(plumbing.BlobObject, len(blob), nil, blob)
		change(p)
		return p.end()
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"sound":              {simple(func(p *packed) { p.delta(0, append(uvarints(12, 5), 0x90, 5)) }), ""},
		"empty":              {nil, "malformed"},
		"a web page":         {[]byte("<html>"), "malformed"},
		"too many objects":   {newPacked(1 << 31).end(), "2147483648 objects"},
		"fewer than it says": {newPacked(3).end(), "malformed"},
		"a large object":     {simple(func(p *packed) { p.object(plumbing.BlobObject, 1<<30, nil, blob) }), "an object of 1073741824 bytes"},
		"more than it says":  {simple(func(p *packed) { p.object(plumbing.BlobObject, 3, nil, bytes.Repeat(blob, 1000)) }), "malformed"},
		"less than it says":  {simple(func(p *packed) { p.object(plumbing.BlobObject, 300, nil, blob) }), "malformed"},
		"a delta bomb":       {simple(func(p *packed) { p.delta(0, append(uvarints(12, 1<<40), 0x90, 5)) }), "of over"},
		"a smaller bomb":     {simple(func(p *packed) { p.delta(0, append(uvarints(12, 200<<20), 0x90, 5)) }), "of over"},
		"no sizes":           {simple(func(p *packed) { p.delta(0, []byte{0xff, 0xff}) }), "malformed"},
		"a wrong delta":      {simple(func(p *packed) { p.delta(0, append(uvarints(12, 5), 0x90, 50)) }), "malformed"},
		"built on a hash":    {simple(func(p *packed) { p.object(plumbing.REFDeltaObject, 3, make([]byte, 20), []byte("abc")) }), "by their hashes"},
		"built on nothing":   {simple(func(p *packed) { p.object(plumbing.OFSDeltaObject, 3, []byte{3}, []byte("abc")) }), "or on none"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := receivePack(t.Context(), bytes.NewReader(tt.data), t.TempDir(), semaphore.NewWeighted(1))
			if err == nil {
				p.close()
			}
			var refused *RefusedError
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v", err)
			}
		})
	}
	deep := newPacked(maxDepth + 2)
	deep.object(plumbing.BlobObject, len(blob), nil, blob)
	for i := range maxDepth + 1 {
		deep.delta(i, append(uvarints(12, 12), 0x90, 12))
	}
	if _, err := receivePack(t.Context(), bytes.NewReader(deep.end()), t.TempDir(), semaphore.NewWeighted(1)); err == nil || !strings.Contains(err.Error(), "more than 250 others") {
		t.Errorf("a chain: %v", err)
	}
}

// A pack leaves no file behind, whatever becomes of it.
func TestPackFiles(t *testing.T) {
	dir := t.TempDir()
	p := newPacked(1)
	p.object(plumbing.BlobObject, 1, nil, []byte("a"))
	for _, data := range [][]byte{p.end(), []byte("PACK")} {
		if p, err := receivePack(t.Context(), bytes.NewReader(data), dir, semaphore.NewWeighted(1)); err == nil {
			p.close()
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func FuzzPack(f *testing.F) {
	p := newPacked(2)
	p.object(plumbing.BlobObject, 12, nil, []byte("hello, world"))
	p.delta(0, append(uvarints(12, 5), 0x90, 5))
	f.Add(p.end())
	f.Add([]byte("PACK"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := receivePack(t.Context(), bytes.NewReader(data), dir, semaphore.NewWeighted(1))
		if err == nil {
			p.close()
		}
	})
}

func FuzzReferences(f *testing.F) {
	f.Add([]byte("000eversion 2\n000cls-refs\n0000"), []byte("0000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000"), []byte("0006\x01a0000"))
	f.Fuzz(func(t *testing.T, advertisement, pack []byte) {
		s := new(session)
		if err := s.readAdvertisement(bytes.NewReader(advertisement)); err != nil {
			return
		}
		if data, err := s.findPack(bytes.NewReader(pack)); err == nil {
			if n, _ := io.Copy(io.Discard, data); n > int64(len(pack)) {
				t.Errorf("%d bytes of %d", n, len(pack))
			}
		}
	})
}

func FuzzTreeEntry(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("x", 20)))
	f.Fuzz(func(t *testing.T, data []byte) {
		entry, rest, err := parseTreeEntry(data)
		if err == nil && (entry.Name == "" || len(rest) >= len(data) || strings.ContainsRune(entry.Name, 0)) {
			t.Errorf("%q is %+v", data, entry)
		}
	})
}

func FuzzPointer(f *testing.F) {
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"))
	f.Add([]byte("version https://hawser.github.com/spec/v1\r\nsize 1\r\noid sha256:\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if size, ok := parsePointer(data); size < 0 || ok && !bytes.HasPrefix(data, []byte("version https://")) {
			t.Errorf("%q: %d, %v", data, size, ok)
		}
	})
}

func FuzzVersions(f *testing.F) {
	f.Add("v1.0", "1.0")
	f.Add("v", "vv1")
	f.Fuzz(func(t *testing.T, one, two string) {
		tags, err := tagsByVersion(map[string]string{one: "a", two: "b"})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, tag := range tags {
			if seen[tag.Version] {
				t.Errorf("%q and %q: twice %q", one, two, tag.Version)
			}
			seen[tag.Version] = true
			if tag.Name != one && tag.Name != two || tag.Version != tag.Name && "v"+tag.Version != tag.Name {
				t.Errorf("%+v", tag)
			}
		}
	})
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		tags string
		want string
	}{
		{"v1.0 1.0", "1.0=1.0!"},
		{"v1.0", "1.0=v1.0"},
		{"1.0", "1.0=1.0"},
		{"vv1", "vv1=vv1"},
		{"v1 vv1", "1=v1 vv1=vv1"},
		{"v", "v=v"},
		{"vanilla V1", "V1=V1 vanilla=vanilla"},
	} {
		commits := map[string]string{}
		for name := range strings.FieldsSeq(tt.tags) {
			commits[name] = "x"
		}
		tags, err := tagsByVersion(commits)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tag := range tags {
			s := tag.Version + "=" + tag.Name
			if tag.Note != "" {
				s += "!"
			}
			got = append(got, s)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %s", tt.tags, got, tt.want)
		}
	}
	many := map[string]string{}
	for i := range maxTags + 1 {
		many[strings.Repeat("a", i%100)+string(rune('0'+i))] = "x"
	}
	if _, err := tagsByVersion(many); err == nil {
		t.Error("so many tags")
	}
}
