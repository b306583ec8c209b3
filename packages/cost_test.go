package packages

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

var jsonWords = []string{"{", "}", "[", "]", ":", ",", "\"a\"", "\"name\":", "\"files\":[", "\"fileMap\":[", "{\"basePath\":\"\",\"files\":[\"*\"]},", "\"keywords\":[", "\"autoupdate\":{", "\\u0000", "\\", "\"", "1", "1e999", "null", "true", "\n", " ", "é", "\xff", "/*", "{\"a\":", "[["}

func TestCost(t *testing.T) {
	file := string(Starter().Packages()[0].JSON)
	cost.Check(t, cost.Parser{
		Name: "package JSON", Seeds: []string{file, `{"name":"slider","keywords":["a"],"autoupdate":{"source":"npm","target":"a","fileMap":[{"basePath":"","files":["*"]}]}}`}, Words: jsonWords,
		Parse: func(data []byte) { _, _ = Parse("slider.json", data) }, MaxMilliseconds: 10, MaxKiB: 3000,
	})
}
