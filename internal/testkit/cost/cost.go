// Package cost searches for inputs that make a parser of strangers' bytes expensive, and bounds what a kilobyte of the worst may cost.
//
// To add a parser, call [Check] in a test named TestCost of the parser's own package, with a few seeds, the words of its language, and the bounds, about
// ten times what the long form measures; package worker and this package have tests that fail if a parser is missing. An input is a shape: a head, a unit that is repeated, a
// middle, the unit's closing that is repeated as often, and a tail. Shapes find what grows faster than its input (nesting, unclosed brackets, long runs)
// when they are made larger.
//
// The search is a seeded hill climb, so a run tries the same first shapes everywhere. Its goals are allocated bytes, which do not depend on the machine, and the process's processor time,
// which other processes hardly change. A bound is exceeded only if three runs of the same input exceed it. In its short form the search takes about
// 0.2 seconds for each parser, and with LARDER_TEST_WHOLE=1 a quarter of a minute.
package cost

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Parser is one whose cost is bounded.
type Parser struct {
	Name string
	// Parse parses an input. What it returns does not matter.
	Parse func(input []byte)
	// Wrap makes the input of a text, such as an archive that has it; nil for the text itself. Costs are for a kilobyte of the text.
	Wrap func(text string) []byte
	// Seeds are inputs that the parser accepts, and Words what they are made of.
	Seeds, Words []string
	// Size is how many bytes an input has, default 16 KiB; Large is that of the shapes that were most expensive, default 4 times Size.
	Size, Large int
	// The bounds for a kilobyte of input: milliseconds of processor time, and KiB allocated.
	MaxMilliseconds, MaxKiB float64
}

// A shape is an input of any size.
type shape struct {
	head, open, middle, closing, tail string
}

// expand returns the shape with so many bytes, about.
func (s shape) expand(size int) string {
	n := max(1, (size-len(s.head)-len(s.middle)-len(s.tail))/max(1, len(s.open)+len(s.closing)))
	return s.head + strings.Repeat(s.open, n) + s.middle + strings.Repeat(s.closing, n) + s.tail
}

// String writes the shape for the message of a failure, by which it can be made again.
func (s shape) String() string {
	return fmt.Sprintf("%q + %q*n + %q + %q*n + %q", s.head, s.open, s.middle, s.closing, s.tail)
}

// A measurement is what an input costs.
type measurement struct {
	milliseconds, kib float64 // for a kilobyte
}

// measure returns the smallest cost of some runs.
func (p Parser) measure(s shape, size, runs int) measurement {
	text := s.expand(size)
	input := []byte(text)
	if p.Wrap != nil {
		input = p.Wrap(text)
	}
	kilobytes := float64(len(text)) / 1000
	least := measurement{math.Inf(1), math.Inf(1)}
	for range runs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := processorTime()
		p.Parse(input)
		used := processorTime() - start
		runtime.ReadMemStats(&after)
		least.milliseconds = min(least.milliseconds, float64(used)/float64(time.Millisecond)/kilobytes)
		least.kib = min(least.kib, float64(after.TotalAlloc-before.TotalAlloc)/1024/kilobytes)
	}
	return least
}

// processorTime returns what the process has used.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A found is a shape with its cost.
type found struct {
	shape
	measurement
}

// The size of the search in its two forms: how many generations there are after the first shapes, and how long it takes at most.
const (
	shortGenerations, shortTime = 40, 100 * time.Millisecond
	longGenerations, longTime   = 4000, 15 * time.Second
	kept                        = 4 // shapes of each goal that the next ones are made of
)

// Check searches for expensive inputs and fails the test if one costs more than the parser's bounds. It must not run beside other tests.
func Check(t *testing.T, parsers ...Parser) {
	t.Helper()
	for _, p := range parsers {
		p.Size = cmp.Or(p.Size, 16<<10)
		p.Large = cmp.Or(p.Large, 4*p.Size)
		t.Run(p.Name, func(t *testing.T) {
			if raceEnabled {
				t.Skip("the race detector has costs of its own")
			}
			generations, limit := shortGenerations, shortTime
			if os.Getenv("LARDER_TEST_WHOLE") != "" {
				generations, limit = longGenerations, longTime
			}
			p.check(t, generations, limit)
		})
	}
}

func (p Parser) check(t *testing.T, generations int, limit time.Duration) {
	slowest, largest, tried := p.search(generations, limit)
	var worst measurement
	for _, f := range slices.Concat(slowest, largest) {
		for _, size := range []int{p.Size, p.Large} {
			m := p.measure(f.shape, size, 1)
			if m.milliseconds > p.MaxMilliseconds || m.kib > p.MaxKiB {
				m = p.measure(f.shape, size, 3)
			}
			worst = measurement{max(worst.milliseconds, m.milliseconds), max(worst.kib, m.kib)}
			if m.milliseconds > p.MaxMilliseconds || m.kib > p.MaxKiB {
				t.Errorf("%d bytes of %s: %.3g ms and %.4g KiB for each kilobyte, over the bounds of %g and %g", size, f.shape, m.milliseconds, m.kib, p.MaxMilliseconds, p.MaxKiB)
			}
		}
	}
	t.Logf("%d shapes; for each kilobyte %.3g ms (bound %g), %.4g KiB (bound %g); slowest %.300s; largest %.300s",
		tried, worst.milliseconds, p.MaxMilliseconds, worst.kib, p.MaxKiB, slowest[0].shape, largest[0].shape)
}

// search returns the shapes that cost most, by either goal.
func (p Parser) search(generations int, limit time.Duration) (slowest, largest []found, tried int) {
	r := rand.New(rand.NewPCG(33, 4))
	try := func(s shape) {
		if s.open == "" && s.closing == "" || len(s.expand(p.Size)) > 2*p.Size {
			return // it does not grow
		}
		tried++
		f := found{s, p.measure(s, p.Size, 1)}
		if len(slowest) < kept || f.milliseconds > slowest[len(slowest)-1].milliseconds {
			f.milliseconds = min(f.milliseconds, p.measure(s, p.Size, 1).milliseconds) // of a garbage collection in between
		}
		slowest = insert(slowest, f, func(f found) float64 { return f.milliseconds })
		largest = insert(largest, f, func(f found) float64 { return f.kib })
	}
	start := processorTime()
	first := p.first()
	r.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	for _, s := range first {
		if processorTime()-start > limit && tried > 0 {
			break
		}
		try(s)
	}
	start = processorTime()
	for range generations {
		if processorTime()-start > limit {
			break
		}
		parents := slices.Concat(slowest, largest)
		try(p.mutate(r, parents[r.IntN(len(parents))].shape, parents[r.IntN(len(parents))].shape))
	}
	return slowest, largest, tried
}

// insert returns the shapes of highest value.
func insert(all []found, f found, value func(found) float64) []found {
	if slices.ContainsFunc(all, func(other found) bool { return other.shape == f.shape }) {
		return all
	}
	all = append(slices.Clone(all), f)
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(value(b), value(a)) })
	return all[:min(kept, len(all))]
}

// first returns the shapes that the search starts with: each seed and each word many times, and each pair of brackets deep in each other.
func (p Parser) first() []shape {
	var all []shape
	for _, seed := range p.Seeds {
		all = append(all, shape{open: seed}, shape{head: seed, open: " "})
	}
	for _, word := range p.Words {
		all = append(all, shape{open: word}, shape{open: word, middle: "\n"})
		for _, seed := range p.Seeds[:min(1, len(p.Seeds))] {
			all = append(all, shape{head: seed[:len(seed)/2], open: word, tail: seed[len(seed)/2:]})
		}
	}
	for i, word := range p.Words[:max(0, len(p.Words)-1)] {
		all = append(all, shape{open: word, closing: p.Words[i+1]})
	}
	return all
}

// longestPart limits the parts of a shape, in bytes.
const longestPart = 400

// mutate changes a part of a shape by a word, or by a part of another shape.
func (p Parser) mutate(r *rand.Rand, s, other shape) shape {
	for range 1 + r.IntN(3) {
		part := []*string{&s.head, &s.open, &s.open, &s.open, &s.middle, &s.closing, &s.tail}[r.IntN(7)]
		word := p.Words[r.IntN(len(p.Words))]
		switch r.IntN(8) {
		case 0:
			*part = ""
		case 1:
			*part = word
		case 2:
			*part += word
		case 3:
			*part = word + *part
		case 4: // in the middle
			at := r.IntN(len(*part) + 1)
			*part = (*part)[:at] + word + (*part)[at:]
		case 5:
			*part += *part
		case 6:
			*part = []string{other.head, other.open, other.middle, other.closing, other.tail}[r.IntN(5)]
		case 7: // without some bytes
			if at := r.IntN(len(*part) + 1); at < len(*part) {
				*part = (*part)[:at] + (*part)[min(len(*part), at+1+r.IntN(4)):]
			}
		}
		*part = (*part)[:min(len(*part), longestPart)]
	}
	return s
}
