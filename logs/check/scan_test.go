package check_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/check"
)

// The files that only say which others count lose nothing, without any source.
func TestRepairWithoutIndexFiles(t *testing.T) {
	for _, kind := range []string{"marker.manifest", "marker.format", "MANIFEST-", "OPTIONS-"} {
		for _, damage := range damages {
			t.Run(kind+" "+damage.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 3)
				for _, path := range r.files(kind) {
					data, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					var damaged []byte
					if len(data) > 0 {
						damaged = damage.do(data, len(data)/2)
					} else if damage.name != "missing" {
						return
					}
					if damaged != nil {
						r.replace(path, damaged)
					} else if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
				if result := r.repair(); len(result.Lost) > 0 || result.Err() != nil {
					t.Errorf("%+v", result)
				}
				r.healed()
			})
		}
	}
}

// The key folder's files that follow from others are made again.
func TestRepairOfTheKeyFolder(t *testing.T) {
	for _, tt := range []struct {
		file   string
		damage func([]byte) []byte
	}{
		{"checkpoint", func([]byte) []byte { return nil }},
		{"checkpoint", func(data []byte) []byte { return data[:len(data)/2] }},
		{"log.pub", func([]byte) []byte { return nil }},
		{"log.pub", func(data []byte) []byte { return data[:len(data)/2] }},
	} {
		for _, rebuilt := range []bool{false, true} {
			r := newRig(t, 2)
			path := filepath.Join(r.keys, tt.file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if damaged := tt.damage(data); damaged != nil {
				r.replace(path, damaged)
			} else if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if rebuilt {
				if err := os.Remove(r.files("marker.manifest")[0]); err != nil {
					t.Fatal(err)
				}
			}
			result := r.repair()
			if result.Err() != nil || result.Repaired == 0 {
				t.Errorf("%s, rebuilt %v: %+v", tt.file, rebuilt, result)
			}
			if again, err := os.ReadFile(path); err != nil || string(again) != string(data) {
				t.Errorf("%s, rebuilt %v: %v\n%s\nwant\n%s", tt.file, rebuilt, err, again, data)
			}
			r.healed()
		}
	}
}

// A key that cannot sign is reported.
func TestRepairReportsADamagedKey(t *testing.T) {
	r := newRig(t, 2)
	path := filepath.Join(r.keys, "log.key")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r.replace(path, data[:len(data)/2])
	result, err := check.Repair(t.Context(), r.options())
	if err != nil || result.Err() == nil || len(r.findings) != 1 || !strings.Contains(r.findings[0].Problem, "log.key") {
		t.Errorf("%v, %+v, %+v", err, result, r.findings)
	}
	r.replace(path, data)
	r.healed()
}

// A flipped bit in a write-ahead log loses the record that it hits, and what is lost is listed.
func TestRepairOfADamagedLog(t *testing.T) {
	for at := 1; at < 10; at++ {
		r := newRig(t, 6)
		r.flip(r.files(".log")[0], float64(at)/10)
		result, err := check.Repair(t.Context(), r.options())
		if err != nil {
			loss := (*check.LossError)(nil)
			if !errors.As(err, &loss) || len(loss.Entries) != 1 || loss.Entries[0].To != loss.Entries[0].From+1 {
				t.Errorf("at %d tenths: %v", at, err)
			}
			continue
		}
		if len(result.Lost) > 1 {
			t.Errorf("at %d tenths: lost %+v", at, result.Lost)
		}
	}
}
