package coding

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// TestDelta tests that deltas decode to their content, are small, and are the same each time.
func TestDelta(t *testing.T) {
	dictionary := script(200_000)
	changed := bytes.Clone(dictionary)
	copy(changed[100_000:], "changed")
	for _, tt := range []struct {
		name            string
		dictionary, src []byte
		most            int
	}{
		{"equal", dictionary, dictionary, 100},
		{"a change", dictionary, changed, 200},
		{"a byte", []byte("x"), []byte("x"), 100},
		{"moved by a megabyte", append(script(1<<20), noise(50_000)...), noise(50_000), 100},
		{"unrelated", noise(100), dictionary, 200_000},
	} {
		delta, err := EncodeDelta(tt.dictionary, tt.src)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if len(delta) > tt.most {
			t.Errorf("%s: %d bytes became %d, want %d at most", tt.name, len(tt.src), len(delta), tt.most)
		}
		if got, err := DecodeDelta(tt.dictionary, delta, int64(len(tt.src))); err != nil || !bytes.Equal(got, tt.src) {
			t.Errorf("%s: decodes to something else, or %v", tt.name, err)
		}
		if again, err := EncodeDelta(tt.dictionary, tt.src); err != nil || !bytes.Equal(again, delta) {
			t.Errorf("%s: other bytes the second time, or %v", tt.name, err)
		}
	}
}

// TestDeltaHeader tests the 40 bytes that RFC 9842 §5 puts before the frame.
func TestDeltaHeader(t *testing.T) {
	delta, err := EncodeDelta([]byte("abc"), []byte("abcabc"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "5e2a4d1820000000" + "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got := hex.EncodeToString(delta[:40]); got != want {
		t.Errorf("the header is %s, want %s", got, want)
	}
	if got := hex.EncodeToString(delta[40:44]); got != "28b52ffd" {
		t.Errorf("the frame begins with %s", got)
	}
}

// TestDeltaRefuses tests that damaged deltas, wrong dictionaries and wrong sizes are errors.
func TestDeltaRefuses(t *testing.T) {
	dictionary, src := script(50_000), script(60_000)
	delta, err := EncodeDelta(dictionary, src)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(delta)
	flipped[len(flipped)/2] ^= 0x10
	other := bytes.Clone(dictionary)
	other[0]++
	for _, tt := range []struct {
		name              string
		dictionary, delta []byte
		size              int64
	}{
		{"nothing", dictionary, nil, 60_000},
		{"header only", dictionary, delta[:40], 60_000},
		{"truncated", dictionary, delta[:len(delta)-1], 60_000},
		{"bit flipped", dictionary, flipped, 60_000},
		{"trailing garbage", dictionary, append(bytes.Clone(delta), "garbage"...), 60_000},
		{"another dictionary", other, delta, 60_000},
		{"a byte too many", dictionary, delta, 59_999},
		{"a byte too few", dictionary, delta, 60_001},
	} {
		if got, err := DecodeDelta(tt.dictionary, tt.delta, tt.size); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %d bytes, error %v; want ErrCorrupt", tt.name, len(got), err)
		}
	}
	for _, size := range []int{0, MaxDictionary + 1} {
		if _, err := EncodeDelta(make([]byte, size), src); err == nil {
			t.Errorf("a dictionary of %d bytes is accepted", size)
		}
		if _, err := EncodeDelta(dictionary, make([]byte, size)); err == nil {
			t.Errorf("a content of %d bytes is accepted", size)
		}
	}
}

// FuzzDecodeDelta looks for deltas that take more memory than the content, or panic.
func FuzzDecodeDelta(f *testing.F) {
	delta, err := EncodeDelta([]byte("abc"), []byte("abcabc"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("abc"), delta, int64(6))
	f.Fuzz(func(t *testing.T, dictionary, delta []byte, size int64) {
		got, err := DecodeDelta(dictionary, delta, size%(1<<16))
		if err == nil && int64(len(got)) != size%(1<<16) {
			t.Errorf("%d bytes instead of %d", len(got), size%(1<<16))
		}
	})
}
