package cluster

import (
	"reflect"
	"strings"
	"testing"
)

// What no node wrote among the nodes with waiting rooms is named, and cuts off no room; where it may have taken the place of a
// node's word, that node counts as one that does not answer.
func TestStrangeRooms(t *testing.T) {
	b := folder(t)
	n := join(t, b, "one")
	for _, r := range []RoomsOfNode{{"one", []string{"shop", "open"}}, {"two", []string{"shop"}}, {"three", []string{"shop"}}, {"four", []string{"shop"}}} {
		if err := n.JoinRooms(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for key, data := range map[string]string{
		"room/notes.txt": "to do", "room/old/one": "{}", roomsKey("two"): "not JSON", roomsKey("three"): `{"name": "one", "rooms": []}`, roomsKey("four"): strings.Repeat(" ", maxRoomed+1),
	} {
		if err := b.Put(t.Context(), key, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	all, strange, err := n.AllRooms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rooms := []string{"shop", "open"}
	if want := map[string][]string{"one": rooms, roomsKey("two"): rooms, roomsKey("three"): rooms, roomsKey("four"): rooms}; !reflect.DeepEqual(all, want) {
		t.Errorf("%v are listed and not %v", all, want)
	}
	for _, key := range []string{"room/notes.txt", "room/old/one", roomsKey("two"), roomsKey("three"), roomsKey("four")} {
		if strange[key] == nil {
			t.Errorf("%s is not named", key)
		}
	}
	if len(strange) != 5 {
		t.Errorf("%v", strange)
	}
	if rooms, err := n.Rooms(t.Context(), "two"); err == nil {
		t.Errorf("the bucket lists two with %v", rooms)
	}
	if err := n.JoinRooms(t.Context(), RoomsOfNode{"two", []string{"shop"}}); err != nil { // as it does each minute
		t.Fatal(err)
	}
	if all, strange, err = n.AllRooms(t.Context()); err != nil || len(strange) != 4 || len(all["two"]) != 1 {
		t.Errorf("%v, %v, %v", all, strange, err)
	}
}
