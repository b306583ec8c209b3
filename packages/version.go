package packages

import (
	"cmp"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/larder-cdn/larder/internal/text"
)

var (
	validVersion = text.NewRegexp(`^[0-9A-Za-z][0-9A-Za-z._+-]*$`)
	// leading finds the numbers that a version begins with.
	leading = text.NewRegexp(`^[vV]?[0-9]+(?:\.[0-9]+){0,2}`)
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
// The order is the public service's, which is node-semver's. Valid semantic
// versions, with or without a "v", are the newest, by precedence (semver.org,
// §11). Below them are those in which numbers are found that can be read as a
// version, such as 1.2, 1.2.3.4 and r128: by these three numbers, then, which is
// not decided there, by what follows them. Below those are all others, such as
// 01.2.3, by natural order, in which numbers count as numbers and case does not
// count. The order is total for any strings: where a rule finds no difference
// (build metadata, case), natural order and then the bytes decide.
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
		c = semver.Compare(addV(a), addV(b))
	case coerced:
		c = compareCoerced(a, b)
	}
	return cmp.Or(c, compareNatural(a, b), strings.Compare(a, b))
}

// addV returns a version with a v in front, as golang.org/x/mod/semver expects.
func addV(v string) string { return "v" + strings.TrimPrefix(v, "v") }

// LatestVersion returns the version a package's default links point to: the
// greatest stable semantic version, else the greatest prerelease, both by
// [CompareVersions] and without a "v" in front, else the greatest string in byte
// order; "" for no versions.
func LatestVersion(versions []string) string {
	latest, latestRank := "", -1
	for _, v := range versions {
		rank := 0 // no semantic version
		if classify(v) == semantic && v[0] != 'v' {
			rank = 2
			if IsPrerelease(v) {
				rank = 1
			}
		}
		order := cmp.Compare(rank, latestRank)
		switch {
		case order == 0 && rank == 0:
			order = strings.Compare(v, latest)
		case order == 0:
			order = CompareVersions(v, latest)
		}
		if order > 0 {
			latest, latestRank = v, rank
		}
	}
	return latest
}

// IsPrerelease reports whether v comes before a release: a semantic version with a prerelease
// (2.0.0-beta.1), or another one that begins with up to three numbers and continues with a letter or "-"
// (2.0b1, 1.2-3). Versions that begin with other letters than a v are none.
func IsPrerelease(v string) bool {
	if classify(v) == semantic {
		return semver.Prerelease(addV(v)) != ""
	}
	numbers := leading.FindString(v)
	return numbers != "" && suffixRank(v[len(numbers):]) == 0
}

// class is how much of a version a string is.
type class int

const (
	other class = iota
	coerced
	semantic
)

// classify returns how a version is compared: as a semantic version, by the numbers that coerce finds in it, or as other
// text.
func classify(v string) class {
	// x/mod also accepts v1 and v1.2, which semver.org does not.
	core, _, _ := strings.Cut(v, "+")
	core, _, _ = strings.Cut(core, "-")
	if strings.Count(core, ".") == 2 && semver.IsValid(addV(v)) && isCountable(strings.Split(strings.TrimPrefix(core, "v"), ".")) {
		return semantic
	}
	if _, _, ok := coerce(v); ok {
		return coerced
	}
	return other
}

// maxNumber is the greatest that a script can count to, and node-semver the greatest number of a version.
const maxNumber = 1<<53 - 1

// isCountable reports whether node-semver takes these for the numbers of a version: each is at most 2^53-1, without leading
// zeros.
func isCountable(numbers []string) bool {
	for _, n := range numbers {
		value, err := strconv.ParseUint(n, 10, 64)
		if err != nil || value > maxNumber || len(n) > 1 && n[0] == '0' {
			return false
		}
	}
	return true
}

// maxDigits is the length, in digits, above which node-semver's coerce skips a number.
const maxDigits = 16

// coerce returns the three numbers that node-semver's coerce finds in v, and what follows them. It starts at the first number
// with at most maxDigits digits, wherever that is; missing numbers are 0. ok is false if there is none, or one has a leading
// zero or is too large. Sorting calls coerce for each comparison, so it scans v by hand.
func coerce(v string) (numbers [3]string, rest string, ok bool) {
	numbers, rest = [3]string{"0", "0", "0"}, v
	for rest != "" {
		n := countDigits(rest)
		if 0 < n && n <= maxDigits {
			break
		}
		rest = rest[max(n, 1):]
	}
	if rest == "" {
		return numbers, "", false
	}
	for i := range numbers {
		number := rest
		if i > 0 {
			if rest == "" || rest[0] != '.' {
				break
			}
			number = rest[1:]
		}
		n := countDigits(number)
		if n == 0 || n > maxDigits {
			break
		}
		numbers[i], rest = number[:n], number[n:]
	}
	return numbers, rest, isCountable(numbers[:])
}

// compareCoerced compares two coercible versions by their numbers, then by what follows those, as [CompareVersions] does.
func compareCoerced(a, b string) int {
	na, ra, _ := coerce(a)
	nb, rb, _ := coerce(b)
	for i := range na {
		if c := compareNumbers(na[i], nb[i]); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(suffixRank(ra), suffixRank(rb)), compareNatural(ra, rb))
}

// suffixRank orders what follows the numbers of a coercible version. It is 0 for a prerelease (1.2-beta and 1.2beta come before 1.2, as
// node-semver's loose reading has it), 1 for nothing, and 2 for anything else (1.2.3.4 comes after 1.2.3).
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

// compareNatural compares strings as a script's localeCompare with numeric and sensitivity "base" does, for the characters that
// versions have: piece by piece, runs of digits as numbers, letters whatever their case, and "_", "-", ".", "+" in this order before
// digits before letters.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		na, nb := countDigits(a), countDigits(b)
		if na > 0 && nb > 0 {
			if c := compareNumbers(a[:na], b[:nb]); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if c := cmp.Compare(collationWeight(a[0]), collationWeight(b[0])); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// collationWeight returns the place of a character in the Unicode Collation Algorithm's order of those that versions have,
// the same for both cases of a letter.
func collationWeight(c byte) int {
	switch i := strings.IndexByte("_-.+", c); {
	case i >= 0:
		return i
	case 'A' <= c && c <= 'Z':
		c |= 0x20
	}
	return 4 + int(c)
}

// countDigits returns the length of the run of digits that s begins with.
func countDigits(s string) int {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return i
}

// compareNumbers compares two runs of digits of any length by value.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
