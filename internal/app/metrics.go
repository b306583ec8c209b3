package app

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server/purge"
)

// countEvents returns next behind counters of what the bot does.
func countEvents(r prometheus.Registerer, next func(bot.Event)) func(bot.Event) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_bot_events_total",
		Help: "What the bot did: packages checked, releases published, refused or failed, contents squeezed, releases compared with upstream (audited), found to be other than it (differs) or changed by it (changed).",
	}, []string{"kind"})
	files := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_files_total",
		Help: "Files of the releases that were published.",
	})
	bytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_bot_published_bytes_total",
		Help: "Uncompressed size of the files that were published.",
	})
	r.MustRegister(events, files, bytes)
	return func(e bot.Event) {
		events.WithLabelValues(string(e.Kind)).Inc()
		if e.Kind == bot.Published {
			files.Add(float64(e.Files))
			bytes.Add(float64(e.Bytes))
		}
		next(e)
	}
}

// watchStore shows the store's metrics until unwatch is called, which has to be before the store is closed.
func watchStore(r prometheus.Registerer, store *kvstore.Store) (unwatch func()) {
	collector := store.Collector()
	r.MustRegister(collector)
	return func() { r.Unregister(collector) }
}

// showDegraded shows whether the process is in read-only mode.
func showDegraded(r prometheus.Registerer, is bool) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "larder_degraded",
		Help: "1 while nothing is written, because the store is damaged or lacks what was signed, and what it lacks is answered with 503.",
	})
	if is {
		gauge.Set(1)
	}
	r.MustRegister(gauge)
}

// showBacklog shows what the bot has yet to squeeze.
func showBacklog(r prometheus.Registerer, filler *bot.Bot) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_bot_squeeze_backlog",
		Help: "Contents that wait for their best compression.",
	}, func() float64 { return float64(filler.Backlog()) }))
}

// showPurges shows how many withdrawals the cache in front has yet to be told of.
func showPurges(r prometheus.Registerer, store *kvstore.Store) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_purges_pending",
		Help: "Withdrawals of which the purge hook has yet to be told, or could not be.",
	}, func() float64 {
		pending, err := purge.Pending(store)
		if err != nil {
			return math.NaN()
		}
		return float64(len(pending))
	}))
}

// showCatalogue shows whether the catalogue can be read.
func showCatalogue(r prometheus.Registerer, keeper *catalogue.Keeper) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_failing",
			Help: "1 while the catalogue cannot be read, so that the last good one stays.",
		}, func() float64 {
			if keeper.State().Problem != "" {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_refused_files",
			Help: "Files of the catalogue that cannot be used; what their packages were before stays.",
		}, func() float64 { return float64(len(keeper.State().Refused)) }))
}
