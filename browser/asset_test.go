package browser

import "testing"

func TestServes(t *testing.T) {
	b := newTab(t)
	b.visit("/ajax/libs/pickle/2.0.0/pickle.js")
	b.visit("/")
}
