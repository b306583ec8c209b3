package ticket

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// The example of the article, to the second.
var example = Ticket{
	ID:              ID{1, 2, 3},
	Bucket:          time.Date(2021, 5, 26, 19, 51, 0, 0, time.UTC),
	LastCheckIn:     time.Date(2021, 5, 26, 20, 1, 13, 0, time.UTC),
	Accepted:        time.Date(2021, 5, 26, 20, 1, 13, 0, time.UTC),
	Ends:            time.Date(2021, 5, 26, 20, 7, 0, 0, time.UTC),
	Since:           time.Date(2021, 5, 26, 19, 51, 20, 0, time.UTC),
	RefreshInterval: 21 * time.Second,
}

func secret(b byte) []byte { return bytes.Repeat([]byte{b}, KeySize) }

func ring(t testing.TB, secrets ...[]byte) *Keyring {
	t.Helper()
	k, err := NewKeyring(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestTicket(t *testing.T) {
	jar := ring(t, secret(1)).Jar("shop", "")
	for name, want := range map[string]Ticket{
		"accepted": example,
		"waiting":  {ID: NewID(), Bucket: example.Bucket, LastCheckIn: example.LastCheckIn, RefreshInterval: 20 * time.Second},
		"nothing":  {},
	} {
		value := jar.Seal(&want)
		if got, ok := jar.Open(value); !ok || got != want {
			t.Errorf("%s: came back as %+v, %v", name, got, ok)
		}
		if len(value) != encodedSize {
			t.Errorf("%s: has %d bytes, not %d", name, len(value), encodedSize)
		}
		if again := jar.Seal(&want); again == value {
			t.Errorf("%s: sealed twice it is the same, so a nonce was used twice", name)
		}
	}
}

func TestForeign(t *testing.T) {
	keys := ring(t, secret(1))
	jar := keys.Jar("shop", "")
	good := jar.Seal(&example)
	for name, value := range map[string]string{
		"of another room":     keys.Jar("other", "").Seal(&example),
		"of another key":      ring(t, secret(2)).Jar("shop", "").Seal(&example),
		"empty":               "",
		"short":               good[:len(good)-1],
		"long":                good + "A",
		"huge":                strings.Repeat("A", 1<<20),
		"no base64":           strings.Repeat("!", len(good)),
		"padded":              good[:len(good)-1] + "=",
		"of zeros":            strings.Repeat("A", len(good)),
		"quoted":              `"` + good[2:] + `"`,
		"with spare bits set": good[:len(good)-1] + "_",
	} {
		if got, ok := jar.Open(value); ok {
			t.Errorf("%s: opened as %+v", name, got)
		}
	}
	for i := range len(good) { // each bit of it counts
		for _, c := range "A_" {
			if changed := good[:i] + string(c) + good[i+1:]; changed != good {
				if _, ok := jar.Open(changed); ok {
					t.Fatalf("opened with byte %d changed to %c", i, c)
				}
			}
		}
	}
}

func TestRotation(t *testing.T) {
	old, both := ring(t, secret(1)), ring(t, secret(2), secret(1))
	before := old.Jar("shop", "").Seal(&example)
	if got, ok := both.Jar("shop", "").Open(before); !ok || got != example {
		t.Error("a ticket of the old key is lost by the rotation")
	}
	after := both.Jar("shop", "").Seal(&example)
	if _, ok := old.Jar("shop", "").Open(after); ok {
		t.Error("the ring still writes with the old key")
	}
	if _, ok := ring(t, secret(2)).Jar("shop", "").Open(before); ok {
		t.Error("the old key is gone, but its tickets still open")
	}
}

func TestFind(t *testing.T) {
	keys := ring(t, secret(1))
	jar, suffixed := keys.Jar("shop", ""), keys.Jar("shop", "b")
	good := jar.Seal(&example)
	for name, c := range map[string]struct {
		lines []string
		jar   *Jar
		ok    bool
	}{
		"alone":                 {[]string{"__larder_room=" + good}, jar, true},
		"between others":        {[]string{"a=b; __larder_room=" + good + "; c=d"}, jar, true},
		"on a second line":      {[]string{"a=b", "__larder_room=" + good}, jar, true},
		"behind a damaged one":  {[]string{"__larder_room=x; __larder_room=" + good}, jar, true},
		"behind many":           {[]string{strings.Repeat("__larder_room=x;", maxCookies) + "__larder_room=" + good}, jar, false},
		"of another suffix":     {[]string{"__larder_room_b=" + good}, jar, false},
		"under the suffix":      {[]string{"__larder_room=x; __larder_room_b=" + good}, suffixed, true},
		"no value":              {[]string{"__larder_room"}, jar, false},
		"no cookie":             {nil, jar, false},
		"a name that ends with": {[]string{"x__larder_room=" + good}, jar, false},
	} {
		if got, ok := c.jar.Find(http.Header{"Cookie": c.lines}); ok != c.ok || ok && got != example {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// TestAllocations holds an accepted ticket to what its decryption takes.
func TestAllocations(t *testing.T) {
	jar := ring(t, secret(1)).Jar("shop", "")
	h := http.Header{"Cookie": {"a=b; __larder_room=" + jar.Seal(&example)}}
	value := jar.Seal(&example)
	opening := testing.AllocsPerRun(100, func() { jar.Open(value) })
	if finding := testing.AllocsPerRun(100, func() { jar.Find(h) }); finding > opening {
		t.Errorf("finding a ticket allocates %v times, opening it %v times", finding, opening)
	}
	if opening > 3 { // what x/crypto does itself, and what it is handed
		t.Errorf("opening a ticket allocates %v times", opening)
	}
}

func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, KeyFile)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	value := first.Jar("shop", "").Seal(&example)
	second, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := second.Jar("shop", "").Open(value); !ok {
		t.Error("after a restart, tickets do not open any more")
	}
	text, _ := os.ReadFile(file)
	line := base64.StdEncoding.EncodeToString(secret(7))
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(line + "\n" + string(text))
	rotated, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := rotated.Jar("shop", "").Open(value); !ok {
		t.Error("after a rotation, old tickets do not open any more")
	}
	if _, ok := second.Jar("shop", "").Open(rotated.Jar("shop", "").Seal(&example)); ok {
		t.Error("the new key does not write")
	}
	for name, s := range map[string]string{
		"empty": "", "comments only": "# nothing\n", "no base64": "§\n", "short": "AAAA\n", "twice": line + "\n" + line + "\n",
		"too many": func() (s string) {
			for i := range maxKeys + 1 {
				s += base64.StdEncoding.EncodeToString(secret(byte(i))) + "\n"
			}
			return s
		}(),
	} {
		write(s)
		if _, err := OpenKeys(dir); err == nil || !strings.Contains(err.Error(), KeyFile) || strings.Contains(err.Error(), line) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(line)
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that the group may read: %v", err)
	}
}

func TestCookie(t *testing.T) {
	const keep = 5 * time.Minute
	for _, c := range []struct {
		name   string
		cookie config.Cookie
		path   string
		value  string
		secure bool
		want   string
	}{
		{"auto over HTTPS", config.Default().Cookie, "/", "v", true, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; Secure; SameSite=None; Partitioned"},
		{"auto over HTTP", config.Default().Cookie, "/", "v", false, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; SameSite=Lax"},
		{"not partitioned", config.Cookie{SameSite: "auto", Secure: "auto"}, "/", "v", true, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; Secure; SameSite=None"},
		{"strict", config.Cookie{SameSite: "strict", Secure: "auto", Partitioned: true}, "/", "v", true, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; Secure; SameSite=Strict"},
		{"lax", config.Cookie{SameSite: "lax", Secure: "always"}, "/", "v", false, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; Secure; SameSite=Lax"},
		{"auto, but never secure", config.Cookie{SameSite: "auto", Secure: "never"}, "/", "v", true, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; SameSite=Lax"},
		{"none over HTTP", config.Cookie{SameSite: "none", Secure: "auto"}, "/", "v", false, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; SameSite=Lax"},
		{"behind a proxy that has HTTPS", config.Cookie{SameSite: "none", Secure: "always"}, "/", "v", false, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; Secure; SameSite=None"},
		{"suffix and folder", config.Cookie{SameSite: "lax", Secure: "auto", Suffix: "b"}, "/shop/cart", "v", false, "__larder_room_b=v; Path=/shop/; Max-Age=300; HttpOnly; SameSite=Lax"},
		{"a folder that is not ASCII", config.Cookie{SameSite: "lax", Secure: "auto"}, "/käse/", "v", false, "__larder_room=v; Path=/; Max-Age=300; HttpOnly; SameSite=Lax"},
		{"taken away", config.Default().Cookie, "/", "", false, "__larder_room=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"},
	} {
		room := config.Room{Cookie: c.cookie, Routes: []config.Route{{Path: c.path}}}
		if got := Cookie(&room, c.value, keep, c.secure); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	jar := ring(f, secret(1)).Jar("shop", "")
	good := jar.Seal(&example)
	f.Add("a=b; __larder_room=" + good)
	f.Add("__larder_room=" + good[:20])
	f.Add("__larder_room;;; =; __larder_room=")
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := jar.Find(http.Header{"Cookie": {line}})
		if ok && got != example { // nothing else was ever sealed with this key
			t.Errorf("%q opened as %+v", line, got)
		}
		if !ok && got != (Ticket{}) {
			t.Errorf("%q: not a ticket, but %+v", line, got)
		}
	})
}
