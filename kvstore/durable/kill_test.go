package durable

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// childVariable tells the test's own program to be the process that is killed.
const childVariable = "DURABLE_TEST_STORE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child gives out numbers and handles alarms, and tells of each, until it is killed.
func child(dir string) error {
	store, err := kvstore.Open(dir, kvstore.Options{MinFreeBytes: -1})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	tell := func(line ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(line...) // one write to a pipe
	}
	r := New(store, Options{})
	ns, err := Open(r, Class[step, int]{
		Name:   "script",
		Limits: Limits{Live: 3},
		New: func(context.Context, *State) (Handler[step, int], error) {
			return &script{alarm: func(ctx context.Context, s *State, a Alarm) error {
				tell("rung", s.Name())
				return s.Put(ctx, "rung", nil)
			}}, nil
		},
	})
	if err != nil {
		return err
	}
	numbers := counters(&testing.B{}, r, Limits{Live: 2})
	for i := range 20 {
		go func() {
			for {
				o := numbers.Object(fmt.Sprint("object-", i%5))
				if n, err := o.Send(context.Background(), struct{}{}); err != nil {
					tell("error", err)
				} else {
					tell("number", o.Name(), n)
				}
			}
		}()
	}
	for i := range 4 {
		go func() {
			for {
				o := ns.Object(ns.NewUniqueID())
				after := time.Duration(i) * 50 * time.Millisecond
				if _, err := o.Send(context.Background(), setAlarm(after)); err != nil {
					tell("error", err)
				} else {
					tell("set", o.Name())
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	// And some that coalesce, to be looked at after the kill.
	for i := 0; ; i++ {
		if _, err := ns.Object("pair").Send(context.Background(), func(ctx context.Context, s *State) error {
			return errors.Join(PutJSON(ctx, s, "a", i), PutJSON(ctx, s, "b", i))
		}); err != nil {
			return err
		}
	}
}

// The real process is killed again and again. No number is given out twice, every
// alarm that was said to be set fires, and what was written together is there together.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	l := &ledger{T: t, given: make(map[string]bool)}
	set, rung := make(map[string]bool), make(map[string]int)
	run := func(life time.Duration) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var timer *time.Timer
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if timer == nil { // it has begun
				timer = time.AfterFunc(life, func() { cmd.Process.Kill() })
			}
			switch word := strings.Fields(lines.Text()); {
			case word[0] == "number" && len(word) == 3:
				n, err := strconv.Atoi(word[2])
				if err != nil {
					t.Fatal(lines.Text())
				}
				l.add(word[1], n)
			case word[0] == "set":
				set[word[1]] = true
			case word[0] == "rung":
				rung[word[1]]++
			default:
				t.Error(lines.Text())
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the child ended by itself")
		}
	}
	const kills = 10
	for range kills {
		run(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
	}
	run(time.Second) // in which whatever is due fires
	store, err := kvstore.Open(dir, kvstore.Options{MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	missed, again := 0, 0
	for name := range set {
		if rung[name] > 1 {
			again++
		}
		if rung[name] > 0 {
			continue
		}
		// The last ones of the last process may still be in the store.
		if _, err := store.Get(kvstore.Durable, alarmKey("script", name)); err != nil {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d alarms never fired", missed, len(set))
	}
	t.Logf("%d numbers; %d alarms, %d of them more than once; %d kills", len(l.given), len(set), again, kills+1)
	a, errA := store.Get(kvstore.Durable, append(valuePrefix("script", "pair"), 'a'))
	b, errB := store.Get(kvstore.Durable, append(valuePrefix("script", "pair"), 'b'))
	if string(a) != string(b) || errA != nil || errB != nil {
		t.Errorf("written together: %s, %v and %s, %v", a, errA, b, errB)
	}
}
