package config

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/text/language"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

const full = `
rooms:
  - name: shop
    host: Shop.Example.com
    path: /checkout
    additional_routes:
      - {host: m.example.com, path: /checkout}
      - {path: /buy/}
    total_active_users: 10000
    new_users_per_minute: 2000
    session_duration: 10
    disable_session_renewal: true
    queueing_method: random
    queue_all: true
    suspended: true
    queueing_status_code: 202
    json_response_enabled: true
    custom_page_html: |
      <p>{{waitTimeFormatted}}</p>
    default_template_language: de-DE
    cookie_attributes: {samesite: lax, secure: always, partitioned: false}
    cookie_suffix: a
    enabled_origin_commands: ["revoke"]
    upstream: http://127.0.0.1:3000/
    upstream_timeout: 5
    subresources: pass
    refresh_interval: 15
    allocator: adaptive
    curve_factor: 2.5
    traffic_minutes_back: 2
    rules:
      - action: bypass_waiting_room
        description: the office
        path: [/checkout/health, /buy/static/]
        method: GET
        header: {x-token: secret, X-Any: "*"}
        address: [192.0.2.0/24, "2001:db8::1"]
      - {enabled: false, method: [PUT, POST]}
    events:
      - name: sale
        event_start_time: 2027-11-26T10:00:00Z
        event_end_time: 2027-11-26T12:00:00+01:00
        prequeue_start_time: 2027-11-26T09:30:00Z
        shuffle_at_event_start: true
        total_active_users: 500
        new_users_per_minute: 100
        queueing_method: fifo
        session_duration: 2
        disable_session_renewal: false
        custom_page_html: <p>Sale</p>
`

func TestParse(t *testing.T) {
	rooms, err := Parse("rooms.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	r := rooms[0]
	if r.Name != "shop" || len(r.Routes) != 3 || r.Routes[0] != (Route{"shop.example.com", "/checkout"}) || r.Routes[2] != (Route{"", "/buy/"}) {
		t.Errorf("%+v", r.Routes)
	}
	want := queue.Settings{
		TotalActiveUsers: 10000, NewUsersPerMinute: 2000, SessionDuration: 10 * time.Minute, FixedSessions: true, Method: queue.Random,
		QueueAll: true, Suspended: true, RefreshInterval: 15 * time.Second, Allocator: queue.Adaptive, CurveFactor: 2.5, HistoryMinutes: 2,
	}
	if r.Settings != want || r.Template != "<p>{{waitTimeFormatted}}</p>\n" {
		t.Errorf("%+v", r.Settings)
	}
	if r.QueueingStatus != 202 || !r.JSON || r.Language != language.MustParse("de-DE") || !r.OriginRevokes {
		t.Errorf("%+v", r)
	}
	if r.Cookie != (Cookie{SameSiteLax, SecureAlways, false, "a"}) || len(r.Upstreams) != 1 || r.Upstreams[0].String() != "http://127.0.0.1:3000" || r.UpstreamTimeout != 5*time.Second {
		t.Errorf("%+v %v", r.Cookie, r.Upstreams)
	}
	if r.SubresourcesPerMinute != -1 {
		t.Errorf("%+v", r)
	}
	if len(r.Rules) != 2 || r.Rules[0].Headers[0] != (Header{"X-Token", "secret"}) || r.Rules[0].Addresses[1] != netip.MustParsePrefix("2001:db8::1/128") || !r.Rules[1].Disabled {
		t.Errorf("%+v", r.Rules)
	}
	e := r.Events[0]
	want.TotalActiveUsers, want.NewUsersPerMinute, want.SessionDuration, want.FixedSessions, want.Method = 500, 100, 2*time.Minute, false, queue.FIFO
	if e.Settings != want || e.Template != "<p>Sale</p>" || !e.Shuffle || e.Prequeue.IsZero() || e.End.Sub(e.Start) != time.Hour {
		t.Errorf("%+v", e)
	}
}

func TestDefaults(t *testing.T) {
	rooms, err := Parse("rooms.yaml", []byte("- {name: a, total_active_users: 200, new_users_per_minute: 200}"))
	if err != nil {
		t.Fatal(err)
	}
	r := rooms[0]
	if r.Routes[0] != (Route{"", "/"}) || r.SessionDuration != 5*time.Minute || r.FixedSessions || r.Method != queue.FIFO || r.QueueAll || r.Suspended ||
		r.QueueingStatus != http.StatusOK || r.JSON || r.Language != language.AmericanEnglish || r.Cookie != (Cookie{SameSiteAuto, SecureAuto, true, ""}) ||
		r.OriginRevokes || r.SubresourcesPerMinute != 200 || r.RefreshInterval != 20*time.Second || r.Allocator != queue.Counter || r.HistoryMinutes != 1 || r.Upstreams != nil {
		t.Errorf("%+v", r)
	}
	for _, empty := range []string{"", "# nothing\n", "rooms: []\n", "[]"} {
		if rooms, err := Parse("rooms.yaml", []byte(empty)); err != nil || len(rooms) != 0 {
			t.Errorf("%q: %v, %v", empty, rooms, err)
		}
	}
}

// TestMistakes holds every mistake to being told with its line and what to do.
func TestMistakes(t *testing.T) {
	const least = "- name: a\n  total_active_users: 10\n  new_users_per_minute: 5\n"
	event := func(s string) string {
		return least + "  events:\n    - {name: e, event_start_time: 2027-01-01T00:00:00Z, event_end_time: 2027-01-01T01:00:00Z" + s + "}\n"
	}
	for _, c := range []struct{ name, text, want string }{
		{"no list", "rooms: 3\n", "r:1: rooms: must be a list"},
		{"no mapping", "- 3\n", "r:1: must hold `name: value` lines"},
		{"two documents", "[]\n---\n[]\n", "more than one YAML document"},
		{"no YAML", "\t- :", "r: "},
		{"unknown", least + "  sesion_duration: 5\n", `r:4: no such field as "sesion_duration"; did you mean session_duration?`},
		{"twice", least + "  name: b\n", "r:4: name is set already in line 1"},
		{"no value", least + "  host:\n", "r:4: host: has no value"},
		{"no name", "- total_active_users: 1\n  new_users_per_minute: 1\n", "r:1: name: is missing"},
		{"bad name", "- name: a b\n  total_active_users: 1\n  new_users_per_minute: 1\n", `name: "a b" must have letters`},
		{"no limits", "- name: a\n", "total_active_users: is missing"},
		{"no rate", "- name: a\n", "new_users_per_minute: is missing"},
		{"no users", "- name: a\n  total_active_users: 0\n  new_users_per_minute: 1\n", `r:2: total_active_users: "0" must be a whole number from 1`},
		{"too many users", fmt.Sprintf("- name: a\n  total_active_users: %d\n  new_users_per_minute: 1\n", queue.MaxUsers+1), "total_active_users"},
		{"rate of none", "- name: a\n  total_active_users: 1\n  new_users_per_minute: 0\n", `new_users_per_minute: "0" must be a whole number from 1`},
		{"rate over total", "- name: a\n  total_active_users: 5\n  new_users_per_minute: 6\n", "more than the 5 of total_active_users"},
		{"session too long", least + "  session_duration: 31\n", "from 1 to 30"},
		{"session with half a minute", least + "  session_duration: 1.5\n", "from 1 to 30"},
		{"session too short", least + "  session_duration: 0\n", "from 1 to 30"},
		{"method", least + "  queueing_method: lifo\n", `"lifo" must be one of fifo, random, passthrough, reject`},
		{"status", least + "  queueing_status_code: 503\n", "must be one of 200, 202, 429"},
		{"bool", least + "  queue_all: maybe\n", "must be true or false"},
		{"template", least + "  custom_page_html: '{{#a}}'\n", "is no Mustache template"},
		{"empty template", least + "  custom_page_html: ''\n", "is empty"},
		{"large template", least + "  custom_page_html: " + strings.Repeat("x", MaxTemplate+1) + "\n", "a template may have 1048576"},
		{"language", least + "  default_template_language: klingonese\n", "must be a language such as en-US"},
		{"cookie", least + "  cookie_attributes: {samesite: none, secure: never}\n", "browsers refuse"},
		{"samesite", least + "  cookie_attributes: {samesite: all}\n", "must be one of auto, lax, none, strict"},
		{"suffix", least + "  cookie_suffix: 'a;b'\n", "cookie_suffix"},
		{"same cookie", least + "  path: /a\n" + strings.ReplaceAll(least, "name: a", "name: b") + "  path: /b\n", "r:5: cookie_suffix: the room a keeps its tickets in the same cookie"},
		{"same cookie on one host", least + "  path: /a\n" + strings.ReplaceAll(least, "name: a", "name: b") + "  host: shop:8080\n", "the room a keeps"},
		{"same cookie on another port", least + "  host: shop:80\n" + strings.ReplaceAll(least, "name: a", "name: b") + "  host: shop:8080\n", "the room a keeps"},
		{"same cookie on every host", least + "  host: shop\n" + strings.ReplaceAll(least, "name: a", "name: b") + "  path: /b\n", "the room a keeps"},
		{"routes without suffix", least + "  additional_routes: [{path: /x}]\n", "needs a cookie_suffix"},
		{"command", least + "  enabled_origin_commands: [explode]\n", `"explode" is no command; there is revoke`},
		{"host", least + "  host: 'http://x'\n", "must be a host such as"},
		{"host with star", least + "  host: '*.example.com'\n", "must be a host such as"},
		{"path", least + "  path: shop\n", "must begin with a slash"},
		{"encoded path", least + "  path: /a%20b\n", "a path as a server reads it"},
		{"dotted path", least + "  path: /a/../b\n", "a path as a server"},
		{"upstream", least + "  upstream: ftp://x\n", "must be the origin of a site"},
		{"upstream with password", least + "  upstream: http://user:geheim@x\n", "must be the origin of a site"},
		{"upstreams of two schemes", least + "  upstream: [http://a, https://b]\n", "differ in their scheme"},
		{"upstreams twice", least + "  upstream: [http://a, http://a]\n", "is named twice"},
		{"health of nothing", least + "  upstream_health: /\n", "upstream: is missing"},
		{"health", least + "  upstream: http://a\n  upstream_health: http://b/\n", "must be a path"},
		{"authority", least + "  upstream: https://a\n  upstream_ca: trust me\n", "must be certificates in PEM"},
		{"subresources", least + "  subresources: some\n", "must be pass, or how many"},
		{"subresources' paths", least + "  subresources: {paths: [a]}\n", "must begin with a slash"},
		{"subresources' fields", least + "  subresources: {path: [/a]}\n", "did you mean paths?"},
		{"factor", least + "  curve_factor: NaN\n", "from 0.1 to 10"},
		{"small factor", least + "  curve_factor: 0.09\n", "from 0.1 to 10"},
		{"large factor", least + "  curve_factor: 10.1\n", "from 0.1 to 10"},
		{"refresh", least + "  refresh_interval: 4\n", "from 5 to 30"},
		{"slow refresh", least + "  refresh_interval: 31\n", "from 5 to 30"},
		{"traffic of no minute", least + "  traffic_minutes_back: 0\n", "from 1 to 2"},
		{"traffic of three minutes", least + "  traffic_minutes_back: 3\n", "from 1 to 2"},
		{"allocator", least + "  allocator: fair\n", "must be one of counter, even, adaptive"},
		{"rule of nothing", least + "  rules: [{description: all}]\n", "would let every request bypass"},
		{"rule's action", least + "  rules: [{action: log, path: /x}]\n", "must be one of bypass_waiting_room"},
		{"rule's method", least + "  rules: [{method: get}]\n", "in capitals"},
		{"rule's address", least + "  rules: [{address: 300.0.0.1}]\n", "must be an address or a range"},
		{"rule's header", least + "  rules: [{header: {'a b': c}}]\n", "is no name of a header"},
		{"two of a name", least + least, "is the name of the room in line 1, too"},
		{"two of a route", least + strings.Replace(least, "name: a", "name: b", 1), "covers /, too"},
		{"event without name", strings.Replace(event(""), "name: e, ", "", 1), "name \"\" must have letters"},
		{"event without end", least + "  events: [{name: e, event_start_time: 2027-01-01T00:00:00Z}]\n", "needs an event_start_time and an event_end_time"},
		{"event's time", least + "  events: [{name: e, event_start_time: tomorrow}]\n", "must be a time such as"},
		{"event too short", strings.Replace(event(""), "01:00:00", "00:00:59", 1), "must end a minute after"},
		{"event backwards", strings.Replace(event(""), "01:00:00", "00:00:00", 1), "must end a minute after"},
		{"prequeue too late", event(", prequeue_start_time: 2026-12-31T23:55:01Z"), "must be 5 minutes before"},
		{"shuffle alone", event(", shuffle_at_event_start: true"), "needs a prequeue_start_time"},
		{"one limit", event(", total_active_users: 3"), "can only be changed together"},
		{"event's rate over total", event(", total_active_users: 3, new_users_per_minute: 4"), "more than total_active_users"},
		{"six events", least + "  events: [{}, {}, {}, {}, {}, {}]\n", "has 6 members; at most 5"},
		{"overlap", event("") + "    - {name: f, event_start_time: 2027-01-01T00:59:00Z, event_end_time: 2027-01-01T02:00:00Z}\n", "are on at the same time"},
		{"overlap with a pre-queue", event("") + "    - {name: f, prequeue_start_time: 2027-01-01T00:30:00Z, event_start_time: 2027-01-01T01:00:00Z, event_end_time: 2027-01-01T02:00:00Z}\n", "are on at the same time"},
		{"two events of a name", event("") + "    - {name: e, event_start_time: 2027-01-02T00:59:00Z, event_end_time: 2027-01-02T02:00:00Z}\n", "two are called"},
	} {
		rooms, err := Parse("r", []byte(c.text))
		if err == nil {
			t.Errorf("%s: was taken as %+v", c.name, rooms)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "r:") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s:\n got %.300s\nwant …%s", c.name, err, c.want)
		}
		if len(err.Error()) > 10_000 {
			t.Errorf("%s: a message of %d bytes", c.name, len(err.Error()))
		}
	}
	if _, err := Parse("r", []byte(event(", prequeue_start_time: 2026-12-31T23:55:00Z")+"    - {name: f, event_start_time: 2027-01-01T01:00:00Z, event_end_time: 2027-01-01T01:01:00Z}\n")); err != nil {
		t.Errorf("events that follow each other: %v", err)
	}
}

func TestAt(t *testing.T) {
	rooms, err := Parse("rooms.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	r := &rooms[0]
	for _, c := range []struct {
		at    string
		phase Phase
		users int
		page  string
		until string
	}{
		{"09:29:59.999", NoEvent, 10000, "<p>{{waitTimeFormatted}}</p>\n", "09:30:00"},
		{"09:30:00", Prequeueing, 10000, "<p>Sale</p>", "10:00:00"},
		{"09:59:59.999", Prequeueing, 10000, "<p>Sale</p>", "10:00:00"},
		{"10:00:00", EventOn, 500, "<p>Sale</p>", "11:00:00"},
		{"10:59:59.999", EventOn, 500, "<p>Sale</p>", "11:00:00"},
		{"11:00:00", NoEvent, 10000, "<p>{{waitTimeFormatted}}</p>\n", ""},
	} {
		at, err := time.Parse(time.RFC3339, "2027-11-26T"+c.at+"Z")
		if err != nil {
			t.Fatal(err)
		}
		m := r.At(at)
		until := ""
		if m.Until != forever {
			until = m.Until.Format(time.TimeOnly)
		}
		if m.Phase != c.phase || m.Settings.TotalActiveUsers != c.users || m.Template != c.page || (m.Event != nil) != (m.Phase != NoEvent) || until != c.until {
			t.Errorf("%s: %+v", c.at, m)
		}
		if shuffled := m.Settings.Shuffle != (queue.Shuffle{}); shuffled != (m.Phase == EventOn) || m.Settings.QueueAll != true {
			t.Errorf("%s: %+v", c.at, m)
		}
	}
}

func TestFind(t *testing.T) {
	room := func(name string, routes ...Route) Room { return Room{Name: name, Routes: routes} }
	table := NewTable([]Room{
		room("all", Route{"", "/"}),
		room("download", Route{"", "/download/"}),
		room("shop", Route{"shop.example.com", "/"}, Route{"m.example.com", "/shop"}),
		room("cart", Route{"shop.example.com", "/cart"}),
		room("port", Route{"shop.example.com:8443", "/cart/x"}),
		room("cheese", Route{"", "/käse/ab c"}),
		room("six", Route{"[2001:db8::1]", "/"}),
		room("star", Route{"star.example.com", "/a*"}),
		room("exact", Route{"star.example.com", "/a"}),
		room("longer", Route{"star.example.com", "/abc*"}),
	})
	for _, c := range []struct{ host, path, room, canonical string }{
		{"other", "/", "all", ""},
		{"other:81", "/download/a", "download", ""},
		{"other", "/downloads", "all", ""},
		{"other", "/Download/a", "all", ""}, // case-sensitive
		{"shop.example.com", "/", "shop", ""},
		{"SHOP.Example.COM.", "/cart", "cart", ""},
		{"shop.example.com:80", "/cartoon", "shop", ""}, // another segment
		{"shop.example.com", "/cart;a=1", "cart", ""},
		{"shop.example.com", "/cart.", "cart", ""},
		{"shop.example.com", "/cart.json", "shop", ""},
		{"shop.example.com", "/cart%00.json", "cart", ""},
		{"shop.example.com", "/cart%20", "cart", ""},
		{"star.example.com", "/a", "exact", ""},
		{"star.example.com", "/a/b", "exact", ""},
		{"star.example.com", "/ab", "star", ""},
		{"star.example.com", "/abc/d", "longer", ""},
		{"star.example.com", "/b", "all", ""},
		{"shop.example.com:80", "/cart/x", "cart", ""},
		{"shop.example.com:8443", "/cart/x", "port", ""},
		{"shop.example.com:8443", "/cart", "cart", ""},
		{"shop.example.com", "/download/a", "shop", ""}, // the host counts more than the path
		{"m.example.com", "/shop/1", "shop", ""},
		{"m.example.com", "/", "all", ""},
		{"[2001:db8::1]:8080", "/", "six", ""},
		{"shop.example.com", "/%63art", "cart", "/cart"},
		{"shop.example.com", "/x/../cart", "cart", "/cart"},
		{"shop.example.com", "/cart/../free", "shop", "/free"},
		{"shop.example.com", "//cart/", "cart", "/cart/"},
		{"shop.example.com", `/x/..%5c..\cart`, "cart", "/cart"},
		{"shop.example.com", "/cart/a%20b", "cart", ""},
		{"shop.example.com", "/x/%2e%2e/cart/", "cart", "/cart/"},
		{"other", "/k%C3%A4se/ab%20c", "cheese", ""},
		{"other", "/k%c3%a4se/%61b%20c", "cheese", "/k%C3%A4se/ab%20c"},
		{"shop.example.com", "/%zz/../cart", "cart", "/cart"},
	} {
		got, canonical := table.Find(c.host, c.path)
		if got == nil || got.Name != c.room || canonical != c.canonical {
			t.Errorf("%s%s: %v %q, want %s %q", c.host, c.path, got, canonical, c.room, c.canonical)
		}
		if !table.Covers(c.host, c.path) {
			t.Errorf("%s%s is not covered", c.host, c.path)
		}
		if !table.CoversSomewhere(c.path) {
			t.Errorf("%s is not covered on any host", c.path)
		}
	}
	few := NewTable([]Room{room("a", Route{"", "/download/"})})
	if few.CoversSomewhere("/ajax/libs/a/1/a.js") || !few.CoversSomewhere("/%64ownload/a") || NewTable(nil).CoversSomewhere("/") {
		t.Error("what is covered on any host is wrong")
	}
	if few.Covers("x", "/ajax/libs/a/1/a.js") || !few.Covers("x", "/%64ownload/a") || NewTable(nil).Covers("", "/") {
		t.Error("what is covered is wrong")
	}
	if got, canonical := few.Find("x", "/download/../ajax/"); got != nil || canonical != "/ajax/" {
		t.Errorf("out of a room: %v %q", got, canonical)
	}
	none := NewTable(nil)
	if n := testing.AllocsPerRun(100, func() {
		few.CoversSomewhere("/ajax/libs/jquery/3.7.1/jquery.min.js")
		none.CoversSomewhere("/ajax/libs/a/%31/a.js")
	}); n > 0 {
		t.Errorf("asking whether a path is covered on any host allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { few.Covers("x.example.com:8080", "/ajax/libs/jquery/3.7.1/jquery.min.js") }); n > 0 {
		t.Errorf("asking whether a path is covered allocates %v times", n)
	}
}

func TestBypassed(t *testing.T) {
	office := netip.MustParsePrefix("192.0.2.0/24")
	room := Room{Rules: []Rule{
		{Paths: []string{"/health"}},
		{Paths: []string{"/api/"}, Methods: []string{"POST"}},
		{Headers: []Header{{"X-Token", "secret"}, {"X-Any", "*"}}},
		{Addresses: []netip.Prefix{office}},
		{Disabled: true, Paths: []string{"/"}},
	}}
	for _, c := range []struct {
		method, path string
		header       http.Header
		address      string
		want         bool
	}{
		{"GET", "/health", nil, "", true},
		{"GET", "/health/../shop", nil, "", false},
		{"GET", "/x/../health", nil, "", false},
		{"GET", "/health/%2e%2e/shop", nil, "", false},
		{"GET", "/health/%252e%252e/shop", nil, "", false},
		{"GET", "/health/..;/shop", nil, "", false},
		{"GET", "/health/..;x=1/shop", nil, "", false},
		{"GET", "/health/%2e%2e%3b/shop", nil, "", false},
		{"GET", `/health\..\shop`, nil, "", false},
		{"GET", "/health;x/all", nil, "", true},
		{"GET", "/health/100%25", nil, "", true},
		{"GET", "/shop", nil, "", false},
		{"POST", "/api/x", nil, "", true},
		{"GET", "/api/x", nil, "", false},
		{"GET", "/", http.Header{"X-Token": {"a", "secret"}, "X-Any": {""}}, "", true},
		{"GET", "/", http.Header{"X-Token": {"secret"}}, "", false},
		{"GET", "/", nil, "192.0.2.7", true},
		{"GET", "/", nil, "::ffff:192.0.2.7", true},
		{"GET", "/", nil, "192.0.3.7", false},
	} {
		req := &http.Request{Method: c.method, Header: c.header}
		address, _ := netip.ParseAddr(c.address)
		if got, _ := room.Bypassed(req, c.path, address); got != c.want {
			t.Errorf("%s %s %v %s: %v", c.method, c.path, c.header, c.address, got)
		}
	}
}

// What is told apart by a suffix, a folder or a host needs nothing else.
func TestCookiesApart(t *testing.T) {
	const limits = "total_active_users: 2, new_users_per_minute: 1}\n"
	rooms, err := Parse("r", []byte("- {name: a, "+limits+"- {name: b, path: /b/, "+limits+
		"- {name: c, path: /c, cookie_suffix: c, "+limits+"- {name: d, host: d, cookie_suffix: d, "+limits+"- {name: e, host: e, cookie_suffix: d, "+limits))
	if err != nil || len(rooms) != 5 {
		t.Errorf("%d rooms, %v", len(rooms), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("- &a {name: a, events: [*a]}\n- *a"))
	f.Add([]byte("&a [*a]"))
	f.Add([]byte("rooms: {}\nrooms: []"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rooms, err := Parse("r", text)
		if err != nil {
			return
		}
		table := NewTable(rooms)
		for i := range rooms {
			r := &rooms[i]
			if r.Name == "" || r.NewUsersPerMinute < 1 || r.NewUsersPerMinute > r.TotalActiveUsers || r.SessionDuration < time.Minute || r.SessionDuration > 30*time.Minute || len(r.Events) > maxEvents {
				t.Fatalf("%+v", r)
			}
			for _, route := range r.Routes {
				if found, canonical := table.Find(route.Host, route.Path); found != r || canonical != "" {
					t.Fatalf("%+v is not found: %v %q", route, found, canonical)
				}
			}
			for _, e := range r.Events {
				if m := r.At(e.Start); m.Phase != EventOn || m.Settings.NewUsersPerMinute > m.Settings.TotalActiveUsers {
					t.Fatalf("%+v: %+v", e, m)
				}
			}
		}
	})
}

func FuzzFind(f *testing.F) {
	table := NewTable([]Room{{Name: "a", Routes: []Route{{"", "/shop"}, {"x", "/a/"}}}})
	room := Room{Rules: []Rule{{Paths: []string{"/free/"}}}}
	f.Add("x", "/shop/..%2f/%2e%2e/a/")
	f.Add("", "//\\..")
	f.Fuzz(func(t *testing.T, host, path string) {
		found, canonical := table.Find(host, path)
		if covered := table.Covers(host, path); covered != (found != nil || canonical != "") {
			t.Errorf("covers says %v, find %v %q", covered, found, canonical)
		}
		if _, again := table.Find(host, canonical); canonical != "" && again != "" {
			t.Errorf("%q leads to %q, and that to %q", path, canonical, again)
		}
		clean := Clean(path)
		if again := Clean(clean); isAmbiguous(clean) == false && again != clean {
			t.Errorf("cleaned twice, %q is %q and then %q", path, clean, again)
		}
		if bypasses, _ := room.Bypassed(&http.Request{}, path, netip.Addr{}); bypasses && (!strings.HasPrefix(clean, "/free/") || !strings.HasPrefix(path, "/free/")) {
			t.Errorf("%q goes past the room", path)
		}
	})
}

// TestDocumentation reads the examples of the documentation.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "waiting-room.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")
	if len(blocks) < 2 {
		t.Fatal("the documentation has no example")
	}
	for i, b := range blocks[1:] {
		example, _, _ := strings.Cut(b, "```")
		if _, err := Parse(fmt.Sprintf("example %d", i+1), []byte(example)); err != nil {
			t.Error(err)
		}
	}
}
