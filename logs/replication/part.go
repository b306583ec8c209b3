package replication

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
)

// Part returns the part of a role, named "following", that runs [Follower.Run] until the role ends.
func (f *Follower) Part() parts.Part {
	return parts.Part{Name: "following", Run: parts.RunUntilDone(f.Run)}
}

// RegisterMetrics registers metrics about how far the mirror f is behind its source; it panics if they are registered already. started is when the
// mirror's role started: until it has caught up once, the time behind counts from then.
func RegisterMetrics(r prometheus.Registerer, f *Follower, started time.Time) {
	gauge := func(name, help string, value func(State) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "follow", Name: name, Help: help}, func() float64 { return value(f.State()) }))
	}
	gauge("entries", "Log entries here.", func(s State) float64 { return float64(s.Entries) })
	gauge("behind_entries", "Known signed log entries of the source that are missing here.", func(s State) float64 { return float64(s.Of - s.Entries) })
	gauge("behind_seconds", "Time since the mirror was last caught up.", func(s State) float64 {
		if s.Current.IsZero() {
			s.Current = started
		}
		return f.Now().Sub(s.Current).Seconds()
	})
	gauge("cosigned_age_seconds", "Time since the source's checkpoint was vouched to be the newest of its log, NaN where nothing says so.", func(s State) float64 {
		if s.Cosigned.IsZero() {
			return math.NaN()
		}
		return f.Now().Sub(s.Cosigned).Seconds()
	})
	gauge("stale", "1 while the source's checkpoint may not be the newest of its log, because no cosignature is younger than 24 hours.", func(s State) float64 {
		return flag(s.Stale != "")
	})
	gauge("refused", "1 while the source is refused because it contradicts itself.", func(s State) float64 { return flag(s.Refused) })
	gauge("fetched_files", "Contents fetched since the start.", func(s State) float64 { return float64(s.Files) })
	gauge("fetched_bytes", "Uncompressed bytes fetched since the start.", func(s State) float64 { return float64(s.Bytes) })
}

// flag returns the value of a gauge that is 1 while something is so, and else 0.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
