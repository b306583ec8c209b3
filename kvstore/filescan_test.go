package kvstore

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/batchrepr"
)

var scannedRows = []Namespace{Meta, Versions, Files}

func scanFolder(t *testing.T, files folder, mark []byte) *FileScan {
	t.Helper()
	s, err := ScanFiles(t.Context(), "store", t.TempDir(), marked(files.disk(t, mark)), scannedRows, func(_, _ int64) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(s.scratch), "*")); err != nil || len(left) > 0 {
			t.Errorf("the scan left %q behind, %v", left, err)
		}
	})
	return s
}

// wantScanned fails unless a scan has the contents and rows of all releases, but for those that may be lost.
func wantScanned(t *testing.T, what string, s *FileScan, releases int, mayLack func(span) bool) {
	t.Helper()
	for n := range releases {
		keys := map[string]span{release(n): {ns: Versions, key: release(n)}}
		for i := range filesOf(n) {
			identity := fileOf(n, i)
			h := Sum(identity)
			key := string(Key(release(n), fmt.Sprint(i)))
			keys[key] = span{ns: Files, key: key}
			if mayLack(span{ns: Contents, key: string(h[:])}) {
				continue
			}
			_, found, err := s.Content(t.Context(), h, maxBatch)
			if err != nil {
				t.Errorf("%s: file %d of release %d: %v", what, i, n, err)
			}
			for _, c := range found {
				if got, ok := decodeAs(h, c.Coding, c.Bytes, maxBatch); !ok || !bytes.Equal(got, identity) {
					t.Errorf("%s: file %d of release %d has other bytes in %s", what, i, n, c.Coding)
				}
			}
		}
		for key, row := range keys {
			if found := slices.Collect(s.Values(row.ns, []byte(key))); len(found) == 0 && !mayLack(row) {
				t.Errorf("%s: row %q is missing", what, key)
			}
		}
	}
}

// Without the files that only say which others count, nothing is missing.
func TestScanWithoutIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	of := newSample(t)
	never := func(span) bool { return false }
	for name := range of.now {
		if isImmutable(name) || strings.HasSuffix(name, ".log") {
			continue
		}
		for _, withMark := range []bool{true, false} {
			mark := of.mark
			if !withMark {
				mark = nil
			}
			damaged := map[string]folder{"missing": of.now.with(name, nil)}
			if content := of.now[name]; len(content) > 0 {
				damaged["flipped"] = of.now.with(name, flip(content, len(content)/2, 3))
				damaged["cut"] = of.now.with(name, content[:len(content)/2])
			}
			for how, files := range damaged {
				s := scanFolder(t, files, mark)
				wantScanned(t, name+" "+how, s, of.releases, never)
				if len(s.Gaps()) > 0 {
					t.Errorf("%s %s: %v", name, how, s.Gaps())
				}
				rows := 0
				for row, err := range s.Rows(t.Context(), Versions) {
					if err != nil {
						t.Errorf("%s %s: %q: %v", name, how, row.Key, err)
					}
					rows++
				}
				if rows != of.releases {
					t.Errorf("%s %s: %d rows count, want %d", name, how, rows, of.releases)
				}
			}
		}
	}
}

// A span is where a row or a content is in a file: in which block, or in which record.
type span struct {
	ns           Namespace
	key          string // of a content its hash
	file         string
	offset, ends int64
}

// spans returns where everything is in the files of a store that is sound.
func (f folder) spans(t *testing.T) (all []span) {
	t.Helper()
	s := scanFolder(t, f, nil)
	for number, name := range s.files {
		file, err := s.fs.Open("store/" + name)
		if err != nil {
			t.Fatal(err)
		}
		r := &fileReader{File: file, scan: s, number: number, name: name, size: int64(len(f[name]))}
		add := func(key []byte, offset, ends int64) {
			if ns := Namespace(key[0]); ns != Blobs && ns != Contents {
				all = append(all, span{ns, string(key[1:]), name, offset, ends})
			} else if ns == Blobs {
				all = append(all, span{Contents, string(key[1 : 1+len(Hash{})]), name, offset, ends})
			}
		}
		switch filepath.Ext(name) {
		case ".sst":
			for _, h := range r.blocksInIndex() {
				offset, ends := int64(h.Offset), int64(h.Offset+h.Length)+5
				b, err := r.read(offset, ends-offset)
				if err != nil {
					t.Fatal(err)
				}
				rows, ok := decodeRows(b)
				if !ok {
					t.Fatalf("%s: the block at %d is none of rows", name, offset)
				}
				for _, row := range rows {
					if row.at.kind == inTable {
						add(row.key, offset, ends)
					}
				}
			}
		case ".log":
			logSpans(t, f[name], uint64(fileNumber(name)), add)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for key, where := range s.scanIndex([]byte{'v'}) {
		if where[0] != inBlobFile {
			continue
		}
		at := decodeLocation(where)
		for name := range s.scanIndex([]byte{'h'}) {
			if bytes.HasSuffix(name, key[1:]) {
				all = append(all, span{Contents, string(name[1 : 1+len(Hash{})]), s.files[at.file], at.offset, at.offset + at.length})
			}
		}
		if h := Hash(key[1:]); true { // it may be an identity
			all = append(all, span{Contents, string(h[:]), s.files[at.file], at.offset, at.offset + at.length})
		}
	}
	return all
}

func logSpans(t *testing.T, content []byte, log uint64, add func(key []byte, offset, ends int64)) {
	t.Helper()
	c := newChunkReader(bytes.NewReader(content), log)
	var record []byte
	var begin int64
	for {
		before := c.offset()
		part, err := c.next()
		if err == io.EOF {
			return
		}
		if err != nil {
			return // an older log, that this one was written over
		}
		if part.first {
			record, begin = nil, before
		}
		record = append(record, part.payload...)
		if !part.last {
			continue
		}
		for changes := batchrepr.Read(record); ; {
			_, key, _, ok, err := changes.Next()
			if !ok || err != nil {
				break
			}
			if len(key) > 0 {
				add(key, begin, c.offset())
			}
		}
	}
}

// Damage to a table, a blob file or a log loses the block or the record that it hits, and nothing else. LARDER_TEST_SWEEP says
// at how many positions.
func TestScanOfDamagedFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	of := newSample(t)
	spans := of.now.spans(t)
	rounds := 3
	if sweeps {
		rounds = positions / 4
	}
	rng := rand.New(rand.NewPCG(32, 1))
	for _, kind := range []string{".sst", ".blob", ".log"} {
		for _, how := range []string{"a bit", "a page is zero", "cut short"} {
			for range rounds {
				name := of.pick(rng, kind)
				content := bytes.Clone(of.now[name])
				at := rng.IntN(len(content))
				from, to := at, at+1
				switch how {
				case "a bit":
					content[at] ^= 1 << rng.UintN(8)
				case "a page is zero":
					from, to = at&^4095, min(at&^4095+4096, len(content))
					clear(content[from:to])
				case "cut short":
					to = len(content)
					content = content[:at]
				}
				what := fmt.Sprintf("%s, %s, bytes %d to %d", name, how, from, to)
				s := scanFolder(t, of.now.with(name, content), of.mark)
				lost := 0
				wantScanned(t, what, s, of.releases, func(want span) bool {
					hit := true
					for _, at := range spans {
						if at.ns == want.ns && at.key == want.key && !(at.file == name && at.offset < int64(to) && at.ends > int64(from)) {
							hit = false
						}
					}
					if hit {
						lost++
					}
					return hit
				})
				if lost > 0 && len(s.Gaps()) == 0 {
					t.Errorf("%s: %d rows and contents are lost, and no gap says where", what, lost)
				}
			}
		}
	}
}
