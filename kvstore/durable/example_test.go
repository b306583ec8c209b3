package durable_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// A request to a guest book: a guest signs it, or its owner wants a report at a time.
type request struct {
	Guest    string
	ReportAt time.Time
}

// A guestBook counts the guests of one house. Each house has its own: an object by the name of the house.
type guestBook struct {
	owner string // the address that reports go to
}

const countKey = "guests"

// Handle counts a guest, and answers with the guest's number. No number is given twice, however many sign at
// once and whatever is killed: the number is on the disk when it is answered.
func (g *guestBook) Handle(ctx context.Context, s *durable.State, r request) (int, error) {
	guests, _, err := durable.GetJSON[int](ctx, s, countKey)
	if err != nil {
		return 0, err
	}
	if !r.ReportAt.IsZero() {
		return guests, s.SetAlarm(ctx, r.ReportAt)
	}
	guests++
	return guests, durable.PutJSON(ctx, s, countKey, guests)
}

// Alarm reports, at its time or after it, also where the process was restarted in between. Where it returns an error it
// is called again, so a report may come twice.
func (g *guestBook) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	guests, _, err := durable.GetJSON[int](ctx, s, countKey)
	if err != nil {
		return err
	}
	report, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/%s?guests=%d", g.owner, s.Name(), guests), nil)
	if err != nil {
		return err
	}
	answer, err := s.Client().Do(report) // meanwhile others may sign
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the owner's answer is %s", answer.Status)
	}
	return nil
}

// The whole of a guest book: counting, an alarm, and a call from it.
func Example() {
	reports := make(chan string)
	owner := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reports <- r.URL.String() }))
	defer owner.Close()

	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	ctx := context.Background()
	runtime := durable.New(store, durable.Options{})
	defer runtime.Close(ctx)
	books, err := durable.Open(runtime, durable.Class[request, int]{
		Name: "guest-book",
		New: func(context.Context, *durable.State) (durable.Handler[request, int], error) {
			return &guestBook{owner: owner.URL}, nil
		},
		Client: owner.Client(),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, visit := range []struct{ house, guest string }{{"mill", "Ada"}, {"mill", "Grace"}, {"tower", "Ada"}} {
		number, err := books.Object(visit.house).Send(ctx, request{Guest: visit.guest})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is guest %d of the %s\n", visit.guest, number, visit.house)
	}
	if _, err := books.Object("mill").Send(ctx, request{ReportAt: time.Now()}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("reported:", <-reports)
	// Output:
	// Ada is guest 1 of the mill
	// Grace is guest 2 of the mill
	// Ada is guest 1 of the tower
	// reported: /mill?guests=2
}
