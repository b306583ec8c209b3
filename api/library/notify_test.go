package library

import "testing"

// TestRepairedLibraryCounts tests that a library that could not be read before counts as changed once it can be, although no new entry of the log is
// about it: pages that were made without it are made again.
func TestRepairedLibraryCounts(t *testing.T) {
	x := &Index{options: Options{Changes: new(Changes)}}
	before := x.options.Changes.Now()
	x.notifyChanges(5, changes{before: map[string]*Library{}, read: map[string]*Library{"repaired": {Name: "repaired"}}})
	if !x.options.Changes.Since(before, []string{"repaired"}) || !x.options.Changes.Since(before, []string{Catalogue}) || x.options.Changes.Since(before, []string{"other"}) {
		t.Error("the changes do not have the repaired library and the catalogue")
	}
}
