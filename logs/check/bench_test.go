package check_test

import (
	"os"
	"testing"

	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
)

// BenchmarkFromAPeer builds a store of 5,000 files from nothing but the key folder and
// another Larder on loopback, which serves every request from its disk.
func BenchmarkFromAPeer(b *testing.B) {
	const files, inRelease = 5_000, 12
	r := newRig(b, files/inRelease)
	peer := r.peer().(*replication.Server)
	for b.Loop() {
		if err := os.RemoveAll(r.data); err != nil {
			b.Fatal(err)
		}
		before, _ := peer.Spent()
		result, err := check.Repair(b.Context(), r.options(peer))
		if err != nil {
			b.Fatal(err)
		}
		requests, _ := peer.Spent()
		b.ReportMetric(result.Seconds, "s")
		b.ReportMetric(float64(requests-before), "requests")
		b.ReportMetric(float64(result.Files), "files")
		b.ReportMetric(float64(result.Contents), "contents")
	}
}
