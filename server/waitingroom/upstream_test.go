package waitingroom

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

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
	if want := `GET /a%2Fb?c=d ` + host + ` cookie="mine=1; __larder_roomy=2" for=127.0.0.1 proto=http`; r.body != want || r.Header.Get("Cache-Control") != "private, max-age=60" || r.Header.Get("Cf-Waiting-Room-Command") != "" {
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

// TestStreaming has an upstream send a response in two parts, through a server whose deadlines for request and response are over
// before the handler starts: neither ends the exchange.
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
	front.Config.ReadHeaderTimeout = time.Minute // a busy machine reads the header late
	front.Config.ReadTimeout, front.Config.WriteTimeout = time.Nanosecond, time.Nanosecond
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
	close(more)
	if rest, err := io.ReadAll(res.Body); err != nil || string(first)+string(rest) != "1048576 bytes; done" {
		t.Errorf("%s%s, %v", first, rest, err)
	}
}

// TestPassing holds what an accepted ticket costs.
func TestPassing(t *testing.T) {
	h := open(t, small(1))
	u := h.user()
	u.get("/")
	room := h.rooms.currentRooms().byName["shop"]
	header := http.Header{"Cookie": {cookieName("") + "=" + u.cookie()}}
	now, m := h.Now(), room.settingsAt(h.Now())
	opened := testing.AllocsPerRun(100, func() { room.codec.open(u.cookie()) }) - testing.AllocsPerRun(100, func() { u.cookie() })
	decided := testing.AllocsPerRun(100, func() {
		if _, _, passes := room.findTicket(header, now, m); !passes {
			t.Fatal("it does not pass")
		}
	})
	if decided > opened {
		t.Errorf("the decision about an accepted ticket allocates %v times, its decryption %v times", decided, opened)
	}
}

func BenchmarkAccepted(b *testing.B) {
	keys := testKeys(b)
	now := time.Now()
	rooms, err := config.Parse("rooms.yaml", []byte(small(1)))
	if err != nil {
		b.Fatal(err)
	}
	codec := newTicketCodec(keys, &rooms[0])
	room := &room{config: &rooms[0], codec: codec, kept: &kept{}}
	m := room.compute(now)
	header := http.Header{"Cookie": {"a=b; " + cookieName("") + "=" + codec.seal(&queue.Ticket{ID: newTicket().ID, LastCheckIn: now, AcceptedAt: now, Ends: now.Add(time.Minute)})}}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, _, passes := room.findTicket(header, now, m); !passes {
				b.Fatal("it does not pass")
			}
		}
	})
}
