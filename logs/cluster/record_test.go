package cluster

import (
	"bytes"
	"testing"
)

// A sealed version opens with its number and its key only, and does not show what it has.
func TestRecordSealer(t *testing.T) {
	dir := t.TempDir()
	s := RecordSealer{clusterKey(t, dir), "rooms"}
	sealed, err := s.Seal(3, []byte("a secret header"))
	if err != nil || bytes.Contains(sealed, []byte("secret")) {
		t.Fatalf("%q %v", sealed, err)
	}
	if got, err := (RecordSealer{clusterKey(t, dir), "rooms"}).Open(3, sealed); err != nil || string(got) != "a secret header" {
		t.Errorf("%q %v", got, err)
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)/2] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another number": func() ([]byte, error) { return s.Open(4, sealed) },
		"another record": func() ([]byte, error) { return RecordSealer{s.Key, "others"}.Open(3, sealed) },
		"another key":    func() ([]byte, error) { return RecordSealer{clusterKey(t, t.TempDir()), "rooms"}.Open(3, sealed) },
		"changed":        func() ([]byte, error) { return s.Open(3, changed) },
		"nothing":        func() ([]byte, error) { return s.Open(3, nil) },
	} {
		if got, err := open(); err == nil {
			t.Errorf("%s: opens as %q", name, got)
		}
	}
}
