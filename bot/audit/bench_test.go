package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// BenchmarkCompare holds a release of 5,000 files against the registry on loopback, half of which are minified here.
func BenchmarkCompare(b *testing.B) {
	for _, minified := range []bool{false, true} {
		b.Run(fmt.Sprintf("minified=%v", minified), func(b *testing.B) {
			r := newRig(b)
			files := map[string]string{}
			m := &logs.Manifest{Package: "large", Version: "1.0.0", Released: released}
			n := 5000
			if minified {
				n /= 2
			}
			for i := range n {
				path := fmt.Sprintf("lib/file%d.js", i)
				script := strings.Repeat(fmt.Sprintf("function name%d(first, second) {\n\treturn first + second;\n}\n", i), 100)
				files["dist/"+path] = script
				m.Files = append(m.Files, file(path, script, logs.Upstream, ""))
				if minified {
					small, err := r.pool.Do(b.Context(), "owner", worker.MinifyJS, []byte(script))
					if err != nil {
						b.Fatal(err)
					}
					m.Files = append(m.Files, file(strings.TrimSuffix(path, ".js")+".min.js", string(small), logs.Minified, path))
				}
			}
			r.registry.Add("large", "1.0.0", released, files, npmtest.Signed(r.key))
			packument, _, err := r.client.Packument(b.Context(), "large", npm.Validators{})
			if err != nil {
				b.Fatal(err)
			}
			m.Source = logs.Source{Type: "npm", Name: "large", Integrity: packument.Versions["1.0.0"].Hash()}
			claim := verify.Claim{Entry: logs.Entry{Kind: logs.Published, Package: "large", Version: "1.0.0"}, Manifest: m}
			for b.Loop() {
				if got := r.auditor.Compare(b.Context(), claim); got.Outcome != verify.Proven || got.Files+got.Made != 5000 {
					b.Fatalf("%+v", got)
				}
			}
		})
	}
}
