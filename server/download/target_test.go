package download

import (
	"errors"
	"mime"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseTarget(t *testing.T) {
	for path, want := range map[string]target{
		"/download/lib/1.0.0.tar.gz":          {"lib", "1.0.0", tarGzip},
		"/download/lib/1.0.0.zip":             {"lib", "1.0.0", zipped},
		"/download/lib/1.0.0.tar.gz.zip":      {"lib", "1.0.0.tar.gz", zipped},
		"/download/lib/1.0.0.tar.gz.tar.gz":   {"lib", "1.0.0.tar.gz", tarGzip},
		"/download/lib/.zip.zip":              {"lib", ".zip", zipped},
		"/download/lib/...zip.tar.gz":         {"lib", "...zip", tarGzip},
		"/download/a%62c/1+2%2B3.zip":         {"abc", "1+2+3", zipped},
		"/download/lib/1.0.0%2ezip":           {"lib", "1.0.0", zipped},
		"/download/%C3%BC%20%25/1%3F2%23.zip": {"ü %", "1?2#", zipped},
		"/download/%252e%252e/%252e%252e.zip": {"%2e%2e", "%2e%2e", zipped},
		"/download/lib.zip/1.0.0%22.tar.gz":   {"lib.zip", "1.0.0\"", tarGzip},
	} {
		if got, err := parseTarget(path); err != nil || got != want {
			t.Errorf("%s is %+v (%v), want %+v", path, got, err, want)
		}
	}
	for want, paths := range map[error][]string{
		noEndpoint: {
			"", "/", "/download", "/download/", "/downloads/lib/1.zip", "/%64ownload/lib/1.zip", "//download/lib/1.zip", "/Download/lib/1.zip",
			"/download/lib", "/download/lib/", "/download/lib/1.0.0", "/download/lib/1.0.0.ZIP", "/download/lib/1.0.0.tgz", "/download/lib/1.0.0.tar",
			"/download/lib/.zip", "/download/lib/.tar.gz", "/download/lib/zip", "/download//1.0.0.zip", "/download/lib//1.0.0.zip", "/download/lib/1.0.0.zip/",
			"/download/lib/1.0.0/a.zip", "/download/@scope/lib/1.0.0.zip",
		},
		badPath: {
			"/download/../1.0.0.zip", "/download/./1.0.0.zip", "/download/%2e%2E/1.0.0.zip", "/download/lib/../../etc/1.zip", "/download/lib/..", "/download/lib/1.zip/..",
			"/download/lib/1.0.0%FF.zip", "/download/lib/1.0.0%0A.tar.gz",
			"/download/lib/..zip", "/download/lib/...zip", "/download/lib/%2e%2e.tar.gz",
			"/download/a%2Fb/1.0.0.zip", "/download/lib/1%2f2.zip", "/download/a%5Cb/1.0.0.zip", "/download/a\\b/1.0.0.zip", "/download/lib/1%00.zip",
			"/download/lib/1%.zip", "/download/lib/1%2.zip", "/download/%zz/1.zip",
		},
	} {
		for _, path := range paths {
			if got, err := parseTarget(path); !errors.Is(err, want) {
				t.Errorf("%q is %+v (%v), want %v", path, got, err, want)
			}
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, path := range []string{
		"/download/lib/1.0.0.tar.gz", "/download/lib/1.0.0.zip", "/download/lib/%2e%2e.zip", "/download/lib/...zip", "/download/a%2Fb/1.zip", "/download/lib/1.zip%00",
		"/download/lib/.zip", "/download/../x/1.zip", "/download/lib/1.0.0.tar.gz.zip", "/download/l\xffb/%ff.zip", "/download/lib/%", "/download/%252e%252e/1.zip", "",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got, err := parseTarget(escaped)
		if err != nil {
			if err != error(noEndpoint) && err != error(badPath) {
				t.Fatalf("unknown error %v", err)
			}
			if got != (target{}) {
				t.Fatalf("an error comes with %+v", got)
			}
			return
		}
		decoded, err := url.PathUnescape(escaped)
		if want := Prefix + got.pkg + "/" + got.version + got.format.suffix(); err != nil || decoded != want {
			t.Fatalf("the path decoded once is %q (%v), not %q", decoded, err, want)
		}
		for _, part := range []string{got.pkg, got.version} {
			if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "/\\\x00") {
				t.Fatalf("%+v holds what it must not", got)
			}
		}
		checkDisposition(t, got.filename())
	})
}

// checkDisposition holds the header against mime's reading of it.
func checkDisposition(t *testing.T, filename string) {
	t.Helper()
	header := formatDisposition(filename)
	if strings.ContainsFunc(header, func(r rune) bool { return r < ' ' || r > 0x7e }) {
		t.Fatalf("the header %q of %q has bytes that no header should have", header, filename)
	}
	kind, parameters, err := mime.ParseMediaType(header)
	if err != nil || kind != "attachment" {
		t.Fatalf("the header %q of %q is malformed: %v", header, filename, err)
	}
	saved := parameters["filename"]
	if strings.ContainsAny(saved, "/\\") || !utf8.ValidString(saved) || !strings.HasSuffix(saved, ".zip") && !strings.HasSuffix(saved, ".tar.gz") {
		t.Fatalf("%q is saved as %q", filename, saved)
	}
}

func TestDisposition(t *testing.T) {
	for filename, want := range map[string]string{
		"jquery-3.7.1.zip":          `attachment; filename="jquery-3.7.1.zip"`,
		"a-1.0.0-rc.1+b.2.tar.gz":   `attachment; filename="a-1.0.0-rc.1+b.2.tar.gz"`,
		`a"b\c/d:e-1.zip`:           `attachment; filename="a_b_c_d_e-1.zip"`,
		"a\r\nX: y-1.zip":           `attachment; filename="a__X_ y-1.zip"`,
		"ü-100%.zip":                `attachment; filename="_-100_.zip"; filename*=UTF-8''%C3%BC-100%25.zip`,
		"文 (1)'-\xff\u0085\x7f.zip": `attachment; filename="_ (1)'-___.zip"; filename*=UTF-8''%E6%96%87%20%281%29%27-___.zip`,
	} {
		if got := formatDisposition(filename); got != want {
			t.Errorf("the header for %q is\n%s, want\n%s", filename, got, want)
		}
		checkDisposition(t, filename)
	}
}
