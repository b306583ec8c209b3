package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// sessionMinutes is the shortest session that a room may have.
	sessionMinutes = 1
	// refreshSeconds is how often a visitor who waits asks again, and manyRefreshSeconds where there are many, for whom this
	// machine would have no time.
	refreshSeconds, manyRefreshSeconds = 10, 30
	many                               = 2000
	// archivesAtOnce is how many the doorman fetches: one client may have so many.
	archivesAtOnce = 4

	visitorCookie = "visitor"
	sentHeader    = "X-Sent"
)

// A doorman is the site behind the waiting room: it counts whom the room lets in, and passes the requests on. Each visitor
// shows it a cookie of its own, and when it asked.
type doorman struct {
	limit, perMinute int
	refresh          int // seconds
	server           *http.Server
	places           chan struct{}

	mu       sync.Mutex
	visits   map[string][]visit // by visitor
	came     int
	let      int
	archives int
	left     int
}

// A visit is a request of a visitor that came through the room.
type visit struct{ sent, at time.Time }

// siteAddress is where the sites behind waiting rooms listen, each at a port of its own.
const siteAddress = "127.0.1.8:0"

func newDoorman(to string, limit, perMinute, visitors int) (*doorman, error) {
	target, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	d := &doorman{limit: limit, perMinute: perMinute, refresh: refreshSeconds, places: make(chan struct{}, archivesAtOnce), visits: map[string][]visit{}}
	if visitors > many {
		d.refresh = manyRefreshSeconds
	}
	pass := newReverseProxy(target)
	d.server, err = serveHTTP(siteAddress, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.count(r)
		d.places <- struct{}{}
		defer func() { <-d.places }()
		pass.ServeHTTP(w, r)
	}))
	return d, err
}

func (d *doorman) close() { _ = d.server.Close() }

// rooms is the file that the room is described in.
func (d *doorman) rooms() string {
	return fmt.Sprintf(`- name: downloads
  path: /download/
  total_active_users: %d
  new_users_per_minute: %d
  session_duration: %d
  refresh_interval: %d
  json_response_enabled: true
  upstream: http://%s
`, d.limit, d.perMinute, sessionMinutes, d.refresh, d.server.Addr)
}

func (d *doorman) count(r *http.Request) {
	at := time.Now()
	nanoseconds, _ := strconv.ParseInt(r.Header.Get(sentHeader), 10, 64)
	c, err := r.Cookie(visitorCookie)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.visits[c.Value] = append(d.visits[c.Value], visit{time.Unix(0, nanoseconds), at})
}

// exceeded tells by how much the room was ever overfull, as the site behind it saw it: "" where never. A visitor is in for a
// session after each request at least, and is new in a minute where the first request was sent and came in that minute.
func (d *doorman) exceeded() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	minutes := map[int64]int{}
	for _, visits := range d.visits {
		var until time.Time
		for _, v := range visits {
			if until.IsZero() || v.sent.After(until) { // in, for the first time or again
				if minute := v.at.Unix() / 60; minute == v.sent.Unix()/60 && until.IsZero() {
					minutes[minute]++
				}
				if !until.IsZero() {
					changes = append(changes, change{until, -1})
				}
				changes = append(changes, change{v.at, 1})
			}
			until = v.sent.Add(sessionMinutes * time.Minute)
		}
		changes = append(changes, change{until, -1})
	}
	slices.SortFunc(changes, func(a, b change) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.by - b.by // those who leave first
	})
	in := 0
	for _, c := range changes {
		if in += c.by; in > d.limit {
			return fmt.Sprintf("%d visitors are in at %s, and the limit is %d", in, c.at.Format(time.TimeOnly), d.limit)
		}
	}
	for minute, n := range minutes {
		if n > d.perMinute {
			return fmt.Sprintf("%d visitors come in in the minute from %s, and the limit is %d", n, time.Unix(60*minute, 0).Format(time.TimeOnly), d.perMinute)
		}
	}
	return ""
}

// crowd has the visitors come: a few at first, and then all of the queue within a minute.
func (d *doorman) crowd(ctx context.Context, p *play) {
	e := &entrance{name: "room", url: "https://" + p.nodes[2].address}
	t := p.transport(e)
	t.MaxIdleConnsPerHost, t.MaxConnsPerHost = 64, 64
	defer t.CloseIdleConnections()
	random := rand.New(rand.NewPCG(p.seed, 3))
	var all sync.WaitGroup
	defer all.Wait()
	for i := range p.queue {
		at := time.Duration(random.Float64() * float64(min(time.Minute, p.length/3)))
		all.Go(func() {
			if sleep(ctx, at) == nil {
				d.visitor(ctx, p, t, i)
			}
		})
	}
}

// visitor waits in line, fetches two archives, and leaves.
func (d *doorman) visitor(ctx context.Context, p *play, t http.RoundTripper, i int) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		panic(err)
	}
	at, err := url.Parse("https://" + p.nodes[2].address + "/")
	if err != nil {
		panic(err)
	}
	jar.SetCookies(at, []*http.Cookie{{Name: visitorCookie, Value: strconv.Itoa(i), Path: "/"}})
	c := &http.Client{Transport: t, Jar: jar, Timeout: 3 * requestTimeout}
	d.note(func() { d.came++ })
	live := p.library.live(0, "mirror")
	if len(live) == 0 {
		return
	}
	r := live[i%len(live)]
	inside := false
	for got := 0; got < 2 && ctx.Err() == nil; {
		begun := time.Now()
		again, err := fetchArchive(ctx, c, at.String()+"download/"+r.pkg+"/"+r.version+".zip", r)
		switch withdrawn, _ := p.library.state(r); {
		case ctx.Err() != nil:
			return
		case err != nil && !withdrawn.IsZero() && causeOf(err) == otherwise: // 410: another one, then
			r = live[0]
		case err != nil:
			p.notes.request("room", begun, err)
			if causeOf(err) == wrongBytes {
				return
			}
			again = time.Second
		default:
			p.notes.request("room", begun, nil)
			if again == 0 {
				got++
				d.note(func() { d.archives++ })
				if !inside {
					inside = true
					d.note(func() { d.let++ })
				}
				again = 2 * time.Second
			}
		}
		if sleep(ctx, again) != nil {
			return
		}
	}
	d.note(func() { d.left++ })
}

func (d *doorman) note(what func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	what()
}

// fetchArchive fetches a release as an archive and looks at each file in it, or is told to wait.
func fetchArchive(ctx context.Context, c *http.Client, address string, r *release) (wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept", "application/json, application/zip;q=0.9")
	request.Header.Set(sentHeader, strconv.FormatInt(time.Now().UnixNano(), 10))
	answer, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	if seconds, _ := strconv.Atoi(answer.Header.Get("Refresh")); seconds > 0 && answer.Header.Get("Content-Type") != "application/zip" {
		return time.Duration(seconds) * time.Second, nil
	}
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	switch status := answer.StatusCode; {
	case seconds > 0 && (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests):
		return time.Duration(seconds) * time.Second, nil // as many archives as one client may have are under way, or the room is busy
	case status != http.StatusOK:
		return 0, errStatus(status)
	}
	return 0, checkArchive(body, r)
}

// checkArchive holds an archive against the files of the release.
func checkArchive(body []byte, r *release) error {
	archive, err := zip.NewReader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return errClaim{wrongBytes, fmt.Sprintf("the archive of %v: %v; it begins with %.80q", r, err, body)}
	}
	found := 0
	for _, file := range r.files() {
		for _, f := range archive.File {
			if !strings.HasSuffix("/"+f.Name, "/"+file) {
				continue
			}
			in, err := f.Open()
			if err != nil {
				return err
			}
			got, err := io.ReadAll(in)
			if err = errors.Join(err, in.Close()); err != nil || !bytes.Equal(got, content(r.pkg, r.version, file)) {
				return errClaim{wrongBytes, fmt.Sprintf("%s in the archive of %v (%v)", file, r, err)}
			}
			found++
		}
	}
	if found != len(r.files()) {
		return errClaim{wrongBytes, fmt.Sprintf("the archive of %v has %d of its %d files", r, found, len(r.files()))}
	}
	return nil
}
