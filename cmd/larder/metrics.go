package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/larder-cdn/larder/bot"
)

// registry is what /metrics shows.
type registry struct {
	*prometheus.Registry
}

func newRegistry() *registry {
	r := &registry{prometheus.NewRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return r
}

// counting returns next behind counters of what the bot does.
func (r *registry) counting(next func(bot.Event)) func(bot.Event) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_bot_events_total",
		Help: "What the bot did: packages checked, releases published, refused or failed, contents squeezed.",
	}, []string{"kind"})
	files := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_files_total",
		Help: "Files of the releases that were published.",
	})
	bytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_bytes_total",
		Help: "Uncompressed size of the files that were published.",
	})
	waiting := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "larder_bot_squeeze_backlog",
		Help: "Contents that wait for their best compression, as of the last one that was squeezed.",
	})
	r.MustRegister(events, files, bytes, waiting)
	return func(e bot.Event) {
		events.WithLabelValues(string(e.Kind)).Inc()
		switch e.Kind {
		case bot.Published:
			files.Add(float64(e.Files))
			bytes.Add(float64(e.Bytes))
		case bot.Squeezed:
			waiting.Set(float64(e.Waiting))
		}
		next(e)
	}
}
