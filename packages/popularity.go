package packages

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PopularityFile is the name of the file beside the packages of a catalogue that says how often they are downloaded
// elsewhere: a line for each with its name, its npm package and its downloads in a month, separated by tabs. A line
// "# as of 2026-10-01" says when that was so; other lines with a # are comments.
const PopularityFile = "popularity.tsv"

const (
	maxPopularity     = 8 << 20 // bytes
	maxPopularityLine = 1 << 10
)

// A Popularity is how often packages are downloaded elsewhere.
type Popularity struct {
	AsOf      time.Time        // zero where unknown
	Downloads map[string]int64 // in a month, by package
}

// ParsePopularity parses the content of a popularity file, see [PopularityFile]. A malformed or overlong line, or a file of over
// 8 MiB, is an error. It ignores empty lines and a first line whose first field is "name". The last line of a package counts.
func ParsePopularity(data []byte) (Popularity, error) {
	p := Popularity{Downloads: map[string]int64{}}
	if len(data) > maxPopularity {
		return p, fmt.Errorf("it has %d bytes, over the limit of %d", len(data), maxPopularity)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxPopularityLine)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if comment, ok := strings.CutPrefix(line, "#"); ok {
			if date, ok := strings.CutPrefix(strings.TrimSpace(comment), "as of "); ok {
				at, err := time.Parse(time.DateOnly, date)
				if err != nil {
					return p, fmt.Errorf("line %d: %q is no date such as 2026-10-01", n, date)
				}
				p.AsOf = at
			}
			continue
		}
		fields := strings.Split(line, "\t")
		if line == "" || n == 1 && fields[0] == "name" {
			continue
		}
		if len(fields) != 3 {
			return p, fmt.Errorf("line %d has %d fields and not a name, an npm package and a number, separated by tabs", n, len(fields))
		}
		count, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || count < 0 {
			return p, fmt.Errorf("line %d: %q is no number of downloads", n, fields[2])
		}
		p.Downloads[fields[0]] = count
	}
	if err := lines.Err(); err != nil {
		return p, fmt.Errorf("a line is over %d bytes", maxPopularityLine)
	}
	return p, nil
}

//go:embed popular.txt
var popularText string

// popularRanks maps the npm packages of popular.txt to their places in it, from 1.
var popularRanks = sync.OnceValue(func() map[string]int {
	ranks := map[string]int{}
	for name := range strings.Lines(popularText) {
		if name = strings.TrimSpace(name); name != "" && name[0] != '#' {
			ranks[name] = len(ranks) + 1
		}
	}
	return ranks
})

// PopularRank returns the place of an npm package in the built-in list of popular packages, from 1; 0 if it is not in the list.
func PopularRank(npm string) int { return popularRanks()[npm] }

// Popularity returns the popularity of packages according to the catalogue, empty if it has no popularity file.
func (c *Catalogue) Popularity() Popularity { return c.popularity }

// addPopularity parses the popularity file and adds it to the catalogue, as of its modification if it has no date itself. An invalid
// one becomes one of the Problems.
func (c *Catalogue) addPopularity(f file) {
	if f.refuse != "" {
		c.problems = append(c.problems, newInvalid(f.name, "unreadable", "", f.refuse))
		return
	}
	p, err := ParsePopularity(f.data)
	if err != nil {
		c.problems = append(c.problems, newInvalid(f.name, "popularity", "", err.Error()))
		return
	}
	if p.AsOf.IsZero() {
		p.AsOf = f.modified.UTC()
	}
	c.popularity = p
}
