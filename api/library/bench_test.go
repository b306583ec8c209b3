package library_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/packages"
)

// publicCatalogue fills a shelf with the public catalogue, two releases a package.
func publicCatalogue(b *testing.B) *testkit.Shelf {
	b.Helper()
	source := filepath.Join("..", "..", "..", "shared", "data", "cdnjs-packages.tar.gz")
	if _, err := os.Stat(source); err != nil {
		b.Skipf("the public catalogue is not beside the checkout: %v", err)
	}
	catalogue, err := packages.Open(source)
	if err != nil {
		b.Fatal(err)
	}
	shelf := testkit.NewShelf(b)
	for _, p := range catalogue.Packages() {
		shelf.Enrol(p.Name, string(p.JSON))
		main := p.Filename
		if main == "" {
			main = "index.js"
		}
		for _, version := range []string{"1.0.0", "1.1.0"} {
			shelf.Publish(p.Name, version, main, map[string]string{main: p.Name + version})
		}
	}
	return shelf
}

// BenchmarkStart reads the whole public catalogue and builds the search index, as each
// start of the server does.
func BenchmarkStart(b *testing.B) {
	shelf := publicCatalogue(b)
	for b.Loop() {
		x := start(b, shelf)
		listing, err := x.Listing(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(listing.Libraries)), "libraries")
	}
}

// BenchmarkPublication is how long a publication takes until listing and search show
// it, beside the public catalogue.
func BenchmarkPublication(b *testing.B) {
	shelf := publicCatalogue(b)
	x := start(b, shelf)
	i := 0
	for b.Loop() {
		b.StopTimer()
		i++
		shelf.Publish("jquery", fmt.Sprintf("99.0.%d", i), "jquery.js", map[string]string{"jquery.js": "new"})
		b.StartTimer()
		testkit.Await(b, x, shelf.Log)
	}
}

func BenchmarkSearch(b *testing.B) {
	x := start(b, publicCatalogue(b))
	for _, text := range []string{"jquery", "font awesome", "boostrap", "a", "date picker for react", "xyzzy"} {
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				if _, err := x.Search(b.Context(), text, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// start returns an index that has read all of the shelf.
func start(b *testing.B, shelf *testkit.Shelf) *library.Index {
	b.Helper()
	x, err := library.New(library.Options{Store: shelf.Store, Log: shelf.Log})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- x.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	testkit.Await(b, x, shelf.Log)
	return x
}
