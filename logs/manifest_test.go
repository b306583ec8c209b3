package logs_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

func TestManifestRoundTrip(t *testing.T) {
	data := []byte("var a")
	want := &logs.Manifest{
		Package: "a", Version: "1.0.0", Released: noon, Default: "a.js",
		Source:  logs.Source{Type: "npm", Name: "a", Integrity: "sha512-x"},
		Files:   []logs.File{{Path: "a.js", Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream}},
		LeftOut: []logs.LeftOut{{Path: "b", Reason: "symbolic link"}},
	}
	encoded, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := logs.DecodeManifest(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	want.Files[0].Size = -1
	if encoded, err = want.Encode(); err != nil {
		t.Fatal(err)
	}
	if _, err := logs.DecodeManifest(encoded); err == nil || !strings.Contains(err.Error(), `"a.js" has -1 bytes`) {
		t.Errorf("a file of -1 bytes: %v", err)
	}
	if _, err := logs.DecodeManifest([]byte(`{"format":99}`)); err == nil || !strings.Contains(err.Error(), "99") {
		t.Errorf("a manifest of format 99: %v", err)
	}
}

// The vector is that of `openssl dgst -sha512 -binary | base64` over no bytes.
func TestSRI(t *testing.T) {
	const empty = "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="
	if got := logs.SumSRI(nil).String(); got != empty {
		t.Errorf("got %s, want %s", got, empty)
	}
	var s logs.SRI
	if err := json.Unmarshal([]byte(`"`+empty+`"`), &s); err != nil || s != logs.SumSRI(nil) {
		t.Errorf("%v, %v", s, err)
	}
	for _, bad := range []string{"", "sha256-abc", "sha512-", "sha512-AAAA", "sha512-" + strings.Repeat("!", 88), empty + "A"} {
		if err := s.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte(`{"format":1,"files":[{"path":"a","sri":"sha512-"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := logs.DecodeManifest(data)
		if err != nil {
			return
		}
		if _, err := m.Encode(); err != nil && m.Released.Year() < 10000 {
			t.Errorf("decoded but does not encode: %v", err)
		}
	})
}
