package main

import (
	"errors"
	"slices"
	"testing"
)

// A refused reload must say that it can be tried again, and a reload of the accepted settings must change nothing.
func TestReloads(t *testing.T) {
	for said, clear := range map[string]bool{
		"larder reload on two: exit status 1: larder: the process is still opening the store; try again when it serves": true,
		"larder reload on two: exit status 1: larder: EOF":                                                              false,
		"larder reload on two: signal: killed: ":                                                                        false,
	} {
		if isClearRefusal(errors.New(said)) != clear {
			t.Errorf("%s: clear is %v", said, !clear)
		}
	}
	var run reloadRun
	run.record("first", nil)
	run.record("second", errors.New("the process is still opening the store; try again when it serves"))
	if run.accepted != "first" || run.refused != 1 || len(run.wrong) > 0 {
		t.Errorf("%+v", run)
	}
	run.record("third", errors.New("EOF"))
	if run.accepted != "first" || run.refused != 2 || !slices.Equal(run.wrong, []string{"EOF"}) {
		t.Errorf("%+v", run)
	}
	if changed, err := parseReloaded(`{"changed": ["store-cache"], "restart": []}`); err != nil || !slices.Equal(changed, []string{"store-cache"}) {
		t.Error(changed, err)
	}
	if changed, err := parseReloaded("Reloaded"); err == nil {
		t.Error(changed)
	}
}
