package fallback

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

func TestCost(t *testing.T) {
	cost.Check(t, cost.Parser{
		Name: "listing", Parse: func(data []byte) { _, _ = parseListing(data, "a", "1.0.0") }, Seeds: []string{`{"name":"a","version":"1.0.0","files":["a.js"],"rawFiles":["a.js"],"sri":{"a.js":"sha512-x"}}`},
		Words: []string{"{", "}", "[", "]", ":", ",", `"a.js"`, `"files":[`, `"sri":{`, `"a.js":"sha512-x",`, "\"", "..", "/", "1", "\n", "[["}, MaxMilliseconds: 5, MaxKiB: 500,
	})
}
