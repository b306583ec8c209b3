package browsertest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// hidden lists what can be pressed but not be seen: scrolled to, another element lies over its middle, or something cuts it
// off. What lies under a fixed or sticky element counts as seen, because it moves.
const hidden = `(() => {
	const said = (e) => e.outerHTML.slice(0, 120);
	const lost = [];
	for (const e of document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [role=option], [tabindex="0"]')) {
		if (!e.checkVisibility({visibilityProperty: true}) || e.matches('.skip') || e.disabled) continue;
		e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
		const box = [...e.getClientRects()].find((r) => r.width > 1 && r.height > 1);
		if (!box) { lost.push('has no size: ' + said(e)); continue; }
		const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
		if (!at) lost.push('is off the screen: ' + said(e));
		else if (!e.contains(at) && !at.contains(e) && !at.closest('label')?.contains(e)) lost.push('lies under ' + said(at) + ': ' + said(e));
		else if (at !== e && at.contains(e)) {
			// The box's middle may be a gap, between the lines of a link or the cells of a row.
			const more = [...e.getClientRects(), ...[...e.querySelectorAll('*')].flatMap((c) => [...c.getClientRects()])];
			if (!more.some((r) => e.contains(document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)))) lost.push('is cut off in ' + said(at) + ': ' + said(e));
		}
	}
	scrollTo({top: 0, behavior: 'instant'});
	return lost;
})()`

// checkVisible holds that a visitor sees whatever can be pressed. Each page is checked at one of three widths, or at all.
func (b *tab) checkVisible(p page, width int64) {
	b.Helper()
	for _, what := range eval[[]string](b, hidden) {
		b.Errorf("%s, %d px: %s", p.name, width, what)
	}
}

// TestSuggestionsAreVisible sees the list of suggestions whole, and each one when an arrow key chooses it.
func TestSuggestionsAreVisible(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	for _, path := range []string{"/", "/search", "/library/pickle"} {
		for _, width := range []int64{390, 1280} {
			b.visit(path)
			b.screen(width, false)
			b.suggest("e")
			if what := eval[string](b, `(() => {
				const list = document.querySelector('[role=listbox]'), r = list.getBoundingClientRect();
				for (const [x, y] of [[r.left + 12, r.top + 4], [r.right - 12, r.top + 4], [r.left + 12, r.bottom - 4], [r.right - 12, r.bottom - 4]]) {
					if (y < innerHeight && !list.contains(document.elementFromPoint(x, y))) return 'at ' + x + ', ' + y;
				}
				return '';
			})()`); what != "" {
				t.Errorf("%s, %d px: the list of suggestions cannot be seen %s", path, width, what)
			}
			for i := range b.suggestions() {
				b.press(kb.ArrowDown)
				b.wait(fmt.Sprintf("suggestion %d on %s, %d px wide, chosen and to be seen whole", i+1, path, width), func() bool { // the page may scroll smoothly
					return eval[bool](b, fmt.Sprintf(`(() => {
						const option = document.querySelectorAll('[role=option]')[%d];
						const r = option.getBoundingClientRect();
						const corners = [[r.left + 4, r.top + 4], [r.right - 4, r.top + 4], [r.left + 4, r.bottom - 4], [r.right - 4, r.bottom - 4]];
						return option.getAttribute('aria-selected') === 'true' && corners.every(([x, y]) => option.contains(document.elementFromPoint(x, y)));
					})()`, i))
				})
			}
		}
	}
}
