package server

import (
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"
)

// An accessLogEntry has the logged facts of a request and its response.
type accessLogEntry struct {
	Time     time.Time // when the request came
	Client   netip.Addr
	Method   string
	Host     string
	Target   string // as it came
	Protocol string
	Referer  string
	Agent    string // User-Agent
	Status   int
	Sent     int64 // bytes of the response's body
	Took     time.Duration
}

// copyTexts copies Host, Target, Referer and Agent, each cut to 2 KiB, to buf, so that the entry is valid longer than the
// request. It does not copy the other texts, which must be constants. It returns buf, or a larger buffer in its place. The
// entry is valid until the caller uses the buffer again.
func (e *accessLogEntry) copyTexts(buf []byte) []byte {
	texts := [...]*string{&e.Host, &e.Target, &e.Referer, &e.Agent}
	total := 0
	for _, s := range texts {
		*s = (*s)[:min(len(*s), maxLoggedText)]
		total += len(*s)
	}
	if cap(buf) < total {
		buf = make([]byte, 0, total)
	}
	buf = buf[:0]
	for _, s := range texts {
		from := len(buf)
		buf = append(buf, *s...)
		*s = unsafe.String(unsafe.SliceData(buf[from:]), len(*s))
	}
	return buf
}

// An accessLogTime has the text of a second.
type accessLogTime struct {
	second int64
	text   []byte
}

// format returns t in UTC, in the layout of package time, to the second. It caches the text of the last second, whatever the
// layout: a log always passes the same one. The result is valid until the next call.
func (s *accessLogTime) format(t time.Time, layout string) []byte {
	if second := t.Unix(); second != s.second || s.text == nil {
		s.second, s.text = second, t.UTC().AppendFormat(s.text[:0], layout)
	}
	return s.text
}

// appendJSON appends the line of an entry as a JSON object to b. The caller holds mu.
func (l *AccessLog) appendJSON(b []byte, e *accessLogEntry) []byte {
	b = append(b, `{"time":"`...)
	b = append(b, l.stamp.format(e.Time, "2006-01-02T15:04:05")...)
	ms := e.Time.Nanosecond() / 1e6
	b = append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	b = append(b, `Z","client":"`...)
	b = l.appendClient(b, e.Time, e.Client)
	b = append(b, `","method":`...)
	b = appendJSONString(b, e.Method)
	b = append(b, `,"host":`...)
	b = appendJSONString(b, e.Host)
	b = append(b, `,"target":`...)
	b = appendJSONString(b, e.Target)
	b = append(b, `,"protocol":`...)
	b = appendJSONString(b, e.Protocol)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(e.Status), 10)
	b = append(b, `,"bytes":`...)
	b = strconv.AppendInt(b, e.Sent, 10)
	b = append(b, `,"microseconds":`...)
	b = strconv.AppendInt(b, max(0, e.Took.Microseconds()), 10)
	b = append(b, `,"referer":`...)
	b = appendJSONString(b, e.Referer)
	b = append(b, `,"agent":`...)
	b = appendJSONString(b, e.Agent)
	return append(b, "}\n"...)
}

const logHexDigits = "0123456789abcdef"

// appendJSONString appends s, cut to 2 KiB, as a JSON string with its quotes to b. Bytes that are not UTF-8 become U+FFFD.
func appendJSONString(b []byte, s string) []byte {
	s = s[:min(len(s), maxLoggedText)]
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' && c != 0x7f {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, size := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		b = append(b, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= utf8.RuneSelf:
			b = append(b, `\ufffd`...)
		default:
			b = append(b, '\\', 'u', '0', '0', logHexDigits[c>>4], logHexDigits[c&15])
		}
		i++
		from = i
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// appendCombined appends the line of an entry to b in the combined format of Apache and nginx. The caller holds mu.
func (l *AccessLog) appendCombined(b []byte, e *accessLogEntry) []byte {
	b = l.appendClient(b, e.Time, e.Client)
	b = append(b, " - - ["...)
	b = append(b, l.stamp.format(e.Time, "02/Jan/2006:15:04:05 +0000")...)
	b = append(b, `] "`...)
	b = appendQuotedField(b, e.Method, "")
	b = append(b, ' ')
	b = appendQuotedField(b, e.Target, "")
	b = append(b, ' ')
	b = appendQuotedField(b, e.Protocol, "")
	b = append(b, `" `...)
	b = strconv.AppendInt(b, int64(e.Status), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, e.Sent, 10)
	b = append(b, ` "`...)
	b = appendQuotedField(b, e.Referer, "-")
	b = append(b, `" "`...)
	b = appendQuotedField(b, e.Agent, "-")
	return append(b, "\"\n"...)
}

// appendQuotedField appends s, cut to 2 KiB, to b, without the quotes, which the caller appends. Like nginx it writes quotes,
// backslashes, and bytes that are not printable ASCII as \xHH. If s is empty, it appends the text none instead.
func appendQuotedField(b []byte, s, none string) []byte {
	if s == "" {
		return append(b, none...)
	}
	s = s[:min(len(s), maxLoggedText)]
	from := 0
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			b = append(b, s[from:i]...)
			b = append(b, '\\', 'x', logHexDigits[c>>4], logHexDigits[c&15])
			from = i + 1
		}
	}
	return append(b, s[from:]...)
}
