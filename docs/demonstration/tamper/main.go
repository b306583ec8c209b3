// Tamper appends a line to a published file in a data folder that no process runs on, so that Larder serves it and
// knows no better. It is a part of the demonstration in README.md; see logs/tamper.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/tamper"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tamper:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return errors.New("usage: tamper DATA PACKAGE VERSION PATH LINE")
	}
	dir := filepath.Join(args[0], "store")
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		return err
	}
	return errors.Join(tamper.Append(store, args[1], args[2], args[3], []byte(args[4]+"\n")), store.Close())
}
