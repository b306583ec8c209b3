package app

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// Nodes come to the same settings of rooms, in whichever order they hear of them.
func TestRoomsSet(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 0))
		nodes := []roomsSet{{}, {}, {}}
		rooms, fields, values := []string{"shop", "open"}, []string{"queue_all", "suspended", "total_active_users"}, []string{"", "1", "2"}
		pick := func(of []string) string { return of[rng.IntN(len(of))] }
		for range 30 {
			n := nodes[rng.IntN(3)]
			if rng.IntN(2) == 0 {
				n.put(pick(rooms), map[string]string{pick(fields): pick(values)}, now.Add(time.Duration(rng.IntN(5))*time.Millisecond))
			} else {
				n.merge(nodes[rng.IntN(3)].clone())
			}
		}
		for range 2 {
			for _, n := range nodes {
				for _, other := range nodes {
					n.merge(other.clone())
				}
			}
		}
		for _, n := range nodes[1:] {
			if !reflect.DeepEqual(n, nodes[0]) {
				t.Fatalf("seed %d: %v and %v", seed, nodes[0], n)
			}
		}
		if changed := nodes[0].merge(nodes[1]); changed != nil {
			t.Errorf("%v is new of what is known", changed)
		}
	}
	// The last word counts, also where the clock of the node that hears it is behind.
	one, two := roomsSet{}, roomsSet{}
	one.put("shop", map[string]string{"queue_all": "true"}, now)
	if changed := two.merge(one); !reflect.DeepEqual(changed, []string{"shop"}) {
		t.Errorf("%v changed", changed)
	}
	two.put("shop", map[string]string{"queue_all": ""}, now.Add(-time.Hour))
	one.merge(two)
	if set := one.counts(); !reflect.DeepEqual(one, two) || len(set["shop"]) != 0 {
		t.Errorf("%v counts", set)
	}
}

// setting returns a setter of a room that nodes have in common, and of one that is each node's own.
func setting(t *testing.T) *roomSetter {
	folder := t.TempDir()
	s := &settings.Settings{Data: filepath.Join(folder, "data"), Rooms: filepath.Join(folder, "rooms.yaml")}
	const yaml = `rooms:
- {name: shop, host: shop.example.com, total_active_users: 10, new_users_per_minute: 10}
- {name: own, host: own.example.com, total_active_users: 10, new_users_per_minute: 10, each_node: true}
`
	if err := os.WriteFile(s.Rooms, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{"data", "keys"} {
		if err := os.Mkdir(filepath.Join(folder, of), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	configured, err := waitingRooms(s)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := waitingroom.OpenKeys(filepath.Join(folder, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	runtime := durable.New(testkit.NewShelf(t).Store, durable.Options{})
	t.Cleanup(func() {
		if err := runtime.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	rooms, err := waitingroom.New(waitingroom.Options{
		Rooms: configured, Keys: keys, Runtime: runtime, Logger: quiet, Known: func(string) bool { return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	served := &running{process: process{logger: quiet, settings: s}}
	r, err := newRoomSetter(newServing(served), rooms)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What another node tells is kept of the rooms that this one shares, of a size that can be told.
func TestAdoptedRooms(t *testing.T) {
	r := setting(t)
	told := roomsSet{"shop": {"total_active_users": {"20", 5}}, "own": {"total_active_users": {"20", 5}}}
	for i := range 100 {
		told[fmt.Sprint("none", i)] = map[string]fieldSet{"total_active_users": {"20", 5}}
	}
	r.adopt(told)
	want := roomsSet{"shop": {"total_active_users": {"20", 5}}}
	if !reflect.DeepEqual(r.set, want) || !reflect.DeepEqual(r.shared.Load().set, want) {
		t.Errorf("%d rooms were set, %v", len(r.set), r.set["own"])
	}
	huge := map[string]fieldSet{}
	for i := range 100 {
		huge[fmt.Sprint(i, strings.Repeat("x", mostSet/50))] = fieldSet{"", 6}
	}
	r.adopt(roomsSet{"shop": huge})
	// Nothing is set after the end of time.
	r.adopt(roomsSet{"shop": {"total_active_users": {"30", math.MaxInt64}}})
	if !reflect.DeepEqual(r.set, want) {
		t.Errorf("%d fields were set, %v", len(r.set["shop"]), r.set["shop"]["total_active_users"])
	}
}

// What could not be kept is taken up when it can.
func TestAdoptedWhenItCanBeKept(t *testing.T) {
	r := setting(t)
	if err := os.Remove(r.settings.Data); err != nil {
		t.Fatal(err)
	}
	told := roomsSet{"shop": {"total_active_users": {"20", 5}}}
	r.adopt(told)
	if len(r.set) > 0 {
		t.Fatalf("%v was set", r.set)
	}
	if err := os.Mkdir(r.settings.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	r.adopt(told)
	if !reflect.DeepEqual(r.set, told) {
		t.Errorf("%v was set", r.set)
	}
}

// A file of rooms that is being edited counts when it is reloaded, and not when a field is set.
func TestSetBesideAnEdit(t *testing.T) {
	r := setting(t)
	if err := os.WriteFile(r.settings.Rooms, []byte("rooms:\n- {name: shop, host: "), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.put(SetRoomRequest{Room: "shop", Fields: map[string]string{"total_active_users": "20"}}); err != nil {
		t.Error(err)
	}
	if err := r.reload(&settings.Settings{Data: r.settings.Data, Rooms: r.settings.Rooms}); err == nil {
		t.Error("what is half written was taken up")
	}
}
