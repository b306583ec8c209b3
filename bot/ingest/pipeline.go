package ingest

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/packages"
)

// isModule reports whether a .js file of a release is an ES module. It is false for other files, .mjs included, and for a script
// that is larger than 2 MiB, does not parse, or takes its parser down. release is the id of the release (see ReleaseID), source
// the file's path, and data its content. A child process that works for this release alone parses data if necessary; isModule
// waits for one. The caller has reserved the memory. After an error the release is tried again later.
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

// A pipeline has the limit of files and the child processes with which releases are made. Fresh releases have one of their own.
type pipeline struct {
	cpu       *semaphore.Weighted // files being processed
	minifiers *worker.Pool
}

// newPipeline returns a pipeline: it stores at most o.Workers files at once, and has a pool of child processes, which start when
// needed. At most minifiers jobs run at once in these, and at most children processes exist, with and without a job. With one for
// each release under way, none has to end between two files of its release. A child may have the memory that o.MemoryBytes leaves
// beside compressing a file, and at least worker.Small.
func newPipeline(o Options, minifiers, children int) *pipeline {
	return &pipeline{
		cpu: semaphore.NewWeighted(int64(o.Workers)),
		minifiers: worker.NewPool(worker.Options{
			Program: o.Program, Size: minifiers, Children: children, Timeout: worker.Timeout,
			Memory: max(worker.Small, o.MemoryBytes-coding.Memory(coding.Brotli, coding.Quick, packages.MaxMinify)),
		}),
	}
}

// freshWorkers returns how many jobs of fresh releases, those that appeared since their package was first polled, may run in
// child processes at once, besides those of other releases. It is a quarter of workers, the number for other releases, and at
// least 1.
func freshWorkers(workers int) int { return max(1, workers/4) }

// FreshDownloads are the downloads, beside those of the options, that only fresh releases get.
const FreshDownloads = 2
