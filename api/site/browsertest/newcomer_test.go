package browsertest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// A newcomer works the pages with the pointer, and counts.
type newcomer struct {
	*tab
	clicks int
}

func (n *newcomer) click(role, pattern string) {
	n.Helper()
	n.clicks++
	n.find(role, pattern).click()
}

// search types a name into the box of the page, which is where the page puts the cursor or one click away.
func (n *newcomer) search(text string) {
	n.Helper()
	n.suggest(text)
	n.press(kb.Enter)
	n.untilAt("/search?q=" + text)
}

// TestNewcomer performs what newcomers come for, each from the front page, and holds the clicks that docs/site.md says.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/site.md")
	if err != nil {
		t.Fatal(err)
	}
	found := func(n *newcomer) {
		n.search("pickle")
		n.click("link", "^pickle$")
		n.untilAt("/library/pickle")
	}
	for _, task := range []struct {
		name   string
		clicks int
		do     func(*newcomer)
	}{
		{"find a library", 1, found},
		{"copy a tag with its integrity", 2, func(n *newcomer) {
			found(n)
			clipboardInUse.Lock()
			defer clipboardInUse.Unlock()
			n.emptyClipboard()
			n.click("button", scriptTag)
			n.wait("a tag in the clipboard", func() bool {
				text := n.clipboard()
				return strings.HasPrefix(text, "<script src=") && strings.Contains(text, `integrity="sha512-`)
			})
		}},
		{"compare two versions", 2, func(n *newcomer) {
			found(n)
			n.click("link", "^Changes since 1.1.0$")
			n.until(`location.pathname === "/compare/pickle"`)
			n.says(`legacy\.js`)
		}},
		{"see why a version is missing", 1, func(n *newcomer) {
			n.search("empty-jar")
			n.click("link", "^empty-jar$")
			n.untilAt("/library/empty-jar")
			n.says("selects none of the release")
		}},
		{"see whether it is safe: where each file came from, and the entry of the log", 2, func(n *newcomer) {
			found(n)
			n.click("link", "what happened to 2.0.0$")
			n.untilAt("/history/pickle/2.0.0")
			n.says("how each of its files was processed")
			n.says("Made from")
		}},
	} {
		t.Run(task.name, func(t *testing.T) {
			t.Parallel()
			n := &newcomer{tab: newTab(t)}
			n.allowClipboard()
			n.visit("/")
			task.do(n)
			if n.clicks != task.clicks {
				t.Errorf("it takes %d clicks, not %d", n.clicks, task.clicks)
			}
			if row := fmt.Sprintf("| %s | %d |", task.name, n.clicks); !strings.Contains(string(doc), row) {
				t.Errorf("docs/site.md has no row %q", row)
			}
		})
	}
}
