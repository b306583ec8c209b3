package lane

import "slices"

// A list has members in no order. Each member stores its place, so that it is removed at once.
type list[T any] struct {
	members []*T
	// placeOf returns the field in which a member stores its place in the list, from 1 on; 0 if it is in none.
	placeOf func(*T) *int
}

// add adds a member, which must not be in the list.
func (l *list[T]) add(m *T) {
	l.members = append(l.members, m)
	*l.placeOf(m) = len(l.members)
}

// remove removes a member, and moves the last one to its place. It does nothing for one that is not in the list. A loop may remove its
// members if it goes backward.
func (l *list[T]) remove(m *T) {
	place := l.placeOf(m)
	if *place == 0 {
		return
	}
	last := len(l.members) - 1
	moved := l.members[last]
	l.members[*place-1], *l.placeOf(moved) = moved, *place
	l.members = slices.Delete(l.members, last, last+1)
	*place = 0
}
