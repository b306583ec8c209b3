package waitingroom

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// A clock stands still until a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock {
	return &clock{now: time.Date(2027, 5, 26, 19, 51, 5, 0, time.UTC)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// A house is a server with rooms in front of an origin.
type house struct {
	*testing.T
	*clock
	rooms   *Rooms
	globals *Globals
	url     string
	origin  http.HandlerFunc
	close   func()
	log     *bytes.Buffer
}

type houseOptions struct {
	yaml      string
	dir       string // of the store; default a fresh one
	known     bool   // the rooms had state before
	clock     *clock
	keys      *ticket.Keyring
	centre    string
	transport Transport     // default: to the global objects in the same house
	skew      time.Duration // how far clocks may be apart
	now       func() time.Time
}

func testKeys(t testing.TB) *ticket.Keyring {
	t.Helper()
	keys, err := ticket.NewKeyring(bytes.Repeat([]byte{7}, ticket.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// open makes a house of rooms in YAML, without what surrounds them.
func open(t *testing.T, yaml string) *house { return openWith(t, houseOptions{yaml: yaml}) }

func openWith(t *testing.T, o houseOptions) *house {
	t.Helper()
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	if o.clock == nil {
		o.clock = newClock()
	}
	if o.now == nil {
		o.now = o.clock.Now
	}
	if o.keys == nil {
		o.keys = testKeys(t)
	}
	configured, err := config.Parse("rooms.yaml", []byte(o.yaml))
	if err != nil {
		t.Fatal(err)
	}
	h := &house{T: t, clock: o.clock, log: &bytes.Buffer{}}
	logger := slog.New(slog.NewTextHandler(&locked{w: h.log}, nil))
	store, err := kvstore.Open(o.dir, kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	runtime := durable.New(store, durable.Options{Now: o.now})
	sole := o.transport == nil
	if sole {
		h.globals, err = OpenGlobals(GlobalOptions{
			Rooms: configured, Runtime: runtime, Salt: o.keys.Salt, DataCentres: []string{"local"}, Now: o.now, Logger: logger, Skew: o.skew,
			Known: func(string) bool { return o.known },
		})
		if err != nil {
			t.Fatal(err)
		}
		o.transport = h.globals
	}
	h.rooms, err = New(Options{
		Rooms: configured, Keys: o.keys, Runtime: runtime, Transport: o.transport, DataCentre: o.centre, Sole: sole, Skew: o.skew, Now: o.now, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		w.Header().Set("CDN-Cache-Control", "max-age=60")
		io.WriteString(w, "origin")
	}
	server := httptest.NewServer(h.rooms.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.origin(w, r) })))
	h.url = server.URL
	h.close = sync.OnceFunc(func() {
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := runtime.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.close)
	return h
}

// locked keeps a log's lines apart.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// pass moves the clock and has reports sent as they become due.
func (h *house) pass(d time.Duration) {
	h.Helper()
	const step = 2 * time.Second
	for d > 0 {
		h.add(min(d, step))
		d -= step
		for _, room := range h.rooms.rooms {
			a, err := room.send(h.Context(), event{moment: room.momentAt(h.Now()), report: true})
			if err != nil {
				h.Fatal(err)
			}
			room.analytics.sample(h.Now(), a.overview)
		}
	}
}

// A user is a client that keeps cookies.
type user struct {
	*house
	client *http.Client
	accept string
	header http.Header
}

const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func (h *house) user() *user {
	jar, _ := cookiejar.New(nil)
	return &user{house: h, accept: browserAccept, header: http.Header{}, client: &http.Client{
		Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// A reply is an answer, read.
type reply struct {
	*http.Response
	body string
}

func (r *reply) in() bool { return r.body == "origin" }

func (r *reply) refresh() time.Duration {
	n, _ := strconv.Atoi(r.Header.Get("Refresh"))
	return time.Duration(n) * time.Second
}

func (u *user) get(path string) *reply { u.Helper(); return u.do(http.MethodGet, path) }

func (u *user) do(method, path string) *reply {
	u.Helper()
	req, err := http.NewRequest(method, u.url+path, nil)
	if err != nil {
		u.Fatal(err)
	}
	for name, values := range u.header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", u.accept)
	return u.send(req)
}

func (u *user) send(req *http.Request) *reply {
	u.Helper()
	res, err := u.client.Do(req)
	if err != nil {
		u.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		u.Fatal(err)
	}
	return &reply{res, string(body)}
}

// cookie is the user's ticket as it is sent.
func (u *user) cookie() string {
	u.Helper()
	at, _ := url.Parse(u.url)
	for _, c := range u.client.Jar.Cookies(at) {
		if c.Name == ticket.CookieName("") {
			return c.Value
		}
	}
	return ""
}

func (u *user) set(value string) {
	at, _ := url.Parse(u.url)
	u.client.Jar.SetCookies(at, []*http.Cookie{{Name: ticket.CookieName(""), Value: value, Path: "/"}})
}

// small is a room with so many users at once.
func small(users int, more ...string) string {
	return fmt.Sprintf("- name: shop\n  total_active_users: %d\n  new_users_per_minute: %d\n  session_duration: 1\n%s", users, users, strings.Join(more, ""))
}

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
	minutes, _ := h.rooms.Analytics("shop", 30)
	admitted := 0
	for _, m := range minutes {
		admitted += m.Admitted
	}
	if last := minutes[len(minutes)-1]; admitted != 3 || last.WaitP50 < 150 || last.OriginP50 < 120 && minutes[len(minutes)-2].OriginP50 < 120 {
		t.Errorf("%d admitted; %+v", admitted, minutes[len(minutes)-3:])
	}
}

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
	jar := keys.Jar("shop", "")
	now := h.Now()
	in := ticket.Ticket{ID: ticket.NewID(), Bucket: now, LastCheckIn: now, Accepted: now, Ends: now.Add(90 * time.Second)}
	with := func(change func(*ticket.Ticket)) string {
		c := in
		change(&c)
		return jar.Seal(&c)
	}
	h.user().get("/") // it is full now
	for name, value := range map[string]string{
		"forged": strings.Repeat("A", 170), "empty": "", "huge": strings.Repeat("x", 20_000), "binary": "%00%ff\"'<>", "of another room": keys.Jar("other", "").Seal(&in),
		"damaged": jar.Seal(&in)[:100] + "AAAA" + jar.Seal(&in)[104:],
		"over":    with(func(t *ticket.Ticket) { t.Ends = now }),
		"from the future": with(func(t *ticket.Ticket) {
			t.LastCheckIn, t.Accepted, t.Ends = now.Add(time.Hour), now.Add(time.Hour), now.Add(61*time.Minute)
		}),
		"accepted in the future": with(func(t *ticket.Ticket) { t.Accepted = now.Add(time.Hour) }),
		"for a year":             with(func(t *ticket.Ticket) { t.Ends = now.Add(365 * 24 * time.Hour) }),
		"without an end":         with(func(t *ticket.Ticket) { t.Ends = time.Time{} }),
		"waiting since tomorrow": with(func(t *ticket.Ticket) {
			t.Accepted, t.Bucket, t.LastCheckIn = time.Time{}, now.Add(24*time.Hour), now.Add(24*time.Hour)
		}),
		"waiting since long ago": with(func(t *ticket.Ticket) {
			t.Accepted, t.Bucket, t.LastCheckIn = time.Time{}, now.Add(-time.Hour), now.Add(-time.Hour)
		}),
		"waiting since before 1970": with(func(t *ticket.Ticket) {
			t.Accepted, t.Bucket, t.LastCheckIn = time.Time{}, time.UnixMilli(-1<<60), time.UnixMilli(-1<<60)
		}),
	} {
		u := h.user()
		req, _ := http.NewRequest(http.MethodGet, h.url+"/", nil)
		req.Header.Set("Accept", browserAccept)
		req.Header.Set("Cookie", "a=b; "+ticket.CookieName("")+"="+value)
		r := u.send(req)
		if r.in() || r.StatusCode != http.StatusOK || len(r.Header["Set-Cookie"]) != 1 {
			t.Errorf("%s: %d %v %.60s", name, r.StatusCode, r.Header["Set-Cookie"], r.body)
			continue
		}
		fresh, ok := jar.Open(u.cookie())
		if !ok || !fresh.Waiting() || fresh.ID == in.ID || fresh.Bucket != now.Truncate(time.Minute) {
			t.Errorf("%s: is not a new user at the back: %+v", name, fresh)
		}
	}
	valid := h.user()
	valid.set(jar.Seal(&in))
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
	minutes, _ := h.rooms.Analytics("shop", 5)
	sum := 0
	for _, m := range minutes {
		sum += m.Revoked
	}
	if sum != 1 {
		t.Errorf("%d sessions revoked: %+v", sum, minutes)
	}
	// A restart does not forget it.
	jar := testKeys(t).Jar("shop", "")
	mine, _ := jar.Open(other.cookie())
	h.rooms.byName["shop"].revoke(t.Context(), mine)
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
		{"queue all", "  queue_all: true\n", browserAccept, "Nobody is let in at the moment"},
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

func TestSubresources(t *testing.T) {
	script := func(h *house) *user {
		u := h.user()
		u.accept = "*/*"
		u.header.Set("Sec-Fetch-Dest", "script")
		u.header.Set("Origin", "https://page.example")
		return u
	}
	h := open(t, small(1, "  subresources: 2\n"))
	for i := range 4 {
		u := script(h)
		r := u.get("/a.js")
		if r.in() != (i < 2) || u.cookie() != "" {
			t.Errorf("part %d: %d %v", i, r.StatusCode, r.Header)
		}
		if !r.in() && (r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || r.Header.Get("Access-Control-Allow-Origin") != "https://page.example" || strings.Contains(r.body, "<")) {
			t.Errorf("part %d: %d %v %s", i, r.StatusCode, r.Header, r.body)
		}
	}
	h.pass(time.Minute)
	if !script(h).get("/a.js").in() {
		t.Error("in the next minute no part passes")
	}
	in := h.user()
	in.get("/")
	in.header.Set("Sec-Fetch-Dest", "image")
	for range 5 {
		if !in.get("/a.png").in() {
			t.Error("who is in does not get the parts of the page")
		}
	}
	open := open(t, small(1, "  subresources: pass\n"))
	open.user().get("/")
	for range 5 {
		if !script(open).get("/a.js").in() {
			t.Error("a part does not pass")
		}
	}
	if r := open.user().get("/"); r.in() {
		t.Error("a page passes as its parts do")
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

func TestUpstream(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=60")
		w.Header().Set("Cf-Waiting-Room-Command", "nothing")
		fmt.Fprintf(w, "%s %s %s cookie=%q for=%s proto=%s", r.Method, r.URL, r.Host, r.Header.Get("Cookie"), r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"))
	}))
	defer upstream.Close()
	h := open(t, small(1, "  upstream: "+upstream.URL+"\n"))
	u := h.user()
	u.get("/first")
	u.header.Set("Cookie", "mine=1; __larder_room_of_another=x; __larder_roomy=2")
	u.header.Set("X-Forwarded-For", "203.0.113.9")
	r := u.get("/a%2Fb?c=d")
	host := strings.TrimPrefix(h.url, "http://")
	if want := `GET /a%2Fb?c=d ` + host + ` cookie="mine=1; __larder_roomy=2" for=127.0.0.1 proto=http`; r.body != want || r.Header.Get("Cache-Control") != "private, no-store" || r.Header.Get("Cf-Waiting-Room-Command") != "" {
		t.Errorf("%v\n got %s\nwant %s", r.Header, r.body, want)
	}
	if r := h.user().get("/"); !strings.Contains(r.body, "You are in line") {
		t.Errorf("a full room leads to the upstream: %s", r.body)
	}
	upstream.Close()
	if r := u.get("/"); r.StatusCode != http.StatusBadGateway || strings.Contains(r.body, "127.0.0.1") {
		t.Errorf("without an upstream: %d %s", r.StatusCode, r.body)
	}
}

// A request may name no path at all (RFC 9112 §3.2.2).
func TestEmptyPath(t *testing.T) {
	h := open(t, small(1))
	h.user().get("/")
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET http://shop.example.com HTTP/1.1\r\nHost: shop.example.com\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "You are in line") {
		t.Errorf("%v: %.300s", err, answer)
	}
}

// TestStreaming has an upstream say something, and the rest much later: a client that takes
// what there is is not cut off by the server's deadlines.
func TestStreaming(t *testing.T) {
	more := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d bytes;", len(body))
		w.(http.Flusher).Flush()
		<-more
		io.WriteString(w, " done")
	}))
	defer upstream.Close()
	h := open(t, small(1, "  upstream: "+upstream.URL+"\n"))
	front := httptest.NewUnstartedServer(h.rooms.Handler(http.NotFoundHandler()))
	front.Config.ReadTimeout, front.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	front.Start()
	defer front.Close()
	res, err := http.Post(front.URL, "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, len("1048576 bytes;"))
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { close(more) }) // beyond the deadlines
	if rest, err := io.ReadAll(res.Body); err != nil || string(first)+string(rest) != "1048576 bytes; done" {
		t.Errorf("%s%s, %v", first, rest, err)
	}
}

// TestPassing holds what an accepted ticket costs.
func TestPassing(t *testing.T) {
	h := open(t, small(1))
	u := h.user()
	u.get("/")
	room := h.rooms.byName["shop"]
	header := http.Header{"Cookie": {ticket.CookieName("") + "=" + u.cookie()}}
	now, m := h.Now(), room.momentAt(h.Now())
	opened := testing.AllocsPerRun(100, func() { room.jar.Open(u.cookie()) }) - testing.AllocsPerRun(100, func() { u.cookie() })
	decided := testing.AllocsPerRun(100, func() {
		found, ok := room.jar.Find(header)
		if !ok || room.session(now, m, &found) == 0 {
			t.Fatal("it does not pass")
		}
	})
	if decided > opened {
		t.Errorf("the decision about an accepted ticket allocates %v times, its decryption %v times", decided, opened)
	}
}

func BenchmarkAccepted(b *testing.B) {
	keys := testKeys(b)
	jar := keys.Jar("shop", "")
	now := time.Now()
	rooms, err := config.Parse("rooms.yaml", []byte(small(1)))
	if err != nil {
		b.Fatal(err)
	}
	m, err := momentAt(&rooms[0], now, 0, keys.Salt)
	if err != nil {
		b.Fatal(err)
	}
	room := &room{config: &rooms[0], jar: jar}
	room.current.Store(m)
	header := http.Header{"Cookie": {"a=b; " + ticket.CookieName("") + "=" + jar.Seal(&ticket.Ticket{ID: ticket.NewID(), LastCheckIn: now, Accepted: now, Ends: now.Add(time.Minute)})}}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			found, ok := jar.Find(header)
			if !ok || room.session(now, m, &found) == 0 {
				b.Fatal("it does not pass")
			}
		}
	})
}
