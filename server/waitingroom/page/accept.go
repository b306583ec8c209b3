package page

import "strings"

// A Form is what a client can be sent while it waits.
type Form uint8

// The forms.
const (
	Neither Form = iota // it can show nothing
	HTML
	JSON
)

// maxMembers bounds how much of an Accept field is read.
const maxMembers = 64

// FormOf returns what the client of an Accept field (RFC 9110 §12.5.1) can be sent. Only
// what it names counts: a script tag or a command-line client accepts */* and shows no
// page. Where it names both, what it likes better; a page where it likes both as well.
func FormOf(lines []string, json bool) Form {
	html, object := -1, -1
	members := 0
	for _, line := range lines {
		for len(line) > 0 && members < maxMembers {
			var member string
			member, line, _ = strings.Cut(line, ",")
			members++
			kind, parameters, _ := strings.Cut(member, ";")
			kind = strings.TrimSpace(kind)
			switch {
			case strings.EqualFold(kind, "text/html"):
				html = max(html, quality(parameters))
			case strings.EqualFold(kind, "application/json"):
				object = max(object, quality(parameters))
			}
		}
	}
	switch {
	case json && object > 0 && object > html:
		return JSON
	case html > 0:
		return HTML
	}
	return Neither
}

// quality reads a weight in thousandths: 1000 where there is none, 0 where it is broken.
func quality(parameters string) int {
	for len(parameters) > 0 {
		var p string
		p, parameters, _ = strings.Cut(parameters, ";")
		name, value, ok := strings.Cut(strings.TrimSpace(p), "=")
		if !ok || !strings.EqualFold(name, "q") {
			continue
		}
		whole, fraction, _ := strings.Cut(value, ".")
		if len(fraction) > 3 || whole != "0" && whole != "1" {
			return 0
		}
		q := 0
		for i := range 3 {
			q *= 10
			if i < len(fraction) {
				if fraction[i] < '0' || fraction[i] > '9' {
					return 0
				}
				q += int(fraction[i] - '0')
			}
		}
		if whole == "1" {
			return 1000
		}
		return q
	}
	return 1000
}
