package main

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Each node tells what all of them have counted together, after nodes were restarted, and after the one that publishes was
// killed. A node tells the others when it begins, so the test does not have to wait for its turn.
func TestClusterUsage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c := newCrew(t)
	one, two, three := c.three(candidateFiles, followerFiles)
	version := one.publish()
	c.answers(version, 200, one, two, three)
	again := func(all ...*machine) {
		t.Helper()
		for _, m := range all {
			m.end(os.Interrupt)
			m.start()
			c.eventually(m.name+" serves again", func() bool {
				status, _ := fetched(m.url + "/libraries/demo")
				return status == 200
			})
		}
	}
	requests := func(m *machine) (n int) {
		t.Helper()
		var usage struct{ Requests int }
		status, body := fetched(m.url + "/packages/demo/usage")
		if status != 200 || json.Unmarshal([]byte(body), &usage) != nil {
			return -1
		}
		return usage.Requests
	}
	all := func(want int, nodes ...*machine) {
		t.Helper()
		for _, m := range nodes {
			c.eventually(fmt.Sprintf("%s tells of %d requests and not %d", m.name, want, requests(m)), func() bool { return requests(m) == want })
		}
	}
	again(one, two, three) // the counts so far are told
	again(one, two, three)
	before := 0
	c.eventually("the requests of all three nodes are counted", func() bool {
		before = requests(one)
		return before >= 3
	})
	all(before, two, three)
	for i, m := range []*machine{one, two, three} {
		for range 10 * (i + 1) {
			fetched(m.url + "/ajax/libs/demo/" + version + "/demo.js")
		}
	}
	again(three, two, one)
	again(three, two, one)
	all(before+60, one, two, three)
	for _, m := range []*machine{one, two} { // one of which publishes
		m.end(syscall.SIGKILL)
		m.start()
	}
	again(three)
	all(before+60, one, two, three)
}
