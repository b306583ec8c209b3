package ingest

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/packages"
)

// isModule reports whether the file source of a release is an ES module, by its content data, so that its tag can say so. A script that is
// too large, or does not parse, counts as a classic script. An error means that the release is to be tried again later. release is the id
// for the child process.
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

// newPipeline returns a pipeline with at most that many minifying jobs and child processes at once. There is a child for each release under way, so that
// none ends between two files of its release.
func newPipeline(o Options, minifiers, children int) *pipeline {
	return &pipeline{
		cpu: semaphore.NewWeighted(int64(o.Workers)),
		minifiers: worker.NewPool(worker.Options{
			Program: o.Program, Size: minifiers, Children: children, Timeout: worker.Timeout,
			Memory: max(worker.Small, o.MemoryBytes-coding.Memory(coding.Brotli, coding.Quick, packages.MaxMinify)),
		}),
	}
}

// freshWorkers returns how many of the workers fresh releases have for themselves, which is a quarter and at least one.
func freshWorkers(workers int) int { return max(1, workers/4) }

// FreshDownloads are the downloads, beside those of the options, that only fresh releases get.
const FreshDownloads = 2
