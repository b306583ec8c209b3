package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The botnet joins two rooms of its own beside the rehearsal's visitors. Both have the same limits; the second has a challenge,
// which visitors solve and bots do not.
const (
	saleRoom, checkedRoom = "sale", "checked"
	saleLimit             = 60
	salePerMinute         = 30
	saleRefresh           = 10 * time.Second

	// bots is how many addresses the botnet has. Each sends a request every botInterval, or when the room says so.
	bots        = 2000
	botInterval = 20 * time.Second
	// saleVisitors come to the first room: twice as many as may enter in a minute, so that half of them still wait when bots
	// with tickets join. checkedVisitors come to the second.
	saleVisitors    = 2 * salePerMinute
	checkedVisitors = 20
	checkedEvery    = 3 * time.Second
	// visitorsJoin is the time in which the visitors of the first room come, and botsJoin that in which bots with tickets do.
	visitorsJoin = 3 * time.Second
	botsJoin     = 30 * time.Second

	// admittedWithin is how long a visitor of the first room may wait. Without the flood half of the visitors enter at once and
	// the others within a minute. Beside it, docs/waiting-room.md allows a session and two minutes more.
	admittedWithin = time.Minute + sessionMinutes*time.Minute + 2*time.Minute
	// checkedWithin is how long a visitor of the second room, which is never full, may wait: a few queries of the challenge may
	// be repeated after five seconds each.
	checkedWithin = 30 * time.Second
	// passTolerance is how much earlier than a waiting visitor a user who came in a later minute may enter: the visitor's
	// check-in, 15 % late, and a busy machine.
	passTolerance = saleRefresh*115/100 + 5*time.Second

	insideHeader = "Inside" // of the site's responses
	proofHeader  = "Proof"  // of requests, which the challenge accepts
)

// A guest is a user of a room, from the first request to the admission.
type guest struct {
	name     string
	bot      bool
	keeps    bool // sends the ticket back
	joined   time.Time
	answered bool // by the room or the site, at least once
}

// A contest is one botnet event in one room.
type contest struct {
	room     string
	number   int // of the event, so that names differ
	site     *doorman
	within   time.Duration // in which visitors must enter
	mu       sync.Mutex
	guests   []*guest
	complete bool // the event ran until every visitor was in or the time limit was over
}

func (c *contest) join(g *guest) *guest {
	g.joined = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guests = append(c.guests, g)
	return g
}

// newSite returns the site behind a room of the botnet. It responds to users itself, and is the room's challenge.
func newSite(name string) (*doorman, error) {
	d := &doorman{limit: saleLimit, perMinute: salePerMinute, visits: map[string][]visit{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/"+name+"/", func(w http.ResponseWriter, r *http.Request) {
		d.count(r)
		w.Header().Set(insideHeader, "true")
		_, _ = io.WriteString(w, "You are in.\n")
	})
	mux.HandleFunc("/challenge/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(proofHeader) == "" {
			http.Error(w, "Solve the challenge first.", http.StatusForbidden)
		}
	})
	var err error
	d.server, err = serveHTTP(siteAddress, mux)
	return d, err
}

// addBotnetRooms starts the sites behind the botnet's rooms, and returns the rooms for the file of --rooms.
func (p *play) addBotnetRooms() (rooms string, err error) {
	for _, name := range []string{saleRoom, checkedRoom} {
		site, err := newSite(name)
		if err != nil {
			return "", err
		}
		p.stops = append(p.stops, site.close)
		challenge := ""
		if name == checkedRoom {
			challenge = fmt.Sprintf("  challenge: http://%s/challenge/\n", site.server.Addr)
		}
		rooms += fmt.Sprintf(`- name: %s
  path: /%s/
  total_active_users: %d
  new_users_per_minute: %d
  session_duration: %d
  refresh_interval: %d
  json_response_enabled: true
  upstream: http://%s
%s`, name, name, saleLimit, salePerMinute, sessionMinutes, int(saleRefresh.Seconds()), site.server.Addr, challenge)
		p.sites = append(p.sites, site)
	}
	return rooms, nil
}

// A caller sends the requests of one address to one node.
type caller struct {
	url       string
	transport *http.Transport
	proof     bool
	ticket    string // name=value
}

// newCaller returns the caller with the i-th address below 127.block.
func (p *play) newCaller(block, i int) *caller {
	node := p.nodes[i%len(p.nodes)]
	t := p.transport(&entrance{})
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(block), byte(i/250), byte(1+i%250))}, Timeout: requestTimeout}
	t.DialContext, t.DisableKeepAlives = dialer.DialContext, true
	return &caller{url: "https://" + node.address, transport: t}
}

// request requests the page of a room. inside says that the site responded, and again is otherwise when to come back, 0 if the
// response does not say.
func (c *caller) request(ctx context.Context, room, name string) (inside bool, again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/"+room+"/", nil)
	if err != nil {
		return false, 0, err
	}
	cookies := visitorCookie + "=" + name
	if c.ticket != "" {
		cookies += "; " + c.ticket
	}
	r.Header.Set("Cookie", cookies)
	r.Header.Set("Accept", "application/json, text/html;q=0.9")
	r.Header.Set(sentHeader, strconv.FormatInt(time.Now().UnixNano(), 10))
	if c.proof {
		r.Header.Set(proofHeader, "solved")
	}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return false, 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return false, 0, err
	}
	for _, cookie := range response.Cookies() {
		c.ticket = cookie.Name + "=" + cookie.Value
	}
	if response.Header.Get(insideHeader) != "" {
		return true, 0, nil
	}
	for _, field := range []string{"Refresh", "Retry-After"} {
		if seconds, _ := strconv.Atoi(response.Header.Get(field)); seconds > 0 {
			return false, time.Duration(seconds) * time.Second, nil
		}
	}
	return false, 0, errStatus(response.StatusCode)
}

// visit has a visitor join a room, wait as the room says, and enter it.
func (p *play) visit(ctx context.Context, c *contest, at *caller, name string) {
	g := c.join(&guest{name: name, keeps: true})
	for ctx.Err() == nil {
		begun := time.Now()
		inside, again, err := at.request(ctx, c.room, name)
		if ctx.Err() != nil {
			return
		}
		p.notes.request(c.room+" room", begun, err)
		if inside {
			return
		}
		if err != nil {
			again = time.Second
		} else {
			c.mark(g)
		}
		if sleep(ctx, again) != nil {
			return
		}
	}
}

// mark records that the room has responded to a guest.
func (c *contest) mark(g *guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.answered = true
}

// forget has a bot send requests without ever sending a ticket back, to one room and then to the other: each is a new user.
func (b *botnetEvent) forget(ctx context.Context, at *caller, i int) {
	rooms := []*contest{b.sale, b.checked}
	for n := 0; ctx.Err() == nil; n++ {
		c := rooms[(i+n)%len(rooms)]
		g := c.join(&guest{name: fmt.Sprintf("bot-%d-%d-%d", c.number, i, n), bot: true})
		at.ticket = ""
		if _, again, err := at.request(ctx, c.room, g.name); err == nil && again > 0 {
			c.mark(g)
		}
		b.sent.Add(1)
		if sleep(ctx, botInterval) != nil {
			return
		}
	}
}

// hoard has a bot wait in a room with its ticket, and join again as another user after it was admitted or refused.
func (b *botnetEvent) hoard(ctx context.Context, at *caller, c *contest, i int) {
	for n := 0; ctx.Err() == nil; n++ {
		g := c.join(&guest{name: fmt.Sprintf("hoarder-%d-%d-%d", c.number, i, n), bot: true, keeps: true})
		at.ticket = ""
		for waits := true; waits; {
			inside, again, err := at.request(ctx, c.room, g.name)
			b.sent.Add(1)
			if waits = err == nil && !inside; waits {
				c.mark(g)
			}
			if sleep(ctx, cmp.Or(again, botInterval)) != nil {
				return
			}
		}
	}
}

// A botnetEvent is one event with a contest in each room.
type botnetEvent struct {
	play          *play
	sale, checked *contest
	seed          uint64
	sent          atomic.Int64 // requests of bots
	bots          sync.WaitGroup
	visitors      sync.WaitGroup
}

// joinBotnet has the botnet join both rooms while visitors come, until all visitors are in or their time is over.
func (p *play) joinBotnet(ctx context.Context, e *event) error {
	e.What = fmt.Sprintf("%d addresses join two waiting rooms", bots)
	if err := p.awaitEmptyRooms(ctx); err != nil {
		return err
	}
	number := len(p.contests)
	b := &botnetEvent{play: p, seed: p.random.Uint64()}
	b.sale = &contest{room: saleRoom, number: number, site: p.sites[0], within: admittedWithin}
	b.checked = &contest{room: checkedRoom, number: number, site: p.sites[1], within: checkedWithin}
	p.contests = append(p.contests, b.sale, b.checked)
	began := time.Now()

	botContext, stopBots := context.WithCancel(ctx)
	defer b.bots.Wait()
	defer stopBots()
	b.startForgetful(botContext)
	if err := eventually(ctx, "the bots fill the room", func() bool { return b.sale.site.admitted(began) >= salePerMinute }); err != nil {
		return err
	}
	visitorContext, stopVisitors := context.WithTimeout(ctx, admittedWithin)
	defer stopVisitors()
	b.startVisitors(visitorContext)
	// Bots with tickets join in the minute after the visitors: they must not enter before any of them.
	b.startHoarders(botContext, time.Now().Add(visitorsJoin).Truncate(time.Minute).Add(time.Minute))
	b.visitors.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// They get the next free slots, so the order and the limits are judged with some of them inside.
	if err := within(ctx, admittedWithin, "bots with tickets are admitted after the visitors", func() bool { return b.sale.hoarders() >= salePerMinute/2 }); err != nil {
		return err
	}
	b.sale.complete, b.checked.complete = true, true
	e.What += fmt.Sprintf(" and send %d requests; %s", b.sent.Load(), b.sale.describe())
	return nil
}

// startForgetful starts the bots that never send a ticket back: every second address.
func (b *botnetEvent) startForgetful(ctx context.Context) {
	for i := range bots / 2 {
		b.bots.Go(func() {
			random := rand.New(rand.NewPCG(b.seed, uint64(i)))
			if sleep(ctx, time.Duration(random.Float64()*float64(botInterval))) == nil {
				b.forget(ctx, b.play.newCaller(16, 2*i), i)
			}
		})
	}
}

// startHoarders starts the bots that wait with their tickets, three in the first room for one in the second.
func (b *botnetEvent) startHoarders(ctx context.Context, from time.Time) {
	for i := range bots / 2 {
		b.bots.Go(func() {
			random := rand.New(rand.NewPCG(b.seed, uint64(bots+i)))
			if sleep(ctx, time.Until(from)+time.Duration(random.Float64()*float64(botsJoin))) != nil {
				return
			}
			c := b.sale
			if i%4 == 0 {
				c = b.checked
			}
			b.hoard(ctx, b.play.newCaller(16, 2*i+1), c, i)
		})
	}
}

// startVisitors starts the visitors of both rooms: those of the second come before, while and after bots with tickets do.
func (b *botnetEvent) startVisitors(ctx context.Context) {
	for i := range saleVisitors {
		b.visitors.Go(func() {
			if sleep(ctx, time.Duration(i)*visitorsJoin/saleVisitors) == nil {
				b.play.visit(ctx, b.sale, b.play.newCaller(17, i), fmt.Sprintf("visitor-%d-%d", b.sale.number, i))
			}
		})
	}
	for i := range checkedVisitors {
		b.visitors.Go(func() {
			if sleep(ctx, time.Duration(i)*checkedEvery) != nil {
				return
			}
			at := b.play.newCaller(18, i)
			at.proof = true
			b.play.visit(ctx, b.checked, at, fmt.Sprintf("checked-%d-%d", b.checked.number, i))
		})
	}
}

// awaitEmptyRooms waits until the botnet's rooms are empty, and every node admits users: after the loss of a node the room first
// waits until all sessions are over that it may have promised.
func (p *play) awaitEmptyRooms(ctx context.Context) error {
	var last string
	err := within(ctx, roomRests, "the botnet's rooms are empty and admit users", func() bool {
		for _, a := range p.nodes {
			for _, room := range []string{saleRoom, checkedRoom} {
				if last = a.roomBusy(ctx, room); last != "" {
					return false
				}
			}
		}
		return true
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// admitted returns how many users have come into the site since a time.
func (d *doorman) admitted(since time.Time) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, visits := range d.visits {
		if !visits[0].at.Before(since) {
			n++
		}
	}
	return n
}

// entered returns when a user was first seen at the site, or the zero time.
func (d *doorman) entered(name string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if visits := d.visits[name]; len(visits) > 0 {
		return visits[0].at
	}
	return time.Time{}
}

// A placed guest is one with the time of the admission, zero if that never came.
type placed struct {
	*guest
	entered time.Time
}

// placeGuests returns the guests with their times of admission.
func (c *contest) placeGuests() (visitors, botnet []placed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.guests {
		x := placed{g, c.site.entered(g.name)}
		if g.bot {
			botnet = append(botnet, x)
		} else {
			visitors = append(visitors, x)
		}
	}
	return visitors, botnet
}

// hoarders returns how many bots with tickets were admitted.
func (c *contest) hoarders() (n int) {
	_, botnet := c.placeGuests()
	for _, b := range botnet {
		if b.keeps && !b.entered.IsZero() {
			n++
		}
	}
	return n
}

// describe says who came in, and how long visitors waited.
func (c *contest) describe() string {
	visitors, botnet := c.placeGuests()
	in, longest, all := 0, time.Duration(0), 0
	for _, v := range visitors {
		if !v.entered.IsZero() {
			in++
			longest = max(longest, v.entered.Sub(v.joined))
		}
	}
	for _, b := range botnet {
		if !b.entered.IsZero() {
			all++
		}
	}
	kept := c.hoarders()
	return fmt.Sprintf("of room %s, %d of %d visitors were admitted, the last after %.0f s, and %d bots with tickets and %d without", c.room, in, len(visitors), longest.Seconds(), kept, all-kept)
}

// judge returns what is wrong with the order in which a room admitted its guests.
func (c *contest) judge() (wrong []string) {
	visitors, botnet := c.placeGuests()
	answered := slices.ContainsFunc(botnet, func(b placed) bool { return b.answered || !b.entered.IsZero() })
	switch {
	case !c.complete:
		return nil // the rehearsal ended meanwhile
	case len(visitors) == 0 || len(botnet) == 0:
		return []string{fmt.Sprintf("%d visitors and %d bots came to room %s", len(visitors), len(botnet), c.room)}
	case c.room == saleRoom && !answered:
		return []string{"no bot got a response of room " + c.room}
	}
	for _, v := range visitors {
		switch waited := v.entered.Sub(v.joined); {
		case v.entered.IsZero():
			wrong = append(wrong, fmt.Sprintf("%s was not admitted to room %s", v.name, c.room))
		case waited > c.within:
			wrong = append(wrong, fmt.Sprintf("%s waited %v for room %s, and %v is the limit", v.name, waited.Round(time.Second), c.room, c.within))
		}
	}
	if c.room == checkedRoom {
		for _, b := range botnet {
			if !b.entered.IsZero() {
				wrong = append(wrong, fmt.Sprintf("%s, who did not solve the challenge, was admitted to room %s", b.name, c.room))
			}
		}
		return wrong
	}
	if pass := passed(visitors, botnet); pass != "" {
		wrong = append(wrong, pass)
	}
	return wrong
}

// passed returns which bot with a ticket, that came in a later minute than a visitor, entered before the visitor: "" if none.
func passed(visitors, botnet []placed) string {
	for _, b := range botnet {
		if !b.keeps || b.entered.IsZero() {
			continue
		}
		for _, v := range visitors {
			later := b.joined.Truncate(time.Minute).After(v.joined.Truncate(time.Minute))
			if later && (v.entered.IsZero() || b.entered.Add(passTolerance).Before(v.entered)) {
				return fmt.Sprintf("%s, who joined %v after %s, was admitted before", b.name, b.joined.Sub(v.joined).Round(time.Second), v.name)
			}
		}
	}
	return ""
}

// judgeBotnet checks what the rooms of the botnet promise against many addresses.
func (p *play) judgeBotnet() check {
	const name = "a room holds its limits against a botnet, and admits its visitors"
	if len(p.contests) == 0 {
		return verdict(name, "no botnet came", nil)
	}
	var wrong, said []string
	for _, site := range p.sites {
		wrong = append(wrong, nonEmpty(site.exceeded())...)
	}
	for _, c := range p.contests {
		wrong = append(wrong, c.judge()...)
		said = append(said, c.describe())
	}
	return verdict(name, strings.Join(said, "; "), wrong)
}

// roomBusy returns why a room is not as at its start, as the node a sees it: "" if it is.
func (a *actor) roomBusy(ctx context.Context, room string) string {
	status, text, err := a.askPrivate(ctx, "/rooms/"+room+"/status")
	if err != nil {
		return err.Error()
	}
	var s struct {
		Queued     int  `json:"estimated_queued_users"`
		Active     int  `json:"estimated_total_active_users"`
		Recovering bool `json:"recovering"`
		CutOff     bool `json:"cut_off"`
		OriginDown bool `json:"origin_down"`
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil || status != http.StatusOK {
		return fmt.Sprintf("%s: status %d of room %s: %.100q", a.name, status, room, text)
	}
	if s.Queued > 0 || s.Active > 0 || s.Recovering || s.CutOff || s.OriginDown {
		return fmt.Sprintf("%s: room %s is %+v", a.name, room, s)
	}
	return ""
}
