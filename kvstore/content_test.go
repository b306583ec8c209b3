package kvstore

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// put stores identity bytes as they are.
func put(t *testing.T, s *Store, identity []byte) Hash {
	t.Helper()
	h := Sum(identity)
	if err := s.PutContent(h, int64(len(identity)), false, []Coded{{coding.Identity, identity}}); err != nil {
		t.Fatal(err)
	}
	return h
}

func encode(t *testing.T, c coding.Coding, e coding.Effort, identity []byte) Coded {
	t.Helper()
	coded, err := coding.Encode(c, e, identity)
	if err != nil {
		t.Fatal(err)
	}
	return Coded{c, coded}
}

func TestContentInSeveralCodings(t *testing.T) {
	s := inMemory(t)
	identity := bytes.Repeat([]byte("a release becomes blobs; "), 1000)
	h := Sum(identity)
	br, gz := encode(t, coding.Brotli, coding.Quick, identity), encode(t, coding.Gzip, coding.Quick, identity)
	if err := s.PutContent(h, int64(len(identity)), true, []Coded{gz, br}); err != nil {
		t.Fatal(err)
	}
	content, err := s.Content(h)
	if err != nil {
		t.Fatal(err)
	}
	want := Content{Size: int64(len(identity)), Squeezed: true, Representations: []Representation{
		{coding.Brotli, int64(len(br.Bytes)), Sum(br.Bytes)},
		{coding.Gzip, int64(len(gz.Bytes)), Sum(gz.Bytes)},
	}}
	if !reflect.DeepEqual(content, want) {
		t.Errorf("Content = %+v, want %+v", content, want)
	}
	for i, c := range []Coded{br, gz} {
		r, got, err := s.Coded(h, c.Coding)
		if err != nil || r != want.Representations[i] || !bytes.Equal(got, c.Bytes) {
			t.Errorf("Coded(%s) = %+v, %d bytes, %v", c.Coding, r, len(got), err)
		}
	}
	if got, err := s.Identity(h); err != nil || !bytes.Equal(got, identity) {
		t.Errorf("Identity: %d bytes, %v", len(got), err)
	}
	if _, _, err := s.Coded(h, coding.Identity); !errors.Is(err, ErrNotFound) {
		t.Errorf("Coded in a coding it isn't stored in: %v", err)
	}
	for _, err := range []error{second(s.Content(Hash{})), second(s.Identity(Hash{}))} {
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), Hash{}.String()) {
			t.Errorf("of a content that isn't stored: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestPutContentKeepsTheSmaller(t *testing.T) {
	type state struct{ identity, br, gzip int } // lengths
	s := inMemory(t)
	h := Sum(nil)
	for i, step := range []struct {
		codings  state
		squeezed bool
		want     state
		done     bool
	}{
		{codings: state{br: 300, gzip: 400}, want: state{br: 300, gzip: 400}},
		{codings: state{br: 300, gzip: 400}, want: state{br: 300, gzip: 400}},
		{codings: state{br: 310, gzip: 390}, want: state{br: 300, gzip: 390}},
		{codings: state{br: 250}, squeezed: true, want: state{br: 250, gzip: 390}, done: true},
		{codings: state{br: 260, gzip: 395}, want: state{br: 250, gzip: 390}, done: true},
		{codings: state{}, want: state{br: 250, gzip: 390}, done: true},
		{codings: state{identity: 1000, gzip: 240}, want: state{identity: 1000, br: 250, gzip: 240}, done: true},
	} {
		var coded []Coded
		for c, n := range map[coding.Coding]int{coding.Identity: step.codings.identity, coding.Brotli: step.codings.br, coding.Gzip: step.codings.gzip} {
			if n > 0 {
				coded = append(coded, Coded{c, noise(uint64(i), n)})
			}
		}
		if err := s.PutContent(h, 1000, step.squeezed, coded); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		content, err := s.Content(h)
		if err != nil {
			t.Fatal(err)
		}
		var got state
		for _, r := range content.Representations {
			_, coded, err := s.Coded(h, r.Coding)
			if err != nil || int64(len(coded)) != r.Length {
				t.Errorf("step %d: %s has %d bytes, %v", i, r.Coding, len(coded), err)
			}
			switch r.Coding {
			case coding.Identity:
				got.identity = len(coded)
			case coding.Brotli:
				got.br = len(coded)
			case coding.Gzip:
				got.gzip = len(coded)
			}
		}
		if got != step.want || content.Squeezed != step.done {
			t.Errorf("step %d: got %+v, squeezed %v; want %+v, %v", i, got, content.Squeezed, step.want, step.done)
		}
	}
}

func TestPutContentRefuses(t *testing.T) {
	s := inMemory(t)
	if err := s.PutContent(Hash{}, 1, false, nil); err == nil || !strings.Contains(err.Error(), "needs a coding") {
		t.Errorf("without a coding: %v", err)
	}
	h := put(t, s, []byte("abc"))
	if err := s.PutContent(h, 4, false, []Coded{{coding.Identity, nil}}); err == nil || !strings.Contains(err.Error(), "can't have 4") {
		t.Errorf("with another size: %v", err)
	}
	if empty := put(t, s, nil); second(s.Identity(empty)) != nil {
		t.Error("empty content can't be read")
	}
}

func TestPutContentAgainWritesNothing(t *testing.T) {
	s := inMemory(t)
	put(t, s, noise(1, 100_000))
	before := pebbleOf(s).Metrics().WAL.BytesIn
	put(t, s, noise(1, 100_000))
	if after := pebbleOf(s).Metrics().WAL.BytesIn; after != before {
		t.Errorf("the log grew by %d bytes", after-before)
	}
}

// Who knows a representation reads that one or none.
func TestRead(t *testing.T) {
	s := inMemory(t)
	h := Sum(nil)
	first, second := noise(1, 5000), noise(2, 4000)
	as := func(c coding.Coding, coded []byte) Representation {
		return Representation{c, int64(len(coded)), Sum(coded)}
	}
	read := func(name string, r Representation, want []byte) {
		t.Helper()
		got, err := s.Read(h, r)
		if want == nil && (!errors.Is(err, ErrNotFound) || got != nil) || want != nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	read("not stored", as(coding.Brotli, first), nil)
	for _, coded := range [][]byte{first, second} {
		if err := s.PutContent(h, 9000, false, []Coded{{coding.Brotli, coded}}); err != nil {
			t.Fatal(err)
		}
		read("stored", as(coding.Brotli, coded), coded)
		read("in no such coding", as(coding.Gzip, coded), nil)
		read("of another sum", Representation{coding.Brotli, int64(len(coded)), Hash{}}, nil)
		read("of another length", Representation{coding.Brotli, 1, Sum(coded)}, nil)
	}
	read("replaced", as(coding.Brotli, first), nil)
}

// A coding is replaced while others read it.
func TestReadersNeverSeeHalfAReplacement(t *testing.T) {
	s := inMemory(t)
	h := Sum(nil)
	replace := func(i int) {
		// Two codings of equal length: what is read of both must match its row.
		b := noise(uint64(i), 5000-i)
		if err := s.PutContent(h, 9000, false, []Coded{{coding.Brotli, b}, {coding.Gzip, b}}); err != nil {
			t.Error(err)
		}
	}
	replace(0)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
		wg.Go(func() {
			for {
				if _, _, err := s.Coded(h, c); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 500 {
		replace(i)
	}
	close(done)
	wg.Wait()
}

func TestDamageIsFound(t *testing.T) {
	identity := bytes.Repeat([]byte("content "), 1000)
	h := Sum(identity)
	br := encode(t, coding.Brotli, coding.Quick, identity)
	flipped := bytes.Clone(br.Bytes)
	flipped[len(flipped)/2] ^= 1
	other := encode(t, coding.Brotli, coding.Quick, bytes.Repeat([]byte("another "), 1000))
	row := func(r Representation) []byte {
		return encodeContent(Content{Size: int64(len(identity)), Representations: []Representation{r}})
	}
	for _, test := range []struct {
		name       string
		ns         Namespace
		key, value []byte
		message    string
	}{
		{"flipped bit", Blobs, blobKey(h, coding.Brotli), flipped, "checksum"},
		{"cut off", Blobs, blobKey(h, coding.Brotli), br.Bytes[:10], "checksum"},
		{"row of another", Contents, h[:], row(Representation{coding.Brotli, int64(len(br.Bytes)), Hash{}}), "checksum"},
		{"row that says gzip", Contents, h[:], row(Representation{coding.Gzip, int64(len(br.Bytes)), Sum(br.Bytes)}), "lacks its bytes in gzip"},
		{"row cut off", Contents, h[:], []byte{rowFormat, 0}, "malformed"},
		{"row of the future", Contents, h[:], []byte{rowFormat + 1, 0}, "doesn't know"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := inMemory(t)
			if err := s.PutContent(h, int64(len(identity)), false, []Coded{br}); err != nil {
				t.Fatal(err)
			}
			set(t, s, test.ns, string(test.key), string(test.value))
			_, err := s.Identity(h)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), test.message) || !strings.Contains(err.Error(), h.String()) {
				t.Errorf("Identity: %v", err)
			}
			r := Representation{coding.Brotli, int64(len(br.Bytes)), Sum(br.Bytes)}
			switch got, err := s.Read(h, r); {
			case test.ns == Contents: // who read the row before it was damaged reads on
				if err != nil || !bytes.Equal(got, br.Bytes) {
					t.Errorf("Read: %d bytes, %v", len(got), err)
				}
			case !errors.Is(err, ErrCorrupt) || got != nil || !strings.Contains(err.Error(), test.message) || !strings.Contains(err.Error(), h.String()):
				t.Errorf("Read: %d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("other content", func(t *testing.T) {
		s := inMemory(t)
		if err := s.PutContent(h, int64(len(identity)), false, []Coded{other}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Identity(h); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "decodes to other bytes") {
			t.Errorf("Identity: %v", err)
		}
	})
	t.Run("blob gone", func(t *testing.T) {
		s := inMemory(t)
		put(t, s, identity)
		if err := pebbleOf(s).Delete(Blobs.physical(blobKey(h, coding.Identity)), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Identity(h); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "lacks its bytes") {
			t.Errorf("Identity: %v", err)
		}
	})
}

func TestParseHash(t *testing.T) {
	h := Sum([]byte("x"))
	if got, err := ParseHash(h.String()); got != h || err != nil {
		t.Errorf("ParseHash(%s) = %s, %v", h, got, err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), h.String() + "0", h.String()[:63]} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("ParseHash(%q) succeeded", bad)
		}
	}
}

func FuzzDecodeContent(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{rowFormat, 0, 0, 0})
	f.Add(encodeContent(Content{Representations: []Representation{{}}}))
	f.Add(encodeContent(Content{Size: 1 << 40, Squeezed: true, Representations: []Representation{
		{coding.Brotli, 100, Sum([]byte("br"))}, {coding.Gzip, 1 << 33, Sum([]byte("gzip"))},
	}}))
	f.Fuzz(func(t *testing.T, row []byte) {
		c, err := decodeContent(row)
		if err != nil {
			if !reflect.DeepEqual(c, Content{}) {
				t.Errorf("an error with %+v", c)
			}
			return
		}
		if len(c.Representations) == 0 || c.Size < 0 {
			t.Errorf("accepted %+v", c)
		}
		if again := encodeContent(c); !bytes.Equal(again, row) {
			t.Errorf("%x decodes to %+v, which encodes to %x", row, c, again)
		}
	})
}
