package bucket

import (
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct{ at, want string }{
		{"s3://larder", "s3://larder/ at s3.test:9000"},
		{"s3://larder/a/b/", "s3://larder/a/b/ at s3.test:9000"},
		{"file://" + dir, "file://" + dir},
	} {
		b, err := Open(test.at, "http://s3.test:9000", "")
		if err != nil || b.String() != test.want {
			t.Errorf("%s: %v, %v; want %s", test.at, b, err, test.want)
		}
	}
	for _, at := range []string{"", "larder", "s3://", "s3:///prefix", "https://larder", "file://host/dir", "file:dir", "file:///", "s3://larder?x=1", "s3://key:secret@larder", "s3://larder:9000", "s3://larder/a b"} {
		if b, err := Open(at, "http://s3.test:9000", ""); err == nil {
			t.Errorf("%q is opened as %v", at, b)
		} else if !strings.Contains(err.Error(), at) && !strings.Contains(err.Error(), "a b") {
			t.Errorf("%q: %v", at, err)
		}
	}
}
