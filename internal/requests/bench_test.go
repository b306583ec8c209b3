package requests

import "testing"

func BenchmarkParseAcceptEncoding(b *testing.B) {
	for _, field := range []struct{ name, line string }{
		{"browser", "gzip, deflate, br, zstd"}, {"one", "gzip"}, {"weights", "br;q=1.0, gzip;q=0.8, *;q=0.1"}, {"absent", ""},
	} {
		b.Run(field.name, func(b *testing.B) {
			var lines []string
			if field.line != "" {
				lines = []string{field.line}
			}
			b.ReportAllocs()
			for b.Loop() {
				ParseAcceptEncoding(lines)
			}
		})
	}
}
