package purge

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
)

// Part tells the cache in front of withdrawals.
func (p *Purger) Part() parts.Part {
	return parts.Part{Name: "purge hook", Run: parts.RunUntilDone(p.Run)}
}

// Collector counts the withdrawals that were not sent to the purge hook yet.
func (p *Purger) Collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_purges_pending",
		Help: "Withdrawals not yet sent to the purge hook.",
	}, func() float64 {
		pending, err := Pending(p.Store)
		if err != nil {
			return math.NaN()
		}
		return float64(len(pending))
	})
}
