package requests

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
)

// FuzzRawPath holds that the path is the one that the client wrote, whatever net/http and
// net/url think of it.
func FuzzRawPath(f *testing.F) {
	for _, target := range []string{
		"/ajax/libs/a%2F1.0.0/\"x", "/ajax/libs/a/1/%2f<>", "/%61jax/libs/a/1/x", "//ajax/libs", "/ajax/libs/a/1/\xff%2F", "/a?b%2Fc", "/a#b%2Fc", "/ajax/libs/a/1/{}|^`",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if !strings.HasPrefix(target, "/") || strings.ContainsAny(target, " \r\n") {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n")))
		if err != nil {
			return
		}
		want, _, _ := strings.Cut(target, "?")
		if got := RawPath(r.URL); got != want {
			t.Fatalf("the path of %q is %q, want %q", target, got, want)
		}
	})
}
