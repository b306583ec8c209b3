package signing

import (
	"fmt"
	"strings"
	"testing"
)

// The keys of these are those of the specification's examples, or made up.
const (
	logKey = "log.example+cae7438d+AWJY8NjnXhthBWAcFrCjbVGGfs03Ez5rpU8VPPvHyhzv"
	keyA   = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
	keyB   = "sigsum.org+e4ade967+AZuUY6B08pW3QVHu8uvsrxWPcAv9nykap2Nb4oxCee+r"
	keyC   = "example.com+3753d3de+AebBhMcghIUoavZpjuDofa4sW6fYHyVn7gvwDBfvkvuM"
)

const three = "witness a " + keyA + " https://a.example/\nwitness b " + keyB + " https://b.example\nwitness c " + keyC + " http://127.0.0.1:80/c\n"

// TestQuorums holds policies against which witnesses are enough, by their letters.
func TestQuorums(t *testing.T) {
	for policy, enough := range map[string]string{
		"quorum none":                                        " a b c ab ac bc abc ",
		three + "quorum none":                                " a b c ab ac bc abc ",
		three + "quorum b":                                   "b ab bc abc ",
		three + "group g any a b c\nquorum g":                "a b c ab ac bc abc ",
		three + "group g 1 a c\nquorum g":                    "a c ab ac bc abc ",
		three + "group g 2 a b c\nquorum g":                  "ab ac bc abc ",
		three + "group g all a b c\nquorum g":                "abc ",
		three + "group g any a b\ngroup h all g c\nquorum h": "ac bc abc ",
		three + "group g all a b\ngroup h any g c\nquorum h": "c ab ac bc abc ",
		"\n# a comment\n\t #\n  log\t" + logKey + " https://cdn.example\n" + three + "quorum  a \t": "a ab ac abc ",
		"log " + logKey + "\n" + three + "quorum \xff#none\n":                                       "error line 5: no line above defines",
		three + "group \xff#g any a\nquorum \xff#g\n":                                               "a ab ac abc ",
		"witness a " + keyA + "\nwitness b " + keyB + " https://b\ngroup g 1 a b\nquorum g":         "a b ab ac bc abc ",

		"":              "error no quorum line",
		"# quorum none": "error no quorum line",
		"witness a " + keyA + " https://a\nwitness b " + keyB + "\ngroup g all a b\nquorum g": "error witnesses without a URL",
		three + "quorum a\nquorum b":                                      "error line 5: it is the second quorum",
		three + "quorum d":                                                "error line 4: no line above defines \"d\"",
		"quorum a\n" + three:                                              "error line 1: no line above",
		three + "group none any a\nquorum none":                           "error line 4: the name \"none\" is taken",
		"witness none " + keyA + "\nquorum none":                          "error line 1: the name",
		three + "group a any b\nquorum a":                                 "error line 4: the name \"a\" is taken",
		three + "group g any none\nquorum g":                              "error line 4: no line above",
		three + "group g 0 a\nquorum g":                                   "error line 4: the group g needs",
		three + "group g 2 a\nquorum g":                                   "error line 4: the group g needs any, all or a number from 1 to 1",
		three + "group g -1 a b\nquorum g":                                "error line 4: the group",
		three + "group g +1 a b\nquorum g":                                "error line 4: the group",
		three + "group g 01 a b\nquorum g":                                "error line 4: the group",
		three + "group g 1.0 a b\nquorum g":                               "error line 4: the group",
		three + "group g ANY a b\nquorum g":                               "error line 4: the group",
		three + "group g any\nquorum g":                                   "error line 4: \"group g any\" is none of",
		three + "group g any a a\nquorum g":                               "error line 4: \"a\" is a member of a group already",
		three + "group g any a b\ngroup h any b c\nquorum g":              "error line 5: \"b\" is a member of a group already",
		three + "group g any g\nquorum g":                                 "error line 4: no line above",
		three + "quorum a # why\n":                                        "error line 4: \"quorum a # why\" is none of",
		"quorum":                                                          "error line 1: \"quorum\" is none of",
		"timeout 5":                                                       "error line 1: \"timeout 5\" is none of",
		"Quorum none":                                                     "error line 1:",
		"quorum none\r\n":                                                 "error line 1: it has the control character 0x0d",
		"quorum none\x00":                                                 "error line 1: it has the control character 0x00",
		"\ufeffquorum none":                                               "error line 1:",
		"log " + keyA + "\nquorum none":                                   "error line 1: the log's key is invalid",
		"log\nquorum none":                                                "error line 1:",
		"log " + logKey + "\nlog " + logKey + "\nquorum none":             "error line 2: another log has the same key",
		"witness a " + keyA + "\nwitness b " + keyA + "\nquorum none":     "error line 2: another witness has the same key",
		"witness a " + keyB + "\nwitness b " + sameKeyB + "\nquorum none": "error line 2: another witness has the same key",
		"witness a\nquorum none":                                          "error line 1:",
		"witness a " + keyA + " b c\nquorum none":                         "error line 1:",
		"witness a " + keyA[1:] + "\nquorum none":                         "error line 1: the key of the witness a is invalid",
		"witness a " + keyA + " ftp://a.example\nquorum none":             "error line 1: the URL of the witness a is not that of a witness",
		"witness a " + keyA + " https://a.example#b\nquorum none":         "error line 1: the URL",
		strings.Repeat("log "+logKey+"\n", 2):                             "error line 2:",
		strings.Repeat("#\n", maxPolicy):                                  "error at most 262144 are read",
	} {
		p, err := ParsePolicy([]byte(policy))
		if want, bad := strings.CutPrefix(enough, "error "); bad {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.300s\n: %v, want %s", policy, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s\n: %v", policy, err)
			continue
		}
		var got string
		for _, have := range []string{"", "a", "b", "c", "ab", "ac", "bc", "abc"} {
			if p.isMet(func(i int) bool { return strings.Contains(have, "abc"[i:i+1]) }) {
				got += have + " "
			}
		}
		if got != enough {
			t.Errorf("%s\n: enough are %s, want %s", policy, got, enough)
		}
	}
}

// sameKeyB is keyB as cosignatures have it, under another name.
const sameKeyB = "other.example+51d37add+BJuUY6B08pW3QVHu8uvsrxWPcAv9nykap2Nb4oxCee+r"

func TestLimitsOfPolicies(t *testing.T) {
	var lines strings.Builder
	for i := range maxOfKind {
		fmt.Fprintf(&lines, "witness w%d %s https://w.example/%d\n", i, testKey(t, i), i)
	}
	before := "w0"
	for i := 1; i < maxOfKind; i++ { // as deep as it gets
		fmt.Fprintf(&lines, "group g%d all %s w%d\n", i, before, i)
		before = fmt.Sprintf("g%d", i)
	}
	p, err := ParsePolicy([]byte(lines.String() + "quorum " + before))
	if err != nil || !p.isMet(func(int) bool { return true }) || p.isMet(func(i int) bool { return i != 7 }) {
		t.Errorf("%v", err)
	}
	fmt.Fprintf(&lines, "witness more %s https://w.example\n", testKey(t, maxOfKind))
	if _, err := ParsePolicy([]byte(lines.String() + "quorum " + before)); err == nil || !strings.Contains(err.Error(), "line 64: there are more than 32 witness lines") {
		t.Errorf("%v", err)
	}
}

func testKey(t *testing.T, i int) string {
	k, err := newKey(fmt.Sprintf("w%d.example", i))
	if err != nil {
		t.Fatal(err)
	}
	return k.public
}

func TestMajorities(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 0, 3: 1, 4: 1, 5: 2} { // may be missing
		p := Majority(make([]Witness, n)...)
		if !p.isMet(func(i int) bool { return i >= most }) || p.isMet(func(i int) bool { return i > most }) {
			t.Errorf("of %d, %d may be missing", n, most)
		}
	}
}

// TestMajorityCountsKeys: a witness that is given twice, under any name or URL, would be half of a majority alone.
func TestMajorityCountsKeys(t *testing.T) {
	key, other := testKey(t, 1), testKey(t, 2)
	if p, err := ParseMajority([]string{"https://one.example#" + key, "https://two.example#" + other}); err != nil || len(p.witnesses) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, again := range []string{"https://one.example#" + key, "http://else.example/x/#" + key} {
		_, err := ParseMajority([]string{"https://one.example#" + key, "https://two.example#" + other, again})
		if err == nil || !strings.Contains(err.Error(), again+`": another witness has the same key`) {
			t.Errorf("%s: %v", again, err)
		}
	}
}

func TestPolicyOfAnotherLog(t *testing.T) {
	p, err := ParsePolicy([]byte("log " + logKey + "\nquorum none\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.checkLog("log.example"); err != nil {
		t.Error(err)
	}
	if err := p.checkLog("other.example"); err == nil || !strings.Contains(err.Error(), "is for the log log.example, not for other.example") {
		t.Error(err)
	}
}

// FuzzPolicy has every text read in one way or refused, with the line.
func FuzzPolicy(f *testing.F) {
	f.Add("log " + logKey + "\n" + three + "group g 2 a b c\nquorum g\n")
	f.Add("quorum none")
	f.Add("group g any g\nquorum g\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy([]byte(text))
		if err != nil {
			return
		}
		if len(p.witnesses) > maxOfKind || !p.isMet(func(int) bool { return true }) {
			t.Errorf("%q: %d witnesses", text, len(p.witnesses))
		}
	})
}
