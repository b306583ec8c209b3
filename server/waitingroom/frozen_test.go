package waitingroom

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// TestFrozen has the rooms over a store that is only read: sessions go on, a session that was
// revoked is over, all others wait, and nothing is written or told at each visit.
func TestFrozen(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(3, "  enabled_origin_commands: [revoke]\n"), dir: dir})
	users := []*user{h.user(), h.user(), h.user(), h.user()} // two sessions, one that is revoked, one that waits
	for _, u := range users {
		u.get("/")
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("cf-waiting-room-command", "revoke") }
	users[2].get("/leave")
	var values []string
	for _, u := range users {
		values = append(values, u.cookie())
	}
	h.close()
	frozen := openWith(t, houseOptions{yaml: small(3, "  enabled_origin_commands: [revoke]\n"), dir: dir, known: true, clock: h.clock, frozen: true})
	for _, after := range []time.Duration{0, 40 * time.Second} { // at first, and when they are to be renewed
		frozen.add(after)
		for i, u := range users {
			u.house = frozen
			u.set(values[i])
			if r := u.get("/"); r.in() != (i < 2) {
				t.Errorf("user %d: %d %.100s", i, r.StatusCode, r.body)
			}
		}
	}
	if r := frozen.user().get("/"); r.in() || r.StatusCode != http.StatusOK || !strings.Contains(r.body, "You are in line") {
		t.Errorf("a newcomer: %d %.100s", r.StatusCode, r.body)
	}
	if strings.Contains(frozen.log.String(), "level=ERROR") {
		t.Error(frozen.log)
	}
}

// TestForget has a store be older than what its rooms have promised: they recover as from lost
// state, and a session that was revoked stays so.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(4, "  enabled_origin_commands: [revoke]\n"), dir: dir})
	stays, leaves := h.user(), h.user()
	stays.get("/")
	leaves.get("/")
	h.origin = func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("cf-waiting-room-command", "revoke") }
	leaves.get("/leave")
	values := []string{stays.cookie(), leaves.cookie()}
	h.close()
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Forget(store); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	again := openWith(t, houseOptions{yaml: small(4, "  enabled_origin_commands: [revoke]\n"), dir: dir, known: true, clock: h.clock})
	for i, u := range []*user{stays, leaves} {
		u.house = again
		u.set(values[i])
		if r := u.get("/"); r.in() != (i == 0) {
			t.Errorf("user %d: %d %.100s", i, r.StatusCode, r.body)
		}
	}
	if again.user().get("/").in() {
		t.Error("a newcomer comes in before it is known who is inside")
	}
	if got, _ := again.rooms.Status("shop"); !got.Recovering {
		t.Errorf("%+v", got)
	}
}
