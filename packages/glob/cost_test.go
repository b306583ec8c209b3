package glob

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

func TestCost(t *testing.T) {
	words := []string{"*", "**", "?", "/", "a", "{a,b}", "{", "}", ",", "[a-z]", "[", "]", "!", "(", ")", "|", "@(a|b)", "*(a)", "!(a|b)", "+(", "\\", "..", "{1..9}", "**/", ".", "-"}
	path := "a/aa/aaa/b/a.a.a.a/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.js"
	cost.Check(t, cost.Parser{
		Name: "pattern", Seeds: []string{"**/*.min.js", "dist/{a,b}/!(c|d)*.js"}, Words: words, Size: 1 << 10,
		Parse: func(pattern []byte) {
			if g, err := Compile(string(pattern)); err == nil {
				g.Match(path)
			}
		}, MaxMilliseconds: 60, MaxKiB: 50_000,
	})
}
