package verify

import (
	"net/url"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs"
)

func FuzzURL(f *testing.F) {
	for _, text := range []string{
		"https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js", "http://[::1]:8080/cdn/ajax/libs/a/1/b/c%20d.js?x=1#y", "https://h/ajax/libs/a/1/", "https://h/ajax/libs/a//b",
		"ftp://h/ajax/libs/a/1/b", "/ajax/libs/a/1/b", "https://h/ajax/libs/a/1/%2F", "https://h/ajax/libs/%zz/1/b", "https:///ajax/libs/a/1/b", "jquery/3.7.1/jquery.js",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		server, name, err := ParseURL(text)
		if err != nil {
			return
		}
		if u, err := url.Parse(server); err != nil || u.Host == "" || strings.HasSuffix(server, "/") {
			t.Errorf("%q is on the server %q: %v", text, server, err)
		}
		if again, err := ParseName(name.String()); err != nil || again != name {
			t.Errorf("%q is %+v, and that is %+v, %v", text, name, again, err)
		}
	})
}

// FuzzCheckpoint holds that nothing counts which the key has not signed.
func FuzzCheckpoint(f *testing.F) {
	private, public, err := note.GenerateKey(strings.NewReader(strings.Repeat("x", 32)), "cdn.example.com/log")
	if err != nil {
		f.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		f.Fatal(err)
	}
	const text = "cdn.example.com/log\n5\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	signed, err := note.Sign(&note.Note{Text: text}, signer)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add([]byte(text))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Trust{}.openCheckpoint(public, data, nil)
		if err == nil && (c.Tree.N != 5 || !strings.HasPrefix(string(data), text)) {
			t.Errorf("%q is taken for %+v", data, c)
		}
		if size, err := logs.CheckpointSize(data); err == nil && size < 0 {
			t.Errorf("%q is taken for a checkpoint of %d entries", data, size)
		}
	})
}
