package main

import (
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
)

// scriptGitServer serves the bare repositories below a folder.
func scriptGitServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gitserver DIR")
	}
	ts.Check(os.MkdirAll(ts.MkAbs(args[0]), 0o755))
	server, stop, err := gittest.Start(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv("GIT", server.URL)
}

// scriptDeliver sends an event to a webhook of $ADDRESS.
func scriptDeliver(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 5 {
		ts.Fatalf("usage: deliver STATUS PATH SECRET EVENT PAYLOAD")
	}
	response, err := githubtest.Deliver(ts.Getenv("ADDRESS")+args[1], args[2], args[3], []byte(args[4]))
	ts.Check(err)
	defer response.Body.Close()
	if got := response.Status[:3]; got != args[0] {
		ts.Fatalf("the answer is %s", got)
	}
}
