// Package ticket is what a user of a waiting room carries: a cookie that says since when
// the user waits, when the last chance was, and when the user was let in.
//
// A ticket is encrypted and authenticated with XChaCha20-Poly1305, of
// golang.org/x/crypto, which the Go project maintains: its nonces of 192 bits may be
// random however many tickets are sealed with a key, which those of AES-GCM may not, and
// it needs no configuration that could be wrong, as JOSE would. A ticket is bound to its
// room, so that one of another room opens nothing.
//
// Open never says more than "this is no ticket of ours": forged, foreign, damaged and
// huge cookies are all the same. What a ticket's times mean is not known here.
package ticket

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// An ID tells tickets apart. It is random.
type ID [16]byte

// NewID returns one that no other ticket has.
func NewID() (id ID) {
	rand.Read(id[:]) // never fails
	return id
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// A Ticket is what the cookie holds. Times have milliseconds, as the cookie has.
type Ticket struct {
	ID ID
	// Bucket is the minute in which the user came first, and Since the very moment, by
	// which it is measured how long people wait.
	Bucket, Since time.Time
	// LastCheckIn is when the user had the last chance, or was seen last after the admission.
	LastCheckIn time.Time
	// Accepted is when the user was let in, zero for who waits.
	Accepted time.Time
	// Ends is when the session ends unless it is renewed, zero for who waits.
	Ends time.Time
	// RefreshInterval is how long after LastCheckIn the next chance is, to the second.
	RefreshInterval time.Duration
}

// Waiting reports whether its user has not been let in yet.
func (t *Ticket) Waiting() bool { return t.Accepted.IsZero() }

const (
	version   = 1
	keyIDSize = 4
	nonceSize = 24 // of XChaCha20
	tagSize   = 16 // of Poly1305
	bodySize  = 1 + len(ID{}) + 5*8 + 2
	rawSize   = keyIDSize + nonceSize + bodySize + tagSize
)

// encodedSize is how many bytes a ticket has as a cookie's value.
const encodedSize = (rawSize*8 + 5) / 6

// Strict, so that there is one text for a ticket.
var encoding = base64.RawURLEncoding.Strict()

// A Jar makes and reads the tickets of one room.
type Jar struct {
	keys   *Keyring
	bound  []byte // what a ticket is bound to besides its key: the cipher's associated data
	cookie string // name
}

// Jar returns the jar of a room whose cookie has that suffix.
func (k *Keyring) Jar(room, suffix string) *Jar {
	return &Jar{k, []byte("larder waiting room ticket\x00" + room), CookieName(suffix)}
}

// Seal returns a ticket as the value of the room's cookie.
func (j *Jar) Seal(t *Ticket) string {
	var raw [rawSize]byte
	write := j.keys.keys[0]
	copy(raw[:keyIDSize], write.id[:])
	nonce := raw[keyIDSize : keyIDSize+nonceSize]
	rand.Read(nonce)
	var body [bodySize]byte
	t.encode(&body)
	write.aead.Seal(raw[:keyIDSize+nonceSize], nonce, body[:], j.bound)
	return encoding.EncodeToString(raw[:])
}

// Open returns the ticket that a cookie's value holds, false where it is none of the room.
func (j *Jar) Open(value string) (t Ticket, ok bool) {
	if len(value) != encodedSize {
		return t, false
	}
	var raw [rawSize]byte
	var text [encodedSize]byte
	if n, err := encoding.Decode(raw[:], text[:copy(text[:], value)]); err != nil || n != rawSize {
		return t, false
	}
	key := j.keys.find([keyIDSize]byte(raw[:keyIDSize]))
	if key == nil {
		return t, false
	}
	sealed := raw[keyIDSize+nonceSize:]
	body, err := key.aead.Open(sealed[:0], raw[keyIDSize:keyIDSize+nonceSize], sealed, j.bound)
	if err != nil {
		return t, false
	}
	return t, t.decode((*[bodySize]byte)(body))
}

func (t *Ticket) encode(b *[bodySize]byte) {
	b[0] = version
	n := 1 + copy(b[1:], t.ID[:])
	for _, moment := range [...]time.Time{t.Bucket, t.Since, t.LastCheckIn, t.Accepted, t.Ends} {
		milliseconds := int64(0)
		if !moment.IsZero() {
			milliseconds = moment.UnixMilli()
		}
		binary.BigEndian.PutUint64(b[n:], uint64(milliseconds))
		n += 8
	}
	binary.BigEndian.PutUint16(b[n:], uint16(min(t.RefreshInterval/time.Second, 1<<16-1)))
}

func (t *Ticket) decode(b *[bodySize]byte) bool {
	if b[0] != version {
		return false
	}
	n := 1 + copy(t.ID[:], b[1:])
	next := func() time.Time {
		milliseconds := int64(binary.BigEndian.Uint64(b[n:]))
		n += 8
		if milliseconds == 0 {
			return time.Time{}
		}
		return time.UnixMilli(milliseconds).UTC()
	}
	t.Bucket, t.Since, t.LastCheckIn, t.Accepted, t.Ends = next(), next(), next(), next(), next()
	t.RefreshInterval = time.Duration(binary.BigEndian.Uint16(b[n:])) * time.Second
	return true
}

type key struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

// maxCookies bounds how many cookies of a name are looked at: a browser may send one of
// each path and partition.
const maxCookies = 4

// Find returns the first cookie of a request that holds a ticket of the room. It reads
// the field itself, because net/http would make an object of every cookie there is.
func (j *Jar) Find(h http.Header) (t Ticket, ok bool) {
	looked := 0
	for _, line := range h["Cookie"] {
		for len(line) > 0 {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			pair = strings.TrimLeft(pair, " \t")
			value, found := strings.CutPrefix(pair, j.cookie)
			if !found || len(value) == 0 || value[0] != '=' {
				continue
			}
			if t, ok = j.Open(strings.TrimSpace(value[1:])); ok {
				return t, true
			}
			if looked++; looked == maxCookies {
				return t, false
			}
		}
	}
	return Ticket{}, false
}
