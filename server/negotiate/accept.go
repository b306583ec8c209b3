package negotiate

import "strings"

// PrefersJSON reports whether an Accept field (RFC 9110 §12.5.1) likes JSON better
// than text, or as much and names only JSON.
func PrefersJSON(lines []string) bool {
	type preference struct{ precision, quality int }
	var json, text preference
	for _, line := range lines {
		for _, member := range strings.Split(line, ",") {
			mediaRange, parameters, _ := strings.Cut(member, ";")
			quality := 1000
			for _, p := range strings.Split(parameters, ";") {
				if name, value, ok := strings.Cut(trimOWS(p), "="); ok && strings.EqualFold(name, "q") {
					if q, ok := parseQuality(value); ok {
						quality = q
					}
				}
			}
			match := func(p *preference, precision int) {
				if precision > p.precision {
					*p = preference{precision, quality}
				}
			}
			switch strings.ToLower(trimOWS(mediaRange)) {
			case "*/*":
				match(&json, 1)
				match(&text, 1)
			case "application/*":
				match(&json, 2)
			case "text/*":
				match(&text, 2)
			case "application/json":
				match(&json, 3)
			case "text/plain":
				match(&text, 3)
			}
		}
	}
	return json.quality > text.quality || json.quality > 0 && json.quality == text.quality && json.precision > text.precision
}
