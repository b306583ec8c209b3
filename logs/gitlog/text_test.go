package gitlog

import (
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

var midday = time.Date(2026, 1, 2, 12, 0, 0, 5e6, time.UTC)

func TestPath(t *testing.T) {
	for _, tt := range []struct {
		entry         logs.Entry
		path, subject string
	}{
		{logs.Entry{Kind: logs.Detected, Package: "jquery", Version: "4.0.0"}, "packages/j/jquery/4.0.0/new-version.log", "jquery 4.0.0: detected"},
		{logs.Entry{Kind: logs.Processed, Package: "Chart.js", Version: "4.0.0"}, "packages/c/Chart.js/4.0.0/processing.log", "Chart.js 4.0.0: processed"},
		{logs.Entry{Kind: logs.Published, Package: "a", Version: "package-added.log"}, "packages/a/a/package-added.log/publish.log", "a package-added.log: published"},
		{logs.Entry{Kind: logs.PackageAdded, Package: "a"}, "packages/a/a/_package/package-added.log", "a: package-added"},
		{logs.Entry{Kind: logs.KeyChanged}, "log/key-changed.log", "key-changed"},
	} {
		if got := filePath(tt.entry); got != tt.path {
			t.Errorf("%s, want %s", got, tt.path)
		}
		if got := subjectOf(tt.entry); got != tt.subject {
			t.Errorf("%s, want %s", got, tt.subject)
		}
	}
}

func TestWrite(t *testing.T) {
	m := &logs.Manifest{
		Package: "vue", Version: "3.0.0", Default: "vue.min.js", Source: logs.Source{Type: "npm", Name: "vue", Integrity: "sha512-x"},
		Files:   []logs.File{{Path: "vue.js", Size: 12, Origin: logs.Upstream}, {Path: "vue.min.js", Size: 7, Origin: logs.Minified, From: "vue.js"}},
		LeftOut: []logs.LeftOut{{Path: "a\x1b[2Jb.exe", Reason: "its type\nis not served"}},
		Notes:   []string{"odd.js could not be minified"},
	}
	head := "entry       7\nkind        processed\ntime        2026-01-02T12:00:00.005Z\nactor       bot\npackage     vue\nversion     3.0.0\n"
	none := logs.SRI{}.String()
	for _, tt := range []struct {
		entry logs.Entry
		docs  Documents
		want  string
	}{
		{logs.Entry{Signature: logs.Signature{Outcome: logs.SignatureVerified, Key: "SHA256:k"}}, Documents{Manifest: m},
			"signature   verified SHA256:k\n\nsource:\n  npm vue sha512-x\n\nfiles:\n  vue.js: unchanged\n  vue.min.js: minified here from vue.js\n\n" +
				"left out:\n  a\ufffd[2Jb.exe: its type\ufffdis not served\n\nnotes:\n  odd.js could not be minified\n"},
		{logs.Entry{}, Documents{Manifest: &logs.Manifest{Source: logs.Source{Type: "import", Name: "dist"}}}, "\nsource:\n  import dist\n\nfiles:\n"},
		{logs.Entry{Kind: logs.Published}, Documents{Manifest: m}, "\nfiles:\n  vue.js: 12 bytes, " + none + "\n  vue.min.js (main): 7 bytes, " + none + "\n"},
		{logs.Entry{Kind: logs.Withdrawn, Reason: "it \u202estole"}, Documents{Manifest: m}, "reason      it \ufffdstole\n"},
		{logs.Entry{Kind: logs.UpstreamChanged, Upstream: logs.UpstreamChange{Old: "sha512-x"}}, Documents{}, "before      sha512-x\nafter       upstream does not have it\n"},
		{logs.Entry{Kind: logs.Refused}, Documents{Detail: "a\r\nb\tc\n"}, "\nthe reason in full:\n  a\n  b\tc\n"},
		{logs.Entry{Kind: logs.PackageChanged}, Documents{Diff: "-a\n+b"}, "\npackage JSON:\n  -a\n  +b\n"},
		{logs.Entry{Kind: logs.Erased}, Documents{Erasure: &logs.Erasure{Contents: []kvstore.Hash{{}}}}, "\nerased contents (SHA-256):\n  " + kvstore.Hash{}.String() + "\n"},
		{logs.Entry{Kind: logs.KeyChanged, Key: "a+b+c", KeySignature: "— a x"}, Documents{}, "key         a+b+c\nsigned      — a x\n"},
	} {
		tt.entry.Time, tt.entry.Actor, tt.entry.Package, tt.entry.Version = midday, "bot", "vue", "3.0.0"
		want := head
		if tt.entry.Kind == "" {
			tt.entry.Kind = logs.Processed
		}
		want = strings.Replace(head, "processed", string(tt.entry.Kind), 1) + tt.want
		var b strings.Builder
		if err := WriteText(&b, logs.Indexed{Index: 7, Entry: tt.entry}, tt.docs); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.entry.Kind, b.String(), want)
		}
	}
}

func TestLoad(t *testing.T) {
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	keep := func(data []byte) kvstore.Hash {
		h := kvstore.Sum(data)
		if err := store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	manifest, err := (&logs.Manifest{Package: "vue"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	erasure, err := (&logs.Erasure{Package: "vue"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	e := logs.Indexed{Index: 3, Entry: logs.Entry{Manifest: keep(manifest), Erasure: keep(erasure), Diff: keep([]byte("-a")), Detail: keep([]byte("why"))}}
	d, err := ReadDocuments(store, e)
	if err != nil || d.Manifest.Package != "vue" || d.Erasure.Package != "vue" || d.Diff != "-a" || d.Detail != "why" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := ReadDocuments(store, logs.Indexed{}); err != nil || d != (Documents{}) {
		t.Errorf("of an entry that names nothing: %+v, %v", d, err)
	}
	e.Entry.Detail = kvstore.Sum(nil)
	if _, err := ReadDocuments(store, e); err == nil || !strings.Contains(err.Error(), "entry 3") {
		t.Errorf("of what is missing: %v", err)
	}
}
