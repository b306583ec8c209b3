package browsertest

import (
	"strings"
	"testing"
)

// TestFollowLog lets the log grow while a user looks at it. The user has missed all of it, so
// that nothing has to happen while they look.
func TestFollowLog(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.visit("/history?package=jam")
	before := eval[[]string](b, entriesShown)
	if len(before) < 3 {
		t.Fatalf("the log of jam has %q", before)
	}
	before = before[:len(before)-1] // but entry 0, after which they come
	eval[any](b, `document.querySelectorAll("#log > tr").forEach(entry => entry.remove()),
		window.EventSource = class extends EventSource {
			constructor(address) {
				address.searchParams.set("after", 0);
				super(address);
				window.opened = (window.opened ?? 0) + 1;
			}
		}, undefined`)
	follow := b.find("button", "^Follow live$")
	follow.click()
	b.wait("all entries but the first", func() bool {
		return strings.Join(eval[[]string](b, entriesShown), "\n") == strings.Join(before, "\n")
	})
	b.until(`/new entr/.test(document.getElementById("announcer").textContent)`)
	if !eval[bool](b, `document.querySelector("button.follow").getAttribute("aria-pressed") === "true"`) {
		t.Error("the button does not say that the log is followed")
	}
	follow.click()
	b.until(`document.querySelector("button.follow").getAttribute("aria-pressed") === "false"`)
	follow.click()
	b.until(`window.opened === 2`)
	if after := eval[[]string](b, entriesShown); len(after) != len(before) {
		t.Errorf("followed again it shows %q", after)
	}
}

// entriesShown is what each entry of the log says, but for what is found behind it only.
const entriesShown = `Array.from(document.querySelectorAll("#log > tr")).map(entry =>
	Array.from(entry.cells).filter(cell => cell.className != "why").map(cell => cell.textContent.trim()).join(" "))`
