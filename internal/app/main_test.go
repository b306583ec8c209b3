package app

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == spins {
		spin()
		return
	}
	if dir := os.Getenv(holdsVariable); dir != "" {
		holdStore(dir)
		return
	}
	if RunIfWorker(os.Args) { // of a test that minifies
		return
	}
	os.Exit(m.Run())
}
