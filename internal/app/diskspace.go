package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/dustin/go-humanize"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore"
)

// diskLook is how often the space on the disk is looked at.
const diskLook = 10 * time.Second

// A diskState is how much space there is for the store.
type diskState int

const (
	diskAmple diskState = iota
	diskLow             // less than a tenth of the disk, or four times what must be free
	diskFull            // nothing is written
)

// diskStateOf judges so many bytes that are free of so many, of which least must be free for a write.
func diskStateOf(free, total, least int64) diskState {
	switch {
	case free < least:
		return diskFull
	case free < 4*least, free < total/10:
		return diskLow
	}
	return diskAmple
}

// watchDisk reports to the log, metrics and /readyz how much space there is. A store that a full disk has made read-only is opened
// again once there is space: by this process, run again from its first line, because what is stuck in it has the store.
func (r *roleRun) watchDisk(store *kvstore.Store) {
	value := func(of func(free, total int64) int64) func() float64 {
		return func() float64 {
			f, t, _, _ := store.Space()
			return float64(of(f, t))
		}
	}
	r.metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_disk_free_bytes", Help: "Bytes that are free on the disk with the data folder.",
		}, value(func(free, _ int64) int64 { return free })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_disk_total_bytes", Help: "Bytes of the disk with the data folder.",
		}, value(func(_, total int64) int64 { return total })))
	r.supervisor.readiness.addCheck(func(report *readinessReport) { checkDisk(report, store) })
	r.parts.Add(parts.Part{Name: "space on the disk", Run: func(ctx context.Context) error {
		tick := time.NewTicker(diskLook)
		defer tick.Stop()
		for was := diskAmple; ; {
			free, total, least, err := store.Space()
			if is := diskStateOf(free, total, least); err == nil && is != was {
				r.logDisk(is, free, total)
				was = is
			}
			if err == nil && free >= least && errors.Is(store.Failed(), kvstore.ErrDiskFull) {
				r.logger.Warn("the disk has space again: the process starts again, because its store can only be read")
				if r.restartQuietly(restart{before: r.supervisor.execAgain}) {
					<-ctx.Done()
					return nil
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}})
}

// spaceToOpen is how many bytes must be free to open a store for writing: Pebble writes what its logs have, and ends the process if it
// cannot.
const spaceToOpen = 32 << 20

// checkSpaceToOpen returns an error if the disk is too full to open a store for writing.
func checkSpaceToOpen(data string) error {
	usage, err := vfs.Default.GetDiskUsage(storeDir(data))
	if err != nil || usage.AvailBytes >= spaceToOpen {
		return nil //nolint:nilerr // there is no store yet, or opening it returns a better error
	}
	return fmt.Errorf("couldn't open the store in %s for writing: %s are free, and %s are needed", data, humanize.IBytes(usage.AvailBytes), humanize.IBytes(spaceToOpen))
}

// checkDisk is the readiness check of the disk. Nodes that fill up together go on serving: no other node could do it for them.
func checkDisk(report *readinessReport, store *kvstore.Store) {
	if failed := store.Failed(); failed != nil {
		report.cannotPublish(fmt.Errorf("read-only: %w", failed))
		return
	}
	free, total, least, err := store.Space()
	if err != nil {
		report.note(fmt.Sprintf("couldn't read the free space of the disk: %v", err))
		return
	}
	left := fmt.Sprintf("disk low: %s of %s are free", humanize.IBytes(uint64(free)), humanize.IBytes(uint64(total)))
	switch diskStateOf(free, total, least) {
	case diskFull:
		report.cannotPublish(fmt.Errorf("%s, and %s are needed to write", left, humanize.IBytes(uint64(least))))
	case diskLow:
		report.note(left)
	}
}

func (r *roleRun) logDisk(is diskState, free, total int64) {
	switch is {
	case diskAmple:
		r.logger.Info("the disk has space again", "data", r.settings.Data, "free", free)
	case diskLow:
		r.logger.Warn("the disk gets full; at the least that must be free nothing is written any more", "data", r.settings.Data, "free", free, "of", total)
	case diskFull:
		r.logger.Error("the disk is full: nothing is written until there is space", "data", r.settings.Data, "free", free, "of", total)
	}
}
