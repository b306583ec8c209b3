package logs_test

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
	"github.com/larder-cdn/larder/logs"
)

func TestCost(t *testing.T) {
	words := []string{"{", "}", "[", "]", ":", ",", `"a"`, `{"path":"a","sri":"sha512-"},`, `"files":[`, `"about":{`, `"readme":"`, `"notes":[`, `"kind":"published",`, `"package":"a",`, "\\u0000", "\"", "1", "\n", " ", `{"a":`, "[["}
	cost.Check(t,
		cost.Parser{Name: "entry", Parse: func(data []byte) { _, _ = logs.ParseEntry(1, data) }, Seeds: []string{`{"kind":"published","package":"a","version":"1.0.0","time":"2020-01-02T03:04:05Z"}`}, Words: words, MaxMilliseconds: 5, MaxKiB: 500},
		cost.Parser{Name: "manifest", Parse: func(data []byte) { _, _ = logs.DecodeManifest(data) }, Seeds: []string{`{"format":1,"package":"a","version":"1.0.0","files":[{"path":"a","sri":"sha512-"}]}`}, Words: words, MaxMilliseconds: 5, MaxKiB: 500},
		cost.Parser{Name: "what upstream says", Parse: func(data []byte) { _, _ = logs.DecodeAbout(data) }, Seeds: []string{`{"about":{"readme":"a","dependencies":{"a":"1"}}}`}, Words: words, MaxMilliseconds: 5, MaxKiB: 500},
	)
}
