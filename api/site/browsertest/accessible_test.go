package browsertest

import (
	"fmt"
	"os"
	"testing"
)

const axe = "audit/node_modules/axe-core/axe.min.js"

// A violation is one rule of axe-core's that a page breaks.
type violation struct {
	ID    string
	Help  string
	Nodes []struct {
		Target         []any
		FailureSummary string
	}
}

// TestAccessible checks every page with all of axe-core's rules: in `make audit` on a phone and on a desktop, in light and in dark
// colors each. Elsewhere a page is checked in one of these ways, light on a phone or dark on a desktop, in turn.
func TestAccessible(t *testing.T) {
	script, err := os.ReadFile(axe)
	if err != nil {
		without(t, fmt.Errorf("no axe-core: %w; `make audit` fetches it", err))
	}
	b := newTab(t)
	b.tolerateFailure()
	arrive := func(path string) {
		t.Helper()
		b.goTo(path)
		eval[any](b, string(script)+"; undefined")
	}
	check := func(name string) {
		t.Helper()
		for _, v := range eval[[]violation](b, `(document.getAnimations().forEach(a => a.finish()), axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations))`) {
			for _, n := range v.Nodes {
				t.Errorf("%s: %s (%s): %v: %s", name, v.ID, v.Help, n.Target, n.FailureSummary)
			}
		}
	}
	for i, width := range []int64{390, 1280} {
		for n, p := range pages {
			if !auditing && n%2 != i {
				continue
			}
			arrive(p.path)
			for _, dark := range []bool{false, true} {
				if !auditing && dark != (width == 1280) {
					continue
				}
				b.screen(width, dark)
				check(fmt.Sprintf("%s, %d px, dark %v", p.name, width, dark))
			}
		}
		arrive("/")
		b.suggest("pickle")
		check(fmt.Sprintf("suggestions, %d px", width))
	}
}
