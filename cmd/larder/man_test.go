package main

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
)

var man = flag.String("man", "", "write the manual pages to this folder, as of SOURCE_DATE_EPOCH")

// TestManual makes a manual page for each command. The program itself cannot, because what writes them would add to it;
// make dist keeps what this writes.
func TestManual(t *testing.T) {
	folder := *man
	if folder == "" {
		folder = t.TempDir()
	}
	var of time.Time
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("SOURCE_DATE_EPOCH: %v", err)
		}
		of = time.Unix(seconds, 0).UTC()
	}
	root := newRoot(&cli{settings: settings.New()})
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Title: "LARDER", Section: "1", Date: &of, Source: "larder", Manual: "Larder"}
	if err := doc.GenManTree(root, header, folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"larder.1", "larder-up.1", "larder-log-tail.1"} {
		if info, err := os.Stat(folder + "/" + name); err != nil || info.Size() < 500 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestVersion holds that a build says what it is, even one that git knows nothing of.
func TestVersion(t *testing.T) {
	if b := app.ThisBuild(); b.Version == "" || b.Version == "(devel)" || b.Go == "" || b.Platform == "" {
		t.Errorf("this build says that it is %+v", b)
	}
}
