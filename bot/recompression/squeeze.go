package recompression

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// Compressed are the codings in which a content is stored where it shrinks.
var Compressed = []coding.Coding{coding.Brotli, coding.Gzip}

// encodeTimeout is far more than the largest content needs: a minute and a half where the processor is idle, and many
// times that at the lowest priority if it is not.
const encodeTimeout = 2 * time.Hour

// reportInterval is how often Squeeze reports the length of the queue.
const reportInterval = time.Minute

// RecompressAll recompresses all contents of the queue, and tries those again that were given up; then it makes the queued
// deltas. It returns when the queue is empty, also of what a concurrent Run works on, or when ctx ends or an error occurs. At the
// start, and after a content but at most once a minute, it passes the length of the queue to the report of ctx, see
// [sources.WithReport]. The summary counts the contents that it recompressed itself, also before an error, and those that still
// wait; it lacks the latter if ctx ends while RecompressAll waits for Run.
func (r *Recompressor) RecompressAll(ctx context.Context) (Summary, error) {
	if err := r.requeueGivenUp(); err != nil {
		return Summary{}, err
	}
	report := func() error {
		left, err := ReadQueue(r.store)
		if err == nil && left.Contents > 0 {
			sources.ReportOnly(ctx, sources.Event{Kind: sources.Note, Reason: left.String()})
		}
		return err
	}
	reportedAt := r.options.Now()
	if err := report(); err != nil {
		return Summary{}, err
	}
	var mu sync.Mutex
	var sum Summary
	for {
		wake := r.queue.changes()
		err := r.runQueue(ctx, func(s savedBytes) {
			mu.Lock()
			sum.Contents++
			sum.Before += s.before
			sum.After += s.after
			due := r.options.Now().Sub(reportedAt) >= reportInterval
			if due {
				reportedAt = r.options.Now()
			}
			mu.Unlock()
			if due {
				_ = report() // the end reports it, too
			}
		})
		if err != nil || !r.queue.anyBusy() {
			left, leftErr := ReadQueue(r.store)
			if err == nil && leftErr == nil && left.Contents > 0 && isClosed(wake) {
				continue // what Run was working on has come back into the queue
			}
			if err == nil {
				err = r.makeDeltas(ctx)
			}
			sum.Left, sum.LeftBytes, sum.GivenUp = left.Contents, left.Bytes, left.GivenUp
			return sum, errors.Join(err, leftErr)
		}
		// Run continues.
		select {
		case <-wake:
		case <-ctx.Done():
			return sum, ctx.Err()
		}
	}
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run recompresses the contents in the queue until ctx ends or an error occurs. Whenever no content waits, it makes the queued
// deltas, then waits for new contents. It always returns an error, that of ctx at the end.
func (r *Recompressor) Run(ctx context.Context) error {
	for {
		wake := r.queue.changes()
		if err := errors.Join(r.runQueue(ctx, func(savedBytes) {}), ctx.Err()); err != nil {
			return err
		}
		if err := r.makeDeltas(ctx); err != nil {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// savedBytes has the bytes of a content's encodings before and after recompression.
type savedBytes struct{ before, after int64 }

// A queueRun is one goroutine's work on the queue.
type queueRun struct {
	*Recompressor
	done    func(savedBytes)
	group   *errgroup.Group
	working atomic.Int64 // batches whose rows are still in the queue
}

// runQueue recompresses the contents of the queue, those that clients just requested first, then those of the newest releases. It
// returns when no content is left but those that other goroutines work on. It calls done, from several goroutines, for each
// content that it recompressed.
func (r *Recompressor) runQueue(ctx context.Context, done func(savedBytes)) error {
	group, ctx := errgroup.WithContext(ctx)
	s := &queueRun{Recompressor: r, done: done, group: group}
	for {
		wake := r.queue.changes()
		s.startRequested(ctx)
		idle := s.working.Load() == 0 // before the queue is read: what comes back into it later is not in rows
		rows, err := r.acquireRows()
		if err == nil {
			s.startRows(ctx, rows)
			err = ctx.Err()
		}
		if err != nil {
			return cmp.Or(group.Wait(), err)
		}
		if len(rows) > 0 {
			continue
		}
		if idle {
			return group.Wait()
		}
		// A huge content may take minutes; what is published meanwhile does not wait for it.
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// A batchOfRows is rows that finishRows handles together, when the work on all of them has ended.
type batchOfRows struct {
	rows []*queueRow
	left atomic.Int64 // that are still being worked on
}

// startRows starts a goroutine for each row that recompresses its content. It blocks until there is a slot for each content,
// except for huge ones, whose goroutines wait themselves. In between it also starts contents that clients have just requested,
// and waits for their slots. When all rows have been worked on, those that are done leave the queue together, and those that
// failed stay, are queued again or given up: see finishRows. A huge one does so alone.
func (s *queueRun) startRows(ctx context.Context, rows []queueRow) {
	ordinary := new(batchOfRows)
	batches := make([]*batchOfRows, len(rows))
	sizes := make([]int64, len(rows))
	for i := range rows {
		content, err := s.store.Content(rows[i].hash)
		if err == nil { // else recompress logs it
			sizes[i] = content.Size
		}
		batches[i] = ordinary
		if sizes[i] > worker.HugeSize {
			batches[i] = new(batchOfRows)
		}
		if batches[i].left.Add(1) == 1 {
			s.working.Add(1)
		}
		batches[i].rows = append(batches[i].rows, &rows[i])
	}
	for i := range rows {
		row := &rows[i]
		work := func() error {
			s.queue.startRow(row)
			crash, err := s.recompress(ctx, row.owner(), row.hash, s.done)
			if err != nil {
				return err
			}
			row.done = true
			if crash != nil {
				s.recordCrash(ctx, row, sizes[i], crash)
			}
			return nil
		}
		s.start(ctx, row.owner(), sizes[i], work, func() error {
			if batches[i].left.Add(-1) > 0 {
				return nil
			}
			err := s.finishRows(batches[i].rows)
			s.working.Add(-1)
			s.queue.wakeAll()
			return err
		})
		if sizes[i] <= worker.HugeSize {
			s.startRequested(ctx)
		}
	}
}

// start calls work and then after in a goroutine, once there is a slot and memory for an encoder of size bytes of content. It
// blocks until then, unless the content is huge. If ctx ends before, only after is called. Errors of both go to the group.
func (s *queueRun) start(ctx context.Context, owner string, size int64, work, after func() error) {
	run := func(leave func(), err error) error {
		if err == nil {
			err = work()
			leave()
		}
		return errors.Join(err, after())
	}
	if size > worker.HugeSize {
		s.group.Go(func() error { return run(s.options.Budget.AcquireEncoder(ctx, owner, size)) })
		return
	}
	leave, err := s.options.Budget.AcquireEncoder(ctx, owner, size)
	s.group.Go(func() error { return run(leave, err) })
}

// startRequested starts goroutines that recompress the contents that clients just requested (see Prioritize), the latest first.
// It waits for a slot for each, except for huge ones, whose goroutines wait themselves. It skips contents that the store does not
// have, that were given up, or that another goroutine works on. It does not look whether they are in the queue; recompress does
// nothing for those that are recompressed already. It returns when no such content is left, or ctx ends.
func (s *queueRun) startRequested(ctx context.Context) {
	for ctx.Err() == nil {
		h, ok := s.acquireRequested()
		if !ok {
			return
		}
		content, err := s.store.Content(h)
		_, notGivenUp := s.store.Get(kvstore.Queue, givenUpKey(h))
		if err != nil || notGivenUp == nil {
			s.queue.release(h)
			continue
		}
		s.working.Add(1)
		s.start(ctx, h.String(), content.Size, func() error {
			crash, err := s.recompress(ctx, h.String(), h, s.done)
			if crash != nil {
				s.logger.Warn("not squeezed; tried again in its turn", "content", h, "err", crash)
			}
			return err
		}, func() error {
			s.working.Add(-1)
			s.queue.release(h)
			return nil
		})
	}
}

// squeezeTries is how many times a content's encoder may be killed or crash before the content
// is given up.
const squeezeTries = 3

// recordCrash counts a crash of the encoder in a row, logs it and decides what finishRows does with the row: the content (of size
// bytes) is queued again behind all others, or after squeezeTries crashes given up, which is also emitted as an event.
func (r *Recompressor) recordCrash(ctx context.Context, row *queueRow, size int64, crash *worker.CrashError) {
	row.turn.size = size
	row.turn.crashes++
	row.again = row.turn.crashes < squeezeTries
	if row.again {
		r.logger.Warn("an encoder ended; its content is tried again", "content", row.hash, "bytes", size, "times", row.turn.crashes, "err", crash)
		return
	}
	row.givenUp = true
	r.logger.Error("not squeezed: its encoders ended", "content", row.hash, "bytes", size, "times", row.turn.crashes, "err", crash)
	r.options.Events.Emit(ctx, sources.Event{Kind: sources.Note, Reason: fmt.Sprintf("the content %s (%d bytes) stays as it is, because its encoder ended %d times: %v; `larder squeeze` tries it again",
		row.hash, size, row.turn.crashes, crash)})
}

// recompress replaces the encodings of the content h by smaller ones and calls done with the bytes of them before and after. A
// content that is erased, recompressed already, damaged, or rejected by an encoder keeps its encodings, without an error. If an
// encoder's process ended, crash is not nil, only the other encoding is replaced, done is not called, and h is not marked as
// recompressed. owner is the name under which the child process is accounted. An error is one after which the recompressor cannot
// continue, or that of ctx.
func (r *Recompressor) recompress(ctx context.Context, owner string, h kvstore.Hash, done func(savedBytes)) (crash *worker.CrashError, err error) {
	content, err := r.store.Content(h)
	if errors.Is(err, kvstore.ErrNotFound) || err == nil && content.Squeezed {
		return nil, nil
	}
	if errors.Is(err, kvstore.ErrCorrupt) {
		r.logger.Error("not squeezed", "content", h, "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := r.store.Identity(h)
	if err != nil {
		// Others must not wait for a content that is damaged; `larder fsck
		// --deep` and clients that request it report the damage.
		r.logger.Error("not squeezed", "content", h, "err", err)
		return nil, nil
	}
	measured := r.queue.speed.startEncoding(time.Now())
	defer func() { measured(time.Now(), content.Size) }()
	coded, crash, err := Encode(ctx, r.squeezers, owner, data, r.logger.With("content", h))
	if err != nil {
		return nil, err
	}
	var after kvstore.Content
	if err = r.store.ImproveContent(h, content.Size, crash == nil, coded); err == nil {
		after, err = r.store.Content(h)
	}
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil // it was erased meanwhile
	}
	if err != nil || crash != nil {
		return crash, err
	}
	s := savedBytes{before: encodedBytes(content), after: encodedBytes(after)}
	done(s)
	r.reportRecompressed(ctx, h, s)
	return nil, nil
}

// reportRecompressed calls Options.Squeezed with the content, if set, and emits an event with the bytes saved and the length of
// the queue.
func (r *Recompressor) reportRecompressed(ctx context.Context, h kvstore.Hash, s savedBytes) {
	if r.options.Squeezed != nil {
		r.options.Squeezed(h)
	}
	r.options.Events.Emit(ctx, sources.Event{Kind: sources.Recompressed, Bytes: s.before - s.after, Waiting: r.Backlog()})
}

// Encode compresses data as Brotli and gzip in child processes at the best quality, and returns those encodings that save enough
// bytes to be stored. It leaves out an encoding that fails and logs why. It also leaves out one whose child process ended, and
// returns that as crash. err is nil unless ctx ended or the encoders cannot continue. owner is the name under which the child
// processes are accounted.
func Encode(ctx context.Context, encoders *worker.Pool, owner string, data []byte, logger *slog.Logger) (coded []kvstore.Coded, crash *worker.CrashError, err error) {
	for _, c := range Compressed {
		small, err := encoders.Do(ctx, owner, squeezeTasks[c], data)
		if ctx.Err() != nil || sources.Stops(err) {
			return nil, nil, errors.Join(ctx.Err(), err)
		}
		if errors.As(err, &crash) {
			continue
		}
		if err != nil {
			logger.Warn("not squeezed", "coding", c, "err", err)
			continue
		}
		if coding.Worthwhile(len(data), len(small)) {
			coded = append(coded, kvstore.Coded{Coding: c, Bytes: small})
		}
	}
	return coded, crash, nil
}

var squeezeTasks = map[coding.Coding]worker.Task{
	coding.Brotli: worker.SqueezeBr,
	coding.Gzip:   worker.SqueezeGzip,
}

// encodedBytes returns the sum of the bytes of all stored encodings of a content, identity included.
func encodedBytes(c kvstore.Content) (n int64) {
	for _, r := range c.Representations {
		n += r.Length
	}
	return n
}
