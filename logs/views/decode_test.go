package views_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// TestCheckNamesEveryFileOfADamagedContent damages one content of many that several
// releases share, whoever of the workers comes to it.
func TestCheckNamesEveryFileOfADamagedContent(t *testing.T) {
	s := newShelf(t)
	s.enrol("package-added", "vue", `{"name":"vue"}`)
	for v := range 20 {
		s.publish("vue", fmt.Sprintf("3.0.%d", v), "own.js", fmt.Sprintf("own %d", v), "shared.js", fmt.Sprintf("shared by %d", v/2))
	}
	h := kvstore.Sum([]byte("shared by 3"))
	s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), []byte("shared by 4"))
	_, found := s.check(true)
	var got []string
	for _, f := range found {
		if f.What != "content" {
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
	var contents, bytes atomic.Int64
	o := views.CheckOptions{Deep: true, Workers: 3, Scratch: t.TempDir(), Decoded: func(n int64) {
		contents.Add(1)
		bytes.Add(n)
	}}
	sum, err := views.Check(t.Context(), s.store, o, func(f views.Finding) { t.Errorf("found %+v", f) })
	if err != nil || contents.Load() != sum.Contents || bytes.Load() == 0 {
		t.Errorf("decoded %d contents of %d, %d bytes, %v", contents.Load(), sum.Contents, bytes.Load(), err)
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	s := stocked(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := views.CheckOptions{Deep: true, Scratch: t.TempDir(), Progress: func(int64, int64) { cancel() }}
	if _, err := views.Check(ctx, s.store, o, func(f views.Finding) { t.Errorf("found %+v", f) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
