package waitingroom

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAdmission(t *testing.T) {
	h := open(t, small(2))
	first, second, third := h.user(), h.user(), h.user()
	for _, u := range []*user{first, second} {
		if r := u.get("/"); !r.in() || r.StatusCode != 200 {
			t.Fatalf("there is room, but: %d %.100s", r.StatusCode, r.body)
		}
	}
	r := third.get("/")
	if r.in() || r.StatusCode != 200 || !strings.Contains(r.body, "You are in line") {
		t.Fatalf("a third of two: %d %.200s", r.StatusCode, r.body)
	}
	if r.refresh() < 15*time.Second || r.refresh() > 25*time.Second || r.Header.Get("Cache-Control") != "private, no-store" || r.Header.Get("Content-Language") != "en" {
		t.Errorf("%v", r.Header)
	}
	if policy := r.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") {
		t.Errorf("policy: %q", policy)
	}
	for range 5 { // who is in stays in
		h.pass(30 * time.Second)
		for _, u := range []*user{first, second} {
			if r := u.get("/x"); !r.in() {
				t.Fatalf("a session that is used ended: %.100s", r.body)
			}
		}
		third.get("/")
	}
	if got, _ := h.rooms.Status("shop"); got.Status != Queueing || got.Active != 2 || got.Queued != 1 {
		t.Errorf("%+v", got)
	}
	for waited := time.Duration(0); ; waited += 5 * time.Second {
		if r := third.get("/"); r.in() {
			if r.Header.Get("Refresh") != "" || r.Header.Get("Cache-Control") != "private, no-store" || r.Header.Get("Cdn-Cache-Control") != "" {
				t.Errorf("the origin's answer: %v", r.Header)
			}
			break
		}
		if waited > 4*time.Minute {
			t.Fatal("both are gone for four minutes, and the third still waits")
		}
		h.pass(5 * time.Second)
	}
	minutes, _, _ := h.rooms.Analytics(t.Context(), "shop", 30)
	admitted := 0
	for _, m := range minutes {
		admitted += m.Admitted
	}
	if last := minutes[len(minutes)-1]; admitted != 3 || last.WaitP50 < 150 || last.OriginP50 < 0.9*120 && minutes[len(minutes)-2].OriginP50 < 0.9*120 {
		t.Errorf("%d admitted; %+v", admitted, minutes[len(minutes)-3:])
	}
}

func TestSessions(t *testing.T) {
	for _, c := range []struct {
		name string
		yaml string
		used time.Duration // between requests
		in   bool          // all the time
	}{
		{"renewed", small(1), 20 * time.Second, true},
		{"fixed", small(1, "  disable_session_renewal: true\n"), 20 * time.Second, false},
		{"left alone", small(1), 150 * time.Second, false},
	} {
		h := open(t, c.yaml)
		u := h.user()
		in := u.get("/").in()
		for range 150 * time.Second / c.used {
			h.pass(c.used)
			h.user().get("/") // somebody is after the slot
			in = in && u.get("/").in()
		}
		if in != c.in {
			t.Errorf("%s: in all the time is %v", c.name, in)
		}
	}
}

func TestMethods(t *testing.T) {
	for _, c := range []struct{ name, more, accept, says string }{
		{"reject", "  queueing_method: reject\n", browserAccept, "Full at the moment"},
		{"queue all", "  queue_all: true\n", browserAccept, "Nobody is being let in at the moment"},
		{"random", "  queueing_method: random\n", browserAccept, "Everybody here has the same chance"},
	} {
		h := open(t, small(1, c.more))
		h.user().get("/")
		r := h.user().get("/")
		if r.in() || !strings.Contains(r.body, c.says) {
			t.Errorf("%s: %.300s", c.name, r.body)
		}
		if s, _ := h.rooms.Status("shop"); s.Status != Queueing {
			t.Errorf("%s: the room is %s", c.name, s.Status)
		}
		if refreshes := r.Header.Get("Refresh") != ""; refreshes != (c.name != "reject") {
			t.Errorf("%s: Refresh is %q", c.name, r.Header.Get("Refresh"))
		}
	}
	for _, more := range []string{"  queueing_method: passthrough\n", "  suspended: true\n"} {
		h := open(t, small(1, more))
		for range 3 {
			r := h.user().get("/")
			if !r.in() {
				t.Errorf("%q: %.100s", more, r.body)
			}
			if public := strings.HasPrefix(r.Header.Get("Cache-Control"), "public"); public != strings.Contains(more, "suspended") {
				t.Errorf("%q: Cache-Control is %q", more, r.Header.Get("Cache-Control"))
			}
		}
	}
}

// TestAllocators has each of them fill a room, and let who waits in once there is room again.
func TestAllocators(t *testing.T) {
	for _, allocator := range []string{"counter", "even", "adaptive"} {
		h := open(t, small(2, "  allocator: "+allocator+"\n"))
		h.pass(2 * time.Second)
		in := 0
		for range 5 {
			if h.user().get("/").in() {
				in++
			}
		}
		if in != 2 {
			t.Errorf("%s: %d of 5 came into a room for 2", allocator, in)
		}
		waits := h.user()
		for range 50 {
			if waits.get("/").in() {
				in++
				break
			}
			h.pass(5 * time.Second)
		}
		if in != 3 {
			t.Errorf("%s: who waits never comes in", allocator)
		}
	}
}

func TestClients(t *testing.T) {
	h := open(t, small(1, "  json_response_enabled: true\n  queueing_status_code: 202\n  custom_page_html: '<p>{{waitTimeFormatted}} {{refreshIntervalSeconds}}</p>'\n"))
	h.user().get("/")
	page := h.user().get("/")
	if page.StatusCode != 202 || page.Header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.HasPrefix(page.body, "<p>") || page.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("%d %v %s", page.StatusCode, page.Header, page.body)
	}
	app := h.user()
	app.accept = "application/json"
	r := app.get("/")
	var got struct {
		CfWaitingRoom map[string]any `json:"cfWaitingRoom"`
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || got.CfWaitingRoom["inWaitingRoom"] != true || r.StatusCode != 202 || r.Header.Get("Refresh") == "" || r.Header.Get("Cache-Control") != "private, no-store" {
		t.Errorf("%d %v %s", r.StatusCode, r.Header, r.body)
	}
	before := got.CfWaitingRoom["lastUpdated"]
	h.pass(4 * time.Second)
	if err := json.Unmarshal([]byte(app.get("/").body), &got); err != nil || got.CfWaitingRoom["lastUpdated"] != before {
		t.Errorf("an early check-in changed lastUpdated from %v to %v", before, got.CfWaitingRoom["lastUpdated"])
	}
	curl := h.user()
	curl.accept = "*/*"
	r = curl.get("/")
	if after, err := strconv.Atoi(r.Header.Get("Retry-After")); r.StatusCode != 429 || err != nil || after < 1 || r.Header.Get("Access-Control-Allow-Origin") != "*" || strings.Contains(r.body, "<") || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("a client without a page: %d %v %s", r.StatusCode, r.Header, r.body)
	}
	if curl.cookie() == "" {
		t.Error("a client that could keep a ticket gets none")
	}
	head := h.user()
	if r := head.do(http.MethodHead, "/"); r.StatusCode != 202 || r.body != "" || r.Header.Get("Refresh") == "" {
		t.Errorf("HEAD: %d %v", r.StatusCode, r.Header)
	}
}

func TestRules(t *testing.T) {
	h := open(t, small(1, "  path: /shop\n  rules:\n    - {path: /shop/health}\n    - {address: 192.0.2.1, path: /shop/office}\n    - {address: 127.0.0.0/8, path: /shop/local}\n"))
	if u := h.user(); !u.get("/free").in() || u.cookie() != "" || !strings.HasPrefix(u.get("/free").Header.Get("Cache-Control"), "public") {
		t.Error("what no room covers is touched")
	}
	h.user().get("/shop")
	for path, want := range map[string]bool{"/shop": false, "/shop/health": true, "/shop/health/x": true, "/shop/office": false, "/shop/local": true, "/SHOP": true} {
		if got := h.user().get(path).in(); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	if got, _ := h.rooms.Status("shop"); got.Active != 1 {
		t.Errorf("who goes past the room is counted: %+v", got)
	}
	u := h.user()
	req, _ := http.NewRequest(http.MethodGet, h.url+"/x/..%2f..%2Fshop/health/../a%20b?c=d", nil)
	if r := u.send(req); r.StatusCode != http.StatusPermanentRedirect || r.Header.Get("Location") != "/shop/a%20b?c=d" {
		t.Errorf("an ambiguous path: %d %v", r.StatusCode, r.Header)
	}
}

func TestEvents(t *testing.T) {
	h := open(t, small(2, `  json_response_enabled: true
  events:
    - name: sale
      prequeue_start_time: 2027-05-26T20:00:00Z
      event_start_time: 2027-05-26T20:05:00Z
      event_end_time: 2027-05-26T20:20:00Z
      shuffle_at_event_start: true
      total_active_users: 3
      new_users_per_minute: 3
      custom_page_html: <p>sale {{timeUntilEventStart}}</p>
`))
	h.pass(8*time.Minute + 50*time.Second) // 19:59:55
	inside := h.user()
	if !inside.get("/").in() {
		t.Fatal("before the event the room is not open")
	}
	h.pass(10 * time.Second)
	if !inside.get("/").in() {
		t.Error("the pre-queue throws out who is in")
	}
	var early []*user
	for range 6 {
		u := h.user()
		r := u.get("/")
		if r.in() || r.body != "<p>sale 5</p>" {
			t.Errorf("in the pre-queue: %s", r.body)
		}
		early = append(early, u)
	}
	if got, _ := h.rooms.Status("shop"); got.Status != EventPrequeueing || got.EventID != "sale" || got.Queued != 6 {
		t.Errorf("%+v", got)
	}
	for range 11 {
		h.pass(26 * time.Second)
		for _, u := range early {
			u.get("/")
		}
	}
	h.pass(35 * time.Second) // 20:05:26
	in := 0
	for range 2 {
		for _, u := range early {
			if u.get("/").in() {
				in++
			}
		}
		if in > 3 {
			break
		}
		in = 0
		h.pass(26 * time.Second)
	}
	if got, _ := h.rooms.Status("shop"); got.Active != 3 || got.Status != Queueing || got.EventID != "sale" || got.TotalActiveUsers != 3 {
		t.Errorf("while it is on: %+v", got)
	}
}
