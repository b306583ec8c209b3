package main

import (
	"archive/tar"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A copy that lacks an entry, has another root, was made of too little, was not compared, or has something wrong fails the check of its kind.
func TestCopies(t *testing.T) {
	whole := logHead{9, "root"}
	for _, test := range []struct {
		name   string
		report copyReport
		want   string // "" for a copy that is right
	}{
		{"whole", copyReport{want: whole, got: whole, live: whole, least: 9, compared: 1}, ""},
		{"an entry less", copyReport{want: whole, got: logHead{8, "root"}, live: whole, compared: 1}, "it has 8 entries"},
		{"another root", copyReport{want: whole, got: logHead{9, "toor"}, live: whole, compared: 1}, "with the root toor"},
		{"of another log", copyReport{want: whole, got: whole, live: logHead{9, "toor"}, compared: 1}, "the cluster's log begins with"},
		{"made of too little", copyReport{want: whole, got: whole, live: whole, least: 10, compared: 1}, "10 entries were signed before"},
		{"empty", copyReport{compared: 1}, "made of 0 entries"},
		{"not compared", copyReport{want: whole, got: whole, live: whole}, "no release was compared"},
		{"a wrong file", copyReport{want: whole, got: whole, live: whole, compared: 1, wrong: []string{"p 1.0.0: 404"}}, "p 1.0.0: 404"},
	} {
		for _, c := range copyChecks {
			n := newNotes()
			e := n.begins(c.kind)
			n.ends(e)
			test.report.kind, test.report.what = c.kind, "the copy"
			n.addCopy(&test.report)
			checks := n.judgeCopies()
			if len(checks) != 1 || checks[0].Name != c.name {
				t.Fatalf("%s: %+v", test.name, checks)
			}
			if ok := test.want == ""; checks[0].OK != ok || !ok && !strings.Contains(checks[0].Said, test.want) {
				t.Errorf("%s, %s: %+v", c.kind, test.name, checks[0])
			}
		}
	}
}

// An event that ended without examining a copy fails the check; one that failed, was skipped or was under way at the end does not.
func TestCopiesMissing(t *testing.T) {
	n := newNotes()
	if checks := n.judgeCopies(); checks != nil {
		t.Errorf("without an event: %+v", checks)
	}
	n.begins(bundleKind)
	n.begins(backupKind).Failed = errors.New("reported by another check")
	n.begins(salvageKind).over = true
	n.begins(salvageKind).Skipped = true
	checks := n.judgeCopies()
	if len(checks) != 1 || checks[0].OK || checks[0].Name != copyChecks[0].name || !strings.Contains(checks[0].Said, "1 events examined only 0 copies") {
		t.Errorf("%+v", checks)
	}
}

func TestHeads(t *testing.T) {
	const checkpoint = "log.example.com\n12\ncm9vdA==\n\n— log.example.com signature\n"
	want := logHead{12, "cm9vdA=="}
	if got, err := parseHead(checkpoint); err != nil || got != want {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "log.example.com\n12", "log.example.com\ntwelve\ncm9vdA==\n"} {
		if got, err := parseHead(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if got, err := parseFsck(`{"checkpoint": {"size": 12, "root": "cm9vdA=="}, "findings": 0, "sound": true}`); err != nil || got != want {
		t.Error(got, err)
	}
	for _, bad := range []string{"", `{"findings": 1, "sound": true}`, `{"findings": 0, "sound": false}`} {
		if got, err := parseFsck(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	file := filepath.Join(t.TempDir(), "bundle.tar")
	write := func(member string) {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := tar.NewWriter(f)
		err = errors.Join(w.WriteHeader(&tar.Header{Name: member, Mode: 0o644, Size: int64(len(checkpoint))}))
		_, writeErr := w.Write([]byte(checkpoint))
		if err := errors.Join(err, writeErr, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("log/checkpoint")
	if got, err := bundleHead(file); err != nil || got != want {
		t.Error(got, err)
	}
	write("log/key")
	if got, err := bundleHead(file); err == nil {
		t.Error(got)
	}
}

// compare reports a release of which the copy has a wrong byte, lacks a file, or serves although it is withdrawn.
func TestCompare(t *testing.T) {
	good, withdrawn := &release{pkg: "p", version: "1.1.0"}, &release{pkg: "p", version: "1.2.0", withdrawn: time.Now(), recalled: time.Now()}
	mode := "right"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			return
		}
		parts := strings.SplitN(r.URL.Path, "/", 6) // "", ajax, libs, package, version, file
		data := content(parts[3], parts[4], parts[5])
		switch {
		case parts[4] == withdrawn.version && mode != "serves all":
			w.WriteHeader(http.StatusGone)
			return
		case parts[5] == "data.json" && mode == "wrong byte":
			data[0] ^= 1
		case parts[5] == "data.json" && mode == "missing":
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	p, a := &play{library: newLibrary(), notes: newNotes()}, &actor{name: "the copy", address: host, private: host}
	for _, m := range []struct {
		mode, want string
	}{{"right", ""}, {"wrong byte", string(wrongBytes)}, {"missing", "Not Found"}, {"serves all", "it is withdrawn, and not 410"}} {
		mode = m.mode
		report := &copyReport{}
		if err := p.compare(t.Context(), a, []*release{good, withdrawn}, report); err != nil || report.compared != 2 {
			t.Fatalf("%s: %+v, %v", m.mode, report, err)
		}
		if said := strings.Join(report.wrong, "\n"); (said == "") != (m.want == "") || !strings.Contains(said, m.want) {
			t.Errorf("%s: %q", m.mode, said)
		}
	}
}

func TestDamage(t *testing.T) {
	for _, damage := range []func(string) (string, error){removeMarker, damageManifest} {
		if what, err := damage(t.TempDir()); err == nil {
			t.Errorf("an empty folder was damaged: %s", what)
		}
	}
	store := t.TempDir()
	for _, name := range []string{"marker.manifest.000002.MANIFEST-000010", "MANIFEST-000009", "MANIFEST-000010"} {
		if err := os.WriteFile(filepath.Join(store, name), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := damageManifest(store); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"MANIFEST-000009": false, "MANIFEST-000010": true} {
		data, err := os.ReadFile(filepath.Join(store, name))
		if damaged := strings.Trim(string(data), "\x00") != ""; err != nil || damaged != want {
			t.Errorf("%s: damaged is %v, %v", name, damaged, err)
		}
	}
	if _, err := removeMarker(store); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(store, "*")); len(left) != 2 {
		t.Error(left)
	}
}

// Only a backup that says so may lack what is not signed.
func TestLacksUnsigned(t *testing.T) {
	for said, lacks := range map[string]bool{
		"Backed up one to two: 12 log entries.\nNot in it: 1 newer log entry that are not signed yet; run this again when larder up has signed them, which takes a second.\n": true,
		"Backed up one to two: 12 log entries.\nNot in it: the keys in keys, which restoring needs; larder key backup copies them.\n":                                         false,
	} {
		if lacksUnsigned(said) != lacks {
			t.Errorf("%q: %v", said, !lacks)
		}
	}
}
