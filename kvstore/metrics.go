package kvstore

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a collector of the store's metrics for Prometheus, which reads them from the store when it is scraped.
func (s *Store) Collector() prometheus.Collector { return collector{s} }

// collector collects the metrics of a store, see [Store.Collector].
type collector struct{ store *Store }

// A metric is read from what Pebble counts.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*pebble.Metrics) float64
}

// The kinds of metrics.
const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue

var metrics = []metric{
	newMetric(gauge, "disk_bytes", "Bytes of the store on the disk.",
		func(m *pebble.Metrics) float64 { return float64(m.DiskSpaceUsage()) }),
	newMetric(gauge, "blob_files", "Files of large values.",
		func(m *pebble.Metrics) float64 { return float64(m.BlobFiles.LiveCount) }),
	newMetric(gauge, "blob_bytes", "Bytes of large values, with garbage.",
		func(m *pebble.Metrics) float64 { return float64(m.BlobFiles.ValueSize) }),
	newMetric(gauge, "blob_live_bytes", "Bytes of large values in use.",
		func(m *pebble.Metrics) float64 { return float64(m.BlobFiles.ReferencedValueSize) }),
	newMetric(gauge, "cache_bytes", "Bytes in the block cache.",
		func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Size) }),
	newMetric(counter, "cache_hits_total", "Blocks found in the block cache.",
		func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Hits) }),
	newMetric(counter, "cache_misses_total", "Blocks read from the disk.",
		func(m *pebble.Metrics) float64 { return float64(m.BlockCache.Misses) }),
	newMetric(gauge, "memtable_bytes", "Bytes in memory that are not yet in tables.",
		func(m *pebble.Metrics) float64 { return float64(m.MemTable.Size) }),
	newMetric(gauge, "log_bytes", "Bytes of the write-ahead log on the disk.",
		func(m *pebble.Metrics) float64 { return float64(m.WAL.PhysicalSize) }),
	newMetric(gauge, "compaction_debt_bytes", "Bytes waiting for compaction.",
		func(m *pebble.Metrics) float64 { return float64(m.Compact.EstimatedDebt) }),
	newMetric(gauge, "read_amplification", "Tables that a look-up may read.",
		func(m *pebble.Metrics) float64 { return float64(m.ReadAmp()) }),
}

var (
	failedDesc   = prometheus.NewDesc("larder_store_failed", "1 after a disk failure, when the store is read-only until the next start.", nil, nil)
	repairedDesc = prometheus.NewDesc("larder_store_contents_repaired_total", "Contents repaired: damaged encodings deleted, or stored again.", nil, nil)
	freeDesc     = prometheus.NewDesc("larder_disk_free_bytes", "Free bytes on the data folder's disk.", nil, nil)
	totalDesc    = prometheus.NewDesc("larder_disk_total_bytes", "Size of the data folder's disk.", nil, nil)
	lostDesc     = prometheus.NewDesc("larder_store_contents_damaged", "Contents damaged in every encoding, which need a repair.", nil, nil)
)

// newMetric returns the metric larder_store_NAME of a kind, whose value is computed from Pebble's metrics.
func newMetric(kind prometheus.ValueType, name, help string, value func(*pebble.Metrics) float64) metric {
	return metric{prometheus.NewDesc("larder_store_"+name, help, nil, nil), kind, value}
}

// Describe implements prometheus.Collector: it runs Collect, which reads the store, and sends the descriptions of the metrics that this sends now.
// For a failed store these are fewer, and for a closed one none.
func (c collector) Describe(descs chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, descs) }

// Collect implements prometheus.Collector: it sends the present values. If the disk has failed, it leaves out those that Pebble counts. If the space
// on the disk cannot be read, it leaves out that. After the store was closed it sends nothing.
func (c collector) Collect(out chan<- prometheus.Metric) {
	if c.store.users.closed.Load() {
		return
	}
	failed := 1.0
	if m := readMetrics(c.store); m != nil {
		failed = 0
		for _, metric := range metrics {
			out <- prometheus.MustNewConstMetric(metric.desc, metric.kind, metric.value(m))
		}
	}
	out <- prometheus.MustNewConstMetric(failedDesc, prometheus.GaugeValue, failed)
	if free, total, _, err := c.store.Space(); err == nil {
		out <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(free))
		out <- prometheus.MustNewConstMetric(totalDesc, prometheus.GaugeValue, float64(total))
	}
	repaired, lost := c.store.repairer.counts()
	out <- prometheus.MustNewConstMetric(repairedDesc, prometheus.CounterValue, float64(repaired))
	out <- prometheus.MustNewConstMetric(lostDesc, prometheus.GaugeValue, float64(lost))
}

// readMetrics returns Pebble's metrics, or nil if the store is closed or is or becomes read-only after a disk error: then Pebble may wait for its
// MANIFEST for ever.
func readMetrics(s *Store) *pebble.Metrics {
	if !s.users.enter() {
		return nil
	}
	defer s.users.leave()
	got := make(chan *pebble.Metrics, 1)
	err := s.guard.do(func() error {
		got <- pebbleOf(s).Metrics()
		return nil
	})
	if err != nil {
		return nil
	}
	return <-got
}
