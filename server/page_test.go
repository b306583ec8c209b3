package server_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/server"
)

// TestPageOfFolder leads people to the page of what is no file, and leaves programs their 404.
func TestPageOfFolder(t *testing.T) {
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		_, url := start(t, server.Options{Store: fixture(t), Page: func(path string) string { return "https://site.example/files/" + path }}, server.HTTPOptions{})
		for _, tt := range []struct {
			path, accept string
			status       int
			location     string
		}{
			{"/ajax/libs/demo/1.0.0/", browser, 303, "https://site.example/files/demo/1.0.0"},
			{"/ajax/libs/demo/1.0.0", browser, 303, "https://site.example/files/demo/1.0.0"},
			{"/ajax/libs/demo/1.0.0/odd/", browser, 303, "https://site.example/files/demo/1.0.0/odd"},
			{"/ajax/libs/demo/1.0.0/no%20such.js", browser, 303, "https://site.example/files/demo/1.0.0/no%20such.js"},
			{"/ajax/libs/demo/", browser, 303, "https://site.example/files/demo"},
			{"/ajax/libs/", browser, 303, "https://site.example/files/"},
			{"/ajax/libs", browser, 303, "https://site.example/files/"},
			{"/ajax/libs/demo/1.0.0/tiny.txt", browser, 200, ""},
			{"/ajax/libs/demo/0.9.0/demo.js", browser, 410, ""},
			{"/ajax/libs/demo/1.0.0/../x", browser, 400, ""},
			{"/ajax/libs/demo/1.0.0/", "*/*", 404, ""},
			{"/ajax/libs/demo/1.0.0/", "application/json", 404, ""},
			{"/ajax/libs/demo/1.0.0/", "text/html;q=0, */*", 404, ""},
			{"/ajax/libs/demo/1.0.0/nothing.js", "*/*", 404, ""},
		} {
			r, err := http.ReadResponse(dial(t, url, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nConnection: close\r\n\r\n", tt.path, tt.accept)), nil)
			if err != nil {
				t.Fatalf("%s: %v", tt.path, err)
			}
			if r.StatusCode != tt.status || r.Header.Get("Location") != tt.location {
				t.Errorf("%s for %s: %s, to %q; want %d, %q", tt.path, tt.accept, r.Status, r.Header.Get("Location"), tt.status, tt.location)
			}
			if r.StatusCode == 303 && r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: a cache may keep the way to the page: %s", tt.path, r.Header.Get("Cache-Control"))
			}
		}
	})
}
