package gitlog

import (
	"strings"
	"testing"
)

// What a commit's message says of the position is what ParseMessage reads, whatever the
// subject is; and nobody's message does more than fail.
func FuzzParseMessage(f *testing.F) {
	f.Add("jquery 3.7.1: published", "AbC+/=", int64(4711))
	f.Add("Log-Entry: 3", "Log-Hash:", int64(0))
	f.Add("x\n\nLog-Entry: 99999999999999999999\nLog-Hash: y", "", int64(-1))
	f.Fuzz(func(t *testing.T, subject, hash string, index int64) {
		if p, err := ParseMessage(subject); err == nil && (p.Index < 0 || p.Hash == "") {
			t.Errorf("%q is %+v", subject, p)
		}
		if index < 0 || hash == "" || strings.ContainsAny(hash, "\r\n") || strings.TrimSpace(hash) != hash || strings.ContainsAny(subject, "\r\n") {
			return
		}
		c := Change{Index: index, Hash: hash, Subject: subject}
		p, err := ParseMessage(c.Message())
		if malformed := strings.HasPrefix(strings.TrimSpace(subject), indexTrailer); err != nil && malformed {
			return // entries have no such subject
		}
		if err != nil || p != c.Position() {
			t.Errorf("%q is %+v, %v", c.Message(), p, err)
		}
	})
}
