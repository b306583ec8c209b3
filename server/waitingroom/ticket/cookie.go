package ticket

import (
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// cookiePrefix begins the name of every room's cookie.
const cookiePrefix = "__larder_room"

// CookieName is the name of the cookie that a suffix tells apart.
func CookieName(suffix string) string {
	if suffix == "" {
		return cookiePrefix
	}
	return cookiePrefix + "_" + suffix
}

// IsCookie reports whether a cookie of that name may hold a ticket, of whichever room.
func IsCookie(name string) bool {
	rest, ok := strings.CutPrefix(name, cookiePrefix)
	return ok && (rest == "" || rest[0] == '_')
}

// Cookie returns the Set-Cookie field (RFC 6265bis §4.1) that hands a room's ticket to a
// client, which keeps it for so long; a value of "" takes it away. secure says that the
// request came over HTTPS.
func Cookie(room *config.Room, value string, keep time.Duration, secure bool) string {
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
		sameSite = config.SameSiteLax // without Secure browsers refuse None, and nobody could wait
	}
	c := http.Cookie{
		Name: CookieName(room.Cookie.Suffix), Value: value, Path: room.CookiePath(), HttpOnly: true, Secure: only,
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
