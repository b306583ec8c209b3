// Command demonstration is what the scripts of docs/demonstration and docs/story run besides Larder: called world it is the
// world that the story happens in, called tamper it breaks in.
package main

import (
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/internal/testkit"
)

func main() {
	if filepath.Base(os.Args[0]) == "tamper" {
		testkit.Tamper()
		return
	}
	testkit.World()
}
