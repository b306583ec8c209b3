package worker

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"

	"github.com/larder-cdn/larder/internal/document"
)

func writeRange(r document.Range) string {
	result := document.Result{Kind: document.Ranges, Ranges: []document.Range{r}}
	data, err := result.Encode()
	if err != nil {
		return err.Error()
	}
	_, body, _ := strings.Cut(string(data), "\n")
	return strings.TrimSuffix(body, "\n")
}

// TestRanges has the examples of node-semver's own documentation and tests, as plain comparisons.
func TestRanges(t *testing.T) {
	for wanted, want := range map[string]string{
		"1.2.3": "=1.2.3", "=v1.2.3": "=1.2.3", "*": ">=0.0.0", "": ">=0.0.0", "latest": ">=0.0.0", "x": ">=0.0.0",
		"1": ">=1.0.0 <2.0.0-0", "1.x": ">=1.0.0 <2.0.0-0", "1.2": ">=1.2.0 <1.3.0-0", "1.2.x": ">=1.2.0 <1.3.0-0",
		"1.2.3 - 2.3.4": ">=1.2.3 <=2.3.4", "1.2 - 2.3.4": ">=1.2.0 <=2.3.4", "1.2.3 - 2.3": ">=1.2.3 <2.4.0-0", "1.2.3 - 2": ">=1.2.3 <3.0.0-0",
		"~1.2.3": ">=1.2.3 <1.3.0-0", "~1.2": ">=1.2.0 <1.3.0-0", "~1": ">=1.0.0 <2.0.0-0", "~0.2.3": ">=0.2.3 <0.3.0-0", "~> 1.2.3-beta.2": ">=1.2.3-beta.2 <1.3.0-0",
		"^1.2.3": ">=1.2.3 <2.0.0-0", "^0.2.3": ">=0.2.3 <0.3.0-0", "^0.0.3": ">=0.0.3 <0.0.4-0", "^0.0.3-beta": ">=0.0.3-beta <0.0.4-0", "^1.2.x": ">=1.2.0 <2.0.0-0",
		"^0.0.x": ">=0.0.0 <0.1.0-0", "^0.0": ">=0.0.0 <0.1.0-0", "^1.x": ">=1.0.0 <2.0.0-0", "^0.x": ">=0.0.0 <1.0.0-0", "^0.0.0": ">=0.0.0 <0.0.1-0",
		">1": ">=2.0.0", ">1.2": ">=1.3.0", ">1.2.3": ">1.2.3", "> 1.2.3 <= 2": ">1.2.3 <3.0.0-0", "<1.2": "<1.2.0-0", "<=1.2": "<1.3.0-0", "<1.2.3": "<1.2.3", "<*": "<0.0.0-0",
		"1.x || >=2.5.0 || 5.0.0 - 7.2.3": ">=1.0.0 <2.0.0-0 || >=2.5.0 || >=5.0.0 <=7.2.3", "1.2.3+build": "=1.2.3",
		"git+https://x": "", "workspace:*": "", "next": "", "1.2.3.4": "", "1.2.3-": "", "^": ">=0.0.0", "99999999999999999999.0.0": "", strings.Repeat(" 1", 200): "",
	} {
		if got := writeRange(parseRange(wanted)); got != want {
			t.Errorf("%q is %q, want %q", wanted, got, want)
		}
	}
}

// TestRangesAsSemver compares with another reader of ranges, for versions that are no prereleases.
func TestRangesAsSemver(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 33))
	number := func() string { return []string{"0", "1", "2", "3", "x", "*"}[r.IntN(6)] }
	compared := 0
	for range 20_000 {
		wanted := []string{"", "^", "~", ">=", "<=", ">", "<", "="}[r.IntN(8)] + strings.Join([]string{number(), number(), number()}[:1+r.IntN(3)], ".")
		if r.IntN(3) == 0 {
			wanted += " || " + []string{"", "^", "~"}[r.IntN(3)] + strings.Join([]string{number(), number(), number()}, ".")
		}
		version := strings.Join([]string{string('0' + rune(r.IntN(4))), string('0' + rune(r.IntN(4))), string('0' + rune(r.IntN(4)))}, ".")
		c, err := semver.NewConstraint(wanted)
		// Unlike npm, the other one reads ~0.0.0 as any version, ^* as none, and numbers behind a wildcard.
		if err != nil || strings.ContainsAny(wanted, "x*") || strings.Contains(wanted, "~0.0.0") {
			continue
		}
		compared++
		if got := parseRange(wanted).Has(version); got != c.Check(semver.MustParse(version)) {
			t.Errorf("%q has %s: %v", wanted, version, got)
		}
	}
	if compared < 3000 {
		t.Errorf("only %d compared", compared)
	}
}
