package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// July of cdnjs.
const julyRequests, julyDays = 190e9, 31

// measureHeadline measures what share of that this machine serves, the load
// generator included: nothing is pinned, Larder has its default settings, and the
// two share the cores as the system likes.
func (b *bench) measureHeadline(ctx context.Context) error {
	m, err := newMix(b.files, b.options.files)
	if err != nil {
		return err
	}
	data := filepath.Join(b.tmp, "larder", "data")
	if err := clone(b.corpus.data(), data); err != nil {
		return err
	}
	o := larderOptions{program: b.larder, data: data, core: anyCore}
	s := scenario{name: "headline", requests: m.requests, order: m.order, mixed: true}
	over := "HTTP/1.1"
	if b.http2 {
		o.tls = b.tls
		s.protocol = protocol{name: "HTTP/2", secure: true, connections: connections, streams: streams}
		over = fmt.Sprintf("HTTP/2 and TLS, %d connections of %d streams", connections, streams)
	}
	larder, err := startLarder(ctx, o)
	if err != nil {
		return err
	}
	defer larder.stop()
	k, err := b.compare(ctx, []*server{larder}, s)
	if err != nil {
		return err
	}
	var requests, bytes []float64
	for round := range b.rounds + 1 {
		t, _, err := runLeanJob(ctx, anyCore, leanJob{
			Address: larder.address, Requests: k[0].requests, Lengths: k[0].lengths, Order: m.order, Connections: connections, Duration: b.duration,
			Streams: s.protocol.streams, First: newBlocks(larder.address).first,
		})
		if err != nil {
			return err
		}
		if round == 0 {
			continue // the cache fills
		}
		requests = append(requests, float64(t.Requests)/t.Took.Seconds())
		bytes = append(bytes, float64(t.Bytes)/t.Took.Seconds())
		progress("round %d of %d: %.0f requests/s", round, b.rounds, requests[len(requests)-1])
	}
	wanted := julyRequests / (julyDays * 86400)
	rate := median(requests)
	fmt.Fprintf(os.Stdout, `%s, %s; over %s
Zipf over %d files of %.0f MB, mean body %.1f KB, with 304s, 404s and HEADs
%.0f requests/s, %.3f GB/s
cdnjs in July: %.0f requests/s of %.1f KB
This machine, load generator included, serves %.1f %% of that.
`, b.report.Processor, b.report.System, over, m.Files, megabytes(m.Bytes), m.Mean/1e3, rate, median(bytes)/1e9, wanted, meanBody/1e3, 100*rate/wanted)
	return nil
}
