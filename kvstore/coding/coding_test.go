package coding

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

var (
	compressed = []Coding{Brotli, Gzip}
	all        = []Coding{Identity, Brotli, Gzip}
)

// script returns n bytes that look like JavaScript.
func script(n int) []byte {
	r := rand.New(rand.NewPCG(7, 7))
	words := strings.Fields("function return this var const let prototype length undefined null typeof Object Array document element event value index node parent child style width height")
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%s.%s(%s, %d);\n", words[r.IntN(len(words))], words[r.IntN(len(words))], words[r.IntN(len(words))], r.IntN(1000))
	}
	return b.Bytes()[:n]
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func mustEncode(t testing.TB, c Coding, e Effort, src []byte) []byte {
	t.Helper()
	coded, err := Encode(c, e, src)
	if err != nil {
		t.Fatal(err)
	}
	return coded
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		c    Coding
		name string
	}{{Identity, "identity"}, {Brotli, "br"}, {Gzip, "gzip"}} {
		if got := tt.c.String(); got != tt.name {
			t.Errorf("%d is called %q, want %q", tt.c, got, tt.name)
		}
		if got, ok := Parse(tt.name); !ok || got != tt.c {
			t.Errorf("Parse(%q) = %v, %v", tt.name, got, ok)
		}
	}
	for _, name := range []string{"", "deflate", "zstd", "BR", "x-gzip", "coding(3)"} {
		if c, ok := Parse(name); ok {
			t.Errorf("Parse(%q) = %v", name, c)
		}
	}
	if got := Coding(9).String(); got != "coding(9)" {
		t.Errorf("an unknown coding is called %q", got)
	}
}

func TestWorthwhile(t *testing.T) {
	for _, tt := range []struct {
		identity, coded int
		want            bool
	}{
		{0, 0, false},
		{0, 20, false},
		{40, 30, false}, // saves less than the header line
		{64, 32, true},
		{64, 33, false},
		{1000, 1000, false},
		{1000, 1001, false},
		{1000, 968, true},
		{1000, 969, false},
		{64_000, 63_000, true},
		{64_000, 63_001, false},
		{1 << 40, 1 << 39, true},
	} {
		if got := Worthwhile(tt.identity, tt.coded); got != tt.want {
			t.Errorf("Worthwhile(%d, %d) = %v", tt.identity, tt.coded, got)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	inputs := []struct {
		name string
		src  []byte
	}{
		{"empty", nil},
		{"one byte", []byte("x")},
		{"short text", []byte("var a = 1;\n")},
		{"zeros", make([]byte, 50_000)},
		{"noise", noise(40_000)},
		{"script", script(70_000)},
		{"larger than the smallest window", bytes.Repeat(script(27_000), 10)},
	}
	for _, in := range inputs {
		for _, c := range all {
			for _, e := range []Effort{Quick, Best, Fast} {
				t.Run(fmt.Sprintf("%s/%v/%d", in.name, c, e), func(t *testing.T) {
					if testing.Short() && e == Best && len(in.src) > 70_000 {
						t.Skip("slow")
					}
					coded := mustEncode(t, c, e, in.src)
					got, err := Decode(c, coded, int64(len(in.src)))
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, in.src) {
						t.Fatal("decodes to something else")
					}
					r, err := NewReader(c, iotest.OneByteReader(bytes.NewReader(coded)))
					if err != nil {
						t.Fatal(err)
					}
					defer r.Close()
					if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, in.src) {
						t.Fatalf("the reader gives %d bytes, error %v; want %d bytes", len(got), err, len(in.src))
					}
				})
			}
		}
	}
}

func TestMegabyteOfText(t *testing.T) {
	src := script(1 << 20)
	for _, c := range compressed {
		coded := mustEncode(t, c, Quick, src)
		if len(coded) > len(src)/3 {
			t.Errorf("%v: %d bytes became %d", c, len(src), len(coded))
		}
	}
}

func TestBestIsSmaller(t *testing.T) {
	src := script(60_000)
	for _, c := range compressed {
		quick, best := mustEncode(t, c, Quick, src), mustEncode(t, c, Best, src)
		if len(best) >= len(quick) {
			t.Errorf("%v: quick gives %d bytes, best %d", c, len(quick), len(best))
		}
	}
}

// TestFastSuitsPages tests that Fast, the effort for responses, makes pages about as small as Quick does.
func TestFastSuitsPages(t *testing.T) {
	var page bytes.Buffer
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < 50; i++ {
		fmt.Fprintf(&page, "<tr role=\"row\"><th><a href=\"/files/a/1.0.0/jar-%05d.js\">jar-%05d.js</a></th><td data-label=\"gzip\">%d kB</td><td><button data-copy=\"sha512-%x\">SRI</button></td></tr>\n",
			i, i, i, r.Uint64())
	}
	quick, fast := mustEncode(t, Brotli, Quick, page.Bytes()), mustEncode(t, Brotli, Fast, page.Bytes())
	if len(fast) > len(quick)*105/100 {
		t.Errorf("%d bytes of a page are %d fast, and %d quick", page.Len(), len(fast), len(quick))
	}
}

// Equal input gives equal output, whatever a reused encoder did before and
// however many run at once.
func TestDeterministic(t *testing.T) {
	src := script(30_000)
	for _, c := range compressed {
		for _, e := range []Effort{Quick, Best, Fast} {
			want := mustEncode(t, c, e, src)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					other := noise(1000 * (i + 1))
					if _, err := Encode(c, e, other); err != nil {
						t.Error(err)
					}
					if got, err := Encode(c, e, src); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%v, effort %d: other bytes than before (error %v)", c, e, err)
					}
				})
			}
			wg.Wait()
		}
	}
}

func TestGzipHeader(t *testing.T) {
	for _, e := range []Effort{Quick, Best, Fast} {
		h := mustEncode(t, Gzip, e, script(5000))[:10]
		if h[3] != 0 || !bytes.Equal(h[4:8], make([]byte, 4)) || h[8] != 0 || h[9] != 0xff {
			t.Errorf("effort %d: header %x names flags, a time or a system", e, h)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	src := script(50_000)
	size := int64(len(src))
	for _, c := range all {
		good := mustEncode(t, c, Quick, src)
		flipped := bytes.Clone(good)
		flipped[len(flipped)/2] ^= 0x10
		tests := []struct {
			name  string
			coded []byte
			size  int64
		}{
			{"nothing", nil, size},
			{"truncated", good[:len(good)-1], size},
			{"half", good[:len(good)/2], size},
			{"first byte only", good[:1], size},
			{"trailing garbage", append(bytes.Clone(good), "garbage"...), size},
			{"much trailing garbage", append(bytes.Clone(good), noise(100_000)...), size},
			{"trailing zero", append(bytes.Clone(good), 0), size},
			{"noise", noise(1000), size},
			{"a byte too many", good, size - 1},
			{"a byte too few", good, size + 1},
			{"no bytes expected", good, 0},
		}
		if c == Gzip { // the others carry no checksum; the store has its own
			tests = append(tests, struct {
				name  string
				coded []byte
				size  int64
			}{"bit flipped", flipped, size})
		}
		for _, tt := range tests {
			t.Run(c.String()+"/"+tt.name, func(t *testing.T) {
				got, err := Decode(c, tt.coded, tt.size)
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("got %d bytes, error %v; want ErrCorrupt", len(got), err)
				}
			})
		}
		if got, err := Decode(c, good, size); err != nil || !bytes.Equal(got, src) {
			t.Errorf("%v: after failures the good bytes fail too: %v", c, err)
		}
	}
}

// brotliBomb is 256 MiB of zeros, as Google's command compresses them.
const brotliBomb = "z///fwAkAOKxQHLv//n//w+ABEAcFoDu/T////8BkACIwwLQvf/n//8/ABIAcVgAuvf//P//B0ACIA4LQPf+n////w" +
	"BIAMRhAeje//P//x8ACYA4LADd+3/+//8DIAEQhwWge//P//9/ACQA4rAAdO//+f//D4AEQBwWgO79P////wGQAIjD" +
	"AtC9/+f//z8AEgBxWAC69//8//8HQAIgDgtA9/6f////AEgAxGEB6N7/8///HwAJgDgsAN37f/7//wMgARCHBaB7/z" +
	"8="

// Refusing a bomb takes a decoder's window, not what the bomb holds.
func TestDecodeBomb(t *testing.T) {
	bomb, err := base64.StdEncoding.DecodeString(brotliBomb)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		c     Coding
		coded []byte
		limit uint64
	}{
		{Brotli, bomb, 40 << 20},
		{Gzip, mustEncode(t, Gzip, Quick, make([]byte, 4<<20)), 1 << 20},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(tt.c, tt.coded, 1000)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v: error %v, want ErrCorrupt", tt.c, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > tt.limit {
			t.Errorf("%v: refusing a bomb allocates %d bytes", tt.c, got)
		}
	}
}

// What is decoded up to a limit says by one byte more that there is more, however much that is.
func TestDecodeUpTo(t *testing.T) {
	for _, c := range compressed {
		coded, err := Encode(c, Quick, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		for limit, want := range map[int64]int{10: 11, 1 << 20: 1 << 20, 1 << 30: 1 << 20} {
			if got, err := DecodeUpTo(c, coded, limit); err != nil || len(got) != want {
				t.Errorf("%v: %d bytes of up to %d, want %d; %v", c, len(got), limit, want, err)
			}
		}
	}
	if got, err := DecodeUpTo(Identity, []byte("as it is"), 3); err != nil || string(got) != "as it is" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBadArguments(t *testing.T) {
	if _, err := Encode(Coding(9), Quick, nil); err == nil {
		t.Error("Encode takes an unknown coding")
	}
	if _, err := Encode(Brotli, Effort(9), nil); err == nil {
		t.Error("Encode takes an unknown effort")
	}
	if _, err := Decode(Coding(9), nil, 0); err == nil {
		t.Error("Decode takes an unknown coding")
	}
	if _, err := Decode(Brotli, nil, -1); err == nil {
		t.Error("Decode takes a negative size")
	}
	if _, err := NewReader(Coding(9), nil); err == nil {
		t.Error("NewReader takes an unknown coding")
	}
}

func TestReaderPassesErrorsOn(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, c := range all {
		coded := mustEncode(t, c, Quick, script(50_000))
		r, err := NewReader(c, io.MultiReader(bytes.NewReader(coded[:1000]), iotest.ErrReader(broken)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); !errors.Is(err, broken) {
			t.Errorf("%v: error %v, want the source's own", c, err)
		}
		r.Close()
	}
}

func TestReaderClosedTwice(t *testing.T) {
	for _, c := range compressed {
		r, err := NewReader(c, bytes.NewReader(mustEncode(t, c, Quick, script(1000))))
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		r.Close()
		if n, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("%v: read %d bytes after close", c, n)
		}
	}
}

func TestMemoryGrowsWithSize(t *testing.T) {
	for _, c := range all {
		for _, e := range []Effort{Quick, Best, Fast} {
			last := int64(0)
			for _, size := range []int64{1, 1 << 18, 1 << 20, 1 << 22, 25 << 20} {
				m := Memory(c, e, size)
				if m < 2*size || m < last || m > 1<<30 {
					t.Errorf("Memory(%v, %d, %d) = %d", c, e, size, m)
				}
				last = m
			}
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("x"))
	f.Add(script(3000))
	f.Add(noise(100))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, c := range compressed {
			for _, e := range []Effort{Quick, Best, Fast} {
				mustEncode(t, c, e, src) // decodes and compares
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, c := range all {
		for _, src := range [][]byte{nil, []byte("x"), script(3000), make([]byte, 10_000)} {
			coded := mustEncode(f, c, Quick, src)
			f.Add(uint8(c), coded, uint32(len(src)))
			f.Add(uint8(c), append(coded, 0), uint32(len(src)))
		}
	}
	f.Fuzz(func(t *testing.T, c uint8, coded []byte, size uint32) {
		size %= 1 << 20
		got, err := Decode(Coding(c%3), coded, int64(size))
		if err == nil && len(got) != int(size) {
			t.Fatalf("%d bytes without an error, want %d", len(got), size)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("unexpected error %v", err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	src := script(200_000)
	for _, c := range compressed {
		for e, name := range []string{"quick", "best", "fast"} {
			b.Run(fmt.Sprintf("%v/%s", c, name), func(b *testing.B) {
				b.SetBytes(int64(len(src)))
				b.ReportAllocs()
				var coded []byte
				for b.Loop() {
					coded = mustEncode(b, c, Effort(e), src)
				}
				b.ReportMetric(float64(len(coded))/float64(len(src)), "ratio")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src := script(200_000)
	for _, c := range compressed {
		coded := mustEncode(b, c, Best, src)
		b.Run(c.String(), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(c, coded, int64(len(src))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
