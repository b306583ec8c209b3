package kvstore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A power failure neither loses the record of the last check nor brings a removed one back.
func TestVerifiedAfterPowerFailure(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s, err := Open("store", Options{FS: mem, MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	has := func(want string) {
		t.Helper()
		after, err := Open("store", Options{FS: mem.CrashClone(vfs.CrashCloneCfg{}), MinFreeBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer after.Close()
		if record, err := after.ReadVerified(); err != nil || string(record) != want {
			t.Errorf("after a power failure the record is %q, %v, want %q", record, err, want)
		}
	}
	if err := s.WriteVerified([]byte("record")); err != nil {
		t.Fatal(err)
	}
	has("record")
	if err := s.RemoveVerified(); err != nil {
		t.Fatal(err)
	}
	has("")
}
