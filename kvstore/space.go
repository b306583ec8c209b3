package kvstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
)

// spaceEvery is the interval between two checks of the space on the disk.
const spaceEvery = 10 * time.Second

// A diskState is how much space there is for the store.
type diskState int

const (
	diskAmple diskState = iota
	diskLow             // less than a tenth of the disk, or four times what must be free
	diskFull            // nothing is written
)

// diskStateOf returns the state of a disk with free of total bytes, of which least must be free for a write: full below least, low below four times
// that or a tenth of total, else ample.
func diskStateOf(free, total, least int64) diskState {
	switch {
	case free < least:
		return diskFull
	case free < 4*least, free < total/10:
		return diskLow
	}
	return diskAmple
}

// CheckSpace returns an error while nothing can be written to the store, because its disk has failed, or has less than
// Options.MinFreeBytes free now. Otherwise it returns a note for the
// operator if the space is low or cannot be read, and "" if not. It does not consider whether the store was opened read-only.
func (s *Store) CheckSpace() (note string, err error) {
	if failed := s.Failed(); failed != nil {
		return "", fmt.Errorf("read-only: %w", failed)
	}
	free, total, least, err := s.Space()
	if err != nil {
		return fmt.Sprintf("couldn't read the free space of the disk: %v", err), nil
	}
	left := fmt.Sprintf("disk low: %s of %s are free", humanize.IBytes(uint64(free)), humanize.IBytes(uint64(total)))
	switch diskStateOf(free, total, least) {
	case diskFull:
		return "", fmt.Errorf("%s, and %s are needed to write", left, humanize.IBytes(uint64(least)))
	case diskLow:
		return left, nil
	}
	return "", nil
}

// spaceToOpen is how many bytes must be free to open a store for writing: Pebble writes what its logs have, and ends the process if it
// cannot.
const spaceToOpen = 32 << 20

// CheckSpaceToOpen returns an error if fewer than 32 MiB are free on the disk of dir: Pebble writes what its logs have when the store is opened for
// writing, and ends the process if it cannot. It returns nil if the free space cannot be read.
func CheckSpaceToOpen(dir string) error {
	usage, err := vfs.Default.GetDiskUsage(dir)
	if err != nil || usage.AvailBytes >= spaceToOpen {
		return nil //nolint:nilerr // there is no store yet, or opening it returns a better error
	}
	return fmt.Errorf("couldn't open the store in %s for writing: %s are free, and %s are needed", dir, humanize.IBytes(usage.AvailBytes), humanize.IBytes(spaceToOpen))
}

// SpacePart returns a background task of the process that checks the store's disk every ten seconds and logs when its space becomes low, full or
// ample; it takes it as ample before. After a full disk has made the store read-only and the disk has space again, each check calls reopen, until
// that returns true; then the task waits for the end of its context. The process has to restart and open the store again, because goroutines that
// wait for the disk still have the store.
func (s *Store) SpacePart(logger *slog.Logger, reopen func() bool) parts.Part {
	return parts.Part{Name: "space on the disk", Run: func(ctx context.Context) error {
		for was := diskAmple; ; {
			free, total, least, err := s.Space()
			if is := diskStateOf(free, total, least); err == nil && is != was {
				s.logSpace(logger, is, free, total)
				was = is
			}
			if err == nil && free >= least && errors.Is(s.Failed(), ErrDiskFull) {
				logger.Warn("the disk has space again: the process starts again, because its store can only be read")
				if reopen() {
					<-ctx.Done()
					return nil
				}
			}
			if retry.Sleep(ctx, spaceEvery) != nil {
				return nil
			}
		}
	}}
}

// logSpace logs the new state of the store's disk, with free of total bytes.
func (s *Store) logSpace(logger *slog.Logger, is diskState, free, total int64) {
	switch is {
	case diskAmple:
		logger.Info("the disk has space again", "store", s.dir, "free", free)
	case diskLow:
		logger.Warn("the disk is almost full; below the least that must be free nothing is written any more", "store", s.dir, "free", free, "of", total)
	case diskFull:
		logger.Error("the disk is full: nothing is written until there is space", "store", s.dir, "free", free, "of", total)
	}
}
