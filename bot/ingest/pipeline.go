package ingest

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/packages"
)

// isModule reports whether a file of a release is an ES module. source is the file's path and data its content; release identifies the
// release, which has a child process of its own for parsing. A script that is too large, or does not parse, counts as a classic script. An
// error means that the release is to be tried again later.
func (b *pipeline) isModule(ctx context.Context, release, source string, data []byte) (bool, error) {
	if !needsFormat(source, data) {
		return false, nil
	}
	format, err := b.minifiers.Do(ctx, release, worker.FindFormat, data)
	if ctx.Err() != nil || worker.IsTransient(err) {
		return false, errors.Join(ctx.Err(), err)
	}
	return err == nil && string(format) == "esm", nil
}

// A pipeline is where releases are made.
type pipeline struct {
	cpu       *semaphore.Weighted // files being processed
	minifiers *worker.Pool
}

// newPipeline returns a pipeline: a limit of o.Workers files that are processed at once, and a pool of child processes. At most minifiers
// jobs run at once, in at most children processes. With a child for each release under way, none ends between two files of its release.
func newPipeline(o Options, minifiers, children int) *pipeline {
	return &pipeline{
		cpu: semaphore.NewWeighted(int64(o.Workers)),
		minifiers: worker.NewPool(worker.Options{
			Program: o.Program, Size: minifiers, Children: children, Timeout: worker.Timeout,
			Memory: max(worker.Small, o.MemoryBytes-coding.Memory(coding.Brotli, coding.Quick, packages.MaxMinify)),
		}),
	}
}

// freshWorkers returns how many child processes only fresh releases have, those that appeared since their package was first polled: a
// quarter of the workers, and at least one.
func freshWorkers(workers int) int { return max(1, workers/4) }

// FreshDownloads are the downloads, beside those of the options, that only fresh releases get.
const FreshDownloads = 2
