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
	for _, r := range []Roomed{{"one", []string{"shop", "open"}}, {"two", []string{"shop"}}, {"three", []string{"shop"}}, {"four", []string{"shop"}}} {
		if err := n.JoinRooms(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for key, data := range map[string]string{
		"room/notes.txt": "to do", "room/old/one": "{}", roomedKey("two"): "not JSON", roomedKey("three"): `{"name": "one", "rooms": []}`, roomedKey("four"): strings.Repeat(" ", maxRoomed+1),
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
	if want := map[string][]string{"one": rooms, roomedKey("two"): rooms, roomedKey("three"): rooms, roomedKey("four"): rooms}; !reflect.DeepEqual(all, want) {
		t.Errorf("%v are listed and not %v", all, want)
	}
	for _, key := range []string{"room/notes.txt", "room/old/one", roomedKey("two"), roomedKey("three"), roomedKey("four")} {
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
	if err := n.JoinRooms(t.Context(), Roomed{"two", []string{"shop"}}); err != nil { // as it does each minute
		t.Fatal(err)
	}
	if all, strange, err = n.AllRooms(t.Context()); err != nil || len(strange) != 4 || len(all["two"]) != 1 {
		t.Errorf("%v, %v, %v", all, strange, err)
	}
}
