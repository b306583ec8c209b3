package waitingroom

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// newTicket returns a ticket for a first request. Its id is random.
func newTicket() (t queue.Ticket) {
	rand.Read(t.ID[:]) // never fails
	return t
}

// A jar seals tickets of one room into cookies, and opens them.
//
// A ticket is encrypted and authenticated with XChaCha20-Poly1305, of golang.org/x/crypto,
// which the Go project maintains. Its nonces of 192 bits may be random for any number of
// tickets of one key, which those of AES-GCM may not, and it has no options that could be
// set wrong, as JOSE would. A ticket is bound to its room: in another room it does not open.
// Forged, foreign, damaged and huge cookies all give the same answer: no ticket.
type jar struct {
	keys   *Keyring
	bound  []byte // what a ticket is bound to besides its key: the cipher's associated data
	cookie string // name
}

func newJar(keys *Keyring, room *config.Room) *jar {
	return &jar{keys, []byte("larder waiting room ticket\x00" + room.Name), cookieName(room.Cookie.Suffix)}
}

const (
	ticketVersion = 1
	nonceSize     = 24 // of XChaCha20
	tagSize       = 16 // of Poly1305
	bodySize      = 1 + len(queue.TicketID{}) + 4*8 + 2
	rawSize       = keyIDSize + nonceSize + bodySize + tagSize
	encodedSize   = (rawSize*8 + 5) / 6 // bytes of a ticket as a cookie's value
)

// Strict, so that there is one text for a ticket.
var encoding = base64.RawURLEncoding.Strict()

// seal returns a ticket as the value of the room's cookie. Times are cut to milliseconds.
func (j *jar) seal(t *queue.Ticket) string {
	var raw [rawSize]byte
	write := j.keys.keys[0]
	copy(raw[:keyIDSize], write.id[:])
	nonce := raw[keyIDSize : keyIDSize+nonceSize]
	rand.Read(nonce)
	var body [bodySize]byte
	encode(t, &body)
	write.aead.Seal(raw[:keyIDSize+nonceSize], nonce, body[:], j.bound)
	return encoding.EncodeToString(raw[:])
}

// open returns the ticket that a cookie's value holds, false where it is none of the room.
func (j *jar) open(value string) (t queue.Ticket, ok bool) {
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
	return t, decode(&t, (*[bodySize]byte)(body))
}

// maxCookies bounds how many cookies of a name are tried: a browser may send one of each
// path and partition.
const maxCookies = 4

// tickets yields the tickets of the room that a request has, in the order of its cookies. It reads the field itself, because
// net/http would allocate every cookie of the request.
func (j *jar) tickets(h http.Header) iter.Seq[queue.Ticket] {
	return func(yield func(queue.Ticket) bool) {
		tried := 0
		for _, line := range h["Cookie"] {
			for len(line) > 0 {
				var pair string
				pair, line, _ = strings.Cut(line, ";")
				pair = strings.TrimLeft(pair, " \t")
				value, found := strings.CutPrefix(pair, j.cookie)
				if !found || len(value) == 0 || value[0] != '=' {
					continue
				}
				if t, ok := j.open(strings.TrimSpace(value[1:])); ok && !yield(t) {
					return
				}
				if tried++; tried == maxCookies {
					return
				}
			}
		}
	}
}

func encode(t *queue.Ticket, b *[bodySize]byte) {
	b[0] = ticketVersion
	n := 1 + copy(b[1:], t.ID[:])
	for _, moment := range [...]time.Time{t.Since, t.LastCheckIn, t.AcceptedAt, t.Ends} {
		milliseconds := int64(0)
		if !moment.IsZero() {
			milliseconds = moment.UnixMilli()
		}
		binary.BigEndian.PutUint64(b[n:], uint64(milliseconds))
		n += 8
	}
	binary.BigEndian.PutUint16(b[n:], uint16(min(t.RefreshInterval/time.Second, 1<<16-1)))
}

func decode(t *queue.Ticket, b *[bodySize]byte) bool {
	if b[0] != ticketVersion {
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
	t.Since, t.LastCheckIn, t.AcceptedAt, t.Ends = next(), next(), next(), next()
	t.RefreshInterval = time.Duration(binary.BigEndian.Uint16(b[n:])) * time.Second
	return true
}

// cookiePrefix begins the name of every room's cookie.
const cookiePrefix = "__larder_room"

// cookieName is the name of the cookie with a suffix.
func cookieName(suffix string) string {
	if suffix == "" {
		return cookiePrefix
	}
	return cookiePrefix + "_" + suffix
}

// isCookie reports whether a cookie of that name may hold a ticket, of any room.
func isCookie(name string) bool {
	rest, ok := strings.CutPrefix(name, cookiePrefix)
	return ok && (rest == "" || rest[0] == '_')
}

// setCookie returns the Set-Cookie field (RFC 6265bis §4.1) that hands a room's ticket to a
// client to keep for so long; a value of "" takes it away. secure says that the request
// came over HTTPS.
func setCookie(room *config.Room, value string, keep time.Duration, secure bool) string {
	sameSite, only := room.Cookie.SameSite, secure
	switch room.Cookie.Secure {
	case config.SecureAlways:
		only = true
	case config.SecureNever:
		only = false
	}
	if sameSite == config.SameSiteAuto {
		sameSite = config.SameSiteLax
		if secure && only {
			sameSite = config.SameSiteNone
		}
	}
	if sameSite == config.SameSiteNone && !only {
		sameSite = config.SameSiteLax // browsers refuse None without Secure, so visitors could not wait
	}
	c := http.Cookie{
		Name: cookieName(room.Cookie.Suffix), Value: value, Path: room.CookiePath(), HttpOnly: true, Secure: only,
		MaxAge: max(1, int(keep/time.Second)),
	}
	if value == "" {
		c.MaxAge = -1
	}
	switch sameSite {
	case config.SameSiteNone:
		c.SameSite = http.SameSiteNoneMode
		c.Partitioned = room.Cookie.Partitioned
	case config.SameSiteStrict:
		c.SameSite = http.SameSiteStrictMode
	default:
		c.SameSite = http.SameSiteLaxMode
	}
	return c.String()
}
