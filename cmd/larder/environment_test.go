package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// testPrefix begins the names of the variables that turn on the long forms of tests.
const testPrefix = "LARDER_TEST_"

// testVariables holds these variables. The processes that tests start must not inherit them, because larder refuses a variable
// that is no setting. They are removed before any test runs, so tests that read them can run in parallel.
var testVariables = removeTestVariables()

func removeTestVariables() map[string]string {
	all := map[string]string{}
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, testPrefix) {
			all[name] = value
			os.Unsetenv(name)
		}
	}
	return all
}

// testVariable returns the value of LARDER_TEST_name, "" if it is not set.
func testVariable(name string) string {
	_ = os.Getenv(testPrefix + name) // go test sees that the result depends on the variable, and does not reuse another one's
	return testVariables[testPrefix+name]
}

// testCount returns the number in LARDER_TEST_name, or byDefault if it is not set; whole reports whether it is.
func testCount(t *testing.T, name string, byDefault int) (n int, whole bool) {
	t.Helper()
	text := testVariable(name)
	if text == "" {
		return byDefault, false
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s%s: %v", testPrefix, name, err)
	}
	return n, true
}

// larderMain is the larder that tests start: a process of the test program. It differs from the released program in how long the
// nodes of a cluster wait between two attempts.
func larderMain() {
	os.Exit(mainWith(app.ClusterIntervals{Takeover: time.Second, Squeeze: 50 * time.Millisecond}))
}

// registryEnviron returns the environment of a process for which the registry is npm's configured one.
func registryEnviron(t *testing.T, registry *npmtest.Registry) []string {
	t.Helper()
	inherited := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(strings.ToLower(variable), "npm_config_")
	})
	return append(inherited, registry.Env(t.TempDir())...)
}
