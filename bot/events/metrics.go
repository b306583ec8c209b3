package events

import "github.com/prometheus/client_golang/prometheus"

// Count registers Prometheus counters with r: of the bot's events by kind, and of published files and their bytes. It returns a
// function that counts an event and then passes it to next, which is not nil. It panics if r has these counters already.
func Count(r prometheus.Registerer, next func(Event)) func(Event) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_bot_events_total",
		Help: "Packages checked; releases published, refused, failed, compared with upstream (audited), found to differ (differs) or changed by it (changed); contents recompressed.",
	}, []string{"kind"})
	files := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_files_total",
		Help: "Published files.",
	})
	bytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_bytes_total",
		Help: "Uncompressed bytes of published files.",
	})
	r.MustRegister(events, files, bytes)
	return func(e Event) {
		events.WithLabelValues(string(e.Kind)).Inc()
		if e.Kind == Published {
			files.Add(float64(e.Files))
			bytes.Add(float64(e.Bytes))
		}
		next(e)
	}
}
