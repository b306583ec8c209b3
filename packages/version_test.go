package packages

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ordered holds versions from newest to oldest, as node-semver 7 and localeCompare order them; what they find equal is
// in our order.
var ordered = []string{
	// Valid semantic versions, by precedence.
	"9007199254740991.0.0", // the greatest number that a script can count to
	"10.0.0",
	"v5.0.0",
	"4.0.0",
	"4.0.0-rc.1",
	"4.0.0-beta.11",
	"4.0.0-beta.2",
	"4.0.0-beta",
	"4.0.0-alpha.beta",
	"4.0.0-alpha.1",
	"4.0.0-alpha",
	"4.0.0-99999999999999999999999",
	"4.0.0-1",
	"3.7.1+build.10", // equal precedence: natural order
	"3.7.1+build.9",
	"3.7.1",
	"0.0.0-0",
	// Those in which numbers are found, by the first three, then by what follows.
	"20200103",
	"2012-12-03",
	"r128",
	"r71.5",
	"r71",
	"10.1.0.0",
	"r9",
	"release-2",
	"release-1.10",
	"1.10",
	"release-1.9",
	"1.9",
	"1.2.3.10",
	"1.2.3.4",
	"1.2.3beta",
	"1.2",
	"1.2-beta2",
	"1.2-beta",
	"1",
	"1.0rc10",
	"1.0rc9",
	"18446744073709551616.0.0", // too great; the numbers are 0.0
	"0",
	// The rest, by natural order: numbers with leading zeros are none of a version.
	"v2012.01.02",
	"r0128",
	"master",
	"Master",
	"05.0.0",
	"1.2.03",
}

func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		shuffled := slices.Clone(ordered)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		newestFirst(shuffled)
		for i := range shuffled {
			if shuffled[i] != ordered[i] {
				t.Fatalf("at %d: got %q, want %q\nall: %q", i, shuffled[i], ordered[i], shuffled)
			}
		}
	}
}

// TestCompareVersionsIsTotal sorts many odd strings and compares every pair: the
// order is total where every pair agrees with the sorted list.
func TestCompareVersionsIsTotal(t *testing.T) {
	parts := []string{"", "0", "00", "1", "01", "9", "10", "18446744073709551616", ".", "-", "+", "_", "a", "A", "v", "rc", "beta", "é"}
	random := rand.New(rand.NewPCG(3, 4))
	all := map[string]bool{}
	for _, v := range ordered {
		all[v] = true
	}
	for len(all) < 300 {
		var v strings.Builder
		for range 1 + random.IntN(7) {
			v.WriteString(parts[random.IntN(len(parts))])
			if random.IntN(3) == 0 {
				v.WriteString(".")
			}
		}
		all[v.String()] = true
	}
	var versions []string
	for v := range all {
		versions = append(versions, v)
	}
	newestFirst(versions)
	for i, a := range versions {
		for j, b := range versions {
			want := 0
			switch {
			case i < j:
				want = 1
			case i > j:
				want = -1
			}
			if got := CompareVersions(a, b); got != want {
				t.Fatalf("CompareVersions(%q, %q) = %d, but they stand at %d and %d", a, b, got, i, j)
			}
		}
	}
}

// coercible is node-semver's expression for what coerce finds.
var coercible = regexp.MustCompile(`(?:^|[^0-9])([0-9]{1,16})(?:\.([0-9]{1,16}))?(?:\.([0-9]{1,16}))?(?:$|[^0-9])`)

// coerce finds in every string what node-semver's expression finds.
func TestCoerce(t *testing.T) {
	const long = "12345678901234567" // a digit more than the expression takes
	pieces := []string{".", ".", "-", "v", "é", "\xff", "0", "01", "7", "23", long[1:], long, "9007199254740992"}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var v string
		for range rng.IntN(9) {
			v += pieces[rng.IntN(len(pieces))]
		}
		numbers, rest, ok := coerce(v)
		at := coercible.FindStringSubmatchIndex(v)
		if at == nil {
			if ok || rest != "" {
				t.Errorf("coerce(%q) finds %q, then %q", v, numbers, rest)
			}
			continue
		}
		want, wantRest := [3]string{"0", "0", "0"}, ""
		for i := range want {
			if from, to := at[2*i+2], at[2*i+3]; from >= 0 {
				want[i], wantRest = v[from:to], v[to:]
			}
		}
		if numbers != want || rest != wantRest || ok != isCountable(want[:]) {
			t.Errorf("coerce(%q) = %q, %q, %t, want %q, %q", v, numbers, rest, ok, want, wantRest)
		}
	}
}

func FuzzCompareVersions(f *testing.F) {
	f.Add("1.0.0", "1.0.0+a", "1.0")
	f.Add("r128", "r0128", "v1")
	f.Add("1.0.0-99999999999999999999", "1.0.0-a", "")
	f.Add("1.2-beta", "1.2", "1.2.0.0")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab, ba, bc, ac := CompareVersions(a, b), CompareVersions(b, a), CompareVersions(b, c), CompareVersions(a, c)
		if ab != -ba {
			t.Errorf("%q against %q is %d, the other way %d", a, b, ab, ba)
		}
		if (ab == 0) != (a == b) {
			t.Errorf("%q against %q is %d", a, b, ab)
		}
		if ab >= 0 && bc >= 0 && ac < 0 {
			t.Errorf("%q ≥ %q ≥ %q, but the first is older than the last", a, b, c)
		}
		for _, v := range []string{a, b, c} {
			if ValidVersion(v) && !isValidFilePath(v) {
				t.Errorf("%q is a valid version but no path element", v)
			}
		}
	})
}

func TestLatestVersion(t *testing.T) {
	for _, test := range []struct {
		versions []string
		want     string
	}{
		{nil, ""},
		{[]string{"1.0.0", "2.0.0-beta", "1.1.0"}, "1.1.0"},
		{[]string{"9.0.0", "10.0.0"}, "10.0.0"},
		{[]string{"2.0.0-beta.2", "2.0.0-beta.11"}, "2.0.0-beta.11"},
		{[]string{"2.0.0-rc.1", "2.0", "r128"}, "2.0.0-rc.1"},
		{[]string{"0.0.1", "r128", "99.0"}, "0.0.1"},
		{[]string{"1.0.0+b", "1.0.0+a"}, "1.0.0+b"},
		{[]string{"r71", "r128", "r9"}, "r9"}, // by the contract: the greatest string
		{[]string{"2012-12-03", "2013-01-01"}, "2013-01-01"},
	} {
		if got := LatestVersion(test.versions); got != test.want {
			t.Errorf("LatestVersion(%q) = %q, want %q", test.versions, got, test.want)
		}
	}
}

func TestValidVersion(t *testing.T) {
	for _, v := range []string{"1", "1.0.0-rc.1+build", "r128", "2012-12-03", "a_b", "1..2", strings.Repeat("1", 128)} {
		if !ValidVersion(v) {
			t.Errorf("%q is refused", v)
		}
	}
	for _, v := range []string{"", ".", "..", ".1", "-1", "_", "1/2", "1\\2", "1 2", "1\n", "1\x00", "é", "1%2f", strings.Repeat("1", 129)} {
		if ValidVersion(v) {
			t.Errorf("%q is accepted", v)
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	var versions []string
	for i := range 2000 {
		versions = append(versions, fmt.Sprintf("%d.%d.%d-canary-%x", i%20, i%7, i, i*7919))
	}
	random := rand.New(rand.NewPCG(5, 6))
	for b.Loop() {
		random.Shuffle(len(versions), func(i, j int) { versions[i], versions[j] = versions[j], versions[i] })
		newestFirst(versions)
	}
}

func ExampleCompareVersions() {
	versions := []string{"r128", "1.10", "3.7.1", "4.0.0-rc.1", "1.9", "4.0.0"}
	newestFirst(versions)
	fmt.Println(versions)
	fmt.Println(LatestVersion(versions))
	// Output:
	// [4.0.0 4.0.0-rc.1 3.7.1 r128 1.10 1.9]
	// 4.0.0
}

func newestFirst(versions []string) {
	slices.SortFunc(versions, func(a, b string) int { return CompareVersions(b, a) })
}
