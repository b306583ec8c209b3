package waitingroom

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// childVariable tells the test's own program to be the process that is killed, and when the
// clock of both began.
const childVariable = "LARDER_ROOM_TEST_CHILD"

const (
	killedRoom = "- name: shop\n  total_active_users: 8\n  new_users_per_minute: 5\n  session_duration: 1\n  upstream: "
	// speed is how much faster than the machine's the clock of both processes runs.
	speed = 60
)

func fastClock(began int64) func() time.Time {
	at := time.Unix(0, began)
	return func() time.Time { return at.Add(speed * time.Since(at)).Round(0) }
}

func TestMain(m *testing.M) {
	if began, err := strconv.ParseInt(os.Getenv(childVariable), 10, 64); err == nil {
		if err := child(os.Args[1], os.Args[2], fastClock(began)); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	if port, err := strconv.Atoi(os.Getenv(streamClientVariable)); err == nil {
		if err := holdStreams(port); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child serves a room over the store in dir, in front of an upstream, until it is killed, or the test has ended.
func child(dir, upstream string, now func() time.Time) error {
	store, err := kvstore.Open(dir, kvstore.Options{MinFreeBytes: -1})
	if err != nil {
		return err
	}
	configured, err := config.Parse("rooms.yaml", []byte(killedRoom+upstream))
	if err != nil {
		return err
	}
	keys, err := newKeyring(make([]byte, keySize))
	if err != nil {
		return err
	}
	rooms, err := New(Options{Rooms: configured, Keys: keys, Runtime: durable.New(store, durable.Options{Now: now}), Now: now, Known: func(string) bool { return true }})
	if err != nil {
		return err
	}
	room := rooms.currentRooms().rooms[0]
	server := httptest.NewServer(rooms.Handler(http.NotFoundHandler()))
	fmt.Println(server.URL)
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		os.Exit(1)
	}()
	for {
		next, err := room.report(context.Background())
		if err != nil {
			return err
		}
		time.Sleep(max(next.Sub(now())/speed, time.Millisecond))
	}
}

// kills is how often to kill the process: LARDER_TEST_CRASHES where it is set.
func kills(t *testing.T) int {
	if s := os.Getenv("LARDER_TEST_CRASHES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 3
}

// A witness notes, from the tickets that users get, what a room has promised.
type witness struct {
	*testing.T
	now   func() time.Time
	codec *ticketCodec

	mu       sync.Mutex
	ends     map[string]time.Time // of sessions, by ticket
	since    map[string]time.Time // of tickets
	admitted map[int64]int        // by minute
	waited   int
	visits   map[string]*visit // at the upstream, by user
}

// A visit is from a user's first request at the upstream to the last one.
type visit struct{ first, last time.Time }

// ServeHTTP is the upstream.
func (w *witness) ServeHTTP(answer http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	user := r.Header.Get("X-User")
	if w.visits[user] == nil {
		w.visits[user] = &visit{first: now}
	}
	w.visits[user].last = now
	io.WriteString(answer, "origin")
}

// most is how many users were at the upstream at once.
func (w *witness) most() (most int) {
	for _, v := range w.visits {
		inside := 0
		for _, other := range w.visits {
			if !other.first.After(v.first) && !other.last.Before(v.first) {
				inside++
			}
		}
		most = max(most, inside)
	}
	return most
}

// enough reports whether the room was full, and visitors waited.
func (w *witness) enough() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ends) >= 8 && w.waited > 0
}

// see notes a ticket.
func (w *witness) see(value string) {
	t, ok := w.codec.open(value)
	w.mu.Lock()
	defer w.mu.Unlock()
	id := t.ID.String()
	switch first, known := w.since[id]; {
	case !ok:
		w.Errorf("a ticket that does not open: %q", value)
	case known && !first.Equal(t.Since):
		w.Errorf("a ticket since %v is one since %v", first, t.Since)
	}
	w.since[id] = t.Since
	if t.Waiting() {
		w.waited++
		return
	}
	if w.ends[id].IsZero() {
		w.admitted[t.AcceptedAt.Unix()/60]++
	}
	if t.Ends.After(w.ends[id]) {
		w.ends[id] = t.Ends
	}
	inside := 0
	now := w.now() // after the answer was made, so what has ended by now may have been inside; what has not, is
	for _, end := range w.ends {
		if end.After(now) {
			inside++
		}
	}
	if inside > 8 {
		w.Errorf("%d users have sessions in a room for 8", inside)
	}
}

// TestKill kills the real process again and again while users come, wait, and are in: neither
// limit is exceeded, and no user loses a place.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	began := time.Now().UnixNano()
	keys, _ := newKeyring(make([]byte, keySize))
	w := &witness{T: t, now: fastClock(began), codec: keys.codec("shop", ""), ends: map[string]time.Time{}, since: map[string]time.Time{}, admitted: map[int64]int{}, visits: map[string]*visit{}}
	upstream := httptest.NewServer(w)
	defer upstream.Close()
	var mu sync.Mutex
	address := ""
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for i := range 24 {
		crowd.Go(func() {
			w.user(ctx, rand.New(rand.NewPCG(1, uint64(i))), func() string { mu.Lock(); defer mu.Unlock(); return address })
		})
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	const most = 60 // on a busy machine less happens between two kills
	killed := 0
	for ; killed < kills(t) || !w.enough() && killed < most; killed++ {
		cmd := exec.Command(os.Args[0], dir, upstream.URL)
		cmd.Env = append(os.Environ(), childVariable+"="+strconv.FormatInt(began, 10))
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan()
		mu.Lock()
		address = lines.Text()
		mu.Unlock()
		time.Sleep(300*time.Millisecond + time.Duration(rng.Int64N(int64(900*time.Millisecond)))) // it lives for any time
		_ = cmd.Process.Kill()
		for lines.Scan() {
			t.Error(lines.Text())
		}
		_ = cmd.Wait()
		stdin.Close()
	}
	cancel()
	crowd.Wait()
	for minute, n := range w.admitted {
		if n > 5 {
			t.Errorf("%d users were admitted in minute %d of a room with 5", n, minute)
		}
	}
	if most := w.most(); most > 8 {
		t.Errorf("%d users were at the upstream of a room for 8 at once", most)
	}
	if !w.enough() {
		t.Errorf("%d users came in, %d answers said to wait: too few to prove anything", len(w.ends), w.waited)
	}
	t.Logf("%d kills; %d users came in over %d minutes, %d at once at the upstream, %d answers said to wait", killed, len(w.ends), len(w.admitted), w.most(), w.waited)
}

// keeps holds a room to leaving a user who waits the place that the user has, and returns it.
func (w *witness) keeps(before queue.Ticket, value string) queue.Ticket {
	t, _ := w.codec.open(value)
	settings := queue.Settings{TotalActiveUsers: 8, NewUsersPerMinute: 5}.WithDefaults()
	if before.ID != (queue.TicketID{}) && t.ID != before.ID && t.Since.Sub(before.LastCheckIn) <= settings.PlaceKept {
		w.Errorf("a user who waits since %v, and came last at %v, is a new one at %v", before.Since, before.LastCheckIn, t.Since)
	}
	if !t.Waiting() {
		return queue.Ticket{}
	}
	return t
}

// user comes, waits, stays for a while, leaves, and comes again with no ticket.
func (w *witness) user(ctx context.Context, rng *rand.Rand, address func() string) {
	for ctx.Err() == nil {
		cookies, _ := cookiejar.New(nil)
		client := http.Client{Jar: cookies}
		inside := 0
		name := strconv.FormatUint(rng.Uint64(), 36)
		var place queue.Ticket // of the last answer, zero where it did not come or was not to wait
		for stay := 1 + rng.IntN(8); ctx.Err() == nil && inside < stay; {
			at := address()
			pause := 5 * time.Second
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/", nil)
			if err != nil {
				continue
			}
			req.Header.Set("Accept", browserAccept)
			req.Header.Set("X-User", name)
			before := place
			place = queue.Ticket{}
			if res, err := client.Do(req); err == nil {
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				u, _ := url.Parse(at)
				for _, c := range cookies.Cookies(u) {
					if err == nil {
						w.see(c.Value)
						place = w.keeps(before, c.Value)
					}
				}
				if string(body) == "origin" {
					inside++
				} else if n, err := strconv.Atoi(res.Header.Get("Refresh")); err == nil {
					pause = time.Duration(n) * time.Second
				}
			}
			time.Sleep(max(pause/speed, 10*time.Millisecond))
		}
		client.CloseIdleConnections()
	}
}

// TestBackAtOnce has a full room killed: the first new visitor enters as soon as a slot is free.
func TestBackAtOnce(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(3), dir: dir})
	var users []*user
	for range 3 {
		users = append(users, h.user())
		users[len(users)-1].get("/")
	}
	ticket, _ := testKeys(t).codec("shop", "").open(users[0].cookie())
	h.close() // without Run's end, as by a kill
	h.add(2 * time.Second)
	again := openWith(t, houseOptions{yaml: small(3), dir: dir, known: true, clock: h.clock})
	if again.user().get("/").in() {
		t.Error("a new visitor comes into a full room")
	}
	again.pass(ticket.Ends.Sub(again.Now()) - time.Second)
	if s, _ := again.rooms.Status("shop"); s.Active != 3 {
		t.Errorf("%d are in, want 3", s.Active)
	}
	again.pass(time.Second + 2*time.Second)
	for i := range 4 {
		if in := again.user().get("/").in(); in != (i < 3) {
			t.Errorf("new visitor %d after all have left: in is %v", i, in)
		}
	}
}
