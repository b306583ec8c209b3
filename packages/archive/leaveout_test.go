package archive_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages/archive"
)

func TestLeaveOut(t *testing.T) {
	dir := t.TempDir()
	large := strings.Repeat("no", 50)
	for name, text := range map[string]string{"a": "yes", "b": "no", "c": "", "d": large} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := archive.Folder(dir).LeaveOut(int64(len(large)), func(data []byte) string {
		if bytes.HasPrefix(data, []byte("no")) {
			return "it says no"
		}
		return ""
	})
	var got []string
	err := archive.Walk(context.Background(), source, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		text, err := io.ReadAll(r)
		got = append(got, e.Name+":"+e.Skipped+":"+string(text))
		return err
	})
	if want := "a::yes b:it says no: c:: d::" + large; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%q, %v", got, err)
	}
}
