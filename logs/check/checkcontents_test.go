package check_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/check"
)

// TestCheckNamesEveryFileOfADamagedContent damages one content of many that several
// releases share, whoever of the workers comes to it.
func TestCheckNamesEveryFileOfADamagedContent(t *testing.T) {
	s := newShelf(t)
	s.register("package-added", "vue", `{"name":"vue"}`)
	for v := range 20 {
		s.publish("vue", fmt.Sprintf("3.0.%d", v), "own.js", fmt.Sprintf("own %d", v), "shared.js", fmt.Sprintf("shared by %d", v/2))
	}
	h := kvstore.Sum([]byte("shared by 3"))
	s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), []byte("shared by 4"))
	_, found := s.check(true)
	var got []string
	for _, f := range found {
		if f.Kind != check.Content {
			t.Errorf("found %+v", f)
		}
		got = append(got, strings.TrimPrefix(f.Where, h.String()+" "))
	}
	if want := []string{"(vue/3.0.6/shared.js)", "(vue/3.0.7/shared.js)"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestCheckTellsWhatItDecoded(t *testing.T) {
	s := stocked(t)
	var want int64
	for item, err := range s.store.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		content, err := s.store.Content(kvstore.Hash(item.Key))
		if err != nil {
			t.Fatal(err)
		}
		want += content.Size
	}
	var last check.Progress
	o := check.Options{Deep: true, Workers: 3, Temp: t.TempDir(), Progress: func(p check.Progress) { last = p }}
	_, err := check.Run(t.Context(), s.store, o, func(f check.Finding) { t.Errorf("found %+v", f) })
	if err != nil || last != (check.Progress{Entries: 6, Of: 6, Decoded: want}) {
		t.Errorf("%+v, %v; want %d bytes", last, err, want)
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	s := stocked(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := check.Options{Deep: true, Temp: t.TempDir(), Progress: func(check.Progress) { cancel() }}
	if _, err := check.Run(ctx, s.store, o, func(f check.Finding) { t.Errorf("found %+v", f) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Without a disk that can be written to, the views are compared in memory.
func TestCheckWithoutDisk(t *testing.T) {
	s := stocked(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := check.Run(t.Context(), s.store, check.Options{Deep: true, Temp: filepath.Join(file, "below")}, func(f check.Finding) { t.Errorf("found %+v", f) })
	if err != nil || sum.Entries != 6 || sum.Rows == 0 {
		t.Errorf("%+v, %v", sum, err)
	}
}
