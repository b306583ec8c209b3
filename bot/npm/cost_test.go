package npm

import (
	"bytes"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

func TestCost(t *testing.T) {
	cost.Check(t,
		cost.Parser{Name: "packument", Parse: func(data []byte) {
			if p, err := decodePackument("a", bytes.NewReader(data)); err == nil {
				for _, v := range p.Versions {
					parseHashes(v)
				}
			}
		},
			Seeds: []string{`{"name":"a","versions":{"1.0.0":{"version":"1.0.0","dist":{"tarball":"https://x/y.tgz","integrity":"sha512-xx"}}},"time":{"1.0.0":"2020-01-02T03:04:05.678Z"}}`},
			Words: []string{"{", "}", "[", "]", ":", ",", `"a"`, `"1.0.0":{"dist":{}},`, `"versions":{`, `"time":{`, `"dist":{`, `"integrity":"sha512-a sha512-b",`, `"signatures":[{}],`, "\\u0000", "\"", "1", "\n", " ", `{"a":`, "[["}, MaxMilliseconds: 10, MaxKiB: 1000},
	)
}
