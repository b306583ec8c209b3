package logs_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs"
)

func TestAbout(t *testing.T) {
	about := &logs.About{Readme: "# Jars", ReadmeFile: "README.md", ReadmeCut: true, Dependencies: map[string]string{"lid": "^1"}, Peers: map[string]string{"glass": "*"}}
	m := &logs.Manifest{Package: "jars", Version: "1.0.0", Notes: []string{"n"}, About: about}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := logs.DecodeAbout(data)
	if err != nil || !reflect.DeepEqual(got, about) {
		t.Errorf("it says %+v, %v", got, err)
	}
	whole, err := logs.DecodeManifest(data)
	if err != nil || !reflect.DeepEqual(whole.About, about) {
		t.Errorf("the manifest says %+v, %v", whole, err)
	}
	// The files, which may be many, are not even read.
	if got, err := logs.DecodeAbout([]byte(strings.Replace(string(data), `"files":`, `"files":nonsense`, 1))); err != nil || got == nil {
		t.Errorf("with broken files: %+v, %v", got, err)
	}
	m.About = nil
	if data, err = m.Encode(); err != nil || strings.Contains(string(data), "about") {
		t.Errorf("%s, %v", data, err)
	}
	if got, err := logs.DecodeAbout(data); err != nil || got != nil {
		t.Errorf("nothing to say: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "[]", `{"format"`, `{"about":7}`, `{"about":{"readme":[]}}`, `{"format":}`} {
		if _, err := logs.DecodeAbout([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
