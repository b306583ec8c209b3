package ingest

import (
	"os"
	"testing"

	"github.com/larder-cdn/larder/bot/worker"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.RunChild()
	}
	os.Exit(m.Run())
}
