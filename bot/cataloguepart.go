package bot

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/packages"
)

// Part returns the part of the process that runs the watcher. It calls apply with each changed catalogue.
func (w *CatalogueWatcher) Part(apply func(context.Context, *packages.Catalogue) error) parts.Part {
	return parts.Part{Name: "catalogue", Run: parts.RunUntilDone(func(ctx context.Context) { w.Run(ctx, apply) })}
}

// Register registers the metrics of the catalogue.
func (w *CatalogueWatcher) Register(r prometheus.Registerer) {
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_failing",
			Help: "1 while the catalogue cannot be read and the last valid one stays.",
		}, func() float64 {
			if w.State().Problem != "" {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_catalogue_refused_files",
			Help: "Invalid files of the catalogue, whose packages stay as they were.",
		}, func() float64 { return float64(len(w.State().Refused)) }))
}
