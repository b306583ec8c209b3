package browsertest

import (
	"fmt"
	"html"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp/kb"
)

// TestWithoutScripts does all that matters in a browser that runs none. The test still
// may ask the page about itself.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	alter(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.visit("/")
	b.find("searchbox", "^Search libraries$").focus()
	b.press("pickle")
	b.press(kb.Enter)
	b.untilAt("/search?q=pickle")
	b.find("link", "^pickle$").click()
	b.untilAt("/library/pickle")

	tag := fmt.Sprintf(`<script src="%s/ajax/libs/pickle/2.0.0/pickle.min.js" integrity="%s" crossorigin="anonymous"></script>`,
		b.address, html.EscapeString(b.integrity("pickle", "2.0.0", "pickle.min.js")))
	b.until(fmt.Sprintf(`document.querySelector("main").innerText.includes(%q) || Array.from(document.querySelectorAll("main input, main textarea")).some(e => e.checkVisibility() && e.value === %[1]q)`, tag))
	if buttons := b.all("button", "(?i)^copy"); len(buttons) > 0 {
		t.Errorf("%v would do nothing without scripts", buttons)
	}

	b.find("combobox", "^Version$").focus()
	b.press("1.1")
	b.find("button", "^Show$").click()
	b.untilAt("/library/pickle/1.1.0")
}
