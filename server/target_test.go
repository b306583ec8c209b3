package server

import (
	"net/url"
	"strings"
	"testing"
)

// The request scripts in testdata/paths.txt have the table; this has what holds
// for every path.
func FuzzParseTarget(f *testing.F) {
	for _, path := range []string{
		"/ajax/libs/demo/1.0.0/demo.js", "/ajax/libs/demo/1.0.0/a%20b%2Bc", "/ajax/libs/demo/1/%2e%2e/x", "/ajax/libs/a%2Fb/1/x",
		"/ajax/libs/demo/1.0.0//x", "/ajax/libs/demo/1.0.0/x%00", "/ajax/libs/demo/1.0.0/%5c", "/ajax/libs/demo/1.0.0/%", "/ajax/libs/../../etc/passwd", "/", "",
		"/ajax/libs/demo/1.0.0/\xff", "/ajax/libs/%2e/1/x", "/ajax/libs/demo/1.0.0/%252e%252e/x",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got, err := parseTarget(escaped)
		if err != nil {
			if err != errNoFile && err != errMalformed {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil || decoded != Prefix+got.key {
			t.Fatalf("the key %q is not the path decoded once, %q (%v)", got.key, decoded, err)
		}
		if got.key != got.pkg+"/"+got.version+"/"+got.path {
			t.Fatalf("the key of %+v has other parts", got)
		}
		if strings.ContainsAny(got.key, "\x00\\") || strings.ContainsAny(got.pkg+got.version, "/") {
			t.Fatalf("%+v holds what it must not", got)
		}
		for _, segment := range strings.Split(got.key, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Fatalf("%q has the segment %q", got.key, segment)
			}
		}
	})
}
