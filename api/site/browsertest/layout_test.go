package browsertest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// outline draws a page coarsely, so that it is the same on machines with other fonts: for each of the blocks that it is made of,
// in the order of the document, in which twelfths of the page's width it begins and ends, and what of it can be seen: "whole",
// or "cut" where something clips it that does not scroll.
const outline = `(() => {
	const lines = [];
	const blocks = 'header, nav, main, section, form, table, dl, figure, footer, fieldset, ul.shelf, ul.lines, ol.events, .snippet, .source, .readme-text, .hero, .notice, [role=listbox]';
	for (const e of document.querySelectorAll(blocks)) {
		if (e.closest('#usage')) continue; // which the page has once a client has asked for files
		if (!e.checkVisibility({visibilityProperty: true}) || e.parentElement.closest('.readme-text, ul.shelf, ol.events, ul.lines')) continue;
		const box = e.getBoundingClientRect();
		if (box.width < 2 || box.height < 2) continue;
		let seen = {left: box.left, right: box.right, top: box.top, bottom: box.bottom};
		for (let a = e.parentElement; a && a !== document.documentElement; a = a.parentElement) {
			const style = getComputedStyle(a);
			if (style.overflowX === 'visible' && style.overflowY === 'visible') continue;
			if (/auto|scroll/.test(style.overflowX + style.overflowY)) break;
			const r = a.getBoundingClientRect();
			seen = {left: Math.max(seen.left, r.left), right: Math.min(seen.right, r.right), top: Math.max(seen.top, r.top), bottom: Math.min(seen.bottom, r.bottom)};
		}
		const share = Math.max(0, seen.right - seen.left) * Math.max(0, seen.bottom - seen.top) / (box.width * box.height);
		const column = (x) => Math.round(12 * x / innerWidth);
		const name = e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + [...e.classList].slice(0, 1).map((c) => '.' + c).join('');
		lines.push([name, column(box.left), column(box.right), share > 0.95 ? 'whole' : 'cut'].join(' '));
	}
	return lines;
})()`

// kept has the outlines. LARDER_TEST_REWRITE=1 writes it anew: look at what changed before you commit it.
const kept = "testdata/outlines.txt"

// outlined are the widths at which pages have outlines.
var outlined = []int64{390, 1280}

// suggestions is the heading of the front page with suggestions.
const suggestions = "suggestions"

func headOutline(name string, width int64) string { return fmt.Sprintf("%s, %d px", name, width) }

// draw takes the outline of what the tab shows.
func (s *sweep) draw(b *tab, name string, width int64) {
	b.Helper()
	lines := eval[[]string](b, outline)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outlines[headOutline(name, width)] = lines
}

// compareOutlines compares each kind of page, at two widths, with the outline that a developer last looked at and kept.
func (s *sweep) compareOutlines(t *testing.T) {
	t.Helper()
	var drawn strings.Builder
	var headings []string
	for _, width := range outlined {
		for _, p := range append(slices.Clone(pages), page{name: suggestions}) {
			heading := headOutline(p.name, width)
			headings = append(headings, heading)
			fmt.Fprintf(&drawn, "== %s\n%s\n", heading, strings.Join(s.outlines[heading], "\n"))
		}
	}
	if os.Getenv("LARDER_TEST_REWRITE") != "" {
		if len(s.outlines) != len(headings) {
			t.Fatalf("%d of %d outlines are drawn: %s stays as it is", len(s.outlines), len(headings), kept)
		}
		if err := os.WriteFile(kept, []byte(drawn.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	before, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	want := byHeading(string(before))
	for _, heading := range headings {
		if got, ok := s.outlines[heading]; ok { // -run may have chosen others
			compareOutlines(t, heading, want[heading], got)
		}
	}
	for heading := range want {
		if !slices.Contains(headings, heading) {
			t.Errorf("%s is drawn no more", heading)
		}
	}
}

// TestNoValue holds that a phone, where each cell has its label, shows no cell without a value in a list of files.
func TestNoValue(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/files/pickle/2.0.0")
	const dashes = `[...document.querySelectorAll('.files td[data-label]')].filter((td) => td.checkVisibility() && td.textContent === '–').length`
	b.screen(1280, false)
	if eval[int](b, dashes) == 0 {
		t.Error("no file is listed beside a folder")
	}
	b.screen(390, false)
	if n := eval[int](b, dashes); n != 0 {
		t.Errorf("%d cells are shown that have no value", n)
	}
}

func byHeading(text string) map[string][]string {
	found := map[string][]string{}
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "== "); ok {
			name = heading
		} else if line != "" {
			found[name] = append(found[name], line)
		}
	}
	return found
}

// compareOutlines lets an edge be one column further, as another font may have it.
func compareOutlines(t *testing.T, name string, want, got []string) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%s has %d blocks, and had %d:\n%s\nwere\n%s", name, len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
		return
	}
	for i := range got {
		w, g := strings.Fields(want[i]), strings.Fields(got[i])
		same := len(w) == 4 && len(g) == 4 && w[0] == g[0] && w[3] == g[3]
		for edge := 1; same && edge <= 2; edge++ {
			before, _ := strconv.Atoi(w[edge])
			now, _ := strconv.Atoi(g[edge])
			same = max(before-now, now-before) <= 1
		}
		if !same {
			t.Errorf("%s: %q was %q; if that is meant, write %s anew with LARDER_TEST_REWRITE=1", name, got[i], want[i], kept)
		}
	}
}
