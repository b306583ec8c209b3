package versitygw

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/shopping"
)

// A centre is a node whose ways to the bucket and to the other nodes are wires.
type centre struct {
	*node
	at     string // where it listens for the others
	bucket *wire
	others map[*centre]*wire
	args   []string
}

// newCentres returns three nodes. The bucket tells each of them, in the place of another's address, where its wire to that begins.
func newCentres(t *testing.T, g *gateway, site string) (all [3]*centre) {
	t.Helper()
	c := newCrew(t, "")
	c.write("rooms.yaml", shopping.Rooms(site))
	for i, name := range []string{"one", "two", "three"} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.1.%d:0", 1+i)) // so that no connection, which is at 127.0.0.1, takes the port
		if err != nil {
			t.Fatal(err)
		}
		all[i] = &centre{node: c.node(name, nil), at: l.Addr().String(), others: map[*centre]*wire{}}
		l.Close()
	}
	for _, n := range all {
		for _, other := range all {
			if other != n {
				n.others[other] = newWire(t, other.at)
			}
		}
		view := front(t, n.looks, g)
		n.bucket = newWire(t, view.Listener.Addr().String())
		n.args = []string{
			"--node-url", "https://" + n.at, "--bucket-endpoint", "http://" + n.bucket.address(), "--rooms", filepath.Join(c.dir, "rooms.yaml"),
		}
	}
	return all
}

// looks is the bucket as the node sees it.
func (n *centre) looks(store http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/epoch/") {
			store.ServeHTTP(w, r)
			return
		}
		got := httptest.NewRecorder()
		store.ServeHTTP(got, r)
		body := got.Body.Bytes()
		for other, wire := range n.others {
			body = bytes.ReplaceAll(body, []byte("https://"+other.at+`"`), []byte("https://"+wire.address()+`"`))
		}
		for name, values := range got.Header() {
			w.Header()[name] = values
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(got.Code)
		w.Write(body)
	})
}

func (n *centre) up() { n.Helper(); n.start(n.args...) }

// nodes has the ways between the node and each other one be in a state, in both directions.
func (n *centre) nodes(state wireState) {
	for other, wire := range n.others {
		wire.become(state)
		other.others[n].become(state)
	}
}

func (n *centre) signal(s os.Signal) {
	n.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.Fatal(err)
	}
}

// A failure is what happens to the node that publishes and to another one.
type failure struct {
	name   string
	silent []int // which of the two do not answer meanwhile: 0 is the one that publishes
	do     func(writer, other *centre, how wireState)
}

var failures = []failure{
	{"the node that publishes is cut off from the others", nil, func(writer, _ *centre, how wireState) { writer.nodes(how) }},
	{"a node is cut off from the one that publishes", nil, func(writer, other *centre, how wireState) { other.others[writer].become(how) }},
	{"the node that publishes is cut off from the bucket", nil, func(writer, _ *centre, how wireState) { writer.bucket.become(how) }},
	{"a node is cut off from all", nil, func(_, other *centre, how wireState) {
		other.nodes(how)
		other.bucket.become(how)
	}},
	{"the node that publishes is cut off from all", nil, func(writer, _ *centre, how wireState) {
		writer.nodes(how)
		writer.bucket.become(how)
	}},
	{"a node is cut off from the bucket, and the one that publishes is killed", []int{0}, func(writer, other *centre, how wireState) {
		other.bucket.become(how)
		writer.end(syscall.SIGKILL)
	}},
	{"the node that publishes is stopped, and another is cut off from all", []int{0}, func(writer, other *centre, how wireState) {
		other.nodes(how)
		other.bucket.become(how)
		writer.signal(syscall.SIGSTOP)
	}},
	{"the bucket is cut off from all", nil, func(writer, _ *centre, how wireState) {
		writer.bucket.become(how)
		for n := range writer.others {
			n.bucket.become(how)
		}
	}},
	{"two are killed", []int{0, 1}, func(writer, other *centre, _ wireState) {
		writer.end(syscall.SIGKILL)
		other.end(syscall.SIGKILL)
	}},
	{"a node is stopped while the one that publishes is cut off from all", []int{1}, func(writer, other *centre, how wireState) {
		other.signal(syscall.SIGSTOP)
		writer.nodes(how)
		writer.bucket.become(how)
	}},
}

// TestRoomPartitions has three processes share rooms, with visitors who go from one to another with their tickets, and cuts or stalls
// their ways to each other and to the bucket, while processes are killed and stopped: no more users reach the site than the limits say,
// users who are in stay in, and new ones come in at each node in time when all is whole again.
func TestRoomPartitions(t *testing.T) {
	t.Parallel()
	rounds, spread := 2, 1 // spread is how many seconds failures may last beyond the shortest
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		rounds, spread = 2*len(failures), 14
	}
	site := &shopping.Site{}
	upstream := httptest.NewServer(site)
	defer upstream.Close()
	all := newCentres(t, newGateway(t, folder(t), false), upstream.URL)
	one := all[0]
	one.up()
	one.eventuallyByCommand("one publishes", func() bool { return one.told().Role == "leader" })
	for i, n := range all {
		if i > 0 {
			n.takeKeys(one.node, "log.key", "log.pub", "checkpoint", "cluster.key")
			n.up()
		}
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	crowd := shopping.NewCrowd(ctx, t, len(all))
	for i, n := range all {
		crowd.Find(i, n.url)
	}
	t.Logf("at first visitors come in after %v", crowd.ComesIn(shopping.Horizon, 0, 1, 2))
	var living sync.WaitGroup
	for range 40 {
		living.Go(crowd.Live)
	}
	// Not within one minute of the site's clock: those who came at its end fill the room in the next.
	one.eventually("as many have come to the shop as may in a minute", func() bool {
		n, _, _ := site.Most()
		return n >= shopping.Rate
	})
	limits := func() {
		t.Helper()
		if users, atOnce, inMinute := site.Most(); atOnce > shopping.Total || inMinute > shopping.Rate || users < shopping.Rate {
			t.Fatalf("%d users came, %d were at the site of %d, %d came in a minute of %d", users, atOnce, shopping.Total, inMinute, shopping.Rate)
		}
	}
	var slowest time.Duration
	for round := range rounds {
		f, how := failures[(round*3+round/len(failures))%len(failures)], wireState(1+round%2)
		writer := writing(all)
		other := (writer + 1 + rand.IntN(2)) % 3
		affected := []int{writer, other}
		guests := map[int]*http.Client{}
		for i := range all {
			guests[i] = crowd.Client()
			all[i].eventually("a visitor comes in at "+all[i].name, func() bool {
				in, _ := crowd.Visit(i, guests[i], "", "/open")
				return in
			})
		}
		f.do(all[writer], all[other], how)
		for _, silent := range f.silent {
			delete(guests, affected[silent])
		}
		for until := time.Now().Add(time.Duration(4+rand.IntN(spread)) * time.Second); time.Now().Before(until); time.Sleep(2 * time.Second) {
			for i, guest := range guests {
				if !crowd.Stays(i, guest) {
					t.Errorf("%s: a user who is in does not come in at %s", f.name, all[i].name)
				}
			}
		}
		for _, n := range all {
			n.nodes(whole)
			n.bucket.become(whole)
		}
		for _, silent := range f.silent {
			n := all[affected[silent]]
			select {
			case <-n.ended:
				n.up()
				crowd.Find(affected[silent], n.url)
			default:
				n.signal(syscall.SIGCONT)
			}
		}
		healed := time.Now()
		for i := range all {
			crowd.ComesIn(shopping.Recovers, i)
		}
		took := time.Since(healed)
		slowest = max(slowest, took)
		t.Logf("round %d: %s, %s: visitors come in at each node %v afterwards", round, f.name, [...]string{cut: "cut", stalled: "stalled"}[how], took.Round(100*time.Millisecond))
		limits()
	}
	end()
	living.Wait()
	users, atOnce, inMinute := site.Most()
	limits()
	t.Logf("%d users, at most %d at once of %d, %d in a minute of %d; visitors came in at each node after %v at the latest",
		users, atOnce, shopping.Total, inMinute, shopping.Rate, slowest.Round(100*time.Millisecond))
}

// writing returns which node publishes.
func writing(all [3]*centre) (i int) {
	all[0].Helper()
	all[0].eventuallyByCommand("one node publishes", func() bool {
		for k, n := range all {
			if n.told().Role == "leader" {
				i = k
				return true
			}
		}
		return false
	})
	return i
}
