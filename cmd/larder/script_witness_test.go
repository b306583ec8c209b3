package main

import (
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
)

// scriptWitness starts a witness.
func scriptWitness(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: witness NAME FILE")
	}
	log, err := note.NewVerifier(strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
	w, err := testkit.StartWitness(args[0]+".example", log)
	ts.Check(err)
	ts.Defer(w.Close)
	ts.Setenv(args[0], w.URL()+"#"+w.Key())
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".key"), []byte(w.Key()+"\n"), 0o600))
}
