package document

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

// TestCost is of what the process that serves reads of a worker that was taken over.
func TestCost(t *testing.T) {
	words := []string{"<p>", "</p>", "<b>", "</b>", "<a href=\"https://a\">", "</a>", "<", ">", "\"", "=\"", " ", "<span class=\"k\">", "</span>", "\n", "<br/>", "a", ">=1.0.0", " || ", "<1.0.0", "s ./a\n"}
	var all []cost.Parser
	for _, kind := range []Kind{Readme, Source, Comparison, Imports, Ranges} {
		all = append(all, cost.Parser{
			Name: string(kind), Parse: func(data []byte) { _, _ = Decode(kind, data) }, Wrap: func(text string) []byte { return []byte(string(kind) + " 0 0 false\n" + text) },
			Seeds: []string{"<p>a</p>", "<span>a</span>", "s ./a\n", ">=1.0.0 <2.0.0\n"}, Words: words, MaxMilliseconds: 5, MaxKiB: 500,
		})
	}
	cost.Check(t, all...)
}
