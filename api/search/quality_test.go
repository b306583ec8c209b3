package search

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	// catalogueGZ are 4,118 libraries of the public catalogue with npm's downloads a month in autumn 2026, where known.
	//go:embed testdata/catalogue.json.gz
	catalogueGZ []byte
	// queriesText has a query in each line and, behind a tabulator, the libraries of which one should be found.
	//go:embed testdata/queries.txt
	queriesText string
	// pastedText is the same of what people paste and misspell, and of old names and abbreviations.
	//go:embed testdata/pasted.txt
	pastedText string
)

// wantedShare is how many of the queries find a right library among the first three on a fresh store.
const wantedShare = 0.95

// publicCatalogue returns the catalogue's libraries and how much each is wanted.
func publicCatalogue(t testing.TB) (list []Document, popularity map[string]float64) {
	t.Helper()
	unzip, err := gzip.NewReader(bytes.NewReader(catalogueGZ))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(unzip)
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Document
		Popularity float64
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	popularity = map[string]float64{}
	for _, r := range rows {
		list = append(list, r.Document)
		popularity[r.Name] = r.Popularity
	}
	return list, popularity
}

// public is the public catalogue with its index, which tests share and only read. Nothing closes the index, which is in memory.
var public struct {
	once       sync.Once
	index      *Index
	list       []Document
	popularity map[string]float64
	err        error
}

// publicIndex indexes the public catalogue for the first test that needs it.
func publicIndex(t *testing.T) (x *Index, list []Document, popularity map[string]float64) {
	t.Helper()
	public.once.Do(func() {
		public.list, public.popularity = publicCatalogue(t)
		if public.index, public.err = New(); public.err == nil {
			public.err = public.index.Update(slices.Clone(public.list), nil)
		}
	})
	if public.err != nil || public.index == nil {
		t.Fatalf("the public catalogue has no index: %v", public.err)
	}
	return public.index, public.list, public.popularity
}

func TestQuality(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("indexes 4,000 libraries")
	}
	x, _, popularity := publicIndex(t)
	for _, text := range []string{queriesText, pastedText} {
		quality(t, x, strings.Split(strings.TrimSpace(text), "\n"), popularity)
	}
}

func quality(t *testing.T, x *Index, queries []string, popularity map[string]float64) {
	t.Helper()
	right := 0
	for _, line := range queries {
		text, wanted, _ := strings.Cut(line, "\t")
		got := find(t, x, Query{Text: text, Popularity: func(name string) float64 { return popularity[name] }})
		got = got[:min(len(got), 3)]
		if slices.ContainsFunc(got, func(name string) bool { return slices.Contains(strings.Split(wanted, "|"), name) }) {
			right++
		} else {
			t.Logf("%s: %v, wanted one of %s", text, got, wanted)
		}
	}
	if share := float64(right) / float64(len(queries)); share < wantedShare {
		t.Errorf("%d of %d queries find what they should, %.1f %%; wanted %.0f %%", right, len(queries), 100*share, 100*wantedShare)
	}
}
