package coding

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func inflate(t testing.TB, coded []byte) []byte {
	t.Helper()
	in := bytes.NewReader(coded)
	out, err := io.ReadAll(flate.NewReader(in))
	if err != nil {
		t.Fatalf("inflate: %v", err)
	}
	if in.Len() != 0 {
		t.Fatalf("%d bytes follow the stream's end", in.Len())
	}
	return out
}

// seededScript returns n bytes that look like JavaScript: words of a small
// vocabulary, repeated with variations.
func seededScript(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("function return this var const let prototype length undefined null typeof Object Array document element event value index node parent child style width height")
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%s.%s(%s, %d);\n", words[r.IntN(len(words))], words[r.IntN(len(words))], words[r.IntN(len(words))], r.IntN(1000))
	}
	return b.Bytes()[:n]
}

func TestDeflateRoundTrip(t *testing.T) {
	far := append(noise(windowSize), noise(5000)...) // repeats at the greatest distance
	tests := []struct {
		name string
		src  []byte
	}{
		{"empty", nil},
		{"one byte", []byte("a")},
		{"three bytes", []byte("aaa")},
		{"four bytes", []byte("aaaa")},
		{"run", bytes.Repeat([]byte{0}, 20_000)},
		{"longest match", bytes.Repeat([]byte("ab"), maxMatch/2+1)},
		{"greatest distance", far},
		{"beyond the greatest distance", append(append(noise(windowSize), 'x'), noise(5000)...)},
		{"noise", noise(20_000)},
		{"script, then noise, then script", append(append(seededScript(10_000, 1), noise(10_000)...), seededScript(10_000, 2)...)},
	}
	enc := newDeflater()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			coded := enc.Append(nil, tt.src)
			if !bytes.Equal(inflate(t, coded), tt.src) {
				t.Fatal("inflates to something else")
			}
			if limit := len(tt.src) + len(tt.src)/1000 + 16; len(coded) > limit {
				t.Errorf("%d bytes became %d", len(tt.src), len(coded))
			}
			if again := enc.Append(nil, tt.src); !bytes.Equal(again, coded) {
				t.Error("the second time gives other bytes")
			}
			if fresh := newDeflater().Append(nil, tt.src); !bytes.Equal(fresh, coded) {
				t.Error("a fresh encoder gives other bytes")
			}
		})
	}
}

func TestDeflateChunks(t *testing.T) {
	enc := newDeflater()
	enc.chunk = 1000
	for _, n := range []int{999, 1000, 1001, 1003, 2000, 5678} {
		for _, src := range [][]byte{seededScript(n, 1), noise(n), make([]byte, n)} {
			if !bytes.Equal(inflate(t, enc.Append(nil, src)), src) {
				t.Errorf("%d bytes inflate to something else", n)
			}
		}
	}
}

func TestAppendKeepsPrefix(t *testing.T) {
	got := newDeflater().Append([]byte("header"), []byte("text"))
	if !bytes.HasPrefix(got, []byte("header")) || string(inflate(t, got[len("header"):])) != "text" {
		t.Errorf("got %q", got)
	}
}

// The point of the package: smaller than the standard library's best.
func TestDeflateSmaller(t *testing.T) {
	src := seededScript(50_000, 3)
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(src)
	w.Close()
	if got := len(newDeflater().Append(nil, src)); got*100 > out.Len()*98 {
		t.Errorf("%d bytes, the standard library makes %d", got, out.Len())
	}
}

func TestSymbols(t *testing.T) {
	// RFC 1951 §3.2.5: where the symbols begin.
	lengths := map[int]uint16{3: 257, 10: 264, 11: 265, 12: 265, 13: 266, 18: 268, 19: 269, 114: 279, 115: 280, 131: 281, 162: 281, 163: 282, 257: 284, 258: 285}
	for length, want := range lengths {
		if got := lengthSymbol[length]; got != want {
			t.Errorf("length %d: symbol %d, want %d", length, got, want)
		}
	}
	for length, want := range map[int]uint8{3: 0, 10: 0, 11: 1, 18: 1, 19: 2, 115: 4, 131: 5, 257: 5, 258: 0} {
		if got := lengthExtra[length]; got != want {
			t.Errorf("length %d: %d extra bits, want %d", length, got, want)
		}
	}
	for distance, want := range map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 5, 8: 5, 9: 6, 24576: 28, 24577: 29, 32768: 29} {
		if got := distanceSymbol(uint16(distance - 1)); got != want {
			t.Errorf("distance %d: symbol %d, want %d", distance, got, want)
		}
	}
}

func TestMatchPacking(t *testing.T) {
	for _, length := range []int{minMatch, 100, maxMatch} {
		for _, distance := range []int{1, 2, 1000, windowSize} {
			m := newMatch(length, distance)
			if m.length() != length || int(m.distance())+1 != distance || m.symbol() != distanceSymbol(uint16(distance-1)) {
				t.Errorf("match of %d at %d unpacks to %d at %d", length, distance, m.length(), int(m.distance())+1)
			}
		}
	}
}

func FuzzDeflateRoundTrip(f *testing.F) {
	f.Add([]byte("abcabcabcabc"), uint8(3))
	f.Add(seededScript(2000, 1), uint8(0))
	f.Add(noise(100), uint8(200))
	enc := newDeflater()
	enc.chunk = 1 << 13
	f.Fuzz(func(t *testing.T, src []byte, repeat uint8) {
		// Repeats reach distances and lengths that short inputs do not.
		src = bytes.Repeat(src, int(repeat)+1)
		if len(src) > 1<<16 {
			return
		}
		if !bytes.Equal(inflate(t, enc.Append(nil, src)), src) {
			t.Fatal("inflates to something else")
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	src := seededScript(1<<20, 1)
	enc := newDeflater()
	var out []byte
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		out = enc.Append(out[:0], src)
	}
	b.ReportMetric(float64(len(out))/float64(len(src)), "ratio")
}
