package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// Nodes that follow squeeze for the one that publishes. One of them is killed while it does; nothing is left undone.
func TestClusterSqueezes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c := newCrew(t)
	c.env = registryEnviron(t, npmtest.New(t))
	one := c.machine("one", nil)
	one.kind = "up"
	one.start()
	one.writes()
	two, three := c.machine("two", one, followerFiles...), c.machine("three", one, followerFiles...)
	two.start()
	three.start()
	random := rand.New(rand.NewPCG(1, 2))
	published := 0
	publish := func() { // more than the node that publishes has in hand at once
		t.Helper()
		published++
		for i := range 150 {
			var text strings.Builder
			lines := 100
			if i%10 == 0 {
				lines = 2000 // takes long enough for a kill to hit it
			}
			for range lines {
				fmt.Fprintf(&text, "let v%d = %d;\n", random.IntN(300), random.IntN(5000))
			}
			c.write(fmt.Sprintf("many/%d.min.js", i), text.String())
		}
		if out, code := one.command("import", "demo", fmt.Sprintf("2.0.%d", published), c.dir+"/many"); code != exitDone {
			t.Fatal(out)
		}
	}
	waiting := func() int {
		t.Helper()
		s := one.status()
		if s == nil {
			return -1
		}
		return s.Squeezing.Contents
	}
	until := func(what string, is func() bool) { // with work for all
		t.Helper()
		c.eventually(what, func() bool {
			if waiting() == 0 {
				publish()
			}
			return is()
		})
	}
	says := func(m *machine, want string) bool {
		return regexp.MustCompile(want).MatchString(m.said())
	}
	until("two squeezes", func() bool { return says(two, "recompressing contents for the leader") })
	two.end(syscall.SIGKILL)
	until("three has squeezed", func() bool { return says(three, `recompressed contents for the leader.* contents=[1-9]`) })
	c.eventually("all is squeezed", func() bool { return waiting() == 0 })
	two.start()
	for _, m := range []*machine{one, two, three} {
		m.end(os.Interrupt)
		if out, code := m.command("fsck", "--all"); code != exitDone {
			t.Errorf("fsck of %s: %s", m.name, out)
		}
	}
}
