package stage

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTablesAreCountedApart tests that the open tables and blob files of a store do not count as other open files, also after the store has removed them.
func TestTablesAreCountedApart(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("the system does not list open files")
	}
	before := UsageOf(os.Getpid())
	for _, name := range []string{"000001.sst", "000002.blob", "000003.log"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if name == "000002.blob" {
			os.Remove(f.Name())
		}
	}
	after := UsageOf(os.Getpid())
	if after.Tables != before.Tables+2 || after.Files <= before.Files {
		t.Errorf("two tables and a log more: %+v before, %+v after", before, after)
	}
}
