package signing

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs"
)

func newTestKey(t *testing.T, name string) (note.Signer, string) {
	t.Helper()
	private, public, err := NewKey(name)
	if err != nil {
		t.Fatal(err)
	}
	signer, same, err := ParseKey([]byte(private))
	if err != nil || same != public {
		t.Fatal(same, public, err)
	}
	return signer, public
}

func TestKeyList(t *testing.T) {
	const origin = "cdn.example.com/log"
	root, rootKey := newTestKey(t, "cdn.example.com/root")
	oldSigner, oldKey := newTestKey(t, origin)
	_, newKey := newTestKey(t, origin)
	other, otherKey := newTestKey(t, "other.example/log")
	expires := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	list := &KeyList{Origin: origin, Version: 1, Expires: expires, Keys: []ListedKey{{Key: oldKey}, {Key: newKey}}}
	last := logs.Checkpoint{Size: 7, Root: [32]byte{1}}
	signed, err := signCheckpoint(origin, last, keyring{{signer: oldSigner}}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if err := list.EndKey(oldKey, signed.Note); err != nil {
		t.Fatal(err)
	}
	foreign, err := signCheckpoint("other.example/log", last, keyring{{signer: other}}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"a checkpoint of another log": list.EndKey(newKey, foreign.Note),
		"no checkpoint":               list.EndKey(newKey, []byte("nothing")),
		"a key that is not listed":    list.EndKey(otherKey, signed.Note),
	} {
		if err == nil {
			t.Errorf("ended by %s", name)
		}
	}
	data, err := list.Sign(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenKeyList(data, rootKey)
	if err != nil || got.Origin != origin || got.Version != 1 || !got.Expires.Equal(expires) || len(got.Keys) != 2 || *got.Keys[0].End != last || got.Keys[1].End != nil || got.Valid()[0] != newKey {
		t.Errorf("%+v, %v of\n%s", got, err, data)
	}
	for name, bad := range map[string]struct {
		data []byte
		root string
	}{
		"another root key": {data, otherKey},
		"no root key":      {data, "nothing"},
		"altered":          {bytes.Replace(data, []byte("version 1"), []byte("version 2"), 1), rootKey},
		"too long":         {make([]byte, MaxKeyList+1), rootKey},
		"no note":          {[]byte("nothing"), rootKey},
	} {
		if l, err := OpenKeyList(bad.data, bad.root); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	text, _, _ := strings.Cut(string(data), "\n\n")
	for name, change := range map[string][2]string{
		"another header":        {keyListHeader, "larder-keys/v2"},
		"no version":            {"version 1", "version 0"},
		"a version that is not": {"version 1", "version one"},
		"another form":          {"version 1", "version 01"},
		"no expiry":             {"expires 2027-01-02T03:04:05Z", "expires never"},
		"an odd end":            {" ends 7 ", " ends -7 "},
		"an odd root":           {" ends 7 A", " ends 7 !"},
		"no end":                {" ends 7 ", " until 7 "},
		"a key of another log":  {newKey, otherKey},
		"a key twice":           {newKey, oldKey},
		"only ended keys":       {"\nkey " + newKey, ""},
		"no keys":               {"\nkey " + oldKey, "\nkey x" + oldKey},
	} {
		changed := strings.Replace(text, change[0], change[1], 1)
		if changed == text {
			t.Fatalf("%s changes nothing", name)
		}
		signed, err := note.Sign(&note.Note{Text: changed + "\n"}, root)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := OpenKeyList(signed, rootKey); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if _, err := (&KeyList{Origin: origin, Version: 1}).Sign(root); err == nil {
		t.Error("a list without keys was signed")
	}
	dir := t.TempDir()
	if _, err := ReadKeyList(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a list: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, KeyListFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if read, err := ReadKeyList(dir); err != nil || !bytes.Equal(read, data) {
		t.Errorf("%q, %v", read, err)
	}
}

func FuzzKeyList(f *testing.F) {
	f.Add("larder-keys/v1\na\nversion 1\nexpires 2027-01-02T03:04:05Z\nkey a+2f8f3b4c+AQ==\n")
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := parseKeyList(text); err == nil && l.text() == text {
			if _, err := parseKeyList(l.text()); err != nil {
				t.Errorf("%q is not read again: %v", text, err)
			}
		}
	})
}
