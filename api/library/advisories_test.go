package library

import (
	"archive/zip"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

const record = `{"id":"GHSA-1","aliases":["CVE-2020-1"],"summary":"It leaks.","database_specific":{"severity":"MODERATE"},"affected":[
  {"package":{"ecosystem":"npm","name":"jars"},"ranges":[{"type":"SEMVER","events":[{"introduced":"1.2.0"},{"fixed":"3.5.0"}]}]},
  {"package":{"ecosystem":"PyPI","name":"jars"},"versions":["9.0.0"]}]}`

func TestAdvisories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "osv.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	more := `{"id":"GHSA-2","details":"It burns.","affected":[{"package":{"ecosystem":"npm","name":"jars"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.0.0"},{"introduced":"2.0.0"},{"last_affected":"2.1.0"}]}],"versions":["7.0.0"]}]}`
	gone := `{"id":"GHSA-3","withdrawn":"2024-01-01T00:00:00Z","affected":[{"package":{"ecosystem":"npm","name":"jars"},"versions":["3.0.0"]}]}`
	for _, form := range []string{"[" + record + "," + more + "," + gone + "]", record + "\n" + more + "\n" + gone} {
		write(form)
		a, err := OpenAdvisories(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		for version, want := range map[string]string{
			"0.9.0": "GHSA-2", "1.0.0": "", "1.2.0": "GHSA-1", "2.0.5": "GHSA-1 GHSA-2", "2.1.0": "GHSA-1 GHSA-2", "2.1.1": "GHSA-1", "3.4.9": "GHSA-1",
			"3.5.0": "", "3.5.0-beta": "GHSA-1", "7.0.0": "GHSA-2", "9.0.0": "",
		} {
			var ids []string
			for _, known := range a.Of("jars", version) {
				ids = append(ids, known.ID)
			}
			slices.Sort(ids)
			if strings.Join(ids, " ") != want {
				t.Errorf("%s has %v, want %s", version, ids, want)
			}
		}
		if got := a.Of("jars", "3.0.0"); len(got) != 1 || got[0].Alias != "CVE-2020-1" || got[0].Fixed != "3.5.0" || got[0].Severity != "moderate" || got[0].Link != "https://osv.dev/vulnerability/GHSA-1" {
			t.Errorf("it is told as %+v", got)
		}
	}
	if got := (*Advisories)(nil).Of("jars", "3.0.0"); got != nil {
		t.Errorf("nothing knows %v", got)
	}
}

func TestAdvisoriesAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "osv.zip")
	write := func(members ...string) {
		t.Helper()
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		for i, text := range members {
			w, err := z.Create(string(rune('a'+i)) + ".json")
			if err == nil {
				_, err = w.Write([]byte(text))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(record)
	a, err := OpenAdvisories(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a.now = func() time.Time { return now }
	write(record, strings.ReplaceAll(record, "GHSA-1", "GHSA-9"))
	if n := len(a.Of("jars", "3.0.0")); n != 1 {
		t.Errorf("at once %d are known", n)
	}
	now = now.Add(2 * time.Minute)
	a.reading.Lock() // as by another page
	if n, version := len(a.Of("jars", "3.0.0")), a.Version(); n != 1 || version != 1 {
		t.Errorf("while the file is read %d are known, of version %d", n, version)
	}
	a.reading.Unlock()
	if n := len(a.Of("jars", "3.0.0")); n != 2 {
		t.Errorf("later %d are known", n)
	}
	if err := os.WriteFile(file, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	if n := len(a.Of("jars", "3.0.0")); n != 2 {
		t.Errorf("when the file is broken %d are known", n)
	}
	for _, bad := range []string{"no JSON", `{"id":7}`, `[{"id":"x"`} {
		broken := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(broken, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenAdvisories(broken, nil); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := OpenAdvisories(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a file that is not there is taken")
	}
}

func TestNewestIn(t *testing.T) {
	var versions []views.Version
	for _, v := range strings.Fields("4.0.0-rc.1 3.7.1 3.7.0 2.2.4 1.12.4 r9") {
		versions = append(versions, views.Version{Version: v})
	}
	about := &logs.About{Dependencies: map[string]string{}}
	all := map[string]string{
		"^3.0.0": "3.7.1", "~3.7.0": "3.7.1", "": "3.7.1", "*": "3.7.1", "latest": "3.7.1", "1.x || 2.x": "2.2.4", ">=1.9.0 <2.0.0": "1.12.4", "1.9.1 - 3": "3.7.1",
		"^9": "", "git+https://x": "", "workspace:*": "", "^4.0.0-rc.0": "4.0.0-rc.1", "3.7.0": "3.7.0", ">=3.7.0-0": "3.7.1", "<4.0.0-rc.2": "4.0.0-rc.1",
	}
	for wanted := range all {
		about.Dependencies["of "+wanted] = wanted
	}
	w, _, err := ReadWanted(t.Context(), "jar@1.0.0", about, func(_ context.Context, _ string, ranges []string) ([]document.Range, bool, error) {
		r, err := worker.RenderDocument(document.Request{Kind: document.Ranges, Ranges: ranges})
		return r.Ranges, false, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for wanted, want := range all {
		if got := w.newest(versions, wanted); got != want {
			t.Errorf("%q is %q, want %q", wanted, got, want)
		}
	}
}
