package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The model has nodes that want to publish, a store, and everything that can go wrong between them,
// in every order: a step is one request, one answer that is lost, one put that lands late, one crash.
// A pause is that others take steps. No time passes, because none decides anything.

// A record is a commit in the model.
type record struct {
	epoch  int64
	nonce  string
	prev   string // the nonce of the commit that it was built on
	fences bool
}

// A flight is a put that its node has given up waiting for, and that may land any time.
type flight struct {
	number int64
	record record
}

// A node in the model.
type node struct {
	alive   bool
	elected bool // it has an epoch
	writes  bool // its fence has landed
	m       machine
	applied []string // the commits that it has applied
	want    int      // publications that it has yet to make
	begun   int      // commits of its epoch
	record  record   // what is under way
}

// A world is one state of everything.
type world struct {
	commits []record
	flying  []flight
	epochs  int64
	nodes   []node
	acked   []string // publications that were acknowledged
	denied  []string // publications that were refused
	faults  int      // crashes, lost answers and late puts that may yet happen
}

// key tells a world from others.
func (w world) key() string {
	var b []byte
	add := func(parts ...any) { b = fmt.Append(b, parts...) }
	record := func(r record) { b = append(append(append(append(b, r.nonce...), '<'), r.prev...), ';') }
	for _, c := range w.commits {
		record(c)
	}
	for _, f := range w.flying {
		b = append(b, byte('0'+f.number))
		record(f.record)
	}
	b = append(b, byte(w.epochs), byte(w.faults))
	for _, n := range w.nodes {
		add(n.alive, n.elected, n.writes, n.m)
		b = append(b, byte(len(n.applied)), byte(n.want), byte(n.begun))
		b = append(append(b, n.last()...), '/')
		record(n.record)
	}
	for _, a := range append(w.acked, w.denied...) {
		b = append(append(b, a...), ',')
	}
	return string(b)
}

func (w world) clone() world {
	w.commits, w.flying = slices.Clone(w.commits), slices.Clone(w.flying)
	w.acked, w.denied, w.nodes = slices.Clone(w.acked), slices.Clone(w.denied), slices.Clone(w.nodes)
	for i := range w.nodes {
		w.nodes[i].applied = slices.Clone(w.nodes[i].applied)
	}
	return w
}

// create is the store's promise.
func (w *world) create(number int64, r record) bool {
	if number < int64(len(w.commits)) {
		return false
	}
	if number > int64(len(w.commits)) {
		panic("a node has left a number out")
	}
	w.commits = append(w.commits, r)
	return true
}

func (n *node) last() string {
	if len(n.applied) == 0 {
		return ""
	}
	return n.applied[len(n.applied)-1]
}

// begin builds a commit on what the node has applied.
func (w *world) begin(i int, fence bool) {
	n := &w.nodes[i]
	n.begun++
	n.record = record{n.m.epoch, fmt.Sprintf("%d.%d", n.m.epoch, n.begun), n.last(), fence}
	n.m.startAttempt(n.record.nonce)
}

// decide does what the outcome asks of node i.
func (w *world) decide(i int, o outcome, other record) {
	n := &w.nodes[i]
	switch o {
	case landed:
		n.applied = append(n.applied, n.record.nonce)
		if n.record.fences {
			n.writes = true
		} else {
			w.acked = append(w.acked, n.record.nonce)
			n.want--
		}
	case overtaken:
		n.applied = append(n.applied, other.nonce)
		if !n.record.fences {
			w.denied = append(w.denied, n.record.nonce)
		}
		if !n.record.fences {
			w.begin(i, false)
		}
	case deposed:
		if !n.record.fences {
			w.denied = append(w.denied, n.record.nonce)
		}
		n.elected, n.writes = false, false
	case forged:
		panic("two nodes have one epoch")
	}
}

// steps calls next with every world that may come next.
func (w world) steps(next func(what string, w world)) {
	for i, f := range w.flying {
		to := w.clone()
		to.flying = slices.Delete(to.flying, i, i+1)
		if !to.create(f.number, f.record) {
			continue // it changes nothing
		}
		next("late put lands", to)
	}
	for i := range w.nodes {
		w.step(i, next)
	}
}

func (w world) step(i int, next func(what string, w world)) {
	name := fmt.Sprintf("node %d: ", i)
	with := func(what string, faults int, fn func(*world, *node)) {
		if faults > w.faults {
			return
		}
		to := w.clone()
		to.faults -= faults
		fn(&to, &to.nodes[i])
		next(name+what, to)
	}
	n := w.nodes[i]
	switch {
	case !n.alive:
		with("starts", 0, func(_ *world, n *node) { *n = node{alive: true, want: n.want} })
		return
	case n.want > 0:
		with("crashes", 1, func(_ *world, n *node) { *n = node{want: n.want} })
	}
	switch {
	case !n.elected && n.want > 0:
		with("claims an epoch", 0, func(w *world, n *node) {
			w.epochs++
			n.elected, n.begun, n.m = true, 0, machine{epoch: w.epochs}
		})
	case n.elected && !n.writes && n.m.phase == idle:
		if len(n.applied) < len(w.commits) {
			with("applies all", 0, func(w *world, n *node) {
				for _, c := range w.commits[len(n.applied):] {
					n.applied = append(n.applied, c.nonce)
				}
			})
		}
		with("begins to take over", 0, func(w *world, n *node) {
			var epoch int64
			if len(n.applied) > 0 {
				epoch = w.commits[len(n.applied)-1].epoch
			}
			if n.m.setNumber(int64(len(n.applied)), epoch) == deposed {
				n.elected = false
				return
			}
			w.begin(i, true)
		})
	case n.elected && n.m.phase == idle && n.want > 0:
		with("begins", 0, func(w *world, n *node) { w.begin(i, false) })
	case n.elected && n.m.phase == putting:
		put := func(w *world, n *node) bool { return w.create(n.m.number, n.record) }
		with("puts", 0, func(w *world, n *node) { w.decide(i, n.m.putDone(put(w, n)), record{}) })
		with("puts, and the answer is lost", 1, func(w *world, n *node) {
			put(w, n)
			w.decide(i, n.m.putDone(false), record{})
		})
		with("puts, to land late or never", 1, func(w *world, n *node) {
			w.flying = append(w.flying, flight{n.m.number, n.record})
			w.decide(i, n.m.putDone(false), record{})
		})
	case n.elected && n.m.phase == reading:
		with("reads", 0, func(w *world, n *node) {
			if n.m.number >= int64(len(w.commits)) {
				w.decide(i, n.m.foundNothing(), record{})
				return
			}
			r := w.commits[n.m.number]
			w.decide(i, n.m.foundCommit(r.epoch, r.nonce), r)
		})
	}
}

// wrong says which promise is broken, "" where none is.
func (w world) wrong() string {
	has, prev, epoch := map[string]bool{}, "", int64(0)
	for number, c := range w.commits {
		switch {
		case has[c.nonce]:
			return fmt.Sprintf("commit %d is there twice", number)
		case c.prev != prev:
			return fmt.Sprintf("commit %d is built on another one than the one before it", number)
		case c.epoch < epoch:
			return fmt.Sprintf("commit %d is of an earlier epoch than the one before it", number)
		case c.epoch > epoch && !c.fences:
			return fmt.Sprintf("commit %d begins an epoch with a publication", number)
		}
		has[c.nonce], prev, epoch = true, c.nonce, c.epoch
	}
	for _, nonce := range w.acked {
		if !has[nonce] {
			return "an acknowledged publication is lost"
		}
	}
	for _, nonce := range w.denied {
		if has[nonce] {
			return "a refused publication is there"
		}
	}
	for i, n := range w.nodes {
		for at, nonce := range n.applied { // which is what it signs
			if at >= len(w.commits) || w.commits[at].nonce != nonce {
				return fmt.Sprintf("node %d signs what is not committed", i)
			}
		}
	}
	return ""
}

// explore visits every world that comes of the first one, and reports how many there are, and
// whether every publication is made in one of them.
func explore(t *testing.T, first world) (visited int, finished bool) {
	t.Helper()
	seen := map[string]struct{}{}
	type path struct {
		from *path
		what string
	}
	type item struct {
		w   world
		how *path
	}
	todo := []item{{first, nil}}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		key := at.w.key()
		if _, ok := seen[key]; ok {
			continue
		}
		seen[key] = struct{}{}
		if wrong := at.w.wrong(); wrong != "" {
			var how []string
			for p := at.how; p != nil; p = p.from {
				how = append(how, p.what)
			}
			slices.Reverse(how)
			t.Errorf("%s, after: %s", wrong, strings.Join(how, "; "))
			return len(seen), false
		}
		done := true
		for _, n := range at.w.nodes {
			done = done && n.want == 0
		}
		finished = finished || done
		if at.w.epochs > int64(len(at.w.nodes)+1) { // a history of elections alone has no end
			continue
		}
		at.w.steps(func(what string, w world) { todo = append(todo, item{w, &path{at.how, what}}) })
	}
	return len(seen), finished
}

func worldOf(nodes, publications, faults int) world {
	w := world{faults: faults}
	for range nodes {
		w.nodes = append(w.nodes, node{alive: true, want: publications})
	}
	return w
}

func TestEveryInterleaving(t *testing.T) {
	tests := [][3]int{{1, 2, 3}, {2, 1, 2}}
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		tests = append(tests, [][3]int{{2, 1, 3}, {2, 2, 2}, {3, 1, 1}}...)
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d nodes, %d publications each, %d faults", test[0], test[1], test[2]), func(t *testing.T) {
			visited, finished := explore(t, worldOf(test[0], test[1], test[2]))
			if !finished && !t.Failed() {
				t.Error("in no history all publications are made")
			}
			t.Log(visited, "states")
		})
	}
}
