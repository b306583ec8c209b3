package library_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/packages"
)

// benchmarkLibraries is how many libraries [manyLibraries] publishes.
const benchmarkLibraries = 6_000

// manyLibraries returns a shelf with one release each of as many libraries as the public catalogue has. Names, descriptions
// and keywords are those of package search's sample of that catalogue, the last ones with a number behind the name.
func manyLibraries(b *testing.B) *testkit.Shelf {
	b.Helper()
	file, err := os.Open(filepath.Join("..", "search", "testdata", "catalogue.json.gz"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	unzip, err := gzip.NewReader(file)
	if err != nil {
		b.Fatal(err)
	}
	var sample []struct {
		Name, Description string
		Keywords          []string
	}
	if err := json.NewDecoder(unzip).Decode(&sample); err != nil {
		b.Fatal(err)
	}
	shelf := testkit.NewShelf(b)
	for i, published := 0, 0; published < benchmarkLibraries; i++ {
		d := sample[i%len(sample)]
		d.Description = cmp.Or(strings.TrimSpace(d.Description), d.Name)
		if i >= len(sample) {
			d.Name += strconv.Itoa(i)
		}
		packageJSON, err := json.Marshal(map[string]any{
			"name": d.Name, "description": d.Description, "keywords": append([]string{"library"}, d.Keywords...), "filename": "index.js",
			"repository": map[string]string{"type": "git", "url": "https://github.com/owner/" + d.Name + ".git"},
			"autoupdate": map[string]any{"source": "npm", "target": strings.ToLower(d.Name), "fileMap": []any{map[string]any{"basePath": "", "files": []string{"*.js"}}}},
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := packages.Parse(packages.Path(d.Name), packageJSON); err != nil { // a description or keyword that is refused today
			continue
		}
		published++
		shelf.Register(d.Name, string(packageJSON))
		shelf.Publish(d.Name, "1.1.0", "index.js", map[string]string{"index.js": d.Name})
	}
	return shelf
}

// BenchmarkStart reads 6,000 libraries and builds the search index, as each
// start of the server does.
func BenchmarkStart(b *testing.B) {
	shelf := manyLibraries(b)
	for b.Loop() {
		x := start(b, shelf)
		listing, err := x.Listing(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if len(listing.Libraries) != benchmarkLibraries {
			b.Fatalf("%d libraries were read, want %d", len(listing.Libraries), benchmarkLibraries)
		}
	}
}

// BenchmarkPublication is how long a publication takes until listing and search show
// it, beside 6,000 libraries.
func BenchmarkPublication(b *testing.B) {
	shelf := manyLibraries(b)
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
	x := start(b, manyLibraries(b))
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
	x := library.New(library.Options{Store: shelf.Store, Log: shelf.Log})
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
