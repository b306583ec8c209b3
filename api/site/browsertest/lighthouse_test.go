package browsertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// leastScore is what Lighthouse has to give, of 100, in each of its four categories.
const leastScore = "95"

// TestLighthouse takes a minute or two, and a machine that has little else to do: it
// is for `make audit` alone.
func TestLighthouse(t *testing.T) {
	if !auditing {
		t.Skip("`make audit` runs Lighthouse")
	}
	instance, _ := open(t)
	chromium, err := findChromium()
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("audit/lighthouse.mjs")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("node", script, leastScore, instance.address+"/", instance.address+"/library/pickle/2.0.0")
	command.Env = append(os.Environ(), "CHROME_PATH="+chromium)
	out, err := command.CombinedOutput()
	t.Logf("\n%s", strings.TrimSpace(string(out)))
	if err != nil {
		t.Errorf("node %s: %v", script, err)
	}
}
