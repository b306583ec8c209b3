package worker

import (
	"strings"
	"testing"
)

// TestCostlyStyles holds that the minifier refuses style sheets on which it takes the square of a number, and none that people write.
func TestCostlyStyles(t *testing.T) {
	checkRefusals(t, MinifyCSS, map[string]string{
		strings.Repeat("{", 10_000):                                     "blocks in each other",
		"a{b:" + strings.Repeat("calc(", 100):                           "brackets in each other",
		strings.Repeat("calc(}", 100):                                   "brackets in each other",
		strings.Repeat("a{(", 17):                                       "brackets in each other",
		strings.Repeat(":is(", 7):                                       "lists of selectors in each other",
		strings.Repeat(":/**/is(", 7):                                   "lists of selectors in each other",
		strings.Repeat(":\\6es(", 7):                                    "lists of selectors in each other",
		"\x00" + strings.Repeat(":is(", 7):                              "lists of selectors in each other",
		"a:is('b\n" + strings.Repeat(":is(", 7):                         "lists of selectors in each other",
		"url(a b)" + strings.Repeat(":is(", 7):                          "lists of selectors in each other",
		strings.Repeat("a{", 17) + "(" + strings.Repeat("}", 17) + "{}": "",
		strings.Repeat(":is(", 4) + "a" + strings.Repeat(")", 4) + strings.Repeat(":not(b)", 100) + "{}":                             "",
		"a{b:" + strings.Repeat("calc(1px + ", 12) + "1px" + strings.Repeat(")", 12) + ";c:" + strings.Repeat("var(--a)", 100) + "}": "",
		"a{" + strings.Repeat("x", 5000) + ":1px}":                                      "a name of 5000 bytes",
		strings.Repeat("@media (a){", 10) + strings.Repeat("}", 10):                     "",
		strings.Repeat(".a:before{content:\"(\"}/* :( */", 1000):                        "",
		"a{background:url(data:image/png;base64," + strings.Repeat("A", 100_000) + ")}": "",
	})
}

// TestCostlyScripts holds that the minifier refuses scripts on which it takes the square of a number, and none that people write.
func TestCostlyScripts(t *testing.T) {
	checkRefusals(t, MinifyJS, map[string]string{
		strings.Repeat("{", 3000) + strings.Repeat("}u", 3000):                         "blocks in each other",
		strings.Repeat("{/*}*/'}';/}/;`}`;", 300) + strings.Repeat("}", 300):           "blocks in each other",
		strings.Repeat("if(a)", 300) + "b":                                             "conditions in each other",
		strings.Repeat("if(a=function(){;})", 300) + "b":                               "conditions in each other",
		strings.Repeat("if(a)b;else if(c){d}\n", 1000):                                 "",
		strings.Repeat("if(a)b;else ", 1000) + "c":                                     "",
		strings.Repeat("function a(){if(b){", 100) + "c()" + strings.Repeat("}}", 100): "",
		"a=[" + strings.Repeat("'{',/{/,", 1000) + "`{`]":                              "",

		strings.Repeat("a,", 2000) + "a":                                                          "would join",
		strings.Repeat("[a],", 2000) + "a":                                                        "would join",
		strings.Repeat("a\n", 5000):                                                               "would join",
		strings.Repeat("a();", 10_000):                                                            "would join",
		strings.Repeat("{a()}", 10_000):                                                           "would join",
		strings.Repeat("let;", 10_000):                                                            "would join",
		"let=a," + strings.Repeat("a,", 2000) + "a":                                               "would join",
		"x:{" + strings.Repeat("a,", 2000) + "a}":                                                 "would join",
		"if(" + strings.Repeat("a,", 2000) + "a)b":                                                "would join",
		"a[" + strings.Repeat("a,", 2000) + "a]":                                                  "would join",
		"a=" + strings.Repeat("a?b:", 5000) + "c":                                                 "would join",
		"function a(){" + strings.Repeat("if(a)return;", 5000) + "}":                              "would join",
		strings.Repeat("(a)\n,", 2000) + "a":                                                      "would join",
		strings.Repeat("typeof\na,", 2000) + "a":                                                  "would join",
		strings.Repeat("(", 2000) + "a" + strings.Repeat(",a)", 2000):                             "would join",
		"a=" + strings.Repeat("a?b:(", 3000) + "c" + strings.Repeat(")", 3000):                    "would join",
		"a(`${" + strings.Repeat("a,", 2000) + "a}`)":                                             "would join",
		"for(a of(" + strings.Repeat("a,", 2000) + "a))b":                                         "would join",
		strings.Repeat("(a,a,a,a,a,a,a,a);", 2000):                                                "would join",
		strings.Repeat("{a;a;a;a;a;a;a;a}", 2000):                                                 "would join",
		strings.Repeat("yield\n", 10_000):                                                         "would join",
		"a=" + strings.Repeat("'aaa'+", 10_000) + "b":                                             "would join",
		"a=b+" + strings.Repeat("'aaa'+", 10_000) + "b":                                           "would join",
		"a=" + strings.Repeat("`${a}b`+", 10_000) + "b":                                           "would join",
		"a=" + strings.Repeat("'aaa'+(", 2000) + "b" + strings.Repeat(")", 2000):                  "would join",
		strings.Repeat("a&&(", 2000) + "a" + strings.Repeat(")", 2000):                            "would join",
		strings.Repeat("a||(", 2000) + "a" + strings.Repeat(")", 2000):                            "would join",
		strings.Repeat("a??(", 2000) + "a" + strings.Repeat(")", 2000):                            "would join",
		"a=[" + strings.Repeat("'aaa'+b,", 10_000) + "]":                                          "",
		strings.Repeat("a='aaa'+b;", 5000):                                                        "",
		"a=" + strings.Repeat("'a line of a template, as old tools wrote it\\n'+\n", 2000) + "''": "",
		"a=" + strings.Repeat("b&&c||", 5000) + "d":                                               "",
		"a(" + strings.Repeat("a&&b(", 500) + "a" + strings.Repeat(")", 500) + ")":                "",
		strings.Repeat("if(a)\n", 300) + "b":                                                      "conditions in each other",
		strings.Repeat("if(a)b()\n", 1000):                                                        "",
		"a=[" + strings.Repeat("a?b:c,", 5000) + "]":                                              "",
		strings.Repeat("a=b?c:d;", 1000):                                                          "",
		"#!/bin/a\n" + strings.Repeat("a,", 2000) + "a":                                           "would join",
		"if(a)/`/;" + strings.Repeat("a,", 2000) + "/`/":                                          "would join",
		"a.return/a;" + strings.Repeat("a,", 2000) + "a/a":                                        "would join",
		"function a(){}/`/;" + strings.Repeat("a,", 2000) + "/`/":                                 "unclear",
		"a=function(){}/a;" + strings.Repeat("a,", 2000) + "a/a":                                  "unclear",
		"yield/a;" + strings.Repeat("a,", 2000) + "a/a":                                           "unclear",
		"a=[" + strings.Repeat("a,", 5_000) + "]":                                                 "",
		"a({" + strings.Repeat("a:b,", 5_000) + "})":                                              "",
		"a(" + strings.Repeat("b,", 5_000) + "c)":                                                 "",
		"var a" + strings.Repeat(",b=c", 5_000) + ";a()":                                          "",
	})
}

// checkRefusals runs a task on texts, and holds that each is refused for its reason, or not refused where that is "".
func checkRefusals(t *testing.T, task Task, refusals map[string]string) {
	t.Helper()
	for text, refused := range refusals {
		_, err := runTask(task, []byte(text))
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%.60q: %v, want %q", text, err, refused)
		}
	}
}
