package main

import (
	"time"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// scriptGitHub starts what a log is pushed to.
func scriptGitHub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: github DIR TOKEN")
	}
	hub := githubtest.New(args[1])
	ts.Check(hub.Add("example/logs", ts.MkAbs(args[0]), gitlog.Branch))
	url, stop := hub.Start()
	ts.Defer(stop)
	ts.Setenv("GITHUB", url)
}

// scriptSame waits until the branches of two repositories are at one commit.
func scriptSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same DIR DIR")
	}
	at := func(dir string) string {
		r, err := git.PlainOpen(ts.MkAbs(dir))
		ts.Check(err)
		ref, err := r.Reference(plumbing.NewBranchReferenceName(gitlog.Branch), true)
		if err != nil {
			return ""
		}
		return ref.Hash().String()
	}
	for deadline := time.Now().Add(scriptTimeout); ; time.Sleep(20 * time.Millisecond) {
		one, two := at(args[0]), at(args[1])
		if one == two && one != "" {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s is at %q and %s at %q", args[0], one, args[1], two)
		}
	}
}
