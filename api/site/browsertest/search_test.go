package browsertest

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// suggest types a search into the box of the page and waits for suggestions.
func (b *tab) suggest(text string) element {
	b.Helper()
	box := b.find("combobox", "^Search libraries$")
	box.focus()
	b.press(text)
	b.wait("suggestions", func() bool { return len(b.suggestions()) > 0 })
	return box
}

// suggestions returns what the list of suggestions shows. It may change while a user
// types, so it is read in one go.
func (b *tab) suggestions() []string {
	b.Helper()
	return eval[[]string](b, `Array.from(document.querySelectorAll("[role=listbox] [role=option]"))
		.filter(option => option.checkVisibility()).map(option => option.textContent.trim())`)
}

// tabTo presses the tabulator until something has the focus.
func (b *tab) tabTo(e element) {
	b.Helper()
	const most = 40
	for range most {
		if e.focused() {
			return
		}
		b.press(kb.Tab)
	}
	b.Fatalf("%v cannot be reached with %d presses of the tabulator", e, most)
}

// TestSearchAsYouType finds a library with nothing but the keyboard.
func TestSearchAsYouType(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/")
	box := b.find("combobox", "^Search libraries$")
	b.tabTo(box)
	b.press("pick")
	b.wait("pickle suggested first", func() bool {
		suggestions := b.suggestions()
		return len(suggestions) > 0 && strings.HasPrefix(suggestions[0], "pickle")
	})
	active := func() string {
		return on[string](box, "function() { const id = this.getAttribute('aria-activedescendant'); return id ? document.getElementById(id).textContent.trim() : '' }")
	}
	if got := active(); got != "" {
		t.Errorf("before any arrow key the option %q is chosen", got)
	}
	b.press(kb.ArrowDown)
	b.wait("a chosen option", func() bool { return active() != "" })
	b.press(kb.Enter)
	b.untilAt("/library/pickle")
}

func TestSuggestionsClose(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/")
	box := b.suggest("pick")
	expanded := func() string { return on[string](box, "function() { return this.getAttribute('aria-expanded') }") }
	if got := expanded(); got != "true" {
		t.Errorf("with suggestions aria-expanded is %q", got)
	}
	b.press(kb.Escape)
	b.wait("no suggestions", func() bool { return len(b.suggestions()) == 0 && expanded() == "false" })
	b.press(kb.Enter) // with nothing chosen, a search for what is in the box
	b.untilAt("/search?q=pick")
	b.find("link", "^pickle$")
}

// TestSearchFromAnywhere uses the box that every page has.
func TestSearchFromAnywhere(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/library/jam/1.0.1")
	b.suggest("preserv")
	b.press(kb.Enter)
	b.untilAt("/search?q=preserv")
	b.find("link", "^preserve$")
}

func TestSearchTolerates(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	for _, search := range []struct{ text, finds string }{
		{"pikcle", "^pickle$"},
		{"shelf%20css", "^shelf-css$"},
		{"shelfcss", "^shelf-css$"},
		{"fruit", "^jam$"},
	} {
		b.visit("/search?q=" + search.text)
		b.find("link", search.finds)
	}
	b.visit("/search")
	for _, name := range []string{"empty-jar", "jam", "pantry", "pickle", "preserve", "shelf-css"} {
		b.find("link", "^"+name+"$")
	}
}
