package glob

import "testing"

// BenchmarkMatch is one pattern on one path.
func BenchmarkMatch(b *testing.B) {
	for _, test := range []struct{ name, pattern, path string }{
		{"literal", "dist/app.js", "dist/app.js"},
		{"star", "dist/*.js", "dist/app.min.js"},
		{"globstar", "**/*.js", "dist/a/b/c/app.min.js"},
		{"extended", "*.@(js|css)?(.map)", "bootstrap.bundle.min.js.map"},
		{"extended-refused", "*.@(js|css)?(.map)", "bootstrap.bundle.min.ts"},
		{"negation", "**/!(*.d.ts|*.esm.js)", "dist/a/bootstrap.bundle.min.js"},
		{"braces", "{,locale/,plugins/}*.@(js|css)", "plugins/datetime.js"},
		{"not-ascii", "**/*.+(js|css)", "dist/été.js"},
	} {
		b.Run(test.name, func(b *testing.B) {
			g, err := Compile(test.pattern)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				g.Match(test.path)
			}
		})
	}
}

// BenchmarkTree is a release of 2012 files and its package's patterns.
func BenchmarkTree(b *testing.B) {
	for _, tree := range readTrees(b) {
		if len(tree.Files) < 2000 {
			continue
		}
		b.Run(tree.Package, func(b *testing.B) {
			var globs []*Glob
			for _, entry := range tree.Entries {
				g, err := Compile(entry.Pattern)
				if err != nil {
					b.Fatal(err)
				}
				globs = append(globs, g)
			}
			for b.Loop() {
				for _, file := range tree.Files {
					for _, g := range globs {
						g.Match(file)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(tree.Files)*len(globs)), "ns/match")
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	patterns := readPatterns(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, pattern := range patterns {
			if _, err := Compile(pattern); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(patterns)), "ns/pattern")
}
