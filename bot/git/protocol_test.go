package git_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages/archive"
)

// Of a repository with several releases, git's own server sends the objects of one commit, and with partial clones only the blobs of the selected files.
// Objects of releases before and after never arrive.
func TestSelection(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(w http.ResponseWriter, q *http.Request) http.ResponseWriter
		partial  bool
		requests int
		objects  string // of each pack
	}{
		{"version 2", func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return w }, true, 4, "4 2"},
		{"version 2 without filters", func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return withoutFilter{w} }, false, 3, "8"},
		{"version 0", func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			q.Header.Del("Git-Protocol")
			return w
		}, false, 2, "8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := gittest.New(t)
			r := server.Repository(t, "a.git")
			large := strings.Repeat("large", 1000)
			r.Release("v0.9.0", noon, gittest.Files{"dist/a.js": "before", "dist/c.js": "before, too"})
			commit := r.Release("v1.0.0", noon, gittest.Files{"dist/a.js": "a", "dist/same.js": "a", "dist/lfs.js": pointer, "link:dist/b.js": "a.js", "docs/large.txt": large})
			r.Release("v1.1.0", noon, gittest.Files{"dist/a.js": "after", "dist/same.js": "a"})
			backend, err := gittest.Backend(server.Dir, "")
			if err != nil {
				t.Fatal(err)
			}
			var packs []string
			server.Answer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				body := recordedBody{ResponseWriter: w}
				backend.ServeHTTP(tt.change(&body, q), q)
				if _, pack, ok := strings.Cut(body.text.String(), "PACK\x00\x00\x00\x02"); ok {
					packs = append(packs, strconv.FormatUint(uint64(binary.BigEndian.Uint32([]byte(pack[:4]))), 10))
				}
			}))
			c := client(t, git.Options{})
			var names []string
			selection := func(ctx context.Context, a archive.Source) (func(string) bool, error) {
				err := archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
					names = append(names, e.Name)
					return nil
				})
				return func(name string) bool { return strings.HasPrefix(name, "dist/") }, err
			}
			release, err := c.Release(t.Context(), r.URL, git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}, selection, temp(t))
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"dist/a.js": "a", "dist/same.js": "a", "dist/b.js": "- symbolic link", "docs/large.txt": large,
				"dist/lfs.js": "- a Git LFS pointer: the file itself, of 12345 bytes, is not in the repository",
			}
			if tt.partial {
				want["docs/large.txt"] = "- unknown kind of entry"
				if got := strings.Join(names, " "); got != "dist/a.js dist/b.js dist/lfs.js dist/same.js docs/large.txt" {
					t.Errorf("the selection has the names %s", got)
				}
			}
			if got := contents(t, release.Archive); !maps.Equal(got, want) {
				t.Errorf("%q", got)
			}
			if got := len(server.Requests()); got != tt.requests {
				t.Errorf("%d requests, want %d", got, tt.requests)
			}
			if got := strings.Join(packs, " "); got != tt.objects {
				t.Errorf("packs of %s objects arrived, want %s", got, tt.objects)
			}
		})
	}
}

// recordedBody copies the body of a response.
type recordedBody struct {
	http.ResponseWriter
	text strings.Builder
}

// Write implements io.Writer.
func (r *recordedBody) Write(p []byte) (int, error) {
	r.text.Write(p)
	return r.ResponseWriter.Write(p)
}

// withoutFilter hides from clients that the host can filter.
type withoutFilter struct{ http.ResponseWriter }

// Write implements io.Writer.
func (w withoutFilter) Write(p []byte) (int, error) {
	_, err := w.ResponseWriter.Write(bytes.ReplaceAll(p, []byte(" filter"), []byte(" filler")))
	return len(p), err
}

// A host may respond with anything. It is an error that says what is wrong.
func TestMalformedResponses(t *testing.T) {
	packets := func(lines ...string) string {
		var b strings.Builder
		for _, line := range lines {
			if line == "" {
				b.WriteString("0000")
				continue
			}
			fmt.Fprintf(&b, "%04x%s", len(line)+4, line)
		}
		return b.String()
	}
	hash := strings.Repeat("a", 40)
	service := "# service=git-upload-pack\n"
	two := packets(service, "", "version 2\n", "ls-refs\n", "fetch=shallow\n", "")
	for name, tt := range map[string]struct{ advertisement, response, want string }{
		"nothing":             {"", "", "EOF"},
		"no packets":          {"zzzz", "", "malformed"},
		"a short length":      {"0003", "", "malformed"},
		"cut off":             {packets(service, "", "version 2\n"), "", "EOF"},
		"an error":            {packets("ERR no such repository"), "", "the host reports: no such repository"},
		"SHA-256":             {packets(service, "", "version 2\n", "object-format=sha256\n", ""), "", `the object format "sha256"`},
		"many capabilities":   {packets(service, "") + packets("version 2\n") + strings.Repeat(packets("symref=a\n"), 1000) + packets(""), "", "more than 200 capabilities"},
		"no hash":             {packets(service, "", "xyz refs/tags/a\x00shallow\n", ""), "", "malformed"},
		"a zero byte":         {packets(service, "", hash+" refs/tags/a\x00shallow\n", hash+" refs/tags/b\x00\n", ""), "", "a zero byte"},
		"references cut off":  {two, packets(hash + " refs/tags/a\n"), "EOF"},
		"a malformed tag":     {two, packets("refs/tags/a\n", ""), "malformed"},
		"an error instead":    {two, packets("ERR overloaded"), "the host reports: overloaded"},
		"version 0, no tags":  {packets(service, "", strings.Repeat("0", 40)+" capabilities^{}\x00shallow\n", ""), "", ""},
		"version 1":           {packets(service, "", "version 1\n", hash+" HEAD\x00shallow\n", hash+" refs/tags/a\n", hash+" refs/tags/a^{}\n", ""), "", ""},
		"nothing in it":       {packets(service, "", ""), "", ""},
		"version 2, directly": {packets("version 2\n", "ls-refs\n", ""), packets(""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := gittest.New(t)
			server.Answer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				kind, body := "result", tt.response
				if r.Method == http.MethodGet {
					kind, body = "advertisement", tt.advertisement
				}
				w.Header().Set("Content-Type", "application/x-git-upload-pack-"+kind)
				fmt.Fprint(w, body)
			}))
			_, err := client(t, git.Options{}).Tags(t.Context(), server.URL+"/a.git", "")
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v", err)
			}
		})
	}
}
