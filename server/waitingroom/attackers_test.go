package waitingroom

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// TestNoGain holds the room to letting nobody profit from hammering, from throwing the
// ticket away, or from sending an old one again.
func TestNoGain(t *testing.T) {
	h := open(t, small(1))
	inside, patient := h.user(), h.user()
	inside.get("/")
	shown := patient.get("/")
	old := patient.cookie()
	h.pass(3 * time.Second)
	for range 10 { // too early changes nothing
		r := patient.get("/")
		if r.in() || r.Header["Set-Cookie"] != nil || patient.cookie() != old {
			t.Fatalf("an early check-in: %v", r.Header)
		}
		if r.refresh() >= shown.refresh() {
			t.Errorf("the page comes back after %v, although %v of %v are over", r.refresh(), 3*time.Second, shown.refresh())
		}
	}
	if got, _ := h.rooms.Status("shop"); got.Queued != 1 {
		t.Errorf("one who hammers counts as %d", got.Queued)
	}
	for i := range 20 { // whoever throws the cookie away begins at the back
		if r := h.user().get("/"); r.in() {
			t.Fatalf("a new user came in before the one who waits, at try %d", i)
		}
	}
	h.pass(shown.refresh())
	patient.get("/")
	if got := patient.cookie(); got == old {
		t.Fatal("a check-in in time leaves the ticket as it was")
	}
	replaying := h.user()
	for range 5 { // an old ticket is the same person
		replaying.set(old)
		if r := replaying.get("/"); r.in() {
			t.Fatal("an old ticket sent again comes in")
		}
	}
	if got, _ := h.rooms.Status("shop"); got.Queued != 21 {
		t.Errorf("%d wait, 21 came", got.Queued)
	}
	for range 40 { // meanwhile the session is over
		h.pass(5 * time.Second)
		if patient.get("/").in() {
			return
		}
		if h.user().get("/").in() {
			t.Fatal("a new user came in before the one who waits")
		}
	}
	t.Error("the one who waits did not come in")
}

func TestCookies(t *testing.T) {
	h := open(t, small(1))
	keys := testKeys(t)
	codec := keys.codec("shop", "")
	now := h.Now()
	in := queue.Ticket{ID: newTicket().ID, Since: now, LastCheckIn: now, AcceptedAt: now, Ends: now.Add(90 * time.Second)}
	with := func(change func(*queue.Ticket)) string {
		c := in
		change(&c)
		return codec.seal(&c)
	}
	h.user().get("/") // it is full now
	for name, value := range map[string]string{
		"forged": strings.Repeat("A", 170), "empty": "", "huge": strings.Repeat("x", 20_000), "binary": "%00%ff\"'<>", "of another room": keys.codec("other", "").seal(&in),
		"damaged": codec.seal(&in)[:100] + "AAAA" + codec.seal(&in)[104:],
		"over":    with(func(t *queue.Ticket) { t.Ends = now }),
		"from the future": with(func(t *queue.Ticket) {
			t.LastCheckIn, t.AcceptedAt, t.Ends = now.Add(time.Hour), now.Add(time.Hour), now.Add(61*time.Minute)
		}),
		"accepted in the future": with(func(t *queue.Ticket) { t.AcceptedAt = now.Add(time.Hour) }),
		"for a year":             with(func(t *queue.Ticket) { t.Ends = now.Add(365 * 24 * time.Hour) }),
		"without an end":         with(func(t *queue.Ticket) { t.Ends = time.Time{} }),
		"waiting since tomorrow": with(func(t *queue.Ticket) {
			t.AcceptedAt, t.Since, t.LastCheckIn = time.Time{}, now.Add(24*time.Hour), now.Add(24*time.Hour)
		}),
		"waiting since long ago": with(func(t *queue.Ticket) {
			t.AcceptedAt, t.Since, t.LastCheckIn = time.Time{}, now.Add(-time.Hour), now.Add(-time.Hour)
		}),
		"waiting since before 1970": with(func(t *queue.Ticket) {
			t.AcceptedAt, t.Since, t.LastCheckIn = time.Time{}, time.UnixMilli(-1<<60), time.UnixMilli(-1<<60)
		}),
	} {
		u := h.user()
		req, _ := http.NewRequest(http.MethodGet, h.url+"/", nil)
		req.Header.Set("Accept", browserAccept)
		req.Header.Set("Cookie", "a=b; "+cookieName("")+"="+value)
		r := u.send(req)
		if r.in() || r.StatusCode != http.StatusOK || len(r.Header["Set-Cookie"]) != 1 {
			t.Errorf("%s: %d %v %.60s", name, r.StatusCode, r.Header["Set-Cookie"], r.body)
			continue
		}
		fresh, ok := codec.open(u.cookie())
		if !ok || !fresh.Waiting() || fresh.ID == in.ID || !fresh.Since.Equal(now) {
			t.Errorf("%s: is not a new user at the back: %+v", name, fresh)
		}
	}
	valid := h.user()
	valid.set(codec.seal(&in))
	if r := valid.get("/"); !r.in() {
		t.Errorf("a ticket that is in its session waits: %.60s", r.body)
	}
}

func TestRevoke(t *testing.T) {
	dir := t.TempDir()
	yaml := small(1, "  enabled_origin_commands: [revoke]\n")
	h := openWith(t, houseOptions{yaml: yaml, dir: dir})
	u, other := h.user(), h.user()
	if !u.get("/").in() || other.get("/").in() {
		t.Fatal("the first is not in, or the second is")
	}
	copied := h.user()
	copied.set(u.cookie())
	if !copied.get("/").in() { // as the documentation says
		t.Error("a copied ticket does not pass")
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("cf-waiting-room-command", "revoke")
		io.WriteString(w, "origin")
	}
	r := u.get("/logout")
	if !r.in() || r.Header.Get("Cf-Waiting-Room-Command") != "" || u.cookie() != "" || !strings.Contains(r.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Fatalf("%v, cookie %q", r.Header, u.cookie())
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "origin") }
	if copied.get("/").in() {
		t.Error("the copy of a revoked ticket passes")
	}
	in := false
	for range 22 { // less than the session would have lasted
		h.pass(5 * time.Second)
		in = in || other.get("/").in()
	}
	if !in {
		t.Error("the slot of a revoked session is not free")
	}
	stolen := h.user()
	minutes, _, _ := h.rooms.Analytics(t.Context(), "shop", 5)
	sum := 0
	for _, m := range minutes {
		sum += m.Revoked
	}
	if sum != 1 {
		t.Errorf("%d sessions revoked: %+v", sum, minutes)
	}
	// A restart does not forget it.
	codec := testKeys(t).codec("shop", "")
	mine, _ := codec.open(other.cookie())
	h.rooms.currentRooms().byName["shop"].revoke(t.Context(), mine)
	h.close()
	again := openWith(t, houseOptions{yaml: yaml, dir: dir, clock: h.clock})
	stolen.house = again
	stolen.set(other.cookie())
	again.user().get("/") // the object wakes
	if stolen.get("/").in() {
		t.Error("after a restart a revoked ticket passes")
	}
}

func TestRevokeDisabled(t *testing.T) {
	h := open(t, small(5))
	h.origin = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cf-Waiting-Room-Command", "revoke")
		io.WriteString(w, "origin")
	}
	u := h.user()
	if r := u.get("/"); r.Header.Get("Cf-Waiting-Room-Command") != "" || u.cookie() == "" {
		t.Errorf("%v", r.Header)
	}
}
