package api

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server"
)

// A loggedEntry is what the tests look at.
type loggedEntry struct {
	Index    int64
	Kind     logs.Kind
	Time     time.Time
	Actor    string
	Package  string
	Version  string
	Reason   string
	Manifest string
}

func (e loggedEntry) String() string { return fmt.Sprintf("%s %s %s", e.Kind, e.Package, e.Version) }

func texts(entries []loggedEntry) []string {
	all := []string{}
	for _, e := range entries {
		all = append(all, e.String())
	}
	return all
}

func TestLogs(t *testing.T) {
	s := newService(t)
	for target, want := range map[string][]string{
		"/logs/gone":                                           {"refused gone 3.0.0", "withdrawn gone 2.0.0", "published gone 2.0.0", "published gone 1.0.0", "package-added gone "},
		"/logs/gone/?kind=published":                           {"published gone 2.0.0", "published gone 1.0.0"},
		"/logs/gone/2.0.0":                                     {"withdrawn gone 2.0.0", "published gone 2.0.0"},
		"/logs/gone/2.0.0?kind=withdrawn,refused":              {"withdrawn gone 2.0.0"},
		"/logs/gone?version=3.0.0":                             {"refused gone 3.0.0"},
		"/logs?package=gone&version=1.0.0":                     {"published gone 1.0.0"},
		"/logs?kind=refused&kind=withdrawn":                    {"refused gone 3.0.0", "withdrawn gone 2.0.0"},
		"/logs?kind=erased":                                    {},
		"/logs?limit=1":                                        {"package-added hidden "},
		"/logs/gone?before=1":                                  {},
		"/logs/gone?since=2024-02-29T12:30:45Z&limit=1":        {"refused gone 3.0.0"},
		"/logs/gone?since=2024-02-29T13:30:45%2B01:00&limit=1": {"refused gone 3.0.0"},
		"/logs/gone?since=2024-02-29T13:30:45+01:00&limit=1":   {"refused gone 3.0.0"},
		"/logs/gone?since=2024-02-29T12:30:46Z":                {},
		"/logs?since=24h":                                      {},
		"/logs/odd/1.0.0+build.1?kind=published":               {"published odd 1.0.0+build.1"},
		"/logs/odd/1.0.0%2Bbuild.1?limit=0":                    {"published odd 1.0.0+build.1"},
		"/logs?unknown=1&package=mainless&kind=package-added&": {"package-added mainless "},
	} {
		got := s.get(target)
		equal(t, target, got.status, 200)
		equal(t, target, texts(decode[[]loggedEntry](t, got)), want)
		equal(t, "Cache-Control", got.get("Cache-Control"), notCached.Control())
	}
	first := decode[[]loggedEntry](t, s.get("/logs/gone/2.0.0"))[0]
	if first.Reason != `it stole <cookies> & "more"` || !first.Time.Equal(testkit.Released) || first.Actor != "bot" || len(first.Manifest) != 64 {
		t.Errorf("%+v", first)
	}
	for target, want := range map[string]string{
		"/logs/nothing": "404 The log has nothing about it", "/logs/gone/9": "404 The log has nothing about it", "/logs/gone%00": "404 Endpoint not found",
		"/logs/a/b/c":         "404 Endpoint not found",
		"/logs?kind=eaten":    "400 kind must be some of package-added, package-changed, package-removed, detected, refused, processed, published, mirrored, confirmed, replaced, withdrawn, restored, erased, upstream-changed, key-changed, loss-accepted, not \"eaten\"",
		"/logs?since=morning": "400 since " + logs.ErrSince.Error(), "/logs?before=x": "400 before must be the number of an entry, more than 0", "/logs?before=0": "400 before must be the number of an entry, more than 0",
		"/logs?limit=-1": "400 limit must be a whole number", "/logs?version=1": "400 version needs a package", "/logs?kind=%ff": "400 kind must be some of ",
		"/logs.atom?package=nothing": "404 The log has nothing about it", "/logs/stream?kind=eaten": "400 ", "/logs/stream?after=x": "400 after must be the number of an entry",
	} {
		got := s.get(target)
		if text := fmt.Sprint(got.status, " ", decode[struct{ Message string }](t, got).Message); !strings.HasPrefix(text, want) {
			t.Errorf("%s: %s, want %s", target, text, want)
		}
	}
}

// A client that follows the links sees each entry once, newest first, also while others come.
func TestLogsPages(t *testing.T) {
	s := newService(t)
	size := int(s.index.LogSize())
	var seen []int64
	query := "?limit=3&kind=" + strings.Join(kindNames(), ",")
	for range size {
		got := s.get("/logs" + query)
		for _, e := range decode[[]loggedEntry](t, got) {
			seen = append(seen, e.Index)
		}
		link := got.get("Link")
		if link == "" {
			break
		}
		s.shelf.Refuse("gone", fmt.Sprintf("9.0.%d", len(seen)), "meanwhile")
		rest, ok := strings.CutPrefix(link, "<?")
		rest, ok2 := strings.CutSuffix(rest, `>; rel="next"`)
		if !ok || !ok2 || got.get("Access-Control-Expose-Headers") != "Link" {
			t.Fatalf("Link: %s", link)
		}
		query = "?" + rest
	}
	want := []int64{}
	for i := range size {
		want = append(want, int64(size-1-i))
	}
	equal(t, "indexes", seen, want)
}

func kindNames() []string {
	var names []string
	for _, k := range logs.Kinds {
		names = append(names, string(k))
	}
	return names
}

func TestLogFeed(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.SiteBase, o.Name = "", `Jam & "Jars"` })
	type feed struct {
		XMLName xml.Name `xml:"http://www.w3.org/2005/Atom feed"`
		ID      string   `xml:"id"`
		Title   string   `xml:"title"`
		Updated string   `xml:"updated"`
		Author  string   `xml:"author>name"`
		Links   []struct {
			Rel  string `xml:"rel,attr"`
			Href string `xml:"href,attr"`
		} `xml:"link"`
		Entries []struct {
			ID      string `xml:"id"`
			Title   string `xml:"title"`
			Updated string `xml:"updated"`
			Link    struct {
				Href string `xml:"href,attr"`
			} `xml:"link"`
		} `xml:"entry"`
	}
	read := func(target string, header ...string) feed {
		t.Helper()
		got := s.get(target, header...)
		equal(t, target, got.status, 200)
		equal(t, "Content-Type", got.get("Content-Type"), "application/atom+xml; charset=utf-8")
		equal(t, "Cache-Control", got.get("Cache-Control"), notCached.Control()) // without a base
		var f feed
		if err := xml.Unmarshal([]byte(got.body), &f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	all := read("/logs.atom", "Host: a.example")
	if all.Title != `Jam & "Jars": releases, and what became of them` || all.Author != `Jam & "Jars"` || all.Updated != "2024-02-29T12:30:45Z" || len(all.Links) != 2 || all.Links[0].Href != "http://a.example/logs.atom" {
		t.Errorf("%+v", all)
	}
	kinds := ""
	for _, k := range logs.News {
		kinds += "," + string(k)
	}
	news, published := len(decode[[]loggedEntry](t, s.get("/logs?kind="+kinds[1:]))), len(decode[[]loggedEntry](t, s.get("/logs?kind=published")))
	if len(all.Entries) != news || news <= published || len(read("/logs.atom?kind=published").Entries) != published {
		t.Errorf("%d entries, want %d, of which %d are publications", len(all.Entries), news, published)
	}
	ids := map[string]bool{all.ID: true}
	for _, e := range all.Entries {
		if ids[e.ID] = true; !strings.HasPrefix(e.ID, "ni:///sha-256;") || e.Title == "" || e.Updated == "" {
			t.Errorf("%+v", e)
		}
	}
	if len(ids) != len(all.Entries)+1 {
		t.Errorf("%d ids for %d entries and the feed", len(ids), len(all.Entries))
	}
	if elsewhere := read("/logs.atom", "Host: b.example"); elsewhere.ID != all.ID {
		t.Errorf("another address has the id %s", elsewhere.ID)
	}
	one := read("/logs.atom?package=odd")
	if len(one.Entries) != 1 || one.ID == all.ID || !strings.HasSuffix(one.Title, ": odd") || !strings.HasSuffix(one.Entries[0].Link.Href, "/library/odd/1.0.0+build.1") {
		t.Errorf("%+v", one)
	}
	if none := read("/logs.atom?package=bare"); len(none.Entries) != 0 || none.ID == one.ID || none.Updated == "" {
		t.Errorf("%+v", none)
	}
	if two := read("/logs.atom?package=odd&package=bare"); len(two.Entries) != 1 || !strings.HasSuffix(two.Title, ": bare, odd") {
		t.Errorf("%+v", two)
	}
	shelf := testkit.NewShelf(t)
	shelf.Register("vue", `{"name":"vue"}`)
	shelf.Publish("vue", "1.0.0", "a.js", map[string]string{"a.js": "1"})
	shelf.Withdraw("vue", "1.0.0", "it <b>stole</b>")
	shelf.Register("d3", `{"name":"d3"}`)
	shelf.Remove("d3")
	if err := shelf.Log.Update(func(tx *logs.Tx) error {
		_, err := tx.Append(logs.Entry{Kind: logs.KeyChanged, Time: testkit.Released, Actor: "operator", Key: "log+1+k"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	told := serviceOf(t, shelf)
	for target, want := range map[string]string{
		"/logs.atom":                            "key changed, d3 package removed, vue 1.0.0 withdrawn, vue 1.0.0",
		"/logs.atom?package=vue":                "key changed, vue 1.0.0 withdrawn, vue 1.0.0",
		"/logs.atom?package=vue&package=d3":     "key changed, d3 package removed, vue 1.0.0 withdrawn, vue 1.0.0",
		"/logs.atom?package=vue&kind=withdrawn": "vue 1.0.0 withdrawn",
		"/logs.atom?package=vue&package=x":      "key changed, vue 1.0.0 withdrawn, vue 1.0.0",
		"/logs.atom?package=":                   "key changed, d3 package removed, vue 1.0.0 withdrawn, vue 1.0.0",
	} {
		got := told.get(target)
		var f feed
		if err := xml.Unmarshal([]byte(got.body), &f); err != nil || got.status != 200 {
			t.Fatal(got.status, err)
		}
		var titles []string
		for _, e := range f.Entries {
			titles = append(titles, e.Title)
		}
		if s := strings.Join(titles, ", "); s != want || strings.Contains(got.body, "<b>") {
			t.Errorf("%s tells of %s, want %s", target, s, want)
		}
	}
	if got := told.get("/logs.atom?package=x"); got.status != 404 {
		t.Errorf("an unknown package: %d", got.status)
	}
	many := ""
	for i := range 21 {
		many += fmt.Sprintf("package=p%d&", i)
	}
	if got := told.get("/logs.atom?" + many); got.status != 400 {
		t.Errorf("21 packages: %d", got.status)
	}
	empty := serviceOf(t, testkit.NewShelf(t))
	if got := empty.get("/logs.atom"); got.status != 200 || !strings.Contains(got.body, "<updated>1970-") {
		t.Errorf("an empty log: %d %s", got.status, got.body)
	}
}

// A follower reads a stream of the log.
type follower struct {
	t        *testing.T
	response *http.Response
	lines    *bufio.Scanner
	beats    int
}

func (s *service) follow(url, lastEventID string) *follower {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		r.Header.Set("Last-Event-ID", lastEventID)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { response.Body.Close() })
	return &follower{t: s.t.(*testing.T), response: response, lines: bufio.NewScanner(response.Body)}
}

// next returns the next event, or false at the end.
func (f *follower) next() (id string, e loggedEntry, ok bool) {
	f.t.Helper()
	for f.lines.Scan() {
		name, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				f.t.Fatal(err)
			}
		case "":
			if value != "" {
				f.beats++
			} else if id != "" {
				return id, e, true
			}
		}
	}
	return "", e, false
}

func (f *follower) want(want ...string) (last string) {
	f.t.Helper()
	for _, w := range want {
		id, e, ok := f.next()
		if !ok || e.String() != w || id != fmt.Sprint(e.Index) {
			f.t.Fatalf("%v, id %s: %v, want %s (%v)", ok, id, e, w, f.lines.Err())
		}
		last = id
	}
	return last
}

func TestLogStream(t *testing.T) {
	stopping := make(chan struct{})
	s := newService(t, func(o *PublicOptions) { o.Stopping = stopping })
	s.public.heartbeat = 10 * time.Millisecond
	s.public.streams = answers.NewShares(4)
	listener, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Deadlines that a stream must outlive.
	h := server.NewHTTPServer(s.handler, server.HTTPOptions{ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond, Logger: quiet})
	go h.Serve(listener)
	t.Cleanup(func() { h.Close() })
	url := "http://" + listener.Addr().String() + "/logs/stream"

	all, some := s.follow(url, ""), s.follow(url+"?package=gone&kind=refused,withdrawn&after=0", "")
	if got := all.response.Header; got.Get("Content-Type") != "text/event-stream" || got.Get("Cache-Control") != notCached.Control() || got.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("%v", got)
	}
	some.want("withdrawn gone 2.0.0", "refused gone 3.0.0")
	for all.beats < 20 { // far beyond both deadlines
		if !all.lines.Scan() {
			t.Fatalf("the stream ended after %d heartbeats: %v", all.beats, all.lines.Err())
		}
		if strings.HasPrefix(all.lines.Text(), ": ") {
			all.beats++
		}
	}
	s.shelf.Publish("bare", "1.0.0", "a.js", map[string]string{"a.js": "1"})
	s.shelf.Refuse("gone", "5.0.0", "a bomb")
	last := all.want("published bare 1.0.0", "refused gone 5.0.0")
	some.want("refused gone 5.0.0")
	all.response.Body.Close()

	s.shelf.Refuse("gone", "6.0.0", "another")
	again := s.follow(url, last)
	again.want("refused gone 6.0.0")
	beyond := s.follow(url+"?after=0", "999999999") // of a log that was longer
	s.shelf.Refuse("gone", "7.0.0", "one more")
	beyond.want("refused gone 7.0.0")
	again.want("refused gone 7.0.0")

	var open []*follower
	var refused *follower
	for range 6 { // one of them is there until its handler has seen that its client went
		f := s.follow(url, "")
		if f.response.StatusCode == 200 {
			open = append(open, f)
			continue
		}
		refused = f
	}
	if refused == nil || refused.response.StatusCode != 503 || refused.response.Header.Get("Retry-After") == "" {
		t.Errorf("with %d more streams none was refused", len(open))
	}
	close(stopping)
	for _, f := range append(open, some, again, beyond) {
		if _, e, ok := f.next(); ok {
			f.next()
			t.Logf("it had %v", e)
		}
		if err := f.lines.Err(); err != nil {
			t.Errorf("a stream broke off: %v", err)
		}
	}
}

// TestFilteredStreamSendsHeartbeats tests that a stream sends heartbeats although entries arrive that its filter leaves out.
func TestFilteredStreamSendsHeartbeats(t *testing.T) {
	s := newService(t)
	s.public.heartbeat = 200 * time.Millisecond
	h := httptest.NewServer(s.handler)
	defer h.Close()
	f := s.follow(h.URL+"/logs/stream?package=gone", "")
	defer f.response.Body.Close()
	beat := make(chan error, 1)
	go func() {
		for f.lines.Scan() {
			if strings.HasPrefix(f.lines.Text(), ": ") {
				beat <- nil
				return
			}
		}
		beat <- errors.Join(errors.New("the stream ended"), f.lines.Err())
	}()
	for version := range 500 { // many times the heartbeat's interval
		s.shelf.Refuse("other", fmt.Sprintf("%d.0.0", version), "a bomb")
		select {
		case err := <-beat:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the stream sent no heartbeat while 500 entries about another package arrived")
}

// A client may take all streams that no other wants. The next client gets one of them.
func TestLogStreamsAreShared(t *testing.T) {
	s := newService(t)
	s.public.streams = answers.NewShares(4)
	type stream struct {
		w     *httptest.ResponseRecorder
		ended chan struct{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := func(remote string) stream {
		r := newRequest("GET", "/logs/stream").WithContext(ctx)
		r.RemoteAddr = remote
		one := stream{httptest.NewRecorder(), make(chan struct{})}
		go func() {
			defer close(one.ended)
			s.handler.ServeHTTP(one.w, r)
		}()
		return one
	}
	var greedy []stream
	for i := range 4 {
		greedy = append(greedy, follow(fmt.Sprintf("[2001:db8::%d]:1000", i)))
		for s.public.streams.Taken() < i+1 {
			time.Sleep(time.Millisecond)
		}
	}
	r := newRequest("GET", "/logs/stream")
	r.RemoteAddr = "[2001:db8::ffff]:1000"
	got := serve(s.handler, r)
	for _, problem := range problems(r, got) {
		t.Error(problem)
	}
	if got.status != 503 || got.get("Retry-After") != "60" || got.get("Cache-Control") != never {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	other := follow("203.0.113.7:1000")
	<-greedy[3].ended
	cancel()
	for _, one := range append(greedy[:3], other) {
		<-one.ended
		if one.w.Code != 200 {
			t.Errorf("%d: %s", one.w.Code, one.w.Body)
		}
	}
	if left := s.public.streams.Taken(); left != 0 {
		t.Errorf("%d streams are left", left)
	}
}

func TestLogStreamHead(t *testing.T) {
	s := newService(t)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, newRequest("HEAD", "/logs/stream"))
	if w.Code != 200 || w.Body.Len() > 0 || w.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
