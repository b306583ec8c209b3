package settings

import (
	"os"
	"path/filepath"
	"testing"
)

// Rooms in the configuration file are the same file in any style.
func TestInlineRoomsHaveOneHash(t *testing.T) {
	dir := t.TempDir()
	hash := func(rooms string) string {
		t.Helper()
		file := filepath.Join(dir, "larder.yaml")
		if err := os.WriteFile(file, []byte(rooms), 0o600); err != nil {
			t.Fatal(err)
		}
		s := New()
		s.ConfigFile = file
		if err := s.Load(nil); err != nil {
			t.Fatal(err)
		}
		read, on, err := s.ReadRooms()
		if err != nil || !on {
			t.Fatal(err)
		}
		return read.Hash()
	}
	one := hash("rooms:\n- {name: shop, host: shop.example.com, total_active_users: 10, new_users_per_minute: 10}\n")
	for _, style := range []string{
		"rooms:\n  - name: shop # the shop\n    host: \"shop.example.com\"\n    new_users_per_minute: 10\n    total_active_users: 10\n",
		"rooms: [{name: &a shop, host: 'shop.example.com', total_active_users: 10, new_users_per_minute: 10}]\nname: Another\n",
	} {
		if got := hash(style); got != one {
			t.Errorf("%s has another hash", style)
		}
	}
	if hash("rooms:\n- {name: shop, host: shop.example.com, total_active_users: 11, new_users_per_minute: 10}\n") == one {
		t.Error("other rooms have the same hash")
	}
}
