package cluster

import "github.com/prometheus/client_golang/prometheus"

// RegisterMetrics registers metrics about the state of a node, which member returns when they are scraped.
func RegisterMetrics(r prometheus.Registerer, member func() Member) {
	gauge := func(name, help string, value func(Member) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "cluster", Name: name, Help: help}, func() float64 { return value(member()) }))
	}
	flag := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	gauge("leader", "1 on the leader.", func(n Member) float64 { return flag(n.Role == Leader) })
	gauge("role_timestamp_seconds", "When the node took its role, by its own clock.", func(n Member) float64 { return float64(n.Since.Unix()) })
	gauge("entries", "Log entries here.", func(n Member) float64 { return float64(n.Entries) })
	gauge("behind_entries", "Signed log entries in the bucket that are missing here.", func(n Member) float64 { return float64(n.Lacks) })
	gauge("behind_seconds", "Time since the node was last caught up; -1: never.", func(n Member) float64 { return n.Behind })
	gauge("forked", "1 while the bucket has a signed checkpoint of another log.", func(n Member) float64 { return flag(n.Evidence != "") })
	gauge("problem", "1 while the bucket cannot be followed or written.", func(n Member) float64 { return flag(n.Problem != "") })
}
