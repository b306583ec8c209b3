package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCache starts what stands in front of a larder: it answers everything with one status, and FILE has a line for
// each request, with its body.
func scriptCache(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cache FILE STATUS")
	}
	status, err := strconv.Atoi(args[1])
	ts.Check(err)
	file, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		fmt.Fprintf(file, "%s %s %s\n", r.Method, r.URL.RequestURI(), body)
		mu.Unlock()
		w.WriteHeader(status)
	}))
	ts.Defer(func() {
		server.Close()
		file.Close()
	})
	ts.Setenv("CACHE", server.URL)
}

// scriptCalled waits until a line of FILE matches.
func scriptCalled(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: called FILE PATTERN")
	}
	pattern, err := regexp.Compile("(?m)^" + args[1])
	ts.Check(err)
	for deadline := time.Now().Add(scriptTimeout); ; time.Sleep(5 * time.Millisecond) {
		text := ts.ReadFile(args[0])
		if pattern.MatchString(text) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("nothing matches %s among\n%s", args[1], text)
		}
	}
}
