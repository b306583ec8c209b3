package usage

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// maxTopFiles is how many files are counted. Those that are in the ten thousand most requested ones are among them where they
// have more than a few hundred-thousandths of all requests.
const maxTopFiles = 16 << 10

// topFiles counts the most requested files, in bounded memory, by the space-saving algorithm (Metwally, Agrawal and
// El Abbadi, 2005): a file that is not counted yet takes the place of the one with the fewest requests, and its count,
// which is what the new one's may be too high by.
type topFiles struct {
	most    int
	byName  map[string]*file
	heap    []*file // the least first
	changed bool
}

// A file is a file in the list. Its true count is between count-over and count.
type file struct {
	name        string // package, version and path, joined by slashes
	count, over float64
	index       int // in the heap
}

// newTopFiles returns an empty list of the most requested files, which counts up to most files.
func newTopFiles(most int) *topFiles { return &topFiles{most: most, byName: map[string]*file{}} }

// add counts n requests for a file; none if n is not above 0. If the list is full, a new file replaces the least requested one, and takes
// over its count, which is by how much the new count may be too high.
func (t *topFiles) add(name string, n float64) {
	if n <= 0 {
		return
	}
	t.changed = true
	f := t.byName[name]
	switch {
	case f != nil:
		f.count += n
		heap.Fix(t, f.index)
	case len(t.heap) < t.most:
		t.insert(&file{name: strings.Clone(name), count: n})
	default:
		f = t.heap[0]
		delete(t.byName, f.name)
		f.name, f.over = strings.Clone(name), f.count
		f.count += n
		t.byName[f.name] = f
		heap.Fix(t, 0)
	}
}

// insert adds a file that is not in the list yet. The caller checks that there is room.
func (t *topFiles) insert(f *file) {
	t.byName[f.name] = f
	heap.Push(t, f)
}

// scale multiplies the counts of all files by a factor.
func (t *topFiles) scale(by float64) {
	for _, f := range t.heap {
		f.count *= by
		f.over *= by
	}
}

// all returns copies of all files in the list, the most requested first, equal ones by name.
func (t *topFiles) all() []file {
	files := make([]file, len(t.heap))
	for i, f := range t.heap {
		files[i] = *f
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(b.count, a.count), strings.Compare(a.name, b.name))
	})
	return files
}

// encode returns the most requested files as the value of a row of the store: format, the number of the day, and for each file its name, its
// count and by how much the count may be too high, both in thousandths.
func (t *topFiles) encode(day int) []byte {
	b := binary.AppendUvarint([]byte{rowFormat}, uint64(day))
	for _, f := range t.heap {
		b = binary.AppendUvarint(b, uint64(len(f.name)))
		b = append(b, f.name...)
		b = binary.AppendUvarint(b, uint64(math.Round(f.count*1000)))
		b = binary.AppendUvarint(b, uint64(math.Round(f.over*1000)))
	}
	return b
}

// decode replaces the list by that in b, the value of a row of the store. day is the number of today: the counts are reduced by the days
// that have passed since the row was written, mostFade at most. After [errDamaged] the list is unchanged.
func (t *topFiles) decode(b []byte, day int) error {
	if len(b) == 0 || b[0] != rowFormat {
		return errDamaged
	}
	r := reader{b: b[1:]}
	from := r.uvarint()
	read := newTopFiles(t.most)
	for len(r.b) > 0 && !r.bad {
		f := &file{name: r.readText(), count: float64(r.uvarint()) / 1000}
		f.over = float64(r.uvarint()) / 1000
		if r.bad || f.name == "" || f.over > f.count || read.byName[f.name] != nil || len(read.heap) >= t.most {
			return errDamaged
		}
		read.insert(f)
	}
	if r.bad || from > math.MaxInt32 {
		return errDamaged
	}
	read.scale(decay(min(day-int(from), mostFade)))
	*t = *read
	return nil
}

// Len implements heap.Interface: it returns the number of files in the list.
func (t *topFiles) Len() int { return len(t.heap) }

// Less implements heap.Interface: the least requested file comes first.
func (t *topFiles) Less(i, j int) bool { return t.heap[i].count < t.heap[j].count }

// Swap implements heap.Interface. It keeps the files' index up to date.
func (t *topFiles) Swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].index, t.heap[j].index = i, j
}

// Push implements heap.Interface: it appends x, a *file, and sets its index. Only package heap calls it; other callers use
// insert.
func (t *topFiles) Push(x any) {
	f := x.(*file)
	f.index = len(t.heap)
	t.heap = append(t.heap, f)
}

// Pop implements heap.Interface: it removes and returns the last file. Nothing calls it, because a full list replaces a file
// in place.
func (t *topFiles) Pop() any {
	last := len(t.heap) - 1
	f := t.heap[last]
	t.heap = t.heap[:last]
	return f
}
