package archive

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// outside is where names without a top folder are booked while top folders are stripped: nothing else
// can be there, since ".." is never admitted from an archive.
const outside = "../"

// name checks the name of an entry, cleans it and claims it for the entry. It returns "" for the
// archive's own top ("./", or the top folder where that is stripped). odd says why a file of that
// name can only be left out.
func (w *walker) name(raw string, k kind) (name, odd string, err error) {
	switch {
	case raw == "":
		return "", "", w.refuse("", "an entry without a name")
	case len(raw) > w.limits.NameLength:
		return "", "", w.refuse(raw, "name of %d bytes, more than %d", len(raw), w.limits.NameLength)
	case strings.IndexByte(raw, 0) >= 0:
		return "", "", w.refuse(raw, "NUL in the name")
	case strings.IndexByte(raw, '\\') >= 0:
		return "", "", w.refuse(raw, "backslash in the name")
	case raw[0] == '/', hasDrive(raw):
		return "", "", w.refuse(raw, "absolute name")
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(raw, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", "", w.refuse(raw, `".." in the name`)
		default:
			parts = append(parts, part)
		}
	}
	switch {
	case len(parts) == 0 && k == folder:
		return "", "", nil
	case len(parts) == 0:
		return "", "", w.refuse(raw, "a file without a name")
	case len(parts) > maxDepth:
		return "", "", w.refuse(raw, "more than %d folders deep", maxDepth)
	case !utf8.ValidString(raw):
		odd = "name is not UTF-8"
	case strings.ContainsFunc(raw, unicode.IsControl):
		odd = "control character in the name"
	}
	if w.strip && len(parts) == 1 {
		if k == folder {
			return "", "", nil // the top folder itself
		}
		return parts[0], "outside the top folder", w.claim(raw, outside+parts[0], k)
	}
	if w.strip {
		parts = parts[1:]
	}
	name = strings.Join(parts, "/")
	return name, odd, w.claim(raw, name, k)
}

// hasDrive reports whether a name is absolute where drives have letters.
func hasDrive(name string) bool {
	return len(name) >= 3 && name[1] == ':' && name[2] == '/' &&
		('a' <= name[0]|0x20 && name[0]|0x20 <= 'z')
}

// printable makes a name fit for people to read.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(name, string(utf8.RuneError)))
}
