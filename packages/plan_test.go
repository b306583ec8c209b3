package packages

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages/archive"
)

// release makes an archive of files that are "name" or "name=size", and of a link "name->target".
func release(t *testing.T, files string) archive.Source {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for f := range strings.FieldsSeq(files) {
		name, target, link := strings.Cut(f, "->")
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}
		if link {
			h.Typeflag, h.Linkname = tar.TypeSymlink, target
		} else if name, size, ok := strings.Cut(f, "="); ok {
			h.Name = name
			fmt.Sscan(size, &h.Size)
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	source, err := archive.Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func parse(t *testing.T, more string) *Package {
	t.Helper()
	p, err := Parse("", []byte(`{"name":"p","filename":"a.js","description":"d","keywords":["k"],
		"repository":{"type":"git","url":"https://git.example/p"}`+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOf(t *testing.T) {
	const dist = `,"autoupdate":{"source":"npm","target":"p","fileMap":[{"basePath":"dist","files":["**/*.@(js|css)"]}]}`
	tests := map[string]struct{ more, files, want, leftOut, nothing string }{
		"minified forms are made of what has none": {
			more: dist, files: "dist/a.js=10 dist/b.js=10 dist/b.min.js=5 dist/c.css=7 dist/d-min.js=4 src/x.js=1",
			want: "a.js:10 a.min.js(dist/a.js) b.js:10 b.min.js:5 c.css:7 c.min.css(dist/c.css) d-min.js:4",
		},
		"nor of what the package does not want minified": {
			more: dist + `,"optimization":{"js":false}`, files: "dist/a.js=1 dist/c.css=1",
			want: "a.js:1 c.css:1 c.min.css(dist/c.css)",
		},
		"nor of what is too large": {
			more: dist, files: fmt.Sprintf("dist/a.js=%d dist/b.js=%d", MaxMinify, MaxMinify+1),
			want: fmt.Sprintf("a.js:%d a.min.js(dist/a.js) b.js:%d", MaxMinify, MaxMinify+1),
		},
		"a minified form that is not published still counts": {
			more:  `,"autoupdate":{"source":"npm","target":"p","fileMap":[{"basePath":"","files":["a.js"]}]}`,
			files: "a.js=1 a.min.js=1", want: "a.js:1",
		},
		"links and giants are left out": {
			more: dist, files: fmt.Sprintf("dist/a.min.js=1 dist/l.js->a.js dist/g.js=%d", MaxFile+1),
			want: "a.min.js:1", leftOut: "g.js: 26214401 bytes, over the limit of 26214400|l.js: symbolic link",
		},
		"nothing selected": {
			more: dist, files: "a.js=1 b.js=1",
			nothing: "the package JSON's fileMap selects none of the release's 2 files",
		},
		"nothing left": {
			more: dist, files: "dist/l.js->a.js", leftOut: "l.js: symbolic link",
			nothing: `nothing is left to publish: all 1 selected files are left out, such as "l.js" (symbolic link)`,
		},
		"a package without autoupdate publishes everything": {
			files: "x/a.css=1 README=2", want: "README:2 x/a.css:1 x/a.min.css(x/a.css)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := NewPlan(context.Background(), parse(t, tt.more), release(t, tt.files))
			if err != nil {
				t.Fatal(err)
			}
			var got, left []string
			for _, f := range s.Files() {
				if f.Minified {
					got = append(got, f.Path+"("+f.Source+")")
				} else {
					got = append(got, fmt.Sprintf("%s:%d", f.Path, f.Size))
				}
			}
			for _, l := range s.LeftOut {
				left = append(left, l.Path+": "+l.Reason)
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("got files\n%s, want\n%s", got, tt.want)
			}
			if got := strings.Join(left, "|"); got != tt.leftOut {
				t.Errorf("got left out %q, want %q", got, tt.leftOut)
			}
			if got := s.Nothing(); (got == "") != (tt.nothing == "") || !strings.HasPrefix(got, tt.nothing) {
				t.Errorf("nothing: got %q, want %q", got, tt.nothing)
			}
			if got := len(strings.Fields(tt.files)); s.Entries != got || len(s.Sources()) != got {
				t.Errorf("got %d entries and %d sources, want %d", s.Entries, len(s.Sources()), got)
			}
		})
	}
}
