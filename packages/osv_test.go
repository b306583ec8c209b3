package packages

import (
	"bytes"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

// readAdvisoryText reads OSV data.
func readAdvisoryText(data string) (AdvisoryDatabase, error) {
	return ReadAdvisories(strings.NewReader(data), int64(len(data)))
}

func TestReadAdvisories(t *testing.T) {
	const record = `{"id":"GHSA-1","summary":"XSS","affected":[{"package":{"ecosystem":"npm","name":"jquery"},
		"ranges":[{"type":"SEMVER","events":[{"fixed":"1.9.0"},{"introduced":"0"},{"introduced":"3.0.0"},{"last_affected":"3.4.1"}]}],"versions":["7.7.7"]},
		{"package":{"ecosystem":"PyPI","name":"jquery"},"versions":["2.0.0"]}]}`
	for _, data := range []string{record, "[" + record + "]", `{"vulns":[` + record + `]}`, record + "\n" + record} {
		d, err := readAdvisoryText(data)
		if err != nil {
			t.Fatal(err)
		}
		for version, want := range map[string]bool{
			"0.0.1": true, "1.8.9": true, "1.9.0": false, "2.0.0": false, "3.0.0-beta": false, "3.0.0": true, "3.4.1": true, "3.4.2": false, "7.7.7": true, "x": false,
		} {
			if got := d.Of("jquery", version); (len(got) == 1 && got[0].ID == "GHSA-1" && got[0].Summary == "XSS") != want {
				t.Errorf("%s: %q, want %v", version, got, want)
			}
		}
		if got := d.Of("other", "1.0.0"); got != nil {
			t.Errorf("of another package: %q", got)
		}
	}
	d, err := readAdvisoryText(strings.Replace(record, `"id"`, `"withdrawn":"2024-01-01T00:00:00Z","id"`, 1))
	if err != nil || d.Of("jquery", "1.0.0") != nil {
		t.Errorf("a withdrawn one counts: %v", err)
	}
	for _, data := range []string{"", "PK\x03\x04", `{"name":"x"}`, "<html>", "7", `{"id":7}`} {
		if _, err := readAdvisoryText(data); err == nil {
			t.Errorf("%q is taken", data)
		}
	}
}

const sample = `{"id":"a","affected":[{"package":{"ecosystem":"npm","name":"b"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.0.0"}]}]}]}`

func FuzzReadAdvisories(f *testing.F) {
	f.Add([]byte(sample), "0.1.0")
	f.Add([]byte("PK\x03\x04"), "1.0.0")
	f.Fuzz(func(_ *testing.T, data []byte, version string) {
		if d, err := ReadAdvisories(bytes.NewReader(data), int64(len(data))); err == nil {
			d.Of("b", version)
		}
	})
}

// TestAdvisoryListedTwice tests that a record that is listed twice, with different aliases, is one vulnerability.
func TestAdvisoryListedTwice(t *testing.T) {
	entry := func(id, alias string) advisoryEntry {
		return advisoryEntry{Advisory: Advisory{ID: id, Alias: alias}, ranges: [][]advisoryEvent{{{Introduced: "0"}}}}
	}
	d := AdvisoryDatabase{"jquery": {entry("GHSA-1", "CVE-1"), entry("GHSA-2", "CVE-2"), entry("GHSA-1", "CVE-3")}}
	if got := d.Of("jquery", "1.0.0"); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

func TestAdvisoryCost(t *testing.T) {
	cost.Check(t, cost.Parser{Name: "advisories", Parse: func(data []byte) {
		if d, err := readAdvisoryText(string(data)); err == nil {
			d.Of("b", "1.0.0")
		}
	}, Seeds: []string{sample}, Words: []string{"{", "}", "[", "]", ":", ",", `{"introduced":"0"},`, `{"fixed":"1.0.0"},`, `"versions":["1.0.0"],`, `"affected":[`, "\"", "1", "PK\x03\x04", "\n"}, MaxMilliseconds: 10, MaxKiB: 1000})
}
