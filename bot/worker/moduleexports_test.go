package worker

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

var exportSeeds = []string{
	`exports.a = 1; module.exports = { a, b: [c(1)], ...require("./d") };`,
	`Object.defineProperty(exports, "a", { enumerable: true, get: function () { return b.a } });`,
	`__exportStar(require("./a"), exports); var b = _interopRequireWildcard(require("b")); Object.keys(b).forEach(f);`,
	`export * from "a"; export { default, b as c } from "./d"; export default /x/g;`,
}

// TestCost holds that the time for finding exports does not grow faster than a script.
func TestExportsCost(t *testing.T) {
	words := []string{"exports.a=", "module.exports=", "module.exports={", "a:", "{", "}", "[", "]", "(", ")", ",", ";", "...", `require("a")`, "=", "Object.defineProperty(exports,'a',{", "enumerable:true", "get", "value:", "__export(", "Object.keys(a).forEach(", "var a=", "export ", "export {", "export *", " from 'a'", "default", "`${", "`", "/", "'a'", "\n"}
	cost.Check(t,
		cost.Parser{Name: "read-exports", Parse: func(data []byte) { scanCommonJS(data) }, Seeds: exportSeeds, Words: words, Size: 8 << 10, MaxMilliseconds: 8, MaxKiB: 1000},
		cost.Parser{Name: "read-stars", Parse: func(data []byte) { readESModule(data) }, Seeds: exportSeeds, Words: words, Size: 8 << 10, MaxMilliseconds: 8, MaxKiB: 1000},
	)
}

// FuzzReadExports holds that any bytes are read, and that the result is bounded and has no name twice.
func FuzzReadExports(f *testing.F) {
	for _, seed := range exportSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		found := readCommonJS(source)
		for _, all := range [][]string{found.names, found.from} {
			seen := map[string]bool{}
			for _, name := range all {
				if seen[name] {
					t.Fatalf("%q is found twice", name)
				}
				seen[name] = true
			}
			if len(all) > maxExports {
				t.Fatalf("%d are found", len(all))
			}
		}
		readESModule(source)
	})
}
