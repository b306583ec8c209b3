package config

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const twoRooms = `# comment
rooms:
- &shop {name: shop, host: shop.example.com, total_active_users: 10, new_users_per_minute: 10}
- {name: own, host: own.example.com, total_active_users: 20, new_users_per_minute: 20, each_node: true}
`

// Fields that are set count instead of the file's until they are taken back, and the YAML of a document has both.
func TestDocument(t *testing.T) {
	d := Document{Name: "rooms.yaml", Text: twoRooms}
	if text, err := d.YAML(); err != nil || string(text) != twoRooms {
		t.Errorf("the file is not itself: %q %v", text, err)
	}
	set, err := d.With("shop", map[string]string{"total_active_users": "30", "custom_page_html": "'<p>#\n {{waitTime}}</p>'"})
	if err != nil {
		t.Fatal(err)
	}
	rooms, err := set.Rooms()
	if err != nil || rooms[0].TotalActiveUsers != 30 || rooms[1].TotalActiveUsers != 20 || len(d.Set) != 0 {
		t.Errorf("%+v %v, and %v of the document before", rooms, err, d.Set)
	}
	text, err := set.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse("again", text); err != nil || !reflect.DeepEqual(again, rooms) {
		t.Errorf("%v: %s", err, text)
	}
	back, err := set.With("shop", map[string]string{"total_active_users": "", "custom_page_html": ""})
	if err != nil || len(back.Set) != 0 {
		t.Errorf("%v %v", back.Set, err)
	}
	if _, err := d.With("shop", map[string]string{"custom_page_html": strings.Repeat("x", maxSet)}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a value of %d bytes: %v", maxSet, err)
	}
	if _, err := d.With("shop", map[string]string{"queue_al": ""}); err == nil || !strings.Contains(err.Error(), "did you mean queue_all?") {
		t.Errorf("a field that rooms do not have: %v", err)
	}
	wrong, err := d.With("shop", map[string]string{"total_active_users": "5"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.Rooms(); err == nil || !strings.Contains(err.Error(), "more than the 5") {
		t.Errorf("limits that contradict each other: %v", err)
	}
}

// A list with aliases to the rest of its file can be marshalled alone; one that grows without bound is refused.
func TestMarshal(t *testing.T) {
	var document yaml.Node
	const file = "limit: &limit 10\nrooms:\n- {name: a, total_active_users: *limit, new_users_per_minute: *limit}\n"
	if err := yaml.Unmarshal([]byte(file), &document); err != nil {
		t.Fatal(err)
	}
	text, err := Marshal(document.Content[0].Content[3])
	if err != nil {
		t.Fatal(err)
	}
	if rooms, err := Parse("r", text); err != nil || len(rooms) != 1 || rooms[0].TotalActiveUsers != 10 {
		t.Errorf("%s: %v", text, err)
	}
	bomb := "a0: &a0 [x, x]\n"
	for i := range 25 {
		n := string(rune('A' + i))
		bomb += "k" + n + ": &" + n + " [*" + before(i) + ", *" + before(i) + "]\n"
	}
	if err := yaml.Unmarshal([]byte(bomb), &document); err != nil {
		t.Fatal(err)
	}
	if _, err := Marshal(document.Content[0]); err == nil || !strings.Contains(err.Error(), "too many aliases") {
		t.Errorf("aliases of aliases: %v", err)
	}
}

// Lists have one canonical form where they are the same, and two where a value of a room differs.
func TestCanonical(t *testing.T) {
	canonical := func(list string) string {
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(list), &document); err != nil {
			t.Fatal(err)
		}
		c, err := Canonical(document.Content[0])
		if err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		return string(c)
	}
	const room = "[{name: a, rules: [{header: {1: '*', X-A: b}}]}]"
	for _, list := range []string{
		"- name: a # comment\n  rules:\n  - header:\n      X-A: \"b\"\n      1: '*'\n",
		"[{rules: &r [{header: {X-A: b, 1: '*'}}], name: a}]",
	} {
		if got, want := canonical(list), canonical(room); got != want {
			t.Errorf("%s: %s, want %s", list, got, want)
		}
	}
	if eight, octal := canonical("[{name: 8}]"), canonical("[{name: 010}]"); eight == octal {
		t.Errorf("rooms of two names: %s", eight)
	}
}

func before(i int) string {
	if i == 0 {
		return "a0"
	}
	return string(rune('A' + i - 1))
}
