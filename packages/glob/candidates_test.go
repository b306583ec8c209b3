package glob

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
)

// words stand for wildcards.
var words = []string{"", "a", "b", "index", "x.min", "a-b", "core.min.js", "js", "css", "map", ".h", "1", "0.1", "A_1", "é", "☃", "𝒳", "demo", "min"}

// A sampler makes up paths that a pattern may select, and some that are close.
type sampler struct{ *rand.Rand }

// candidates returns n paths or fewer, the same ones each time.
func candidates(pattern string, n int) []string {
	hash := fnv.New64a()
	hash.Write([]byte(pattern))
	s := sampler{rand.New(rand.NewPCG(hash.Sum64(), 1))}
	var paths []string
	for i := range n {
		path := s.sample(pattern)
		for range i % 3 {
			path = s.mutate(path)
		}
		if path = cleanPath(path); path != "" {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// cleanPath drops the portions that no release's path has.
func cleanPath(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool {
		return name == "" || name == "." || name == ".."
	})
	return strings.Join(parts, "/")
}

func (s sampler) word() string { return words[s.IntN(len(words))] }

func (s sampler) pick(list []string) string { return list[s.IntN(len(list))] }

// sample reads the pattern in its own, simple way: it need not be right, only near.
func (s sampler) sample(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		rest := pattern[i+1:]
		switch {
		case c == '\\' && rest != "":
			i++
			b.WriteByte(pattern[i])
		case strings.IndexByte("@+?*!", c) >= 0 && strings.HasPrefix(rest, "("):
			inside, length := enclosed(rest, '(', ')')
			b.WriteString(s.extended(c, splitTop(inside, '|')))
			i += length
		case c == '*' && strings.HasPrefix(rest, "*"):
			i++
			b.WriteString(s.pick([]string{"", "a", "a/b", "a/.b", ".a", "css/a/b.c"}))
		case c == '*':
			b.WriteString(s.word())
		case c == '?':
			b.WriteString(s.pick([]string{"a", "1", "", ".", "é"}))
		case c == '{':
			inside, length := enclosed(pattern[i:], '{', '}')
			if first, last, ok := strings.Cut(inside, ".."); ok {
				b.WriteString(s.pick([]string{first, last, "2", "b"}))
			} else {
				b.WriteString(s.sample(s.pick(splitTop(inside, ','))))
			}
			i += length - 1
		case c == '[':
			inside, length := enclosed(pattern[i:], '[', ']')
			b.WriteString(s.pick([]string{"a", "5", "-", "!", inside[:min(1, len(inside))], inside[max(0, len(inside)-1):]}))
			i += length - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (s sampler) extended(sign byte, alternatives []string) string {
	one := func() string { return s.sample(s.pick(alternatives)) }
	n := s.IntN(3)
	switch sign {
	case '@':
		return one()
	case '?':
		n = s.IntN(2)
	case '+':
		n = max(n, 1)
	case '!':
		return s.pick([]string{s.word(), s.word(), one(), one() + s.word(), s.word() + one()})
	}
	var b strings.Builder
	for range n {
		b.WriteString(one())
	}
	return b.String()
}

// mutate changes a path a little.
func (s sampler) mutate(path string) string {
	at := s.IntN(len(path) + 1)
	switch s.IntN(8) {
	case 0:
		return path[:at] + path[min(at+1, len(path)):]
	case 1:
		return path[:at] + s.word() + path[at:]
	case 2:
		return path[:at] + "/" + path[at:]
	case 3:
		return path[:at] + "." + path[at:]
	case 4:
		return s.word() + "/" + path
	case 5:
		return path + s.pick([]string{".map", ".min.js", ".gz", "/a.js", ".ts"})
	case 6:
		return strings.Replace(path, "/", "", 1)
	}
	return "." + path
}

// enclosed returns what is between the bracket that text begins with and the one
// that closes it, or text's end, and the length with both.
func enclosed(text string, opening, closing byte) (string, int) {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case opening:
			depth++
		case closing:
			if depth--; depth == 0 {
				return text[1:i], i + 1
			}
		}
	}
	return text[1:], len(text)
}

// splitTop splits at separators outside brackets.
func splitTop(text string, separator byte) []string {
	var parts []string
	depth, start := 0, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == separator && depth == 0:
			parts = append(parts, text[start:i])
			start = i + 1
		case c == '(' || c == '{':
			depth++
		case c == ')' || c == '}':
			depth--
		}
	}
	return append(parts, text[start:])
}
