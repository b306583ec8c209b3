package api

import (
	"context"
	"path"
	"strings"

	"github.com/larder-cdn/larder/logs/views"
)

// categories says of which extensions a version's files are shown, and what they are, in the contract's order.
var categories = []struct{ extension, category string }{
	{"js", "JavaScript"}, {"mjs", "JavaScript"},
	{"ts", "TypeScript"},
	{"wasm", "WebAssembly"},
	{"map", "Source Maps"},
	{"swf", "Flash"},
	{"json", "JSON"},
	{"css", "Styling"}, {"scss", "Styling"},
	{"png", "Images"}, {"gif", "Images"}, {"jpg", "Images"}, {"jpeg", "Images"}, {"svg", "Images"}, {"webp", "Images"}, {"cur", "Images"},
	{"ttf", "Fonts"}, {"eot", "Fonts"}, {"woff", "Fonts"}, {"woff2", "Fonts"}, {"otf", "Fonts"},
	{"aac", "Audio"}, {"mp3", "Audio"}, {"ogg", "Audio"},
	{"lang", "Other"}, {"hpb", "Other"},
}

var whitelisted = func() map[string]bool {
	set := map[string]bool{}
	for _, c := range categories {
		set[c.extension] = true
	}
	return set
}()

// rawPaths returns the paths of all files.
func rawPaths(files []views.PublishedFile) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

// shownPaths returns the paths of the files whose extension is on the whitelist, as it is there: the public service
// regards case.
func shownPaths(files []views.PublishedFile) []string {
	paths := []string{}
	for _, f := range files {
		if whitelisted[strings.TrimPrefix(path.Ext(f.Path), ".")] {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

var whitelistFields = vocabulary{"extensions", "categories"}

// whitelist answers /whitelist.
func (p *public) whitelist(_ context.Context, r *request) (*body, caching, error) {
	set := whitelistFields.parseOrAll(r.query["fields"])
	var w jsonWriter
	w.beginObject()
	if whitelistFields.has(set, "extensions") {
		w.name("extensions")
		w.beginArray()
		for _, c := range categories {
			w.value(c.extension)
		}
		w.endArray()
	}
	if whitelistFields.has(set, "categories") {
		w.name("categories")
		w.beginObject()
		for _, c := range categories {
			w.field(c.extension, c.category)
		}
		w.endObject()
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}

var statsFields = vocabulary{"libraries"}

// stats answers /stats.
func (p *public) stats(ctx context.Context, r *request) (*body, caching, error) {
	set := statsFields.parseOrAll(r.query["fields"])
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, caching{}, err
	}
	var w jsonWriter
	w.beginObject()
	if statsFields.has(set, "libraries") {
		w.field("libraries", len(listing.Libraries))
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}
