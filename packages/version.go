package packages

import (
	"cmp"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

var (
	validVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._+-]*$`)
	// coercible finds up to three leading numbers; what follows is compared
	// by itself.
	coercible = regexp.MustCompile(`^[vV]?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?`)
)

// maxVersion is the longest version, in bytes.
const maxVersion = 128

// ValidVersion reports whether v can be the name of a version: letters, digits,
// ".", "_", "+" and "-", beginning with a letter or a digit, 128 bytes at most.
// So a version is always one safe path element, never "." or "..", and short
// enough for a key, a file's name and a line of a log.
func ValidVersion(v string) bool { return len(v) <= maxVersion && validVersion.MatchString(v) }

// CompareVersions orders versions from oldest to newest: it returns -1 where a
// is older than b, +1 where it is newer, 0 only where both are the same string.
//
// Valid semantic versions are the newest, by precedence (semver.org, §11). Below
// them are those that can be read as one, such as 1.2, v1.2.3 and 1.2.3.4: by
// their first three numbers, then by what follows. Below those are all others,
// such as r128, by natural order, in which numbers count as numbers. The order is
// total for any strings: where a rule finds no difference (build metadata,
// leading zeros), natural order and then the bytes decide.
func CompareVersions(a, b string) int {
	if a == b {
		return 0
	}
	ka, kb := classify(a), classify(b)
	if c := cmp.Compare(ka, kb); c != 0 {
		return c
	}
	c := 0
	switch ka {
	case semantic:
		// golang.org/x/mod compares numbers of any length; a library that
		// parses them into integers cannot order 1.0.0-20991231235959123456789.
		c = semver.Compare("v"+a, "v"+b)
	case coerced:
		c = compareCoerced(a, b)
	}
	return cmp.Or(c, compareNatural(a, b), strings.Compare(a, b))
}

// LatestVersion returns the version a package's default links point to: the
// greatest stable semantic version, else the greatest prerelease, else the
// greatest string; "" for no versions.
func LatestVersion(versions []string) string {
	latest, latestRank := "", -1
	for _, v := range versions {
		rank := 0 // no semantic version
		if classify(v) == semantic {
			rank = 2
			if IsPrerelease(v) {
				rank = 1
			}
		}
		newer := rank > latestRank
		if rank == latestRank {
			if rank == 0 {
				newer = v > latest
			} else {
				newer = CompareVersions(v, latest) > 0
			}
		}
		if newer {
			latest, latestRank = v, rank
		}
	}
	return latest
}

// IsPrerelease reports whether v comes before a release: 2.0.0-beta.1, 2.0b1.
func IsPrerelease(v string) bool {
	switch classify(v) {
	case semantic:
		return semver.Prerelease("v"+v) != ""
	case coerced:
		return suffixRank(v[len(coercible.FindString(v)):]) == 0
	}
	return false
}

// class is how much of a version a string is.
type class int

const (
	other class = iota
	coerced
	semantic
)

func classify(v string) class {
	// x/mod also accepts v1 and v1.2, which semver.org does not.
	core := v
	if i := strings.IndexAny(v, "-+"); i >= 0 {
		core = v[:i]
	}
	if strings.Count(core, ".") == 2 && semver.IsValid("v"+v) {
		return semantic
	}
	if coercible.MatchString(v) {
		return coerced
	}
	return other
}

func compareCoerced(a, b string) int {
	ma, mb := coercible.FindStringSubmatch(a), coercible.FindStringSubmatch(b)
	for i := 1; i <= 3; i++ {
		if c := compareNumbers(ma[i], mb[i]); c != 0 {
			return c
		}
	}
	ra, rb := a[len(ma[0]):], b[len(mb[0]):]
	return cmp.Or(cmp.Compare(suffixRank(ra), suffixRank(rb)), compareNatural(ra, rb))
}

// suffixRank orders what follows the numbers of a coercible version: 1.2-beta
// and 1.2beta come before 1.2 (as node-semver's loose reading has it), 1.2.3.4
// comes after 1.2.3.
func suffixRank(s string) int {
	switch {
	case s == "":
		return 1
	case s[0] == '-' || 'a' <= s[0]|0x20 && s[0]|0x20 <= 'z':
		return 0
	default:
		return 2
	}
}

// compareNatural compares strings piece by piece, runs of digits as numbers.
// Digits come before anything else.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		var c int
		switch {
		case na > 0 && nb > 0:
			c = compareNumbers(a[:na], b[:nb])
		case na > 0:
			return -1
		case nb > 0:
			return 1
		default:
			na, nb = letters(a), letters(b)
			c = strings.Compare(a[:na], b[:nb])
		}
		if c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the length of the run of digits that s begins with.
func digits(s string) int {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return i
}

// letters returns the length of the run without digits that s begins with.
func letters(s string) int {
	if i := strings.IndexAny(s, "0123456789"); i >= 0 {
		return i
	}
	return len(s)
}

// compareNumbers compares two runs of digits of any length by value.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
