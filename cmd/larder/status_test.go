package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

func TestStatusTellsWhatUpstreamChanged(t *testing.T) {
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	batch := store.NewBatch()
	defer batch.Close()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		if err := views.SetState(batch, views.State{Package: "demo", Version: version, Kind: views.Published, Updated: noon}); err != nil {
			t.Fatal(err)
		}
	}
	row, err := json.Marshal(bot.Origins{Target: "demo", Versions: map[string]bot.Origin{
		"1.0.0": {Published: "sha512-a", Listed: "sha512-a"},
		"1.1.0": {Published: "sha512-a", Changed: noon},
		"1.2.0": {Published: "sha512-a", Listed: "sha512-a", Changed: noon},
	}})
	if err != nil {
		t.Fatal(err)
	}
	batch.Set(kvstore.Upstreams, kvstore.Key("demo", "origins"), row)
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "demo"} {
		s, err := (&folder{store: store}).status(nil, name)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Changed) != 1 || s.Changed[0].Version != "1.1.0" || !s.Changed[0].Since.Equal(noon) {
			t.Errorf("status %q tells of %+v", name, s.Changed)
		}
		var out strings.Builder
		if err := s.print(&out, name != "", noon); err != nil {
			t.Fatal(err)
		}
		if want := "\ndemo 1.1.0: upstream has this release no longer"; strings.Count(out.String(), want) != 1 {
			t.Errorf("status %q prints\n%s", name, &out)
		}
	}
}
