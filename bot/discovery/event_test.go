package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// openScheduler returns a scheduler for packages from npm, and their registry. The scheduler only plans downloads.
func openScheduler(t *testing.T, sink sources.Sink, names ...string) (*Scheduler, *npmtest.Registry) {
	t.Helper()
	registry, dir := npmtest.New(t), t.TempDir()
	write := func(text string, path ...string) {
		path = append([]string{dir}, path...)
		if err := os.MkdirAll(filepath.Join(path[:len(path)-1]...), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path...), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("registry="+registry.URL+"/\n", ".npmrc")
	for _, name := range names {
		write(fmt.Sprintf(`{
			"name": %[1]q, "description": "A test.", "keywords": ["test"], "filename": "a.js",
			"repository": {"type": "git", "url": "https://example.com/a.git"},
			"autoupdate": {"source": "npm", "target": %[1]q, "fileMap": [{"basePath": "", "files": ["*.js"]}]}
		}`, name), "packages", name[:1], name+".json")
	}
	catalogue, err := packages.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := npm.LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	client, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	store, err := kvstore.Open(filepath.Join(dir, "store"), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	now, logger, changed := func() time.Time { return hour(100) }, slog.New(slog.DiscardHandler), func(string) {}
	runtime := durable.New(store, durable.Options{Now: now})
	t.Cleanup(func() { runtime.Close(context.Background()) })
	upstreams := &sources.Sources{Npm: npm.NewClient(config, client, npm.Options{})}
	records := sources.NewRecords(sources.RecordsOptions{Store: store, Logger: logger, Interval: time.Hour, Changed: changed, Now: now})
	breakers := sources.NewBreakers(now, time.Minute, logger)
	publisher, err := ingest.New(ingest.Options{
		Store: store, Log: log, Logger: logger, Sources: upstreams, Records: records, Breakers: breakers, Budget: worker.NewBudget(1, 1<<20),
		Downloads: 1, Workers: 1, Encoders: 1, TempDir: filepath.Join(dir, "tmp"), Changed: changed, Events: sink, Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	publisher.UseCatalogue(catalogue)
	sc, err := New(Options{
		Store: store, Log: log, Logger: logger, Sources: upstreams, Records: records, Breakers: breakers, Publisher: publisher, Releases: 10,
		Interval: time.Hour, Runtime: runtime, ClockCheck: time.Minute, Changed: changed, Events: sink, Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return sc, registry
}

// pollForFresh polls a package as the schedule does and, if event is true, as an event does at the same time. It returns the version that a download
// of fresh releases takes then, "" for none.
func pollForFresh(t *testing.T, sc *Scheduler, name string, event bool) string {
	t.Helper()
	p, _ := sc.options.Publisher.Catalogue().Get(name)
	q := newQueue()
	var polls errgroup.Group
	polls.Go(func() error { return sc.poll(t.Context(), p, q, func() {}) })
	if event {
		polls.Go(func() error { return sc.pollAnnouncedPackage(t.Context(), name, q) })
	}
	if err := polls.Wait(); err != nil {
		t.Fatal(err)
	}
	q.close()
	task, _, err := q.pop(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return task.Version.Name
}

// An event during the first poll of a package moves its newest release ahead of the backlog, whichever poll finds the release.
func TestEventDuringPoll(t *testing.T) {
	const packages = 40
	var names []string
	for i := range packages {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	polls := make(chan string, 1) // holds the package that is being polled
	sc, registry := openScheduler(t, func(e sources.Event) {
		switch e.Kind {
		case sources.Checking:
			select {
			case polls <- e.Package:
			default:
				t.Errorf("two polls of %s run at once", e.Package)
			}
		case sources.Checked:
			<-polls
		}
	}, names...)
	for _, name := range names {
		for v := range 3 {
			registry.Add(name, fmt.Sprintf("1.%d.0", v), hour(v), map[string]string{"a.js": name})
		}
		if got := pollForFresh(t, sc, name, true); got != "1.2.0" {
			t.Errorf("%s: %q is ahead of the backlog", name, got)
		}
	}
}

// An event about a package whose first poll fails is remembered until a later poll finds the release.
func TestEventBeforePollThatFails(t *testing.T) {
	sc, registry := openScheduler(t, nil, "a")
	if got := pollForFresh(t, sc, "a", true); got != "" {
		t.Fatalf("the registry has no such package, but %q is ahead of the backlog", got)
	}
	registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	if got := pollForFresh(t, sc, "a", false); got != "1.0.0" {
		t.Errorf("%q is ahead of the backlog", got)
	}
}
