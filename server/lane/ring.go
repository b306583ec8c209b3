package lane

import "iter"

// A ring is a list whose members have their links in themselves, so that it allocates nothing.
type ring[T member[T]] struct {
	first, last T
	n           int
}

type member[T any] interface {
	comparable
	linked() *link[T]
}

type link[T any] struct{ before, after T }

// linked implements member. It returns the member's own links.
func (l *link[T]) linked() *link[T] { return l }

// append adds m, which must be in no ring, at the end.
func (r *ring[T]) append(m T) {
	var none T
	*m.linked() = link[T]{before: r.last}
	if r.last == none {
		r.first = m
	} else {
		r.last.linked().after = m
	}
	r.last = m
	r.n++
}

// remove removes a member, which must be in this ring.
func (r *ring[T]) remove(m T) {
	var none T
	l := m.linked()
	if l.before == none {
		r.first = l.after
	} else {
		l.before.linked().after = l.after
	}
	if l.after == none {
		r.last = l.before
	} else {
		l.after.linked().before = l.before
	}
	*l = link[T]{}
	r.n--
}

// all yields the members. A yielded member may be removed.
func (r *ring[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		var none T
		for m := r.first; m != none; {
			next := m.linked().after
			if !yield(m) {
				return
			}
			m = next
		}
	}
}
