package app

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if Child(os.Args) { // of a test that minifies
		return
	}
	os.Exit(m.Run())
}
