package discovery

import (
	"context"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
)

func newTask(pkg, version string, rank int) ingest.Task {
	return ingest.Task{Pkg: &packages.Package{Name: pkg}, Version: sources.Candidate{Name: version}, Rank: rank}
}

func TestQueueTakesEveryPackagesNewestFirst(t *testing.T) {
	q := newQueue()
	q.push(newTask("vue", "3", 0), newTask("vue", "2", 1), newTask("vue", "1", 2))
	q.push(newTask("d3", "7", 0), newTask("d3", "6", 1))
	q.close()
	var got []string
	for {
		task, ok, err := q.pop(context.Background(), false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got = append(got, task.ID())
	}
	want := []string{"d3 7", "vue 3", "d3 6", "vue 2", "vue 1"}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestQueueEndsForAllWhoWait(t *testing.T) {
	q := newQueue()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, ok, err := q.pop(context.Background(), false); ok || err != nil {
				t.Errorf("pop: %v, %v", ok, err)
			}
		})
	}
	q.close()
	wg.Wait()
}
