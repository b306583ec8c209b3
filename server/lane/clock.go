package lane

import (
	"net/http"
	"sync/atomic"
	"time"
)

// A clock has the end of a head ready: the value of Date, and what comes after it.
type clock struct{ now atomic.Pointer[stamp] }

type stamp struct {
	second        int64
	open, closing []byte // where the connection stays open, and where not
}

// at returns the end of a head that is sent at that time.
func (c *clock) at(now time.Time, closes bool) []byte {
	s := c.now.Load()
	if second := now.Unix(); s == nil || s.second != second {
		date := now.UTC().Format(http.TimeFormat)
		s = &stamp{second, []byte(date + "\r\n\r\n"), []byte(date + "\r\nConnection: close\r\n\r\n")}
		c.now.Store(s)
	}
	if closes {
		return s.closing
	}
	return s.open
}
