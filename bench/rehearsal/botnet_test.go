package main

import (
	"strings"
	"testing"
	"time"
)

// TestContest shows the judge of a room every way in which a room may break its promise to visitors.
func TestContest(t *testing.T) {
	begin := time.Unix(60*1000, 0)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	type coming struct {
		guest
		entered int // seconds; -1: never
	}
	visitor := func(joined, entered int) coming {
		return coming{guest{name: "visitor", keeps: true, joined: at(joined), answered: true}, entered}
	}
	bot := func(keeps bool, joined, entered int) coming {
		return coming{guest{name: "bot", bot: true, keeps: keeps, joined: at(joined), answered: true}, entered}
	}
	silent := bot(false, 0, -1)
	silent.answered = false
	for _, test := range []struct {
		name, room string
		guests     []coming
		want       string // "" for a room that keeps its promise
	}{
		{"in order", saleRoom, []coming{visitor(5, 60), visitor(6, 125), bot(true, 65, 190), bot(false, 0, 1)}, ""},
		{"one who was called a moment later", saleRoom, []coming{visitor(6, 125), bot(true, 65, 115)}, ""},
		{"a bot of the same minute", saleRoom, []coming{visitor(6, 125), bot(true, 55, 61)}, ""},
		{"a bot without a ticket took a slot before", saleRoom, []coming{visitor(6, 125), bot(false, 61, 62)}, ""},
		{"a visitor who is never admitted", saleRoom, []coming{visitor(5, -1), bot(true, 65, -1)}, "was not admitted"},
		{"a visitor who waits too long", saleRoom, []coming{visitor(5, 6+int(admittedWithin.Seconds())), bot(true, 65, -1)}, "is the limit"},
		{"a bot that passes a visitor", saleRoom, []coming{visitor(6, 125), bot(true, 65, 100)}, "was admitted before"},
		{"a bot that passes a visitor who never enters", saleRoom, []coming{visitor(6, -1), bot(true, 65, 100)}, "was admitted before"},
		{"no bot", saleRoom, []coming{visitor(5, 60)}, "1 visitors and 0 bots"},
		{"no visitor", saleRoom, []coming{bot(true, 5, 60)}, "0 visitors and 1 bots"},
		{"bots that get no response", saleRoom, []coming{visitor(5, 60), silent}, "no bot got a response"},
		{"the challenge holds", checkedRoom, []coming{visitor(5, 6), bot(true, 6, -1)}, ""},
		{"a bot that passes the challenge", checkedRoom, []coming{visitor(5, 6), bot(true, 6, 7)}, "did not solve the challenge"},
		{"bots keep a visitor from the challenge", checkedRoom, []coming{visitor(5, 6+int(checkedWithin.Seconds())), bot(true, 6, -1)}, "is the limit"},
	} {
		site := &doorman{limit: saleLimit, perMinute: salePerMinute, visits: map[string][]visit{}}
		c := &contest{room: test.room, site: site, within: admittedWithin, complete: true}
		if test.room == checkedRoom {
			c.within = checkedWithin
		}
		for i, g := range test.guests {
			g.name += "-" + string(rune('a'+i))
			c.guests = append(c.guests, &g.guest)
			if g.entered >= 0 {
				site.visits[g.name] = []visit{{at(g.entered), at(g.entered)}}
			}
		}
		got := strings.Join(c.judge(), "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if c.complete = false; len(c.judge()) > 0 {
			t.Errorf("%s: judged although the rehearsal ended meanwhile", test.name)
		}
	}
}

// TestBotnetCheck: a room that is fuller than its limit fails the check, whether visitors or bots fill it.
func TestBotnetCheck(t *testing.T) {
	at := time.Unix(60*1000, 0)
	site := &doorman{limit: 1, perMinute: 9, visits: map[string][]visit{"visitor-a": {{at, at}}, "bot-b": {{at, at}}}}
	p := &play{sites: []*doorman{site}, contests: []*contest{{room: saleRoom, site: site}}}
	if c := p.judgeBotnet(); c.OK || !strings.Contains(c.Said, "2 visitors are in") {
		t.Errorf("%+v", c)
	}
	site.limit = 2
	if c := p.judgeBotnet(); !c.OK {
		t.Errorf("%+v", c)
	}
}

// TestSite: the site counts users and tells them that they are in, and its challenge accepts only requests with the proof.
func TestSite(t *testing.T) {
	site, err := newSite(saleRoom)
	if err != nil {
		t.Fatal(err)
	}
	defer site.close()
	p := &play{nodes: []*actor{{address: site.server.Addr}}}
	c := p.newCaller(17, 3)
	c.url = "http://" + site.server.Addr
	begun := time.Now()
	if inside, _, err := c.request(t.Context(), saleRoom, "visitor"); err != nil || !inside {
		t.Error(inside, err)
	}
	if entered := site.entered("visitor"); entered.Before(begun) || site.admitted(begun) != 1 || !site.entered("absent").IsZero() {
		t.Errorf("entered at %v, %d are in", entered, site.admitted(begun))
	}
	for _, proof := range []bool{false, true} {
		c.proof = proof
		if _, _, err := c.request(t.Context(), "challenge", "visitor"); (err == errStatus(200)) != proof {
			t.Errorf("with a proof: %v: %v", proof, err)
		}
	}
}
