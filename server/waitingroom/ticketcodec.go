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

// newTicket returns the ticket of a first request, with a random id.
func newTicket() (t queue.Ticket) {
	rand.Read(t.ID[:]) // never fails
	return t
}

// A ticketCodec seals tickets of one room into cookies, and opens them.
//
// A ticket is encrypted and authenticated with XChaCha20-Poly1305, of golang.org/x/crypto, which the Go project maintains. Its
// nonces of 192 bits may be random for any number of tickets of one key, which those of AES-GCM may not, and it has no options that
// could be set wrong, as JOSE would. A ticket is bound to its room: in another room it does not open. Forged, foreign, damaged and
// huge cookies all give the same result: no ticket.
type ticketCodec struct {
	keys   *Keyring
	bound  []byte // what a ticket is bound to besides its key: the cipher's associated data
	cookie string // name
}

// newTicketCodec returns the codec of a room's tickets, which encrypts them with keys.
func newTicketCodec(keys *Keyring, room *config.Room) *ticketCodec {
	return &ticketCodec{keys, []byte("larder waiting room ticket\x00" + room.Name), cookieName(room.Cookie.Suffix)}
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

// seal returns a ticket, encrypted with the first key, as the value of the room's cookie. Each call returns another value. Times
// are cut to milliseconds, the refresh interval to seconds.
func (j *ticketCodec) seal(t *queue.Ticket) string {
	var raw [rawSize]byte
	write := j.keys.keys[0]
	copy(raw[:keyIDSize], write.id[:])
	nonce := raw[keyIDSize : keyIDSize+nonceSize]
	rand.Read(nonce)
	var body [bodySize]byte
	encodeTicket(t, &body)
	write.aead.Seal(raw[:keyIDSize+nonceSize], nonce, body[:], j.bound)
	return encoding.EncodeToString(raw[:])
}

// open decrypts the value of a room's cookie and returns the ticket in it. ok is false if the value is not a ticket of the room.
// It does not check the times in the ticket.
func (j *ticketCodec) open(value string) (t queue.Ticket, ok bool) {
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
	return t, decodeTicket(&t, (*[bodySize]byte)(body))
}

// maxCookies bounds how many cookies of a name are tried: a browser may send one of each
// path and partition.
const maxCookies = 4

// readTickets yields the tickets of the room that decrypt, also those that are over, from the cookies of a request header, in
// their order. It tries maxCookies cookies at most. It reads the field itself, because net/http would allocate every cookie of
// the request.
func (j *ticketCodec) readTickets(h http.Header) iter.Seq[queue.Ticket] {
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

// encodeTicket writes the binary form of a ticket to b.
func encodeTicket(t *queue.Ticket, b *[bodySize]byte) {
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
	interval := uint16(min(t.RefreshInterval/time.Second, streamBit-1))
	if t.Stream {
		interval |= streamBit
	}
	binary.BigEndian.PutUint16(b[n:], interval)
}

// streamBit is set in the refresh interval of a ticket whose visitor has opened an event stream. No interval is as long.
const streamBit = 1 << 15

// decodeTicket reads a ticket from its binary form. It returns false for a form of another version.
func decodeTicket(t *queue.Ticket, b *[bodySize]byte) bool {
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
	interval := binary.BigEndian.Uint16(b[n:])
	t.RefreshInterval, t.Stream = time.Duration(interval&^streamBit)*time.Second, interval&streamBit != 0
	return true
}

// cookiePrefix begins the name of every room's cookie.
const cookiePrefix = "__larder_room"

// cookieName returns the name of a room's cookie, which ends with the room's suffix if that is not empty.
func cookieName(suffix string) string {
	if suffix == "" {
		return cookiePrefix
	}
	return cookiePrefix + "_" + suffix
}

// isTicketCookie reports whether a cookie with that name may be a ticket of some room, also of one that is not configured.
func isTicketCookie(name string) bool {
	rest, ok := strings.CutPrefix(name, cookiePrefix)
	return ok && (rest == "" || rest[0] == '_')
}

// newSetCookie returns the value of the Set-Cookie field (RFC 6265bis §4.1) that stores value, a sealed ticket of the room, in the
// client for the duration keep in whole seconds; a shorter one counts as a second. With the value "" it deletes the cookie. secure
// says that the request came over HTTPS.
func newSetCookie(room *config.Room, value string, keep time.Duration, secure bool) string {
	sameSite := room.Cookie.SameSite
	only := room.Cookie.Secure == config.SecureAlways || secure && room.Cookie.Secure != config.SecureNever
	c := http.Cookie{
		Name: cookieName(room.Cookie.Suffix), Value: value, Path: room.CookiePath(), HttpOnly: true, Secure: only,
		MaxAge: max(1, int(keep/time.Second)),
	}
	if value == "" {
		c.MaxAge = -1
	}
	switch {
	case sameSite == config.SameSiteStrict:
		c.SameSite = http.SameSiteStrictMode
	case only && (sameSite == config.SameSiteNone || secure && sameSite == config.SameSiteAuto):
		c.SameSite = http.SameSiteNoneMode
		c.Partitioned = room.Cookie.Partitioned
	default: // also for None without Secure, which browsers refuse, so visitors could not wait
		c.SameSite = http.SameSiteLaxMode
	}
	return c.String()
}
