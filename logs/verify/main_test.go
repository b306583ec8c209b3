package verify_test

import (
	"os"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/parallel"
)

func TestMain(m *testing.M) {
	parallel.Set(6)
	os.Exit(m.Run())
}
