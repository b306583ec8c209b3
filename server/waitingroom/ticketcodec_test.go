package waitingroom

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
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// The example of the article, to the second.
var example = queue.Ticket{
	ID:              queue.TicketID{1, 2, 3},
	LastCheckIn:     time.Date(2021, 5, 26, 20, 1, 13, 0, time.UTC),
	AcceptedAt:      time.Date(2021, 5, 26, 20, 1, 13, 0, time.UTC),
	Ends:            time.Date(2021, 5, 26, 20, 7, 0, 0, time.UTC),
	Since:           time.Date(2021, 5, 26, 19, 51, 20, 0, time.UTC),
	RefreshInterval: 21 * time.Second,
}

func secret(b byte) []byte { return bytes.Repeat([]byte{b}, keySize) }

func ring(t testing.TB, secrets ...[]byte) *Keyring {
	t.Helper()
	k, err := newKeyring(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ticketCodec returns the codec of a room with such a cookie suffix.
func (k *Keyring) codec(room, suffix string) *ticketCodec {
	return newTicketCodec(k, &config.Room{Name: room, Cookie: config.Cookie{Suffix: suffix}})
}

func TestTicket(t *testing.T) {
	codec := ring(t, secret(1)).codec("shop", "")
	for name, want := range map[string]queue.Ticket{
		"accepted": example,
		"waiting":  {ID: newTicket().ID, Since: example.Since, LastCheckIn: example.LastCheckIn, RefreshInterval: 20 * time.Second},
		"nothing":  {},
	} {
		value := codec.seal(&want)
		if got, ok := codec.open(value); !ok || got != want {
			t.Errorf("%s: came back as %+v, %v", name, got, ok)
		}
		if len(value) != encodedSize {
			t.Errorf("%s: has %d bytes, not %d", name, len(value), encodedSize)
		}
		if again := codec.seal(&want); again == value {
			t.Errorf("%s: sealed twice it is the same, so a nonce was used twice", name)
		}
	}
}

func TestForeign(t *testing.T) {
	keys := ring(t, secret(1))
	codec := keys.codec("shop", "")
	good := codec.seal(&example)
	for name, value := range map[string]string{
		"of another room":     keys.codec("other", "").seal(&example),
		"of another key":      ring(t, secret(2)).codec("shop", "").seal(&example),
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
		if got, ok := codec.open(value); ok {
			t.Errorf("%s: opened as %+v", name, got)
		}
	}
	for i := range len(good) { // each bit of it counts
		for _, c := range "A_" {
			if changed := good[:i] + string(c) + good[i+1:]; changed != good {
				if _, ok := codec.open(changed); ok {
					t.Fatalf("opened with byte %d changed to %c", i, c)
				}
			}
		}
	}
}

func TestRotation(t *testing.T) {
	old, both := ring(t, secret(1)), ring(t, secret(2), secret(1))
	before := old.codec("shop", "").seal(&example)
	if got, ok := both.codec("shop", "").open(before); !ok || got != example {
		t.Error("a ticket of the old key is lost by the rotation")
	}
	after := both.codec("shop", "").seal(&example)
	if _, ok := old.codec("shop", "").open(after); ok {
		t.Error("the ring still writes with the old key")
	}
	if _, ok := ring(t, secret(2)).codec("shop", "").open(before); ok {
		t.Error("the old key is gone, but its tickets still open")
	}
}

func TestFind(t *testing.T) {
	keys := ring(t, secret(1))
	plain, suffixed := keys.codec("shop", ""), keys.codec("shop", "b")
	good := plain.seal(&example)
	for name, c := range map[string]struct {
		lines []string
		codec *ticketCodec
		ok    bool
	}{
		"alone":                 {[]string{"__larder_room=" + good}, plain, true},
		"between others":        {[]string{"a=b; __larder_room=" + good + "; c=d"}, plain, true},
		"on a second line":      {[]string{"a=b", "__larder_room=" + good}, plain, true},
		"behind a damaged one":  {[]string{"__larder_room=x; __larder_room=" + good}, plain, true},
		"behind many":           {[]string{strings.Repeat("__larder_room=x;", maxCookies) + "__larder_room=" + good}, plain, false},
		"of another suffix":     {[]string{"__larder_room_b=" + good}, plain, false},
		"under the suffix":      {[]string{"__larder_room=x; __larder_room_b=" + good}, suffixed, true},
		"no value":              {[]string{"__larder_room"}, plain, false},
		"no cookie":             {nil, plain, false},
		"a name that ends with": {[]string{"x__larder_room=" + good}, plain, false},
	} {
		if got, ok := c.codec.find(http.Header{"Cookie": c.lines}); ok != c.ok || ok && got != example {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// find returns the first cookie of a request that is a ticket of the room. It reads the header field itself, because net/http would
// allocate every cookie of the request.
func (j *ticketCodec) find(h http.Header) (queue.Ticket, bool) {
	for t := range j.readTickets(h) {
		return t, true
	}
	return queue.Ticket{}, false
}

// TestAllocations holds an accepted ticket to what its decryption takes.
func TestAllocations(t *testing.T) {
	codec := ring(t, secret(1)).codec("shop", "")
	h := http.Header{"Cookie": {"a=b; __larder_room=" + codec.seal(&example)}}
	value := codec.seal(&example)
	opening := testing.AllocsPerRun(100, func() { codec.open(value) })
	if finding := testing.AllocsPerRun(100, func() { codec.find(h) }); finding > opening {
		t.Errorf("finding a ticket allocates %v times, opening it %v times", finding, opening)
	}
	if opening > 3 { // what x/crypto does itself, and what it is handed
		t.Errorf("opening a ticket allocates %v times", opening)
	}
}

func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	frozen, err := OpenKeys(dir, true)
	if _, none := os.Stat(dir); err != nil || !os.IsNotExist(none) || len(frozen.keys) != 1 {
		t.Fatalf("read-only: %v, and the folder: %v", err, none)
	}
	first, err := OpenKeys(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, keyFile)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	value := first.codec("shop", "").seal(&example)
	second, err := OpenKeys(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := second.codec("shop", "").open(value); !ok {
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
	rotated, err := OpenKeys(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := rotated.codec("shop", "").open(value); !ok {
		t.Error("after a rotation, old tickets do not open any more")
	}
	if _, ok := second.codec("shop", "").open(rotated.codec("shop", "").seal(&example)); ok {
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
		if _, err := OpenKeys(dir, false); err == nil || !strings.Contains(err.Error(), keyFile) || strings.Contains(err.Error(), line) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(line)
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(dir, false); err == nil || !strings.Contains(err.Error(), "chmod 600") {
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
		if got := newSetCookie(&room, c.value, keep, c.secure); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	codec := ring(f, secret(1)).codec("shop", "")
	good := codec.seal(&example)
	f.Add("a=b; __larder_room=" + good)
	f.Add("__larder_room=" + good[:20])
	f.Add("__larder_room;;; =; __larder_room=")
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := codec.find(http.Header{"Cookie": {line}})
		if ok && got != example { // nothing else was ever sealed with this key
			t.Errorf("%q opened as %+v", line, got)
		}
		if !ok && got != (queue.Ticket{}) {
			t.Errorf("%q: not a ticket, but %+v", line, got)
		}
	})
}
