package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// limits waits until machines have a room with these limits.
func (c *crew) limits(room string, total, perMinute int, all ...*machine) {
	c.Helper()
	for _, m := range all {
		c.eventually(fmt.Sprintf("%s has a room %s for %d users, %d a minute", m.name, room, total, perMinute), func() bool {
			var rooms []struct {
				Total     int `json:"total_active_users"`
				PerMinute int `json:"new_users_per_minute"`
			}
			out, code := m.command("room", "status", "--json", room)
			return code == exitDone && json.Unmarshal([]byte(out), &rooms) == nil && rooms[0].Total == total && rooms[0].PerMinute == perMinute
		})
	}
}

// TestClusterRoomsReloaded stops the leader after all nodes have reloaded a changed rooms file. The limit of that file must stay in
// force on the node that takes over, and the new room must stay.
func TestClusterRoomsReloaded(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes, and waits until one takes the place of another")
	}
	t.Parallel()
	c := newCrew(t)
	one, two, three := c.three(candidateFiles, followerFiles)
	all := []*machine{one, two, three}
	c.answers(one.publish(), http.StatusOK, all...)
	c.limits("shop", 900, 900, all...)
	c.write("rooms.yaml", "- {name: shop, path: /statistics, total_active_users: 50, new_users_per_minute: 50, json_response_enabled: true}\n"+
		"- {name: sale, path: /sale, total_active_users: 7, new_users_per_minute: 7, cookie_suffix: sale}\n")
	for _, m := range all {
		if out, code := m.command("reload"); code != exitDone {
			t.Fatalf("%s: %s", m.name, out)
		}
	}
	c.limits("shop", 50, 50, all...)
	one.signal(syscall.SIGSTOP)
	two.writes()
	one.signal(syscall.SIGCONT)
	c.eventually("the node that was stopped follows", func() bool { return one.role() == "candidate" })
	for _, m := range all {
		var out string
		c.eventually(m.name+" shows its rooms", func() bool { // no process answers between two roles
			var code int
			out, code = m.command("room", "status", "--json", "shop")
			return code == exitDone
		})
		var rooms []struct {
			Total int `json:"total_active_users"`
		}
		if json.Unmarshal([]byte(out), &rooms) != nil || rooms[0].Total != 50 {
			t.Errorf("%s has lost the limit of the reloaded file: %s", m.name, out)
		}
		if out, code := m.command("room", "status", "sale"); code != exitDone {
			t.Errorf("%s has lost the new room of the reloaded file: %s", m.name, out)
		}
	}
	c.versions(2, all...)

	// A follower's change and undo count everywhere. Of two changes of one version the second fails.
	if out, code := three.command("room", "set", "shop", "total_active_users=60"); code != exitDone {
		t.Fatal(out)
	}
	c.versions(3, all...)
	if out, code := one.command("room", "undo", "--if-version", "2"); code == exitDone || !strings.Contains(out, "version 2 was replaced during the change, and version 3 (larder room set shop total_active_users on ") {
		t.Errorf("the undo of a version that is not in force: %s", out)
	}
	if out, code := one.command("room", "undo"); code != exitDone {
		t.Fatal(out)
	}
	c.versions(4, all...)
	c.limits("shop", 50, 50, all...)

	// A node whose disk is lost, but for its keys, and one that starts again have what is in force, whatever file they find.
	c.write("other.yaml", "- {name: shop, path: /statistics, total_active_users: 70, new_users_per_minute: 70}\n")
	if out, code := three.command("room", "apply", filepath.Join(c.dir, "other.yaml")); code != exitDone {
		t.Fatal(out)
	}
	c.versions(5, all...)
	if out, code := two.command("reload"); code == exitDone || !strings.Contains(out, "this file is version 2, replaced by version 5; restore it with `larder room apply FILE`") {
		t.Errorf("a file that was replaced is reloaded: %s", out)
	}
	for _, m := range []*machine{three, one} {
		m.end(os.Interrupt)
		if m == three {
			if err := os.RemoveAll(m.data); err != nil {
				t.Fatal(err)
			}
		}
		m.start()
	}
	c.versions(5, all...)
	c.limits("shop", 70, 70, all...)
	c.eventually("the start warns of the file", func() bool { // when it has offered it, while it serves already
		return strings.Contains(one.said(), "this file is version 2, replaced by version 5")
	})
	for _, m := range []*machine{one, three} {
		c.eventually("the history on "+m.name+" is that of the others", func() bool {
			want, ok := two.command("room", "history")
			got, code := m.command("room", "history")
			return ok == exitDone && code == exitDone && got == want
		})
	}
}

// versions waits until machines have a version of the settings in force.
func (c *crew) versions(want int, all ...*machine) {
	c.Helper()
	for _, m := range all {
		c.eventually(fmt.Sprintf("%s has version %d of the settings", m.name, want), func() bool {
			out, code := m.command("room", "status")
			return code == exitDone && strings.Contains(out, fmt.Sprintf("\nVersion %d of the settings", want))
		})
	}
}

// newPair starts a cluster of two nodes that serve a release: one publishes, and two is a candidate.
func newPair(t *testing.T) (c *crew, one, two *machine) {
	t.Helper()
	c = newCrew(t)
	one = c.machine("one", nil)
	one.start()
	one.writes()
	two = c.machine("two", one, candidateFiles...)
	two.start()
	c.answers(one.publish(), http.StatusOK, one, two)
	return c, one, two
}

// While the bucket does not return the settings, nodes keep the version that they have, also one that starts, and say that they cannot confirm it.
// Nothing can be changed then. Afterwards all goes on.
func TestClusterRoomsWithoutBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes, and waits until one takes the place of another")
	}
	t.Parallel()
	c, one, two := newPair(t)
	all := []*machine{one, two}
	if out, code := two.command("room", "set", "shop", "total_active_users=910"); code != exitDone {
		t.Fatal(out)
	}
	c.versions(2, all...)
	stored, aside := filepath.Join(c.bucket, "settings"), filepath.Join(c.dir, "aside")
	if err := os.Rename(stored, aside); err != nil {
		t.Fatal(err)
	}
	c.write("bucket/settings", "this is no folder")
	two.end(syscall.SIGKILL)
	two.start()
	c.eventually("the node says that the version is not confirmed", func() bool {
		out, code := two.command("room", "status")
		return code == exitDone && strings.Contains(out, "\nVersion 2 of the settings") && strings.Contains(out, "\nNot confirmed ")
	})
	c.limits("shop", 910, 900, two)
	for _, m := range all {
		if out, code := m.command("room", "set", "shop", "total_active_users=920"); code == exitDone || !strings.Contains(out, "nothing was changed") {
			t.Errorf("a change without the bucket: %s", out)
		}
	}
	if err := errors.Join(os.Remove(stored), os.Rename(aside, stored)); err != nil {
		t.Fatal(err)
	}
	c.eventually("the version is confirmed", func() bool {
		out, code := two.command("room", "status")
		return code == exitDone && !strings.Contains(out, "Not confirmed")
	})
	c.limits("shop", 910, 900, all...)
	c.eventually("the settings can be changed again", func() bool {
		_, code := two.command("room", "set", "shop", "total_active_users=930")
		return code == exitDone
	})
	c.limits("shop", 930, 900, all...)
}

// A node opens its rooms again when one of them becomes each node's own, or the cluster's, and the version is in force on all.
func TestClusterRoomsEachNode(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c, one, two := newPair(t)
	all := []*machine{one, two}
	c.versions(1, all...)
	for version, value := range []string{2: "true", 3: "false"} {
		if version < 2 {
			continue
		}
		c.eventually("each_node can be set", func() bool { // while a node opens its rooms again, it returns an error
			out, code := two.command("room", "set", "shop", "each_node="+value, "--if-version", fmt.Sprint(version-1))
			return code == exitDone || strings.Contains(out, fmt.Sprintf("version %d (larder room set shop each_node on ", version))
		})
		c.versions(version, all...)
	}
	c.answers(two.publish(), http.StatusOK, all...)
	c.limits("shop", 900, 900, all...)
}

// A bucket that loses the last versions while no node runs, as when an old copy of it is restored, gets them again from the nodes.
func TestClusterRoomsLostVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c, one, two := newPair(t)
	all := []*machine{one, two}
	for _, limit := range []string{"910", "920"} {
		if out, code := one.command("room", "set", "shop", "total_active_users="+limit); code != exitDone {
			t.Fatal(out)
		}
	}
	c.versions(3, all...)
	two.end(os.Interrupt)
	one.end(os.Interrupt)
	var lost []string
	for _, version := range []int{2, 3} {
		lost = append(lost, filepath.Join(c.bucket, "settings", "rooms", fmt.Sprintf("%020d", version)))
		if err := os.Remove(lost[len(lost)-1]); err != nil {
			t.Fatal(err)
		}
	}
	one.start()
	one.writes()
	two.start()
	c.versions(3, all...)
	c.limits("shop", 920, 900, all...)
	for _, file := range lost {
		c.eventually("the bucket has "+file, func() bool {
			_, err := os.Stat(file)
			return err == nil
		})
	}
	c.eventually("nothing is reported any more", func() bool {
		out, code := two.command("room", "status")
		return code == exitDone && !strings.Contains(out, "Not confirmed") && !strings.Contains(out, "Problem:")
	})
}
