package lane

import (
	"bytes"
	"testing"

	"github.com/larder-cdn/larder/internal/requests"
)

// FuzzIntroduction has what follows the header be left, and what is read be the same however much follows.
func FuzzIntroduction(f *testing.F) {
	for _, seed := range []string{
		"PROXY TCP4 198.51.100.7 127.0.0.1 1234 443\r\nGET", "PROXY TCP6 2001:db8::7 ::1 1 2\r\n", "PROXY UNKNOWN\r\n", "PROXY UNKNOWN and more\r\n", "GET / HTTP/1.1\r\n\r\n",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc6\x33\x64\x07\x7f\x00\x00\x01\x04\xd2\x01\xbbGET", "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", "\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		from, err := readProxyHeader(r)
		if err != nil {
			return
		}
		n := len(b) - r.Len()
		if n > fixedPart+longestRest {
			t.Errorf("%d bytes were read", n)
		}
		if from != nil && (len(from.IP) == 0 || requests.ClientAt(from.AddrPort().Addr()).Bits() < 0) {
			t.Errorf("a client without an address: %v", from)
		}
		again := bytes.NewReader(b[:n])
		if alone, err := readProxyHeader(again); err != nil || again.Len() > 0 || alone.String() != from.String() {
			t.Errorf("alone it is of %v (%v), and with more behind it of %v", alone, err, from)
		}
		if _, err := readProxyHeader(bytes.NewReader(b[:n-1])); err == nil {
			t.Error("a part of it is enough")
		}
	})
}
