package usage

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// mostWanted is how many files are counted. Those that are in the ten thousand most wanted ones are among them where they
// have more than a few hundred-thousandths of all requests.
const mostWanted = 16 << 10

// wanted counts the most requested files, in bounded memory, by the space-saving algorithm (Metwally, Agrawal and
// El Abbadi, 2005): a file that is not counted yet takes the place of the one with the fewest requests, and its count,
// which is what the new one's may be too high by.
type wanted struct {
	most    int
	byName  map[string]*file
	heap    []*file // the least first
	changed bool
}

type file struct {
	name        string // package, version and path, joined by slashes
	count, over float64
	index       int // in the heap
}

// newWanted returns an empty list of the most requested files, which counts up to most files.
func newWanted(most int) *wanted { return &wanted{most: most, byName: map[string]*file{}} }

// add counts n requests for a file. If the list is full, a new file replaces the least requested one, and takes over its count,
// which is by how much the new count may be too high.
func (w *wanted) add(name string, n float64) {
	if n <= 0 {
		return
	}
	w.changed = true
	f := w.byName[name]
	switch {
	case f != nil:
		f.count += n
		heap.Fix(w, f.index)
	case len(w.heap) < w.most:
		w.insert(&file{name: strings.Clone(name), count: n})
	default:
		f = w.heap[0]
		delete(w.byName, f.name)
		f.name, f.over = strings.Clone(name), f.count
		f.count += n
		w.byName[f.name] = f
		heap.Fix(w, 0)
	}
}

// insert adds a file that is not in the list yet. The caller checks that there is room.
func (w *wanted) insert(f *file) {
	w.byName[f.name] = f
	heap.Push(w, f)
}

// scale multiplies the counts of all files by a factor.
func (w *wanted) scale(by float64) {
	for _, f := range w.heap {
		f.count *= by
		f.over *= by
	}
}

// all returns copies of all files in the list, the most requested first, equal ones by name.
func (w *wanted) all() []file {
	files := make([]file, len(w.heap))
	for i, f := range w.heap {
		files[i] = *f
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(b.count, a.count), strings.Compare(a.name, b.name))
	})
	return files
}

// encode returns the list as the value of a row of the store: format, the number of the day, and for each file its name, its
// count and by how much the count may be too high, both in thousandths.
func (w *wanted) encode(day int) []byte {
	b := binary.AppendUvarint([]byte{rowFormat}, uint64(day))
	for _, f := range w.heap {
		b = binary.AppendUvarint(b, uint64(len(f.name)))
		b = append(b, f.name...)
		b = binary.AppendUvarint(b, uint64(math.Round(f.count*1000)))
		b = binary.AppendUvarint(b, uint64(math.Round(f.over*1000)))
	}
	return b
}

// decode replaces the list by that in b, the value of a row of the store. day is the number of today: the counts are reduced
// by the days that have passed since the row was written. After errDamaged the list is unchanged.
func (w *wanted) decode(b []byte, day int) error {
	if len(b) == 0 || b[0] != rowFormat {
		return errDamaged
	}
	r := reader{b: b[1:]}
	from := r.uvarint()
	read := newWanted(w.most)
	for len(r.b) > 0 && !r.bad {
		f := &file{name: r.readText(), count: float64(r.uvarint()) / 1000}
		f.over = float64(r.uvarint()) / 1000
		if r.bad || f.name == "" || f.over > f.count || read.byName[f.name] != nil || len(read.heap) >= w.most {
			return errDamaged
		}
		read.insert(f)
	}
	if r.bad || from > math.MaxInt32 {
		return errDamaged
	}
	read.scale(decay(min(day-int(from), mostFade)))
	*w = *read
	return nil
}

// Len implements heap.Interface: it returns the number of files in the list.
func (w *wanted) Len() int { return len(w.heap) }

// Less implements heap.Interface: the least requested file comes first.
func (w *wanted) Less(i, j int) bool { return w.heap[i].count < w.heap[j].count }

// Swap implements heap.Interface. It keeps the files' index up to date.
func (w *wanted) Swap(i, j int) {
	w.heap[i], w.heap[j] = w.heap[j], w.heap[i]
	w.heap[i].index, w.heap[j].index = i, j
}

// Push implements heap.Interface: it appends x, a *file, and sets its index. Only package heap calls it; other callers use
// insert.
func (w *wanted) Push(x any) {
	f := x.(*file)
	f.index = len(w.heap)
	w.heap = append(w.heap, f)
}

// Pop implements heap.Interface: it removes and returns the last file. Nothing calls it, because a full list replaces a file
// in place.
func (w *wanted) Pop() any {
	last := len(w.heap) - 1
	f := w.heap[last]
	w.heap = w.heap[:last]
	return f
}
