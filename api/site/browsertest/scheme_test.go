package browsertest

import "testing"

// TestScheme chooses colours, which stay on the next page, and goes back to those of the system.
func TestScheme(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	b.screen(1280, false)
	b.visit("/library/pickle")
	dark := func() bool { return eval[float64](b, lightness) < 0.5 }
	b.find("radio", "^dark$").click()
	b.wait("dark colours", dark)
	b.visit("/about")
	b.wait("dark colours on another page", dark)
	b.find("radio", "^as the system$").click()
	b.wait("light colours, as the system has them", func() bool { return !dark() })
	b.screen(1280, true)
	b.wait("dark colours, as the system has them", dark)
	b.find("radio", "^light$").click()
	b.wait("light colours", func() bool { return !dark() })
}
