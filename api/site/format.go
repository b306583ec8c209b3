package site

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// formatBytes writes a size with three digits at least, in powers of a thousand as
// browsers' developer tools do.
func formatBytes(n int64) string {
	if n < 0 {
		return "−" + formatBytes(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10) + " B"
	}
	size := float64(n)
	for _, unit := range []string{"kB", "MB", "GB", "TB"} {
		size /= 1000
		if size < 999.5 || unit == "TB" {
			decimals := 0
			switch {
			case size < 9.995:
				decimals = 2
			case size < 99.95:
				decimals = 1
			}
			return strconv.FormatFloat(size, 'f', decimals, 64) + " " + unit
		}
	}
	panic("unreachable")
}

// formatDelta writes by how much a size has changed.
func formatDelta(from, to int64) string {
	switch {
	case from == to:
		return "same size"
	case to > from:
		return "+" + formatBytes(to-from) + percent(from, to)
	default:
		return formatBytes(to-from) + percent(from, to)
	}
}

func percent(from, to int64) string {
	if from == 0 {
		return ""
	}
	change := 100 * float64(to-from) / float64(from)
	decimals := 0
	if change > -10 && change < 10 {
		decimals = 1
	}
	s := strconv.FormatFloat(change, 'f', decimals, 64)
	if s = strings.Replace(s, "-", "−", 1); change > 0 {
		s = "+" + s
	}
	return " (" + s + " %)"
}

// formatNumber groups the digits of a count.
func formatNumber(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// formatCount writes a count with what is counted: "1 file", "2,000 files".
func formatCount(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatNumber(n) + " " + many
}

// shorten cuts a stranger's text to so many bytes, and shows that it did.
func shorten(n int, s string) string {
	if len(s) <= n {
		return s
	}
	return strings.TrimRightFunc(cut(s, n), unicode.IsSpace) + "…"
}

// turns reports whether a character can make others appear in another order than they
// are in, so that one name looks like another: the embeddings, overrides and isolates
// of Unicode's bidirectional algorithm (https://www.unicode.org/reports/tr9/).
func turns(r rune) bool { return '\u202a' <= r && r <= '\u202e' || '\u2066' <= r && r <= '\u2069' }

// straighten makes such characters visible in a page.
func straighten(page []byte) []byte {
	if !bytes.ContainsFunc(page, turns) {
		return page
	}
	return bytes.Map(func(r rune) rune {
		if turns(r) {
			return unicode.ReplacementChar
		}
		return r
	}, page)
}

// formatDate writes the day for people, "" for a time that is not known.
func formatDate(t time.Time) string {
	if unknown(t) {
		return ""
	}
	return t.UTC().Format("2 January 2006")
}

// formatMoment is formatDate to the minute.
func formatMoment(t time.Time) string {
	if unknown(t) {
		return ""
	}
	return t.UTC().Format("2 January 2006, 15:04 UTC")
}

// unknown reports whether t stands for no time: what is zero, or was stored as
// the seconds of zero.
func unknown(t time.Time) bool { return t.Unix() <= 0 }
