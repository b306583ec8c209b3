package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestRoomPage runs the commands by which docs/waiting-room.md goes from nothing to a running room, as they are written there. Only the
// addresses are others.
func TestRoomPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "welcome to the shop\n") }))
	defer site.Close()
	d := &drill{T: t, dir: t.TempDir(), environ: npmtest.New(t).Environ(t.TempDir()), names: []string{"http://127.0.0.1:3000", site.URL}}
	d.write("catalogue/packages/m/my-library.json", `{"name": "my-library", "description": "Mine.", "keywords": ["mine"], "filename": "mine.js",
		"repository": {"type": "git", "url": "https://git.example/mine.git"}}`)
	d.blocks = commandsOf(t, "waiting-room.md")["From nothing to a running room"]
	if len(d.blocks) != 3 || !strings.Contains(d.blocks[0], "\nlarder up --rooms rooms.yaml ") {
		t.Fatalf("the page has the commands %q", d.blocks)
	}
	d.run(0, 0)
	d.up("--rooms", "rooms.yaml")
	d.run(1, 0, "welcome to the shop", "You are in line", "shop")
	d.run(2, 0, "event: called", "welcome to the shop", "version 2")
}
